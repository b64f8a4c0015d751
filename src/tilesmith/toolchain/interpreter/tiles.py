"""The addresses and masks of tiles that kernels reach through tensor descriptors, for one program or for many.

Every function takes the fields of a descriptor and the indices of a tile as scalars with one row for each program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle, _ir

from tilesmith.toolchain.interpreter.numerics import handle_of

Handle = Any


def fields_of(descriptor: Any, indices: list[Handle]) -> tuple[Handle, ...]:
    """Return what a tile depends on: base, then shape, strides and indices."""
    return (descriptor.base, *descriptor.shape, *descriptor.strides, *indices)


def padding_of(descriptor: Any) -> Handle:
    """Return the elements of a tile that lies outside its tensor."""
    fill = np.nan if descriptor.padding == _ir.PADDING_OPTION.PAD_NAN else 0
    return handle_of(np.full(descriptor.block_shape, fill), descriptor.base.get_element_ty())


def addresses_of(block: tuple[int, ...], base: Handle, *fields: Handle) -> Handle:
    """Return the addresses of a tile."""
    size = max(1, base.get_element_ty().primitive_bitwidth // 8)
    found = _spread(base, len(block))
    for offset, stride in zip(_offsets(block, fields), fields[len(block) :], strict=False):
        found = found + (size * offset * _spread(stride, len(block))).astype(np.uint64)
    shape = (len(found), *block)
    return TensorHandle(found if found.shape == shape else np.broadcast_to(found, shape), base.dtype.scalar)


def mask_of(block: tuple[int, ...], base: Handle, *fields: Handle) -> Handle:
    """Return which elements of a tile lie inside the tensor."""
    inside: Any = True
    for offset, length in zip(_offsets(block, fields), fields, strict=False):
        inside = inside & ((offset >= 0) & (offset < _spread(length, len(block))))
    return TensorHandle(inside, tl.int1)


def materialize_pointers(descriptor: Any, offsets: list[Handle]) -> tuple[Handle, Handle]:
    """Replace Triton's method, which adds to every element of the tile once for each dimension."""
    size = descriptor.base.dtype.element_ty.primitive_bitwidth // 8
    assert len(offsets) == descriptor.ndim
    assert (offsets[-1].data * size) % 16 == 0, "block offset start must be 16-byte aligned"
    addresses, inside = descriptor.base.data, True
    for axis, length in enumerate(descriptor.block_shape):
        places = (offsets[axis].data + np.arange(length)).reshape(length, *[1] * (descriptor.ndim - 1 - axis))
        addresses = addresses + (size * places * descriptor.strides[axis].data).astype(np.uint64)
        inside = inside & ((places >= 0) & (places < descriptor.shape[axis].data))
    return TensorHandle(addresses, descriptor.base.dtype.scalar), TensorHandle(inside, tl.int1)


def _offsets(block: tuple[int, ...], fields: tuple[Handle, ...]) -> list[NDArray[np.int64]]:
    """Return the indices of a tile's elements along each dimension."""
    steps = np.indices(block, dtype=np.int64, sparse=True)
    return [_spread(index, len(block)) + step for index, step in zip(fields[2 * len(block) :], steps, strict=True)]


def _spread(handle: Handle, dimensions: int) -> NDArray[Any]:
    return np.asarray(handle.data).reshape(-1, *[1] * dimensions)
