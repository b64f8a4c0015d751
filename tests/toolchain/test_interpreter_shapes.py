"""The interpreter's cached shapes equal those that Triton's front end computes."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels are Triton's language, not Python: their parameters have no Python types.

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tilesmith.toolchain.interpreter import KernelError, interpret
from tilesmith.toolchain.interpreter.shapes import Shapes


@triton.jit
def ones_kernel(y_ptr, LENGTH: tl.constexpr, OTHER: tl.constexpr):
    ones = tl.full([LENGTH], 1.0, tl.float32) + tl.zeros([OTHER], tl.float32)
    tl.store(y_ptr + tl.arange(0, 4), ones)


def attributes(value: Any) -> dict[str, str]:
    """Return the fields as text, without the one that the interpreter adds: Triton's values overload comparison."""
    return {name: repr(value) for name, value in vars(value).items() if name != "of_tensor"}


@pytest.mark.parametrize("element", [tl.float32, tl.pointer_type(tl.bfloat16)], ids=str)
@pytest.mark.parametrize("lengths", [[4], [2, 8], [tl.constexpr(2), 8], tl.tuple([1, 1, 16])], ids=str)
def test_types_and_tensors_are_as_triton_makes_them_the_first_time_and_later(element: Any, lengths: Any) -> None:
    shapes = Shapes()
    right = tl.block_type(element, lengths)
    for _ in range(2):
        made = object.__new__(tl.block_type)
        shapes.make_type(made, element, lengths)
        assert made == right
        assert attributes(made) == attributes(right)
        for kind in (made, element):
            tensor = object.__new__(tl.tensor)
            shapes.make_tensor(tensor, "handle", kind)
            assert attributes(tensor) == attributes(tl.tensor("handle", kind))


@pytest.mark.parametrize(
    ("length", "other", "said"),
    [(4.0, 4, "must have type `constexpr"), (3, 4, "must be a power of 2"), (4, 8, "incompatible dimensions")],
)
def test_invalid_shape_raises_also_after_a_valid_one(length: Any, other: int, said: str) -> None:
    y = torch.zeros(4)
    interpret(ones_kernel, (1,), {"y_ptr": y, "LENGTH": 4, "OTHER": 4})
    torch.testing.assert_close(y, torch.ones(4))
    with pytest.raises(KernelError, match=said):
        interpret(ones_kernel, (1,), {"y_ptr": y, "LENGTH": length, "OTHER": other})


def test_fractional_length_raises_also_after_its_equal() -> None:
    shapes = Shapes()
    shapes.make_type(object.__new__(tl.block_type), tl.float32, [4])
    with pytest.raises(TypeError, match="must have type"):
        shapes.make_type(object.__new__(tl.block_type), tl.float32, [4.0])
