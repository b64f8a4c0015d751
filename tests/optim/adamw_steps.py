"""Parameters, gradients and steps of an optimiser beside torch's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

SHAPES = ((7,), (3, 5, 7), (17, 65), (1025,), (1,), (32, 64))
HALF = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALF)
MOMENTS = ("exp_avg", "exp_avg_sq")

# float32: ten steps with one rounding per operation. bf16 and fp16: intermediate results are float32, and each step
# rounds an element once, as torch's fused step does, except for ties.
ROUNDINGS = {torch.float32: 12.0, torch.bfloat16: 2.0, torch.float16: 2.0}


def parameters(dtype: torch.dtype = torch.float32, shapes: Any = SHAPES, device: str = "cpu") -> list[Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [Parameter(torch.randn(shape, generator=generator).to(device, dtype)) for shape in shapes]


def give_gradients(ones: list[Parameter], seed: int) -> None:
    """Set new gradients with the parameters' layout."""
    generator = torch.Generator().manual_seed(seed)
    for one in ones:
        one.grad = torch.empty_like(one).copy_(torch.randn(one.shape, generator=generator))


def step(optimizer: torch.optim.Optimizer, steps: int = 10, first: int = 0) -> None:
    ones = [one for group in optimizer.param_groups for one in group["params"]]
    for number in range(first, first + steps):
        give_gradients(ones, number)
        optimizer.step()


def apart(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest error in roundings of the dtype, relative to the element or to the mean, whichever is larger:
    a small element may be a difference of larger ones."""
    ours, wanted = ours.detach().double(), theirs.detach().double()
    unit = torch.finfo(theirs.dtype).eps * torch.maximum(wanted.abs(), wanted.abs().mean())
    return ((ours - wanted).abs() / unit.clamp_min(1e-300)).max().item()


def assert_same(ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer, roundings: float) -> None:
    for group, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        for one, wanted in zip(group["params"], other["params"], strict=True):
            assert apart(one, wanted) <= roundings
            assert ours.state[one].keys() == theirs.state[wanted].keys()
            for name in MOMENTS if ours.state[one] else ():
                assert apart(ours.state[one][name], theirs.state[wanted][name]) <= roundings
                assert ours.state[one][name].dtype == theirs.state[wanted][name].dtype
            if ours.state[one]:
                assert torch.equal(ours.state[one]["step"], theirs.state[wanted]["step"])
                assert ours.state[one]["step"].device == theirs.state[wanted]["step"].device


def assert_same_each(ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer) -> None:
    for one, wanted in zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(one, wanted)
        assert torch.equal(ours.state[one]["step"], theirs.state[wanted]["step"])


def with_gaps() -> list[Parameter]:
    return [Parameter(torch.linspace(-1, 1, 64).view(8, 8)[:, :5])]
