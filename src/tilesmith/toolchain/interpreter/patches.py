"""Triton's interpreter with corrected arithmetic and guarded memory accesses.

The stock interpreter stores bfloat16 and 8-bit floats as integers and computes on those. Here each operation widens to
float32, computes, and rounds once. Older releases also differ from hardware in NaN for min and max, one-bit arithmetic
and histograms. Here all releases behave like hardware.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from ctypes import string_at
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import InterpreterOptions, TensorHandle, _interpreter, _ir

from tilesmith.hardware.rates import SINGLE_PRECISIONS
from tilesmith.toolchain.interpreter.memory import ArgumentPointer
from tilesmith.toolchain.interpreter.numerics import (
    broadcast,
    elementwise,
    filled,
    handle_of,
    is_narrow,
    multiply_add,
    narrow,
    numpy_dtype,
    rounded_operand,
    scaled_operand,
    values_of,
    widen,
)  # fmt: skip
from tilesmith.toolchain.interpreter.observing.observers import Dot, EndlessWait, Program
from tilesmith.toolchain.interpreter.observing.positions import kernel_position
from tilesmith.toolchain.interpreter.ptx import inline_assembly
from tilesmith.toolchain.interpreter.tiles import TileOperations
from tilesmith.toolchain.interpreter.values.hints import Hints
from tilesmith.toolchain.interpreter.values.other_order import reordered
from tilesmith.toolchain.interpreter.values.undefined import UndefinedLanes, undefined_of
from tilesmith.toolchain.versions import fused_multiply_add_is_exact

Array = NDArray[Any]
Handle = Any  # Triton's TensorHandle: numpy data and a scalar Triton type
Type = Any  # Triton's dtype


def same_argument(first: Handle, second: Handle) -> Type:
    """Return the type of a block that mixes two types. A pointer keeps its argument only where both have the same."""
    if getattr(first.dtype, "argument", None) == getattr(second.dtype, "argument", None):
        return second.dtype.scalar
    return tl.pointer_type(second.dtype.element_ty)


class _Results(list[Any]):
    """The results of an operation, as Triton's front end asks for them."""

    def get_result(self, number: int) -> Handle:
        return self[number]


_SAME_WIDTH = {tl.float32: tl.int32, tl.float64: tl.int64}


