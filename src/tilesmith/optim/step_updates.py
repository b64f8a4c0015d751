"""The updates of one step: which parameters take part, and the tables of their launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tilesmith.ops.runtime import dispatch
from tilesmith.optim.adamw_kernels import MOST_TENSORS
from tilesmith.optim.address_tables import HostMemory, Table
from tilesmith.optim.updated_parameter import Group, UpdatedParameter, updated_parameter

State = dict[str, Any]


class RememberedGroup(NamedTuple):
    """A group in which our kernels update every parameter that has a gradient."""

    group: Group
    settings: tuple[object, ...]
    parameters: list[Tensor]
    members: list[UpdatedParameter]
    without_gradient: list[Tensor]


class Updates:
    """The updates of one optimiser, step by step."""

    def __init__(self) -> None:
        self._remembered: dict[int, RememberedGroup] = {}
        self._states: list[State] = []
        self._members: list[UpdatedParameter] = []
        self._gradients: list[int] = []
        self._tables: list[Table] = []
        self._of_tables: list[UpdatedParameter] = []
        self._memory = HostMemory()

    def begin(self, states: list[State]) -> None:
        """Begin a step; forget all groups where the optimiser's states are other objects than before."""
        self._members, self._gradients = [], []
        if not _same(states, self._states):
            self._remembered.clear()

    def add_remembered(self, group: Group) -> bool:
        """Add the parameters of a group that has not changed since an earlier step; return whether that was so."""
        remembered = self._remembered.get(id(group))
        if remembered is None or remembered.group is not group or remembered.settings != _settings(group):
            return False
        if not _same(group["params"], remembered.parameters):
            return False
        if any(one.grad is not None for one in remembered.without_gradient):
            return False
        gradients = [member.gradient_address() for member in remembered.members]
        if None in gradients:
            return False
        self._members += remembered.members
        self._gradients += gradients  # type: ignore[arg-type]  # None was excluded above
        return True

    def add(self, group: Group, collected: Sequence[list[Tensor]], states: Mapping[Tensor, State]) -> None:
        """Add our parameters of a group, and remove them from the lists that torch collected."""
        members, left = [], []
        for place, parameter in enumerate(collected[0]):
            member = updated_parameter(parameter, states[parameter], group)
            address = member.gradient_address() if member else None
            if member is None or address is None:
                left.append(place)
                continue
            members.append(member)
            self._members.append(member)
            self._gradients.append(address)
        if left:
            self._remembered.pop(id(group), None)
        else:
            without_gradient = [one for one in group["params"] if one.grad is None]
            parameters = list(group["params"])
            self._remembered[id(group)] = RememberedGroup(
                group, _settings(group), parameters, members, without_gradient
            )
        for one in collected:
            if one:  # the list of amsgrad is empty
                one[:] = [one[place] for place in left]

    def run(self, states: list[State]) -> None:
        """Update all parameters that were added."""
        self._states = states
        members, gradients = self._members, np.array(self._gradients, np.int64)
        self._members = []
        if not members:
            return
        if not _same(members, self._of_tables) or not all(table.suits(gradients) for table in self._tables):
            self._tables, self._of_tables = _tables_of(members, gradients.tolist()), members
        for table in self._tables:
            table.launch(gradients, self._memory)
        # With a new version, autograd notices that a saved parameter has changed.
        torch.autograd.graph.increment_version([member.parameter for member in members])


def _settings(group: Group) -> tuple[object, ...]:
    """Return the settings, apart from tensors, on which `add` depends."""
    rate = group["lr"]
    where = (rate.device, rate.dtype) if isinstance(rate, Tensor) else None
    return dispatch.epoch(), group["capturable"], group["fused"], where


def _same(ones: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether both hold the same objects."""
    return len(ones) == len(others) and all(map(is_, ones, others))


def _tables_of(members: Sequence[UpdatedParameter], gradients: Sequence[int]) -> list[Table]:
    alike: dict[tuple[torch.device, torch.dtype, bool], list[int]] = {}
    for place, (member, gradient) in enumerate(zip(members, gradients, strict=True)):
        p, m, v = member.addresses
        alike.setdefault((member.device, member.dtype, (p | gradient | m | v) % 16 == 0), []).append(place)
    return [
        Table([members[place] for place in some], some, aligned)
        for (_, _, aligned), places in alike.items()
        for some in (places[start : start + MOST_TENSORS] for start in range(0, len(places), MOST_TENSORS))
    ]
