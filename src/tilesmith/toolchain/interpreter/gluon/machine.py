"""What the operations of one Gluon program share: its builder, its partitions and its memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter.gluon.order import Actor, Partition
from tilesmith.toolchain.interpreter.gluon.partitions import Scheduler
from tilesmith.toolchain.interpreter.gluon.shared_memory import Buffer
from tilesmith.toolchain.interpreter.numerics import numpy_dtype
from tilesmith.toolchain.interpreter.observing.positions import kernel_position
from tilesmith.toolchain.interpreter.patches import Builder
from tilesmith.toolchain.interpreter.together.all_programs import CannotFollow

DEFAULT_WARPS = 4


class Machine:
    """The state of the program that runs now. `begin` starts a new one."""

    def __init__(self, builder: Builder, semantic: Any) -> None:
        self.builder = builder
        self.semantic = semantic
        self.scheduler = Scheduler(DEFAULT_WARPS)

    def begin(self, warps: int) -> None:
        """Forget the last program."""
        self.scheduler = Scheduler(warps)

    @property
    def partition(self) -> Partition:
        return self.scheduler.current

    def allocate(self, kind: str, element_type: Any, shape: Sequence[Any]) -> Buffer:
        """Return new memory. Its name is the line that allocates it."""
        self.follow_one_program(kind)
        name = f"{kind} of line {kernel_position(sys._getframe(2))[1]}"
        return Buffer.new(name, lengths(shape), np.dtype(numpy_dtype(element_type)), self.complain)

    def complain(self, message: str) -> None:
        """Show the observers a wrong use of shared memory; without observers, raise it."""
        file, line = kernel_position(sys._getframe(1))
        self.builder.memory.misuse(self.builder.grid_idx, file, line, message)

    def end_partition(self) -> None:
        """Show the observers TMA stores that may still read shared memory when the present partition ends."""
        for actor in self.partition.stores:
            message = f"the kernel does not wait for {actor.name} before it ends"
            self.builder.memory.misuse(self.builder.grid_idx, *actor.place, message)

    def follow_one_program(self, operation: str) -> None:
        """Stop where addresses are computed for many programs at once."""
        if self.builder.path is not None:
            raise CannotFollow(f"the kernel uses {operation}")

    def describe(self, action: str) -> str:
        """Return an action with its line, for messages about later ones."""
        return f"{action} (line {kernel_position(sys._getframe(2))[1]})"

    def started(self, action: str) -> Actor:
        """Return an asynchronous operation of the present partition."""
        actor = self.partition.started(action)
        actor.place = kernel_position(sys._getframe(1))
        return actor

    def tensor(self, data: Any, scalar: Any) -> Any:
        """Return numpy data as a value of the kernel."""
        kind = tl.block_type(scalar, list(data.shape)) if data.shape else scalar
        return tl.tensor(TensorHandle(data, scalar), kind)

    def number(self, value: Any) -> int:
        """Return a scalar of the kernel as a Python number."""
        value = plain(value)
        return int(value.handle.data.item()) if isinstance(value, tl.tensor) else int(value)

    def holds(self, predicate: Any) -> bool:
        return bool(self.number(predicate))


def plain(value: Any) -> Any:
    """Return the value of a constexpr; anything else unchanged."""
    return value.value if isinstance(value, tl.constexpr) else value


def lengths(shape: Any) -> tuple[int, ...]:
    """Return a shape as plain numbers."""
    return tuple(int(plain(length)) for length in plain(shape))