class Builder(TileOperations):
    """Performs the operations of one program at a time, on numpy arrays."""

    product: Callable[[Array, Array, Array], Array] = staticmethod(multiply_add)
    _is_of_sum = False

    def __init__(self) -> None:
        super().__init__()
        # Checking integer additions for overflow makes kernels three times slower; hardware wraps as well.
        # The stock interpreter lacks some input precisions of tl.dot.
        self.options = InterpreterOptions(sanitize_overflow=False, allowed_dot_input_precisions=SINGLE_PRECISIONS)
        self.grid_idx: Program = (0, 0, 0)
        self._polled: tuple[Any, ...] = ()  # the last access, of a scalar
        self._polls = 0  # how often it was repeated, each in an idle round
        self._polled_at = 0  # which round
        self.operation_names = tuple(name for name in dir(self) if name.startswith("create_"))
        self.undefined, self.hints = UndefinedLanes(self), Hints(self)

    # Casts

    def get_bf16(self, value: float) -> Handle:
        return handle_of(np.array([value], dtype=np.float32), tl.bfloat16)

    def cast_impl(self, src: Handle, dst_type: Type) -> Handle:
        return handle_of(values_of(src), dst_type.scalar)

    def create_fp_to_fp(self, src: Handle, dst_type: Type, rounding_mode: Any) -> Handle:
        if "fp8e4b15" in (src.dtype.scalar.name, dst_type.scalar.name):
            return super().create_fp_to_fp(src, dst_type, rounding_mode)
        return handle_of(values_of(src), dst_type.scalar, toward_zero=rounding_mode == _ir.ROUNDING_MODE.RTZ)

    # Arithmetic

    def binary_op(self, lhs: Handle, rhs: Handle, op: Callable[[Array, Array], Array]) -> Handle:
        return elementwise(op, lhs, rhs)

    def unary_op(self, arg: Handle, op: Callable[[Array], Array]) -> Handle:
        return handle_of(op(values_of(arg)), arg.dtype.scalar)

    def create_minnumf(self, lhs: Handle, rhs: Handle) -> Handle:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Handle, rhs: Handle) -> Handle:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_clampf(self, arg: Handle, lo: Handle, hi: Handle, propagate_nans: Any) -> Handle:
        clamped = np.fmin(np.fmax(values_of(arg), values_of(lo)), values_of(hi))
        if propagate_nans != _ir.PROPAGATE_NAN.NONE:
            clamped = np.where(np.isnan(values_of(arg)), values_of(arg), clamped)
        return handle_of(clamped, arg.dtype.scalar)

    def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
        scalar = z.dtype.scalar
        if fused_multiply_add_is_exact() and not is_narrow(scalar.name):
            return super().create_fma(x, y, z)
        # A product of two float32 is exact in float64, so only the sum is rounded.
        product = values_of(x).astype(np.float64) * values_of(y)
        return handle_of(product + values_of(z), scalar)

    def get_all_ones_value(self, type: Type) -> Handle:
        # Releases before 3.9 ask numpy for -1 of an unsigned type, which is an error.
        return TensorHandle(np.invert(np.zeros(1, numpy_dtype(type))), type.scalar)

    def create_ashr(self, lhs: Handle, rhs: Handle) -> Handle:
        # Releases before 3.8 modify the operands.
        return super().create_ashr(TensorHandle(lhs.data, lhs.dtype), TensorHandle(rhs.data, rhs.dtype))

    def create_idiv(self, lhs: Handle, rhs: Handle) -> Handle:
        made = super().create_idiv(lhs, rhs)
        if not np.all(rhs.data):  # NVIDIA's quotient by zero has all bits set; numpy's is zero
            made.data = np.where(rhs.data == 0, np.invert(np.zeros_like(made.data)), made.data)
        return made

    def create_select(self, cond: Handle, lhs: Handle, rhs: Handle) -> Handle:
        return TensorHandle(np.where(cond.data, lhs.data, rhs.data), same_argument(lhs, rhs))

    def create_cat(self, lhs: Handle, rhs: Handle) -> Handle:
        return TensorHandle(reordered(super().create_cat(lhs, rhs).data), same_argument(lhs, rhs))

    def create_reshape(self, arg: Handle, shape: Any, allow_reorder: bool) -> Handle:
        made = super().create_reshape(arg, shape, allow_reorder)
        made.data = reordered(made.data) if allow_reorder else made.data
        return made

    def create_join(self, lhs: Handle, rhs: Handle) -> Handle:
        return TensorHandle(super().create_join(lhs, rhs).data, same_argument(lhs, rhs))

    def create_histogram(self, data: Handle, bins: int, mask: Handle | None) -> Handle:
        # Values outside the bins are dropped; numpy would count a value equal to the number of bins in the last bin.
        values = data.data if mask is None else data.data[mask.data]
        values = values[(values >= 0) & (values < bins)]
        return TensorHandle(np.bincount(values.astype(np.int64), minlength=bins).astype(np.int32), tl.int32)

    def create_dot(self, a: Handle, b: Handle, d: Handle, input_precision: Any, max_num_imprecise_acc: Any) -> Handle:
        if self.memory.is_watched:
            self._show_dot(a, b, d, input_precision.name.lower())
            self.threads_wait(certain=False)
        # Tensor cores accumulate products of 16-bit floats in float32 and round the result once.
        compute = np.float32 if d.data.dtype == np.float16 else d.data.dtype
        precision = input_precision.name.lower() if a.dtype.scalar == tl.float32 else ""
        left, right = (rounded_operand(values_of(one), precision).astype(compute, copy=False) for one in (a, b))
        return handle_of(self.product(left, right, d.data), d.dtype.scalar)

    def create_dot_scaled(self, *arguments: Any) -> Handle:
        a, a_scale, a_format, b, b_scale, b_format, _, a_packs_k, b_packs_k, d = arguments
        self.threads_wait(certain=False)
        left = scaled_operand(values_of(a), a_scale, a_format.name, a_packs_k)
        right = scaled_operand(np.swapaxes(values_of(b), -1, -2), b_scale, b_format.name, b_packs_k)
        return handle_of(self.product(left, np.swapaxes(right, -1, -2), d.data), d.dtype.scalar)

    def dot_of_sum(self, a: Handle, b: Handle, d: Handle) -> Handle:
        """Perform the dot of tf32 that Triton compiles a sum of products to."""
        self._is_of_sum = True
        try:
            return self.create_dot(a, b, d, _ir.INPUT_PRECISION.TF32, 0)
        finally:
            self._is_of_sum = False

    # Triton may compile a sum of products to a dot. These three remember what its rewriting looks for.

    def create_expand_dims(self, arg: Handle, axis: int) -> Handle:
        lengths = arg.data.shape
        made = TensorHandle(arg.data.reshape(*lengths[:axis], 1, *lengths[axis:]), arg.dtype.scalar)
        made.expanded = arg, axis
        return made

    def create_splat(self, kind: Type, arg: Handle) -> Handle:
        return TensorHandle(filled(kind.shape, arg.data, numpy_dtype(arg.dtype)), arg.dtype.scalar)

    def create_broadcast(self, arg: Handle, shape: Any) -> Handle:
        made = super().create_broadcast(arg, shape)
        made.spread = getattr(arg, "expanded", None)
        return made

    def create_fmul(self, lhs: Handle, rhs: Handle) -> Handle:
        made = super().create_fmul(lhs, rhs)
        made.factors = getattr(lhs, "spread", None), getattr(rhs, "spread", None)
        return made

    def _show_dot(self, a: Handle, b: Handle, d: Handle, input_precision: str) -> None:
        *batch, m, k = a.data.shape
        dot = Dot(
            self.grid_idx,
            self.memory.kernel,
            *kernel_position(sys._getframe(1)),
            batch=int(np.prod(batch)),
            m=m,
            n=b.data.shape[-1],
            k=k,
            operand_format=a.dtype.scalar.name,
            accumulator_format=d.dtype.scalar.name,
            input_precision=input_precision,
            of_sum=self._is_of_sum,
        )
        for observer in self.memory.observers:
            observer.dot(dot)

    def create_inline_asm(
        self, text: str, constraints: str, values: list[Handle], kinds: list[Type], is_pure: bool, pack: int
    ) -> _Results:
        return _Results(inline_assembly(self, text, values, [kind.scalar for kind in kinds], pack))

    # Order and hints

    def create_barrier(self) -> None:
        self.threads_wait(certain=True)

    def threads_wait(self, *, certain: bool) -> None:
        """Show the observers that the threads of this program wait for each other."""
        for observer in self.memory.observers:
            observer.barrier(self.grid_idx, certain)

    def create_assume(self, condition: Handle) -> None:
        if not np.all(condition.data):
            self.hints.show("tl.assume", "the condition is false")

    def create_assert(self, condition: Handle, message: str) -> None:
        if not np.all(condition.data):
            raise AssertionError(message)

    # Memory. Releases pass cache hints differently; they have no effect here.

    def create_load(self, ptr: Handle, *hints: Any) -> Handle:
        return self._load("load", ptr, None, None)

    def create_store(self, ptr: Handle, val: Handle, *hints: Any) -> None:
        self._store("store", ptr, val, None)

    def create_masked_load(
        self, ptrs: Handle, mask: Handle, other: Handle | None, *hints: Any, **named_hints: Any
    ) -> Handle:
        return self._load("load", ptrs, mask, other)

    def create_masked_store(self, ptrs: Handle, value: Handle, mask: Handle, *hints: Any, **named_hints: Any) -> None:
        self._store("store", ptrs, value, mask)

    def create_atomic_load(self, ptr: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        return self._load("atomic", ptr, mask, None, _ordered("load", sem, scope))

    def create_atomic_store(self, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> None:
        self._store("atomic", ptr, val, mask, _ordered("store", sem, scope))

    def create_atomic_rmw(self, rmwOp: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        lanes = self._admit("atomic", ptr, mask, values_of(val), _ordered(rmwOp.name.lower(), sem, scope))
        if val.dtype.scalar == tl.bfloat16 and rmwOp == _ir.ATOMIC_OP.FADD:
            return self._add_bfloat16(ptr, val, lanes)
        if rmwOp == _ir.ATOMIC_OP.XCHG and val.dtype.scalar in _SAME_WIDTH:  # the stock one exchanges integers only
            integer = _SAME_WIDTH[val.dtype.scalar]
            bits = TensorHandle(val.data.view(f"int{integer.primitive_bitwidth}"), integer)
            places = TensorHandle(ptr.data, tl.pointer_type(integer))
            before = super().create_atomic_rmw(rmwOp, places, bits, TensorHandle(lanes, tl.int1), sem, scope)
            return TensorHandle(before.data.view(val.data.dtype), val.dtype.scalar)
        before = super().create_atomic_rmw(rmwOp, ptr, val, TensorHandle(lanes, tl.int1), sem, scope)
        if not lanes.all():  # the stock one leaves other lanes as they are in fresh memory
            before.data = np.where(lanes, before.data, np.zeros_like(before.data))
        return before

    def create_atomic_cas(self, ptr: Handle, cmp: Handle, val: Handle, sem: Any, scope: Any) -> Handle:
        lanes = self._admit("atomic", ptr, None, values_of(val), _ordered("cas", sem, scope))
        if lanes.all():
            return super().create_atomic_cas(ptr, cmp, val, sem, scope)
        found = np.zeros(ptr.data.shape, dtype=cmp.data.dtype)
        chosen = [
            TensorHandle(np.broadcast_to(each.data, ptr.data.shape)[lanes], each.dtype) for each in (ptr, cmp, val)
        ]
        found[lanes] = super().create_atomic_cas(*chosen, sem, scope).data
        return TensorHandle(found, cmp.dtype.scalar)

    def _load(
        self, kind: str, pointers: Handle, mask: Handle | None, other: Handle | None, operation: str = ""
    ) -> Handle:
        dtype = numpy_dtype(pointers.get_element_ty())
        filler = np.zeros(pointers.data.shape, dtype) if other is None else other.data
        lanes = self._admit(kind, pointers, mask, None, operation)
        elements = self.memory.elements(pointers, lanes, dtype)
        if elements is None:
            values = _interpreter.load(pointers.data, lanes, filler, dtype)
        else:
            found = elements.values[elements.indices]
            values = found if lanes.all() else np.where(lanes, found, filler)
        loaded = TensorHandle(values, pointers.get_element_ty())
        if self.memory.is_watched:
            self._note_undefined(loaded, pointers, mask, other)
        return loaded

    def _note_undefined(self, loaded: Handle, pointers: Handle, mask: Handle | None, other: Handle | None) -> None:
        """Mark the lanes of a load that are undefined: masked off without `other`, or in doubt for an observer."""
        argument = getattr(pointers.dtype, "argument", None)
        if self.memory.doubt is not None:
            self.undefined.mark(loaded, self.memory.doubt.lanes, self.memory.doubt.cause, argument)
            self.memory.doubt = None
        elif mask is not None:
            off = ~np.asarray(mask.data, dtype=bool)
            filled = None if other is None else undefined_of(other)
            if (other is None or filled is not None) and off.any():
                lanes = off if filled is None else off & filled.lanes
                self.undefined.mark(loaded, np.broadcast_to(lanes, loaded.data.shape), "masked", argument)

    def _store(self, kind: str, pointers: Handle, value: Handle, mask: Handle | None, operation: str = "") -> None:
        lanes = self._admit(kind, pointers, mask, values_of(value), operation)
        # The data's width decides how many bytes are written, so it must be the pointer's.
        data = value.data.astype(numpy_dtype(pointers.get_element_ty()), copy=False)
        elements = self.memory.elements(pointers, lanes, data.dtype)
        if elements is None:
            _interpreter.store(pointers.data, data, lanes)
        else:
            elements.values[elements.indices[lanes]] = np.broadcast_to(data, lanes.shape)[lanes]

    def _admit(
        self, kind: str, pointers: Handle, mask: Handle | None, value: Array | None, operation: str = ""
    ) -> NDArray[np.bool_]:
        # Releases before 3.9 pass a descriptor's mask as a plain array, whose `data` is its buffer.
        lanes = broadcast(np.asarray(True if mask is None else mask.data), pointers.data.shape)
        if lanes.dtype != np.bool_:
            raise ValueError(f"Mask must have boolean scalar type, not {getattr(mask, 'dtype', lanes.dtype)}")
        element_bytes = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        self.undefined.used(pointers, lanes)
        lanes = self.memory.admit(
            kind, self.grid_idx, pointers, lanes, element_bytes, value, self._bounded, mask is not None, operation
        )
        polled = pointers.data.size == 1 and kind != "store" and lanes.all()
        self._poll((self.grid_idx, kind, pointers.data.item(), element_bytes) if polled else ())
        return lanes

    def _poll(self, access: tuple[Any, ...]) -> None:
        """Refuse a program that reads the same scalar again and again: what it waits for comes later, or never."""
        now = (*access, string_at(*access[2:])) if access else ()
        is_poll = now and now == self._polled and self.idle_rounds > self._polled_at
        self._polls = self._polls + 1 if is_poll else 0
        self._polled, self._polled_at = now, self.idle_rounds
        if self._polls > self.most_polls:
            raise EndlessWait(*now[2:])

    def _add_bfloat16(self, pointers: Handle, addend: Handle, lanes: NDArray[np.bool_]) -> Handle:
        """Add in rounds, so that lanes with the same address see each other's sums."""
        found = np.zeros(pointers.data.shape, dtype=np.uint16)
        waiting = lanes.copy()
        while waiting.any():
            _, first = np.unique(np.where(waiting, pointers.data, 0), return_index=True)
            now = np.zeros_like(waiting)
            now.flat[first] = True
            now &= waiting
            found = _interpreter.load(pointers.data, now, found, np.dtype(np.uint16))
            total = widen(found, "bf16") + values_of(addend)
            _interpreter.store(pointers.data, narrow(total, "bf16"), now)
            waiting &= ~now
        return TensorHandle(found, tl.bfloat16)


def _ordered(operation: str, semantic: Any, scope: Any) -> str:
    """Return the name of an atomic operation, which says where it orders nothing between programs."""
    orders = semantic != _ir.MEM_SEMANTIC.RELAXED and scope != _ir.MEM_SYNC_SCOPE.CTA
    return operation if orders else f"relaxed {operation}"


def pointer_to(address: int, element_type: Type, argument: str) -> Any:
    """Return a tensor argument as the kernel sees it: a pointer with the argument's name."""
    pointer = ArgumentPointer(element_type, argument)
    return tl.tensor(TensorHandle(np.array([address], dtype=np.uint64), pointer), tl.pointer_type(element_type))
