"""Tiles that kernels reach through tensor descriptors, for one program or for many.

The functions take the fields of a descriptor and the indices of a tile as scalars with one row for each program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle, _ir

from tilesmith.toolchain.interpreter.memory import Memory
from tilesmith.toolchain.interpreter.numerics import handle_of, is_narrow, numpy_dtype
from tilesmith.toolchain.interpreter.program import ProgramBuilder
from tilesmith.toolchain.interpreter.together.shared_rows import Places, rows_at

Handle = Any


@dataclass(frozen=True)
class Tile:
    """The addresses or the mask of a tile, which `function(*fields)` computes."""

    function: Callable[..., Handle]
    fields: list[Handle]

    def computed(self) -> NDArray[Any]:
        found: NDArray[Any] = self.function(*self.fields).data
        return found

    def rows_at(self, places: Places) -> Tile:
        return Tile(self.function, [TensorHandle(rows_at(one.data, places), one.dtype) for one in self.fields])


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
    assert (offsets[-1].data * size) % 16 == 0, "block offset start must be 16-byte aligned"
    block, fields = tuple(descriptor.block_shape), fields_of(descriptor, offsets)
    addresses, inside = addresses_of(block, *fields), mask_of(block, *fields)
    return TensorHandle(addresses.data[0], addresses.dtype), TensorHandle(inside.data[0], inside.dtype)


def whole_tiles(memory: Memory, block: tuple[int, ...], base: Handle, *fields: Handle) -> NDArray[Any] | None:
    """Return the elements of tiles that lie inside their tensor, copied row by row; None if a tile does not.

    A gather would need the address of every element.
    """
    own = memory.regions.get(getattr(base.dtype, "argument", ""))
    dtype, dimensions = numpy_dtype(base.get_element_ty()), len(block)
    size = dtype.itemsize
    rows = [np.asarray(field.data).reshape(-1).astype(np.int64) for field in fields]
    lengths, strides, indices = (rows[start : start + dimensions] for start in range(0, 3 * dimensions, dimensions))
    inside = all(np.all((at >= 0) & (at + step <= end)) for at, step, end in zip(indices, block, lengths, strict=True))
    if (
        own is None
        or not inside
        or any(one.size > 1 or one[0] < 0 for one in strides)
        or np.any(indices[-1] * size % 16)
    ):
        return None
    steps = [size * int(one[0]) for one in strides]
    starts = np.asarray(base.data).reshape(-1).astype(np.int64) - own.start
    for index, step in zip(indices, steps, strict=True):
        starts = starts + index * step
    reach = sum(step * (length - 1) for step, length in zip(steps, block, strict=True)) + size
    content = own.array(np.dtype(np.uint8))
    if starts.min() < 0 or starts.max() + reach > content.size:
        return None
    found = np.empty((starts.size, *block), dtype)
    for row, start in enumerate(starts.tolist()):
        found[row] = np.ndarray(block, dtype, content, start, steps)
    return found


def _offsets(block: tuple[int, ...], fields: tuple[Handle, ...]) -> list[NDArray[np.int64]]:
    """Return the indices of a tile's elements along each dimension."""
    steps = np.indices(block, dtype=np.int64, sparse=True)
    return [_spread(index, len(block)) + step for index, step in zip(fields[2 * len(block) :], steps, strict=True)]


def _spread(handle: Handle, dimensions: int) -> NDArray[Any]:
    return np.asarray(handle.data).reshape(-1, *[1] * dimensions)


class TileOperations(ProgramBuilder):
    """Operations on tensor descriptors."""

    _bounded = False  # whether a descriptor masks the elements of the present access

    def create_descriptor_load(self, desc: Any, indices: list[Handle], *hints: Any) -> Handle:
        if not self.memory.is_watched and not getattr(desc, "round_f32_to_tf32", False):
            found = whole_tiles(self.memory, tuple(desc.block_shape), *fields_of(desc, indices))
            if found is not None:
                return TensorHandle(found[0], desc.base.get_element_ty())
        if is_narrow(desc.base.get_element_ty().name) and desc.padding == _ir.PADDING_OPTION.PAD_NAN:
            return self.load_tile(*desc.materialize_pointers(indices), padding_of(desc))
        with self._through_descriptor():
            return super().create_descriptor_load(desc, indices, *hints)

    def create_descriptor_store(self, desc: Any, value: Handle, indices: list[Handle], *hints: Any) -> Any:
        with self._through_descriptor():
            return super().create_descriptor_store(desc, value, indices, *hints)

    def load_tile(self, *pointers_mask_other: Handle) -> Handle:
        with self._through_descriptor():
            return self._load("load", *pointers_mask_other)

    def store_tile(self, pointers: Handle, value: Handle, mask: Handle) -> None:
        with self._through_descriptor():
            self._store("store", pointers, value, mask)

    def create_descriptor_gather(self, *arguments: Any) -> Handle:
        with self._through_descriptor():
            return super().create_descriptor_gather(*arguments)

    def create_descriptor_scatter(self, *arguments: Any) -> Any:
        with self._through_descriptor():
            return super().create_descriptor_scatter(*arguments)

    @contextmanager
    def _through_descriptor(self) -> Iterator[None]:
        self._bounded = True
        try:
            yield
        finally:
            self._bounded = False
