"""Gluon's operations on values and on shared memory. Layouts have no effect on values."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.experimental.gluon import language as gl

from tilesmith.toolchain.interpreter.gluon.machine import Machine, lengths, plain
from tilesmith.toolchain.interpreter.gluon.shared_memory import Buffer, Missing
from tilesmith.toolchain.interpreter.numerics import numpy_dtype
from tilesmith.toolchain.interpreter.observing.positions import kernel_position

Operation = Callable[..., Any]
ANY_LAYOUT = gl.AutoLayout()  # what a kernel finds as the layout of a value


class Values:
    """Functions of `gluon.language` by name, and the methods of shared-memory descriptors."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def functions(self) -> dict[str, Operation]:
        """Return the functions whose arguments differ from those of `triton.language`."""
        return {
            "arange": lambda start, end, layout=None: tl.arange(plain(start), plain(end)),
            "full": lambda shape, value, dtype, layout=None: tl.full(lengths(shape), plain(value), plain(dtype)),
            "zeros": lambda shape, dtype, layout=None: tl.full(lengths(shape), 0, plain(dtype)),
            "full_like": lambda like, value, shape=None, dtype=None, layout=None: self._like(like, value, shape, dtype),
            "zeros_like": lambda like, shape=None, dtype=None, layout=None: self._like(like, 0, shape, dtype),
            "load": lambda pointer, mask=None, other=None, **hints: tl.load(pointer, plain(mask), plain(other)),
            "store": lambda pointer, value, mask=None, **hints: tl.store(pointer, value, plain(mask)),
            "histogram": lambda values, bins, mask=None, layout=None: tl.histogram(values, plain(bins), plain(mask)),
            "cat": lambda left, right, can_reorder=False, layout=None, **hints: tl.cat(left, right, can_reorder=True),
            "convert_layout": lambda value, layout, assert_trivial=False: value,
            "set_auto_layout": lambda value, layout: value,
            "to_linear_layout": lambda layout, shape: layout,
            "num_warps": lambda: self._machine.partition.warps,
            "num_ctas": lambda: 1,
            "barrier": self._barrier,
            "thread_barrier": self._barrier,
            "allocate_shared_memory": self.allocate_shared_memory,
            "warp_specialize": self.warp_specialize,
        }

    def methods(self) -> dict[str, Operation]:
        """Return the methods of `shared_memory_descriptor`."""
        return {
            "load": self._load,
            "store": self._store,
            "gather": self._gather,
            "scatter": self._scatter,
            "slice": self._slice,
            "index": self._index,
            "permute": self._permute,
            "reshape": self._reshape,
            "reinterpret": self._reinterpret,
            "_reinterpret": self._reinterpret,
            "_keep_alive": lambda memory: None,
        }

    def allocate_shared_memory(self, element_ty: Any, shape: Any, layout: Any, value: Any = None) -> Any:
        """Allocate shared memory; the kernel sees Gluon's own class."""
        scalar, layout = plain(element_ty), plain(layout)
        memory = described(self._machine.allocate("shared memory", scalar, shape), scalar, layout)
        if value is not None:
            self._store(memory, value)
        return memory

    def warp_specialize(self, functions_and_args: Any, worker_num_warps: Any, worker_num_regs: Any = None) -> Any:
        """Run partitions; return the result of the first."""
        machine = self._machine
        machine.follow_one_program("warp specialisation")
        calls = [self._partition(function, arguments) for function, arguments in functions_and_args]
        warps = [machine.partition.warps, *(int(plain(number)) for number in worker_num_warps)]
        return machine.scheduler.run(calls, warps)

    def _partition(self, function: Any, arguments: Any) -> Operation:
        def run() -> Any:
            result = function(*arguments)
            self._machine.end_partition()
            return result

        return run

    def _like(self, like: Any, value: Any, shape: Any, dtype: Any) -> Any:
        return tl.full(lengths(like.shape if shape is None else shape), plain(value), plain(dtype) or like.dtype)

    def _barrier(self, **options: Any) -> None:
        self._machine.builder.threads_wait(certain=True)

    def _load(self, memory: Any, layout: Any = None) -> Any:
        machine = self._machine
        return machine.tensor(memory.handle.read(machine.partition, machine.describe("the load")), memory.dtype)

    def _store(self, memory: Any, value: Any) -> None:
        machine = self._machine
        if lengths(value.shape) != lengths(memory.shape):
            raise ValueError(f"a block of shape {[*lengths(value.shape)]} is stored to memory of {[*memory.shape]}")
        memory.handle.write(value.handle.data, machine.partition, machine.describe("the store"))

    def _gather(self, memory: Any, indices: Any, axis: Any, layout: Any = None) -> Any:
        machine = self._machine
        content = memory.handle.read(machine.partition, machine.describe("the gather"))
        return machine.tensor(np.take_along_axis(content, indices.handle.data, plain(axis)), memory.dtype)

    def _scatter(self, memory: Any, values: Any, indices: Any, axis: Any) -> None:
        machine = self._machine
        content = memory.handle.data.copy()
        written = np.zeros(content.shape, dtype=bool)
        np.put_along_axis(content, indices.handle.data, values.handle.data, plain(axis))
        np.put_along_axis(written, indices.handle.data, True, plain(axis))
        memory.handle.write(content, machine.partition, machine.describe("the scatter"), written)

    def _slice(self, memory: Any, start: Any, length: Any, dim: Any = 0) -> Any:
        first, size, axis = (self._machine.number(value) for value in (start, length, dim))
        if not 0 <= first <= first + size <= memory.shape[axis]:
            raise IndexError(f"elements {first} to {first + size} of a dimension of {memory.shape[axis]}")
        part = (slice(None),) * axis + (slice(first, first + size),)
        return described(memory.handle.view(lambda array: array[part]), memory.dtype, memory.layout)

    def _index(self, memory: Any, index: Any) -> Any:
        position = self._machine.number(index)
        if not 0 <= position < memory.shape[0]:
            line = kernel_position(sys._getframe(1))[1]
            missing = Missing(f"index {position} of shared memory with {memory.shape[0]} buffers (line {line})")
            return gl.shared_memory_descriptor(missing, memory.dtype, memory.shape[1:], memory.layout, memory.shape[1:])
        return described(memory.handle.view(lambda array: array[position]), memory.dtype, memory.layout)

    def _permute(self, memory: Any, order: Any) -> Any:
        axes = lengths(order)
        return described(memory.handle.view(lambda array: array.transpose(axes)), memory.dtype, memory.layout)

    def _reshape(self, memory: Any, shape: Any) -> Any:
        new = lengths(shape)
        return described(memory.handle.view(lambda array: array.reshape(new)), memory.dtype, memory.layout)

    def _reinterpret(self, memory: Any, dtype: Any = None, shape: Any = None, layout: Any = None) -> Any:
        scalar = memory.dtype if dtype is None else plain(dtype)
        new = lengths(memory.shape if shape is None else shape)
        seen = memory.handle.reinterpreted(np.dtype(numpy_dtype(scalar)), new)
        return described(seen, scalar, memory.layout if layout is None else plain(layout))


def described(buffer: Buffer, scalar: Any, layout: Any) -> Any:
    """Return memory as Gluon's shared-memory descriptor, which kernels annotate."""
    shape = list(buffer.data.shape)
    return gl.shared_memory_descriptor(buffer, scalar, shape, layout, shape)


def byte_count(memory: Any) -> int:
    """Return the size of shared memory in bytes."""
    return int(math.prod(memory.shape) * memory.dtype.primitive_bitwidth // 8)
