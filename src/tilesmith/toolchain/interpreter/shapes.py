"""Shapes computed once, and operators without the front end.

Triton's front end creates a type and a tensor at every operation, computes the shape each time, and broadcasts. That is
a large part of the interpreter's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import TensorHandle

Lengths = tuple[int, ...]


class _Format(str):
    """The name of a number format, which releases before 3.9 expect in a `tl.constexpr`."""

    value = property(str)


class Semantic(TritonSemantic):  # type: ignore[misc]  # Triton ships no types
    """Triton's semantic with shortcuts for equal shapes and dtypes. Blocks made by `Shapes` share their shape."""

    def __init__(self, builder: Any) -> None:
        super().__init__(builder)
        # By the ids of shapes, since Triton's tuples take long to hash; each value begins with the shapes themselves.
        self._types: dict[tuple[str, int], tuple[Lengths, Any]] = {}
        self._common: dict[tuple[int, int], tuple[Lengths, Lengths, Lengths]] = {}
        self._expanded: dict[tuple[int, int], tuple[Lengths, Lengths]] = {}
        self._constants: dict[tuple[Any, ...] | None, Any] = {}
        self._promoted: dict[tuple[Any, ...] | None, Any] = {}

    def dot_scaled(self, *arguments: Any) -> Any:
        return super().dot_scaled(*(_Format(one) if isinstance(one, str) else one for one in arguments))

    def binary_op_type_checking_impl(
        self,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        rules = arithmetic_check, div_or_mod
        key = pair = None
        if _is_of_numbers(rhs):
            if _is_of_numbers(lhs):
                # Promotion keeps a type that both share, except a half type of a quotient.
                if lhs.dtype is rhs.dtype and (not div_or_mod or lhs.dtype.primitive_bitwidth >= 32):
                    return self.broadcast_impl_value(lhs, rhs)
                pair = lhs.dtype.name, rhs.dtype.name, rules
            elif allow_lhs_ptr and _is_pointer(lhs) and rhs.dtype.is_int():
                return self.broadcast_impl_value(lhs, rhs)
        elif _is_of_numbers(lhs) and _is_key(rhs):
            key = lhs.dtype.name, type(rhs), rhs, rules
        if pair in self._promoted:
            dtype = self._promoted[pair]
            return self.broadcast_impl_value(self.cast(lhs, dtype), self.cast(rhs, dtype))
        if key in self._constants:
            constant = self.tensor(TensorHandle(self._constants[key], lhs.dtype), lhs.dtype)
            return self.broadcast_impl_value(lhs, constant)
        made = super().binary_op_type_checking_impl(lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, *rules)
        if pair is not None and made[0].dtype is made[1].dtype:
            self._promoted[pair] = made[0].dtype
        if key is not None and all(one.dtype is lhs.dtype for one in made):
            self._constants[key] = made[1].handle.data.reshape(-1)[:1].copy()
        return made

    def broadcast_impl_value(self, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if left is right:
            return lhs, rhs
        if not right.is_block():
            return (lhs, self._splat(rhs, left.shape)) if left.is_block() else (lhs, rhs)
        if not left.is_block():
            return self._splat(lhs, right.shape), rhs
        if left.shape is right.shape:
            return lhs, rhs
        common = self.common_shape(left.shape, right.shape)
        if common is None:  # Triton adds dimensions, and raises its errors
            made = super().broadcast_impl_value(lhs, rhs)
            if len(left.shape) == len(right.shape):
                self._common[id(left.shape), id(right.shape)] = left.shape, right.shape, made[0].type.shape
            return made
        return self._broadcast(lhs, common), self._broadcast(rhs, common)

    def common_shape(self, left: Lengths, right: Lengths) -> Lengths | None:
        """Return the shape that blocks of these two were broadcast to; None if they never were."""
        known = self._common.get((id(left), id(right)))
        return known[2] if known is not None and known[0] is left and known[1] is right else None

    def expand_dims(self, input: Any, axis: int) -> Any:
        kind = input.type
        known = self._expanded.get((id(kind.shape), axis)) if type(kind) is tl.block_type else None
        if known is None or known[0] is not kind.shape:
            made = super().expand_dims(input, axis)
            if type(kind) is tl.block_type:
                self._expanded[id(kind.shape), axis] = kind.shape, made.type.shape
            return made
        handle = self.builder.create_expand_dims(input.handle, axis)
        return self.tensor(handle, self._block_type(kind.element_ty, known[1]))

    def to_tensor(self, x: Any, check_type: bool = True) -> Any:
        return x if type(x) is tl.tensor else super().to_tensor(x, check_type)

    def _splat(self, scalar: Any, shape: Lengths) -> Any:
        kind = self._block_type(scalar.dtype, shape)
        return self.tensor(self.builder.create_splat(kind, scalar.handle), kind)

    def _broadcast(self, block: Any, shape: Lengths) -> Any:
        # A block of new dimensions is broadcast in any case: Triton's rewriting of sums to dots looks for that.
        if block.type.shape == shape and not hasattr(block.handle, "expanded"):
            return block
        return self.tensor(self.builder.create_broadcast(block.handle, shape), self._block_type(block.dtype, shape))

    def _block_type(self, element: Any, shape: Lengths) -> Any:
        if type(element) is not tl.dtype:  # a pointer, whose type names its argument
            return tl.block_type(element, shape)
        known = self._types.get((element.name, id(shape)))
        if known is None or known[0] is not shape:
            known = self._types[element.name, id(shape)] = shape, tl.block_type(element, shape)
        return known[1]

    def cast(self, input: Any, dst_ty: Any, fp_downcast_rounding: str | None = None) -> Any:
        if input.dtype is dst_ty:
            return input
        if input.dtype is tl.int32 and dst_ty is tl.int64:  # of indices, at nearly every address
            kind = self._block_type(dst_ty, input.type.shape) if input.type.is_block() else dst_ty
            return self.tensor(self.builder.create_int_cast(input.handle, kind, True), kind)
        return super().cast(input, dst_ty, fp_downcast_rounding)


def _is_of_numbers(operand: Any) -> bool:
    return type(operand) is tl.tensor and type(operand.dtype) is tl.dtype


def _is_pointer(operand: Any) -> bool:
    return type(operand) is tl.tensor and operand.dtype.is_ptr()


def _is_key(operand: Any) -> bool:
    """Whether this is a number that equals no other one: -0.0 equals 0.0."""
    return type(operand) is int or (type(operand) is float and operand != 0)


_FLOATS = (tl.float16, tl.bfloat16, tl.float32, tl.float64)
_INTEGERS = (tl.int1, tl.int8, tl.int16, tl.int32, tl.int64)
_OPERATORS = {  # the builder's methods for floats and for signed integers; None: left to Triton
    "add": ("create_fadd", "create_add"),
    "sub": ("create_fsub", "create_sub"),
    "mul": ("create_fmul", "create_mul"),
    "truediv": ("create_fdiv", None),
    "floordiv": (None, "create_sdiv"),
    "mod": ("create_frem", "create_srem"),
    "and": (None, "create_and"),
    "or": (None, "create_or"),
    "lt": ("create_fcmpOLT", "create_icmpSLT"),
    "le": ("create_fcmpOLE", "create_icmpSLE"),
    "gt": ("create_fcmpOGT", "create_icmpSGT"),
    "ge": ("create_fcmpOGE", "create_icmpSGE"),
    "eq": ("create_fcmpOEQ", "create_icmpEQ"),
    "ne": ("create_fcmpUNE", "create_icmpNE"),
}
_QUOTIENTS = ("truediv", "floordiv", "mod")  # of types below 32 bits, they are of another type
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def quick_operators(semantic: Semantic, usual: Callable[[str], Callable[..., Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the names of a tensor's operators and functions for them, which call the builder's methods at once.

    `usual(name)` is the way through Triton's front end: for operands of two types, for errors, and while somebody
    follows the operations.
    """
    for name, names in _OPERATORS.items():
        methods = {
            id(dtype): getattr(semantic.builder, method)
            for method, dtypes in zip(names, (_FLOATS, _INTEGERS), strict=True)
            for dtype in dtypes
            if method is not None and (name not in _QUOTIENTS or dtype.primitive_bitwidth >= 32)
        }
        yield f"__{name}__", _quick_operator(semantic, name, methods, usual(f"__{name}__"))


def _quick_operator(
    semantic: Semantic, name: str, methods: dict[int, Callable[[Any, Any], Any]], usual: Callable[..., Any]
) -> Callable[[Any, Any], Any]:
    followed, tensor_class, block_class, plain = vars(semantic.builder), tl.tensor, tl.block_type, tl.dtype
    constants, promoted, rules = semantic._constants, semantic._promoted, (True, name in _QUOTIENTS)
    compares, adds, multiplies = name in _COMPARISONS, name == "add", name == "mul"
    add_to_pointer, bools = semantic.builder.create_addptr, tl.int1

    def compute(left: Any, right: Any) -> Any:
        if "create_add" in followed:
            return usual(left, right)
        dtype, kind = left.dtype, left.type
        method = methods.get(id(dtype))
        if type(right) is tl.constexpr:
            right = right.value
        if type(right) is tensor_class:
            other, other_kind, other_dtype = right.handle, right.type, right.dtype
            if adds and (other_dtype is tl.int32 or other_dtype is tl.int64) and dtype.__class__ is not plain:
                method = add_to_pointer
            elif other_dtype is not dtype:
                shared = promoted.get((dtype.name, other_dtype.name, rules)) if type(other_dtype) is plain else None
                if shared is None:
                    return usual(left, right)
                one, another = semantic.cast(left, shared), semantic.cast(right, shared)
                # libdevice gives results an equal dtype that is another object.
                return compute(one, another) if one.dtype is another.dtype else usual(left, right)
        else:
            number = constants.get((dtype.name, type(right), right, rules)) if _is_key(right) else None
            if number is None:
                return usual(left, right)
            other, other_kind, other_dtype = TensorHandle(number, dtype), dtype, dtype
        if method is None:
            return usual(left, right)
        shape = None
        if kind.__class__ is block_class:
            shape = kind.shape
            if other_kind.__class__ is not block_class:
                if other_kind is not other_dtype:
                    return usual(left, right)
            elif other_kind.shape is not shape:
                shape = semantic.common_shape(shape, other_kind.shape)
                # A product remembers how its factors were broadcast, and the order of pointers depends on it.
                if shape is None or (multiplies and dtype.is_floating()) or method is add_to_pointer:
                    return usual(left, right)
        elif kind is not dtype:
            return usual(left, right)
        elif other_kind.__class__ is block_class:
            shape = other_kind.shape
        elif other_kind is not other_dtype:
            return usual(left, right)
        # A block that was broadcast has the order of C, and passes it on to the result.
        if kind is not other_kind and not (left.handle.data.flags.c_contiguous and other.data.flags.c_contiguous):
            return usual(left, right)
        made = tensor_class.__new__(tensor_class)
        made.handle = method(left.handle, other)
        if compares:
            dtype = bools
        made.dtype = dtype
        if shape is None:
            made.type, made.shape, made.numel = dtype, left.shape, left.numel
        elif kind.__class__ is block_class and shape is kind.shape and not compares:
            made.type, made.shape, made.numel = kind, left.shape, left.numel
        else:
            made.type = kind = semantic._block_type(dtype, shape)
            made.shape, made.numel = kind.of_tensor
        return made

    return compute


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
        self._by_id: dict[int, _Shape] = {}  # by the id of a shape, which its value keeps alive
        self._make_type: Callable[..., None] = tl.block_type.__init__
        self._make_tensor: Callable[..., None] = tl.tensor.__init__
        self._of_scalar = self._of_tensor(tl.int32)

    def constructors(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the functions that replace `block_type.__init__` and `tensor.__init__`, called at every operation."""
        by_id, of_scalar, block_class, plain = self._by_id, self._of_scalar, tl.block_type, tl.dtype

        def make_type(block_type: Any, element_type: Any, shape: Sequence[Any]) -> None:
            known = by_id.get(id(shape)) or self._shape(block_type, element_type, shape)
            block_type.element_ty = element_type
            block_type.shape, block_type.numel, block_type.of_tensor = known.of_type, known.elements, known.of_tensor
            element = element_type.name if element_type.__class__ is plain else element_type
            block_type.name = f"<{known.text}, {element}>"

        def make_tensor(tensor: Any, handle: Any, type: Any) -> None:
            dtype: Any
            known: tuple[Any, Any] | None
            if type.__class__ is plain:
                dtype, known = type, of_scalar
            elif type.__class__ is block_class or type.is_block():
                dtype, known = type.scalar, getattr(type, "of_tensor", None)
                if known is None:  # a type from outside the interpreter
                    self._make_tensor(tensor, handle, type)
                    return
            else:
                dtype, known = type.scalar, of_scalar
            tensor.handle, tensor.type, tensor.dtype = handle, type, dtype
            tensor.shape, tensor.numel = known

        return make_type, make_tensor

    def _shape(self, block_type: Any, element_type: Any, shape: Sequence[Any]) -> _Shape:
        lengths = tuple([length.value if type(length) is tl.constexpr else length for length in shape])
        known = self._known.get(lengths)
        # As a key 4.0 equals 4, but Triton rejects a length of 4.0.
        if known is None or {*map(type, lengths)} != {int}:
            self._make_type(block_type, element_type, shape)
            of_tensor = self._of_tensor(block_type)
            known = _Shape(block_type.shape, block_type.numel, str(block_type.shape), of_tensor)
            self._known[lengths] = self._by_id[id(known.of_type)] = known
        return known

    def _of_tensor(self, type: Any) -> tuple[Any, Any]:
        tensor = object.__new__(tl.tensor)
        self._make_tensor(tensor, None, type)
        return tensor.shape, tensor.numel


def make_handle(handle: TensorHandle, data: Any, dtype: Any, attr: dict[str, Any] | None = None) -> None:
    """Replace `TensorHandle.__init__`. Triton's own check runs only where numpy's elements may be too wide."""
    handle.data, handle.dtype, handle.attr = data, dtype, {} if attr is None else attr
    if data.itemsize > 1 and dtype.__class__ is tl.dtype and data.itemsize * 8 > dtype.primitive_bitwidth:
        handle.__post_init__()
