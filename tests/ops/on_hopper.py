"""What tests of kernels that only Hopper has share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tilesmith.ops.runtime.plan import Plan
from tilesmith.toolchain import launcher
from tilesmith.toolchain.interpreter import interpret


def only_on_hopper() -> None:
    """Skips the test on other GPUs."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no Hopper GPU")


def names_launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which the name of every kernel is added when it is launched."""
    names: list[str] = []
    monkeypatch.setattr(launcher, "listeners", [lambda launch: names.append(launch.kernel.__name__)])
    return names


def attention_leaves(sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """q, k, v and a gradient, as projections leave them: heads are no neighbours of themselves in memory.

    Sizes are batch, heads, key heads, queries, keys and the size of a head.
    """
    batch, heads, key_heads, queries, keys, head = sizes
    torch.manual_seed(0)
    shapes = [(queries, heads), (keys, key_heads), (keys, key_heads), (queries, heads)]
    *leaves, doutput = (
        torch.randn(batch, rows, of, head, device="cuda", dtype=dtype).transpose(1, 2) for rows, of in shapes
    )
    return [leaf.requires_grad_() for leaf in leaves], doutput


def interpreted(plan: Plan, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run the launches of a plan on host tensors; return its outputs. Memory of the plan starts as NaN or 0."""
    tensors = dict(enumerate(inputs))
    for buffer in plan._buffers:
        empty = torch.empty_strided(buffer.shape, buffer.strides, dtype=buffer.dtype)
        tensors[buffer.slot] = empty.fill_(float("nan")) if buffer.dtype.is_floating_point else empty.zero_()
    for launch in plan.launches:
        interpret(launch.kernel, launch.grid, launch.on(tensors), options=launch.options())
    return [tensors[output.slot] for output in plan.outputs]


def names(plan: Plan) -> list[str]:
    return [launch.kernel.__name__ for launch in plan.launches]
