# mypy: disable-error-code="no-untyped-call"
# PyTorch types its rarer functions and base classes not at all.
"""SwiGLU beyond what every operator is tested for: both its forms, and what they have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differentiation import assert_same, forward_and_backward
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tilesmith as ts
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.swiglu.operator import backward, backward_with_output, reference, swiglu
from tilesmith.toolchain.compiler import Target, compile_kernel

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.ones(3, 8), torch.ones(3, 7)), r"up has shape \(3, 7\), but gate has \(3, 8\); they must agree"),
        ((torch.ones(3, 8), torch.ones(8)), r"up has shape \(8,\), but gate has \(3, 8\); they must agree"),
        ((torch.ones(3, 7),), "gate has 7 columns, but must have an even number: without up it holds both"),
        ((torch.tensor(1.0),), r"gate has 0 dimensions \(shape \(\)\), but must have at least 1"),
    ],
)
def test_swiglu_rejects(mode: Any, arguments: tuple[Tensor, ...], words: str) -> None:
    with ts.use(mode), pytest.raises(ValueError, match=f"^swiglu: {words}"):
        swiglu(*arguments)


def packed_views() -> dict[str, Tensor]:
    made = torch.randn
    return {
        "contiguous": made(5, 24),
        "one dimension": made(24),
        "three dimensions": made(2, 3, 24),
        "transposed": made(24, 5).t(),
        "every other column": made(5, 48)[:, ::2],
        "part of wider rows": made(5, 40)[:, 3:27],
        "expanded": made(1, 24).expand(5, 24),
        "four dimensions, shuffled": made(24, 2, 3, 4).permute(2, 1, 3, 0),
        "more dimensions than are walked": made(4, 4, 4, 4, 4, 24)[::2, ::2, ::2, ::2, ::2],
        "columns first in memory": made(3, 24, 5).transpose(1, 2),
        "one pair": made(5, 2),
        "empty": made(0, 24),
        "no columns": made(5, 0),
    }


@pytest.mark.parametrize("name", packed_views())
def test_swiglu_of_one_tensor_equals_swiglu_of_its_halves(name: str) -> None:
    packed = packed_views()[name]
    ours = packed.detach().requires_grad_()
    output = swiglu(ours)
    right = packed.detach().clone().requires_grad_()
    expected = F.silu(right.chunk(2, -1)[0]) * right.chunk(2, -1)[1]
    torch.testing.assert_close(output, expected)
    for cotangent in (
        torch.randn(expected.shape),
        torch.randn(expected.shape[::-1]).permute(*range(expected.ndim)[::-1]),
    ):
        (gradient,) = torch.autograd.grad(output, ours, cotangent, retain_graph=True)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, right, cotangent, retain_graph=True)[0])


def test_swiglu_takes_views_of_one_tensor() -> None:
    packed = torch.randn(5, 24)
    assert_same({"y": swiglu(*packed.chunk(2, -1))}, {"y": swiglu(packed)})


class Copies(TorchDispatchMode):
    """Counts what PyTorch moves by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.name().split("::")[-1])
        return func(*args, **(kwargs or {}))


def test_swiglu_of_one_tensor_copies_nothing() -> None:
    packed = torch.randn(5, 40)[:, 3:27].requires_grad_()
    dy = torch.randn(5, 12)
    with Copies() as copies:
        torch.autograd.grad(swiglu(packed), packed, dy)
    moved = {name for name in copies.seen if name not in ("swiglu_forward", "swiglu_backward", "detach")}
    assert not moved


@pytest.mark.parametrize("gate_dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("up_dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_swiglu_promotes_dtypes_as_pytorch_does(gate_dtype: torch.dtype, up_dtype: torch.dtype) -> None:
    gate, up = torch.randn(5, 24).to(gate_dtype), torch.randn(5, 24).to(up_dtype)
    found = forward_and_backward(swiglu, {"gate": gate, "up": up})
    assert found["output 0"].dtype == (F.silu(gate) * up).dtype
    assert found["gradient of gate"].dtype == gate_dtype
    assert found["gradient of up"].dtype == up_dtype
    exact = forward_and_backward(reference, {"gate": gate.double(), "up": up.double()})
    for name, value in exact.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_swiglu_rounds_low_precision_once(dtype: torch.dtype) -> None:
    gate, up, dy = (torch.randn(5, 64).to(dtype) for _ in range(3))
    low = [value.clone().requires_grad_() for value in (gate, up)]
    high = [value.float().requires_grad_() for value in (gate, up)]
    torch.testing.assert_close(swiglu(*low), swiglu(*high).to(dtype), rtol=0, atol=0)
    ours = torch.autograd.grad(swiglu(*low), low, dy)
    right = torch.autograd.grad(swiglu(*high), high, dy.float())
    torch.testing.assert_close(ours, tuple(value.to(dtype) for value in right), rtol=0, atol=0)


def test_swiglu_of_a_large_gate_does_not_overflow() -> None:
    gate = torch.tensor([-1e4, -100.0, 100.0, 1e4])
    torch.testing.assert_close(swiglu(gate, torch.ones(4)), torch.tensor([0.0, 0.0, 100.0, 1e4]), rtol=0, atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_swiglu_backward_can_return_the_output(dtype: torch.dtype) -> None:
    gate, up, dy = torch.randn(7, 66).to(dtype)[:, ::2], torch.randn(33, 7).to(dtype).t(), torch.randn(7, 33).to(dtype)
    dgate, dup, y = backward_with_output(dy, gate, up)
    torch.testing.assert_close((dgate, dup), backward(dy, gate, up), rtol=0, atol=0)
    torch.testing.assert_close(y, swiglu(gate, up), rtol=0, atol=0)


def test_swiglu_backward_with_output_does_not_spill() -> None:
    with recorded_plans() as plans:
        backward_with_output(*torch.empty(3, 4096, 8192, dtype=torch.bfloat16, device="meta"))
    (launch,) = plans[0].launches
    assert launch.arguments["OUTPUT"]
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0
