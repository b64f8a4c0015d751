"""The table through which one launch finds its tensors, on the host and on the device.

Gradients often have new addresses at every step, and the host's step count changes. Then the table is copied to the
device asynchronously, from pinned memory that PyTorch reuses only after the copy is done.
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
from tilesmith.optim.updated_parameter import Group, UpdatedParameter

SPARE = 4  # consecutive captures without an eager step between them


class HostMemory:
    """The pinned host memory of one optimiser."""

    def __init__(self) -> None:
        self._spare: dict[int, list[Tensor]] = {}
        self._captured: dict[bytes, Tensor] = {}

    def temporary_copy(self, content: NDArray[np.int64]) -> Tensor:
        """Return a pinned copy, which PyTorch reuses after the GPU has read it."""
        spare = self._spare.setdefault(len(content), [])
        while len(spare) < SPARE:
            spare.append(_pinned(content))
        return _pinned(content)

    def kept_copy(self, content: NDArray[np.int64]) -> Tensor:
        """Return a pinned copy that stays, because every replay of a captured graph reads it.

        Uses spare memory, because the driver may refuse allocations during a capture.
        """
        written = content.tobytes()
        if written not in self._captured:
            spare = self._spare.get(len(content))
            memory = spare.pop() if spare else _pinned(content)
            self._captured[written] = memory.copy_(torch.from_numpy(content))
        return self._captured[written]


def _pinned(content: NDArray[np.int64]) -> Tensor:
    return torch.empty(len(content), dtype=torch.int64, device="cpu", pin_memory=True).copy_(torch.from_numpy(content))


class Table:
    """The table of some parameters of one device and dtype, either all aligned to 16 bytes or none.

    `places` are their positions in the list of all parameters.
    """

    def __init__(self, members: Sequence[UpdatedParameter], places: Sequence[int], aligned: bool) -> None:
        first, tensors, height = members[0], len(members), max(bucket(len(members)), 16)
        elements = tuple(member.elements for member in members)
        self._aligned = aligned
        self._places = np.array(places)
        self._device = first.device
        self._plan, firsts = plan_of(elements, height, first.device, first.dtype, aligned, dispatch.epoch())
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
        for row, member in enumerate(members):  # the parameters of a group are consecutive
            if self._groups and self._groups[-1][0] is member.group:
                self._groups[-1] = (member.group, slice(self._groups[-1][1].start, row + 1))
            else:
                self._groups.append((member.group, slice(row, row + 1)))
        self._copied: bytes | None = None
        self._stream = 0
        self._on_device: tuple[Tensor, Tensor] | None = None

    def suits(self, gradients: NDArray[np.int64]) -> bool:
        """Return whether, with gradients at these addresses, still all parameters are aligned, or none."""
        return bool((((self._others | gradients[self._places]) % 16 == 0) == self._aligned).all())

    def launch(self, gradients: NDArray[np.int64], memory: HostMemory) -> None:
        """Update the parameters, whose gradients are at these addresses."""
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
        self._plan.run(self._device_table(memory))

    def _device_table(self, memory: HostMemory) -> tuple[Tensor, Tensor]:
        """Return the table in the kernels' memory; the copy of the last step where nothing has changed."""
        if self._device.type != "cuda":
            return self._columns(torch.from_numpy(self._content))
        if torch.cuda.is_current_stream_capturing():
            return self._columns(memory.kept_copy(self._content).to(self._device, non_blocking=True))
        # PyTorch reuses memory in the order of one stream's work, so each stream has its own table.
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        written = self._content.tobytes()
        if self._on_device is None or written != self._copied or stream != self._stream:
            self._on_device = self._columns(memory.temporary_copy(self._content).to(self._device, non_blocking=True))
            self._copied, self._stream = written, stream
        return self._on_device

    def _columns(self, table: Tensor) -> tuple[Tensor, Tensor]:
        integers, numbers = table[: INTEGER_COLUMNS * self._height], table[INTEGER_COLUMNS * self._height :]
        return integers.view(-1, self._height), numbers.view(torch.float64).view(-1, self._height)


@lru_cache(maxsize=64)
def plan_of(
    elements: tuple[int, ...], height: int, device: torch.device, dtype: torch.dtype, aligned: bool, epoch: int
) -> tuple[Plan, list[int]]:
    """Return the plan for tensors of these numbers of elements, and the first program of each.

    `epoch` is the dispatch's: another epoch needs another plan.
    """
    integers = torch.empty(INTEGER_COLUMNS, height, dtype=torch.int64, device="meta")
    numbers = torch.empty(NUMBER_COLUMNS, height, dtype=torch.float64, device="meta")
    plan = Plan("adamw", device, (integers, numbers))
    return plan, plan_update(plan, elements, dtype, aligned)
