"""The table that one launch finds its tensors by, on the host and on the device.

Gradients are often allocated anew for every step, and where the host counts steps there is another count. The table is
then copied, without anybody waiting: from memory that PyTorch gives out again once the copy is done, and not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.plan import Plan
from tilesmith.optim.adamw_kernels import (
    BEYOND_ALL_PROGRAMS,
    COUNT,
    EXP_AVG,
    EXP_AVG_SQ,
    FIRST_PROGRAM,
    GRADIENT,
    INTEGER_COLUMNS,
    NUMBER_COLUMNS,
    PARAMETER,
    RATE,
    RATE_VALUE,
    STEP,
    STEP_VALUE,
    plan_update,
)
from tilesmith.optim.members import Group, Member

SPARE = 4  # captures that may follow each other without a step outside of one


class HostMemory:
    """Memory of the host that a GPU copies from by itself, of one optimiser."""

    def __init__(self) -> None:
        self._spare: dict[int, list[Tensor]] = {}
        self._captured: dict[bytes, Tensor] = {}

    def holding(self, content: NDArray[np.int64]) -> Tensor:
        """A copy of this, until the GPU has read it."""
        spare = self._spare.setdefault(len(content), [])
        while len(spare) < SPARE:
            spare.append(_pinned(content))
        return _pinned(content)

    def holding_for_good(self, content: NDArray[np.int64]) -> Tensor:
        """A copy of this for a capture: every replay of the graph reads it again. Memory that is there is taken, as
        the driver may refuse to give any during a capture."""
        written = content.tobytes()
        if written not in self._captured:
            spare = self._spare.get(len(content))
            memory = spare.pop() if spare else _pinned(content)
            self._captured[written] = memory.copy_(torch.from_numpy(content))
        return self._captured[written]


def _pinned(content: NDArray[np.int64]) -> Tensor:
    return torch.empty(len(content), dtype=torch.int64, device="cpu", pin_memory=True).copy_(torch.from_numpy(content))


class Table:
    """Of the members at some places in a list of all; on one device, of one dtype, aligned to 16 bytes or not."""

    def __init__(self, members: Sequence[Member], places: Sequence[int], aligned: bool) -> None:
        first, tensors, height = members[0], len(members), max(bucket(len(members)), 16)
        elements = tuple(member.elements for member in members)
        self._aligned = aligned
        self._places = np.array(places)
        self._device = first.device
        self._plan, firsts = plan_of(elements, height, first.device, first.dtype, aligned, dispatch.epoch)
        self._content = np.zeros((INTEGER_COLUMNS + NUMBER_COLUMNS) * height, np.int64)
        self._height = height
        integers = self._content[: INTEGER_COLUMNS * height].reshape(INTEGER_COLUMNS, height)
        self._gradients = integers[GRADIENT, :tensors]
        self._rate_addresses = integers[RATE, :tensors]
        self._numbers = self._content[INTEGER_COLUMNS * height :].view(np.float64).reshape(NUMBER_COLUMNS, height)
        for column, place in ((PARAMETER, 0), (EXP_AVG, 1), (EXP_AVG_SQ, 2)):
            integers[column, :tensors] = [one.addresses[place] for one in members]
        self._others = np.bitwise_or.reduce([one.addresses for one in members], axis=1)
        integers[COUNT, :tensors] = elements
        integers[FIRST_PROGRAM] = BEYOND_ALL_PROGRAMS
        integers[FIRST_PROGRAM, :tensors] = firsts
        integers[STEP, :tensors] = [one.step.data_ptr() if one.count is None else 0 for one in members]
        self._counts = [(row, one.count) for row, one in enumerate(members) if one.count is not None]
        self._groups: list[tuple[Group, slice]] = []
        for row, member in enumerate(members):  # those of a group stand together
            if self._groups and self._groups[-1][0] is member.group:
                self._groups[-1] = (member.group, slice(self._groups[-1][1].start, row + 1))
            else:
                self._groups.append((member.group, slice(row, row + 1)))
        self._copied: bytes | None = None
        self._stream = 0
        self._on_device: tuple[Tensor, Tensor] | None = None

    def suits(self, gradients: NDArray[np.int64]) -> bool:
        """Whether with gradients at these addresses the members are still all aligned, or none of them."""
        return bool((((self._others | gradients[self._places]) % 16 == 0) == self._aligned).all())

    def launch(self, gradients: NDArray[np.int64], memory: HostMemory) -> None:
        """Update the members, whose gradients are at these addresses."""
        self._gradients[:] = gradients[self._places]
        for row, count in self._counts:
            self._numbers[STEP_VALUE, row] = count[()] = count[()] + 1
        for group, rows in self._groups:
            rate = group["lr"]
            on_device = isinstance(rate, Tensor) and rate.device.type != "cpu"
            self._rate_addresses[rows] = rate.data_ptr() if on_device else 0
            numbers = (
                0.0 if on_device else float(rate), *group["betas"], group["weight_decay"], group["eps"],
                -1.0 if group["maximize"] else 1.0,
            )  # fmt: skip
            self._numbers[RATE_VALUE:, rows] = np.array(numbers)[:, None]
        self._plan.run(self._there(memory))

    def _there(self, memory: HostMemory) -> tuple[Tensor, Tensor]:
        """The table where the kernels read it; that of the step before, where nothing has changed."""
        if self._device.type != "cuda":
            return self._columns(torch.from_numpy(self._content))
        if torch.cuda.is_current_stream_capturing():
            return self._columns(memory.holding_for_good(self._content).to(self._device, non_blocking=True))
        # A stream gives its memory out again in the order of its own work, so each has a table of its own.
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        written = self._content.tobytes()
        if self._on_device is None or written != self._copied or stream != self._stream:
            self._on_device = self._columns(memory.holding(self._content).to(self._device, non_blocking=True))
            self._copied, self._stream = written, stream
        return self._on_device

    def _columns(self, table: Tensor) -> tuple[Tensor, Tensor]:
        integers, numbers = table[: INTEGER_COLUMNS * self._height], table[INTEGER_COLUMNS * self._height :]
        return integers.view(-1, self._height), numbers.view(torch.float64).view(-1, self._height)


@lru_cache(maxsize=64)
def plan_of(
    elements: tuple[int, ...], height: int, device: torch.device, dtype: torch.dtype, aligned: bool, epoch: int
) -> tuple[Plan, list[int]]:
    """The launches for tensors of so many elements, and the first program of each; `epoch` is that of the dispatch."""
    integers = torch.empty(INTEGER_COLUMNS, height, dtype=torch.int64, device="meta")
    numbers = torch.empty(NUMBER_COLUMNS, height, dtype=torch.float64, device="meta")
    plan = Plan("adamw", device, (integers, numbers))
    return plan, plan_update(plan, elements, dtype, aligned)
