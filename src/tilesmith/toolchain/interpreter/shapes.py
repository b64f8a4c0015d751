"""Shapes worked out once.

Triton's front end makes a type and a tensor at every step of a kernel, and each time takes the shape apart and puts it
together again: a good part of the time that interpreting takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic


class Semantic(TritonSemantic):  # type: ignore[misc]  # Triton ships no types
    """Triton's own, without its work where there is nothing to do. Blocks made by `Shapes` share theirs."""

    def broadcast_impl_value(self, lhs: Any, rhs: Any) -> Any:
        if lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape is rhs.type.shape:
            return lhs, rhs
        return super().broadcast_impl_value(lhs, rhs)

    def cast(self, input: Any, dst_ty: Any, fp_downcast_rounding: str | None = None) -> Any:
        return input if input.dtype is dst_ty else super().cast(input, dst_ty, fp_downcast_rounding)


@dataclass(frozen=True)
class _Shape:
    """What follows from a shape, for a block type and for a tensor of it."""

    of_type: Any
    elements: int
    text: str
    of_tensor: tuple[Any, Any]


class Shapes:
    """Constructors of block types and tensors that look up what follows from a shape, once Triton's own made one."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], _Shape] = {}
        self._make_type: Callable[..., None] = tl.block_type.__init__
        self._make_tensor: Callable[..., None] = tl.tensor.__init__
        self._of_scalar = self._of_tensor(tl.int32)

    def make_type(self, block_type: Any, element_type: Any, shape: Sequence[Any]) -> None:
        """In place of `block_type.__init__`."""
        lengths = tuple([length.value if type(length) is tl.constexpr else length for length in shape])
        known = self._known.get(lengths)
        # As a key, 4.0 is 4, but a block has no such length: Triton refuses it.
        if known is None or {*map(type, lengths)} != {int}:
            self._make_type(block_type, element_type, shape)
            of_tensor = self._of_tensor(block_type)
            known = _Shape(block_type.shape, block_type.numel, str(block_type.shape), of_tensor)
            self._known[lengths] = known
        block_type.element_ty = element_type
        block_type.shape, block_type.numel, block_type.of_tensor = known.of_type, known.elements, known.of_tensor
        block_type.name = f"<{known.text}, {element_type}>"

    def make_tensor(self, tensor: Any, handle: Any, type: Any) -> None:
        """In place of `tensor.__init__`."""
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
