"""Shapes computed once.

Triton's front end creates a type and a tensor at every operation, and computes the shape each time. That is a large
part of the interpreter's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic


class Semantic(TritonSemantic):  # type: ignore[misc]  # Triton ships no types
    """Triton's semantic with shortcuts for equal shapes and dtypes. Blocks made by `Shapes` share their shape."""

    def binary_op_type_checking_impl(
        self,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        is_shared = type(lhs) is tl.tensor and type(rhs) is tl.tensor and lhs.dtype is rhs.dtype
        # Promotion keeps a type that both share, except a half type of a quotient. Pointers have rules of their own.
        if is_shared and type(lhs.dtype) is tl.dtype and (not div_or_mod or lhs.dtype.primitive_bitwidth >= 32):
            return self.broadcast_impl_value(lhs, rhs)
        return super().binary_op_type_checking_impl(
            lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        )

    def broadcast_impl_value(self, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if left is right or (left.is_block() and right.is_block() and left.shape is right.shape):
            return lhs, rhs
        return super().broadcast_impl_value(lhs, rhs)

    def cast(self, input: Any, dst_ty: Any, fp_downcast_rounding: str | None = None) -> Any:
        return input if input.dtype is dst_ty else super().cast(input, dst_ty, fp_downcast_rounding)


@dataclass(frozen=True)
class _Shape:
    """The fields of a block type and of a tensor that follow from a shape."""

    of_type: Any
    elements: int
    text: str
    of_tensor: tuple[Any, Any]


class Shapes:
    """Constructors of block types and tensors with a cache by shape; Triton's own constructors fill it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], _Shape] = {}
        self._make_type: Callable[..., None] = tl.block_type.__init__
        self._make_tensor: Callable[..., None] = tl.tensor.__init__
        self._of_scalar = self._of_tensor(tl.int32)

    def make_type(self, block_type: Any, element_type: Any, shape: Sequence[Any]) -> None:
        """Replace `block_type.__init__`."""
        lengths = tuple([length.value if type(length) is tl.constexpr else length for length in shape])
        known = self._known.get(lengths)
        # As a key 4.0 equals 4, but Triton rejects a length of 4.0.
        if known is None or {*map(type, lengths)} != {int}:
            self._make_type(block_type, element_type, shape)
            of_tensor = self._of_tensor(block_type)
            known = _Shape(block_type.shape, block_type.numel, str(block_type.shape), of_tensor)
            self._known[lengths] = known
        block_type.element_ty = element_type
        block_type.shape, block_type.numel, block_type.of_tensor = known.of_type, known.elements, known.of_tensor
        block_type.name = f"<{known.text}, {element_type}>"

    def make_tensor(self, tensor: Any, handle: Any, type: Any) -> None:
        """Replace `tensor.__init__`."""
        known = getattr(type, "of_tensor", None) if type.is_block() else self._of_scalar
        if known is None:  # a type from outside the interpreter
            self._make_tensor(tensor, handle, type)
            return
        tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
        tensor.shape, tensor.numel = known

    def _of_tensor(self, type: Any) -> tuple[Any, Any]:
        tensor = object.__new__(tl.tensor)
        self._make_tensor(tensor, None, type)
        return tensor.shape, tensor.numel
