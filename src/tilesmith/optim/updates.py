"""The updates of one step: who takes part, and the tables that they are launched by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tilesmith.ops.runtime import dispatch
from tilesmith.optim.adamw_kernels import MOST_TENSORS
from tilesmith.optim.members import Group, Member, found
from tilesmith.optim.tables import HostMemory, Table

State = dict[str, Any]


class Known(NamedTuple):
    """A group all of whose parameters that have a gradient are ours."""

    group: Group
    settings: tuple[object, ...]
    parameters: list[Tensor]
    members: list[Member]
    without_gradient: list[Tensor]


class Updates:
    """Of one optimiser, step by step."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._states: list[State] = []
        self._members: list[Member] = []
        self._gradients: list[int] = []
        self._tables: list[Table] = []
        self._of_tables: list[Member] = []
        self._memory = HostMemory()

    def begin(self, states: list[State]) -> None:
        """A step begins. The optimiser's states may be others than they were: then nothing is known any more."""
        self._members, self._gradients = [], []
        if not _same(states, self._states):
            self._known.clear()

    def add_known(self, group: Group) -> bool:
        """Whether the group is as it was at an earlier step; its parameters then take part in this one."""
        known = self._known.get(id(group))
        if known is None or known.group is not group or known.settings != _settings(group):
            return False
        if not _same(group["params"], known.parameters) or any(one.grad is not None for one in known.without_gradient):
            return False
        gradients = [member.gradient_address() for member in known.members]
        if None in gradients:
            return False
        self._members += known.members
        self._gradients += gradients  # type: ignore[arg-type]  # no None among them
        return True

    def add(self, group: Group, collected: Sequence[list[Tensor]], states: Mapping[Tensor, State]) -> None:
        """Take what is ours out of what torch has collected of a group."""
        members, left = [], []
        for place, parameter in enumerate(collected[0]):
            member = found(parameter, states[parameter], group)
            address = member.gradient_address() if member else None
            if member is None or address is None:
                left.append(place)
                continue
            members.append(member)
            self._members.append(member)
            self._gradients.append(address)
        if left:
            self._known.pop(id(group), None)
        else:
            without_gradient = [one for one in group["params"] if one.grad is None]
            self._known[id(group)] = Known(group, _settings(group), list(group["params"]), members, without_gradient)
        for one in collected:
            if one:  # that of amsgrad is empty
                one[:] = [one[place] for place in left]

    def run(self, states: list[State]) -> None:
        """Update all that takes part."""
        self._states = states
        members, gradients = self._members, np.array(self._gradients, np.int64)
        self._members = []
        if not members:
            return
        if not _same(members, self._of_tables) or not all(table.suits(gradients) for table in self._tables):
            self._tables, self._of_tables = _tables_of(members, gradients.tolist()), members
        for table in self._tables:
            table.launch(gradients, self._memory)
        torch.autograd.graph.increment_version([member.parameter for member in members])  # graphs that kept one notice


def _settings(group: Group) -> tuple[object, ...]:
    """What, beside the tensors, decided whether a group is ours."""
    rate = group["lr"]
    where = (rate.device, rate.dtype) if isinstance(rate, Tensor) else None
    return dispatch.epoch, group["capturable"], group["fused"], where


def _same(ones: Sequence[object], others: Sequence[object]) -> bool:
    """Whether these are the same objects, not only equal ones."""
    return len(ones) == len(others) and all(map(is_, ones, others))


def _tables_of(members: Sequence[Member], gradients: Sequence[int]) -> list[Table]:
    alike: dict[tuple[torch.device, torch.dtype, bool], list[int]] = {}
    for place, (member, gradient) in enumerate(zip(members, gradients, strict=True)):
        p, m, v = member.addresses
        alike.setdefault((member.device, member.dtype, (p | gradient | m | v) % 16 == 0), []).append(place)
    return [
        Table([members[place] for place in some], some, aligned)
        for (_, _, aligned), places in alike.items()
        for some in (places[start : start + MOST_TENSORS] for start in range(0, len(places), MOST_TENSORS))
    ]
