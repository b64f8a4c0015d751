"""Products of tensor cores: `mma_v2`, `warpgroup_mma` and `tcgen05_mma`, and the tensor memory of Blackwell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.experimental.gluon.language.nvidia.blackwell import tensor_memory_descriptor
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.gluon.barriers import barrier_in
from tilesmith.toolchain.interpreter.gluon.machine import Machine, lengths, plain
from tilesmith.toolchain.interpreter.gluon.order import Actor, joined
from tilesmith.toolchain.interpreter.gluon.shared_memory import Buffer
from tilesmith.toolchain.interpreter.gluon.values import ANY_LAYOUT
from tilesmith.toolchain.interpreter.numerics import numpy_dtype
from tilesmith.toolchain.interpreter.ptx import UnknownOperation

Operation = Callable[..., Any]


class Products:
    """Functions by name, and the methods of tensor-memory descriptors."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def functions(self) -> dict[str, Operation]:
        return {
            "mma_v2": lambda a, b, acc, input_precision=None: self._product(a, b, acc, plain(input_precision)),
            "dot_fma": lambda a, b, acc: self._product(a, b, acc, "ieee"),
            "warpgroup_mma_init": lambda value: value,
            "warpgroup_mma": self._warpgroup_mma,
            "warpgroup_mma_wait": self._warpgroup_mma_wait,
            "allocate_tensor_memory": self._allocate_tensor_memory,
            "tcgen05_copy": self._tcgen05_copy,
            "tcgen05_mma": self._tcgen05_mma,
            "tcgen05_commit": self._tcgen05_commit,
        }

    def methods(self) -> dict[str, Operation]:
        """Return the methods of `tensor_memory_descriptor`."""
        return {
            "load": self._load,
            "load_min": lambda memory, layout=None, abs=False, **options: self._reduced(memory, abs, np.fmin),
            "load_max": lambda memory, layout=None, abs=False, **options: self._reduced(memory, abs, np.fmax),
            "store": self._store,
            "slice": self._slice,
            "index": self._index,
            "reinterpret": self._reinterpret,
            "_reinterpret": self._reinterpret,
            "get_reg_layout": lambda memory, **options: ANY_LAYOUT,
        }

    def _product(self, a: Any, b: Any, acc: Any, precision: str | None) -> Any:
        """Return a · b + acc for blocks in registers."""
        builder, semantic = self._machine.builder, self._machine.semantic
        chosen = semantic._str_to_dot_input_precision(precision or builder.options.default_dot_input_precision)
        result = builder.create_dot(a.handle, b.handle, acc.handle, chosen, 0)
        return tl.tensor(result, acc.type)

    def _operand(self, operand: Any, actor: Actor, action: str) -> Any:
        """Return an operand as a value, from shared or tensor memory if it is there."""
        if isinstance(operand.handle, TensorHandle):
            return operand
        return self._machine.tensor(operand.handle.read(actor, action), operand.dtype)

    def _zeros_like(self, block: Any) -> Any:
        return tl.tensor(TensorHandle(np.zeros_like(block.handle.data), block.handle.dtype), block.type)

    # Hopper

    def _warpgroup_mma(
        self,
        a: Any,
        b: Any,
        acc: Any,
        *,
        use_acc: Any = True,
        precision: Any = None,
        max_num_imprecise_acc: Any = None,
        is_async: Any = False,
    ) -> Any:
        machine = self._machine
        action = machine.describe("wgmma")
        actor: Actor = machine.partition
        if plain(is_async):
            actor = machine.started(action)
            machine.partition.products.append(actor)
        left, right = (self._operand(one, actor, action) for one in (a, b))
        start = acc if machine.holds(use_acc) else self._zeros_like(acc)
        return self._product(left, right, start, plain(precision))

    def _warpgroup_mma_wait(self, num_outstanding: Any = 0, deps: Sequence[Any] | None = None) -> Any:
        if deps is None:
            raise ValueError("warpgroup_mma_wait deps must be given")
        partition = self._machine.partition
        partition.products = partition.finish(partition.products, self._machine.number(num_outstanding))
        return deps[0] if len(deps) == 1 else tuple(deps)

    # Blackwell

    def _allocate_tensor_memory(self, element_ty: Any, shape: Any, layout: Any, value: Any = None) -> Any:
        scalar = plain(element_ty)
        memory = _described(self._machine.allocate("tensor memory", scalar, shape), scalar, plain(layout))
        if value is not None:
            self._store(memory, value)
        return memory

    def _started(self, action: str) -> Actor:
        """Return an operation of tcgen05, which starts after the earlier ones of this partition."""
        actor = self._machine.started(action)
        running = self._machine.partition.products
        if running:
            joined(actor.clock, running[-1].clock)
        running.append(actor)
        return actor

    def _tcgen05_mma(
        self,
        a: Any,
        b: Any,
        acc: Any,
        *,
        use_acc: Any = True,
        pred: Any = True,
        multicast: Any = False,
        mbarriers: Any = None,
        mbarrier_preds: Any = None,
    ) -> None:
        machine = self._machine
        if machine.holds(pred):
            action = machine.describe("tcgen05_mma")
            actor = self._started(action)
            left, right = (self._operand(one, actor, action) for one in (a, b))
            if machine.holds(use_acc):
                start = self._operand(acc, actor, action)
            else:
                start = machine.tensor(np.zeros(lengths(acc.shape), numpy_dtype(acc.dtype)), acc.dtype)
            result = self._product(left, right, start, None)
            acc.handle.write(result.handle.data, actor, action)
        barriers = [*(mbarriers or ())]
        for barrier, holds in zip(barriers, mbarrier_preds or [True] * len(barriers), strict=True):
            self._tcgen05_commit(barrier, holds)

    def _tcgen05_copy(self, src: Any, dst: Any) -> None:
        if lengths(src.shape) != lengths(dst.shape):
            raise UnknownOperation("tcgen05_copy of scales")
        action = self._machine.describe("tcgen05_copy")
        actor = self._started(action)
        dst.handle.write(src.handle.read(actor, action), actor, action)

    def _tcgen05_commit(self, barrier: Any, pred: Any = True, descs: Any = ()) -> None:
        if not self._machine.holds(pred):
            return
        partition = self._machine.partition
        clock = partition.release()
        for actor in partition.products:
            joined(clock, actor.clock)
        partition.products = partition.products[-1:]  # later operations start after the last one
        barrier_in(barrier.handle).arrive(1, clock)

    def _load(self, memory: Any, layout: Any = None) -> Any:
        machine = self._machine
        return machine.tensor(memory.handle.read(machine.partition, machine.describe("the load")), memory.dtype)

    def _reduced(self, memory: Any, absolute: Any, reduce: Any) -> Any:
        loaded = self._load(memory)
        data = np.abs(loaded.handle.data) if plain(absolute) else loaded.handle.data
        return loaded, self._machine.tensor(reduce.reduce(data, axis=1), memory.dtype)

    def _store(self, memory: Any, value: Any, pred: Any = True) -> None:
        machine = self._machine
        if machine.holds(pred):
            memory.handle.write(value.handle.data, machine.partition, machine.describe("the store"))

    def _slice(self, memory: Any, start: Any, length: Any, dim: Any = 1) -> Any:
        first, size, axis = (self._machine.number(value) for value in (start, length, dim))
        part = (slice(None),) * axis + (slice(first, first + size),)
        return _described(memory.handle.view(lambda array: array[part]), memory.dtype, memory.layout)

    def _index(self, memory: Any, index: Any) -> Any:
        position = self._machine.number(index)
        if not 0 <= position < memory.shape[0]:
            raise IndexError(f"index {position} of tensor memory with {memory.shape[0]} buffers")
        return _described(memory.handle.view(lambda array: array[position]), memory.dtype, memory.layout)

    def _reinterpret(self, memory: Any, dtype: Any = None, shape: Any = None, layout: Any = None) -> Any:
        scalar = memory.dtype if dtype is None else plain(dtype)
        new = lengths(memory.shape if shape is None else shape)
        seen = memory.handle.reinterpreted(np.dtype(numpy_dtype(scalar)), new)
        return _described(seen, scalar, memory.layout if layout is None else plain(layout))


def _described(buffer: Buffer, scalar: Any, layout: Any) -> Any:
    shape = list(buffer.data.shape)
    return tensor_memory_descriptor(buffer, scalar, shape, layout, shape)
