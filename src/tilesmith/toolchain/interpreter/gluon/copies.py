"""Asynchronous copies and mbarriers: `mbarrier`, `tma`, `async_copy` and `clc` of Gluon's NVIDIA modules.

A copy takes effect when it starts. What must wait for it is known from the order of the actors (`order.py`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _ir

from tilesmith.toolchain.interpreter.gluon.barriers import barrier_in, make_barrier
from tilesmith.toolchain.interpreter.gluon.machine import Machine, lengths, plain
from tilesmith.toolchain.interpreter.gluon.order import Actor
from tilesmith.toolchain.interpreter.gluon.values import Values, byte_count
from tilesmith.toolchain.interpreter.observing.positions import kernel_position
from tilesmith.toolchain.interpreter.ptx import UnknownOperation

Operation = Callable[..., Any]
THREADS_OF_A_WARP = 32
_NO_HINTS = (None,) * (len(inspect.signature(InterpreterBuilder.create_descriptor_load).parameters) - 3)
_ATOMICS = ("add", "min", "max", "and", "or", "xor")


class Copies:
    """Functions by module and name, as kernels write them: `mbarrier.wait`, `tma.async_load`."""

    def __init__(self, machine: Machine, values: Values) -> None:
        self._machine = machine
        self._values = values

    def functions(self) -> dict[str, Operation]:
        load, store = self._tma_load, self._tma_store
        return {
            "mbarrier.allocate_mbarrier": self._allocate_barrier,
            "mbarrier.init": lambda barrier, count: make_barrier(barrier.handle, self._machine.number(count)),
            "mbarrier.invalidate": lambda barrier: barrier.handle.allocation.barriers.pop(barrier.handle.address, None),
            "mbarrier.expect": self._expect,
            "mbarrier.arrive": self._arrive,
            "mbarrier.wait": self._wait,
            "mbarrier.fence_init_release_cluster": lambda: None,
            "mbarrier.sync_cluster_init": lambda: None,
            "fence_async_shared": lambda cluster=False: None,
            "tma.async_load": load,
            "tma.async_copy_global_to_shared": load,
            "tma.async_store": store,
            "tma.async_copy_shared_to_global": store,
            "tma.store_wait": self._store_wait,
            "tma.async_gather": self._tma_gather,
            "tma.async_scatter": self._tma_scatter,
            "tma.make_tensor_descriptor": self.make_descriptor,
            **{
                f"tma.async_atomic_{name}": self._tma_atomic(name) for name in ("add", "min", "max", "and", "or", "xor")
            },
            "async_copy.async_load": self._async_load,
            "async_copy.async_copy_global_to_shared": self._async_load,
            "async_copy.commit_group": self._commit_group,
            "async_copy.wait_group": self._wait_group,
            "async_copy.mbarrier_arrive": self._arrive_after_copies,
            "clc.try_cancel": self._try_cancel,
            "clc.load_result": lambda memory: NotCancelled(self._machine),
        }

    def make_descriptor(
        self, base: Any, shape: Any, strides: Any, block_shape: Any, layout: Any, padding_option: Any = "zero"
    ) -> Any:
        """Return a TMA descriptor as Gluon's own class, with the interpreter's description as its handle."""
        block = list(lengths(block_shape))
        made = self._machine.semantic.make_tensor_descriptor(
            base,
            [*shape],
            [*strides[:-1], tl.constexpr(1)],
            [tl.constexpr(length) for length in block],
            plain(padding_option),
        )
        sizes, steps = ([self._machine.semantic.to_tensor(value) for value in values] for values in (shape, strides))
        kind = tl.block_type(made.block_type.element_ty, block)
        kind.shape = block  # a list, which kernels add to others
        return tma.tensor_descriptor(made.handle, sizes, steps, kind, layout=plain(layout))

    def _allocate_barrier(self, batch: Any = None, two_ctas: Any = False) -> Any:
        shape = [1] if plain(batch) is None else [plain(batch), 1]
        from triton.experimental.gluon.language.nvidia.hopper import mbarrier

        return self._values.allocate_shared_memory(tl.int64, shape, mbarrier.MBarrierLayout())

    def _expect(self, barrier: Any, bytes_per_cta: Any = None, pred: Any = True, **options: Any) -> None:
        size = options.get("bytes", bytes_per_cta)
        if self._machine.holds(pred):
            found = barrier_in(barrier.handle)
            found.expect(self._machine.number(size))
            found.arrive(1, self._machine.partition.release())

    def _arrive(self, barrier: Any, *, count: Any = 1, pred: Any = True, **options: Any) -> None:
        if self._machine.holds(pred):
            barrier_in(barrier.handle).arrive(self._machine.number(count), self._machine.partition.release())

    def _wait(self, barrier: Any, phase: Any, pred: Any = True, deps: Any = ()) -> None:
        machine = self._machine
        machine.follow_one_program("mbarrier.wait")
        if machine.holds(pred):
            where = f"line {kernel_position(sys._getframe(1))[1]}"
            machine.scheduler.wait(barrier_in(barrier.handle), machine.number(phase), where)
            machine.builder.threads_wait(certain=True)

    # TMA

    def _offsets(self, coordinates: Any) -> list[Any]:
        return [self._machine.semantic.to_tensor(each).handle for each in coordinates]

    def _fetched(self, action: str, barrier: Any, result: Any, data: Any) -> None:
        """Write what a copy brings, and count its bytes at the mbarrier."""
        actor = self._machine.started(action)
        result.handle.write(data.reshape(lengths(result.shape)), actor, action)
        barrier_in(barrier.handle).complete(byte_count(result), actor.clock)

    def _tma_load(
        self,
        tensor_desc: Any,
        coord: Any,
        barrier: Any,
        result: Any,
        pred: Any = True,
        multicast: Any = False,
        **hints: Any,
    ) -> None:
        machine = self._machine
        if machine.holds(pred):
            loaded = machine.builder.create_descriptor_load(tensor_desc.handle, self._offsets(coord), *_NO_HINTS)
            self._fetched(machine.describe("the TMA load"), barrier, result, loaded.data)

    def _tma_gather(
        self, tensor_desc: Any, x_offsets: Any, y_offset: Any, barrier: Any, result: Any, pred: Any = True, **hints: Any
    ) -> None:
        machine = self._machine
        if machine.holds(pred):
            rows, column = x_offsets.handle, machine.semantic.to_tensor(y_offset).handle
            kind = tl.block_type(tensor_desc.dtype, list(lengths(result.shape)))
            loaded = machine.builder.create_descriptor_gather(tensor_desc.handle, rows, column, kind)
            self._fetched(machine.describe("the TMA gather"), barrier, result, loaded.data)

    def _content(self, action: str, src: Any) -> tuple[Actor, Any]:
        """Return what a copy from shared memory reads; the partition waits for it with `store_wait`."""
        actor = self._machine.started(action)
        self._machine.partition.stores.append(actor)
        return actor, src.handle.read(actor, action)

    def _tma_store(self, tensor_desc: Any, coord: Any, src: Any, **hints: Any) -> None:
        machine = self._machine
        _, content = self._content(machine.describe("the TMA store"), src)
        block = content.reshape(lengths(tensor_desc.block_type.shape))
        machine.builder.create_descriptor_store(
            tensor_desc.handle, TensorHandle(block, src.dtype), self._offsets(coord)
        )

    def _tma_scatter(self, tensor_desc: Any, x_offsets: Any, y_offset: Any, src: Any, **hints: Any) -> None:
        machine = self._machine
        _, content = self._content(machine.describe("the TMA scatter"), src)
        column = machine.semantic.to_tensor(y_offset).handle
        value = TensorHandle(content, src.dtype)
        machine.builder.create_descriptor_scatter(tensor_desc.handle, value, x_offsets.handle, column)

    def _tma_atomic(self, name: str) -> Operation:
        def perform(tensor_desc: Any, coord: Any, src: Any, **hints: Any) -> None:
            machine = self._machine
            _, content = self._content(machine.describe(f"the TMA atomic {name}"), src)
            pointers, mask = tensor_desc.handle.materialize_pointers(self._offsets(coord))
            kind = f"F{name}" if name == "add" and src.dtype.is_floating() else name
            value = TensorHandle(content.reshape(pointers.data.shape), src.dtype)
            with machine.builder._through_descriptor():
                machine.builder.create_atomic_rmw(
                    getattr(_ir.ATOMIC_OP, kind.upper()), pointers, value, mask, _ir.MEM_SEMANTIC.RELAXED, None
                )

        return perform

    def _store_wait(self, pendings: Any = 0, **options: Any) -> None:
        partition = self._machine.partition
        partition.stores = partition.finish(partition.stores, self._machine.number(pendings))

    def _try_cancel(self, result: Any, barrier: Any, **options: Any) -> None:
        """Refuse to cancel: every program then does its own work."""
        barrier_in(barrier.handle).complete(byte_count(result), self._machine.partition.release())

    # cp.async

    def _async_load(self, smem: Any, pointer: Any, mask: Any = None, **hints: Any) -> None:
        machine = self._machine
        machine.follow_one_program("asynchronous copies")
        mask = plain(mask)
        loaded = tl.load(pointer) if mask is None else tl.load(pointer, mask, 0)
        action = machine.describe("the asynchronous copy")
        actor = machine.started(action)
        smem.handle.write(loaded.handle.data.reshape(lengths(smem.shape)), actor, action)
        machine.partition.copies.append(actor)

    def _commit_group(self) -> None:
        partition = self._machine.partition
        partition.groups.append(partition.copies)
        partition.copies = []

    def _wait_group(self, num_outstanding: Any = 0) -> None:
        partition = self._machine.partition
        left = self._machine.number(num_outstanding)
        done = partition.groups[: max(0, len(partition.groups) - left)]
        partition.groups = partition.groups[len(done) :]
        for group in done:
            partition.finish(group, 0)

    def _arrive_after_copies(self, barrier: Any, increment_count: Any = True) -> None:
        """Let the copies so far arrive; with `increment_count` the mbarrier expects these arrivals in addition."""
        machine = self._machine
        found = barrier_in(barrier.handle)
        for actor in [*machine.partition.copies, *(one for group in machine.partition.groups for one in group)]:
            found.complete(0, actor.clock)
        if not plain(increment_count):
            found.arrive(machine.partition.warps * THREADS_OF_A_WARP, machine.partition.release())


class NotCancelled:
    """The result of cluster launch control where no program was cancelled."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def is_canceled(self) -> Any:
        return self._machine.semantic.to_tensor(False)

    def program_id(self, dim: Any) -> Any:
        raise UnknownOperation("clc.program_id of a program that was not cancelled")
