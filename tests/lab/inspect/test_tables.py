"""Tensors that are no arguments of their own: pointers in a tuple, and pointers that the kernel loads from a table."""

from __future__ import annotations

import planted
import pytest
import torch
from reading import HOPPER, kinds, only

from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.model import Inspection


def copied(reach: int = 0, apart: int = 1) -> Inspection:
    xs, ys = ([torch.randn(128) for _ in range(3)] for _ in range(2))
    x_table, y_table = (torch.tensor([one.data_ptr() for one in tensors]) for tensors in (xs, ys))
    found = inspect(lambda: planted.table_copy[(3,)](x_table, y_table, reach, SIZE=128, APART=apart), targets=HOPPER)
    assert reach or not apart or torch.equal(torch.stack(ys), torch.stack(xs))
    return found


def test_bytes_of_tensors_in_a_tuple_count() -> None:
    x, y = torch.randn(1000), torch.empty(1000)
    (kernel,) = inspect(lambda: planted.tuple_copy[(4,)]((x, y), 1000, BLOCK=256), targets=HOPPER).kernels
    assert torch.equal(x, y)
    assert kernel.unique_bytes == 2 * 4000
    assert kernel.bound == "memory"


def test_bytes_behind_a_table_of_addresses_count_once() -> None:
    (kernel,) = copied().kernels
    assert kernel.unique_bytes == 2 * 3 * 128 * 4 + 2 * 3 * 8
    assert {one.accesses_per_element for one in kernel.accesses} == {1.0}


def test_race_behind_a_table_of_addresses_is_found() -> None:
    finding = only(copied(apart=0), "race")
    assert (finding.severity, "128 elements" in finding.message) == ("error", True)
    assert "race" not in kinds(copied())


@pytest.mark.parametrize("reach", [1, -1])
def test_access_beyond_a_tensor_behind_a_table_does_not_blame_the_table(reach: int) -> None:
    message = only(copied(reach), "out-of-bounds").message
    assert "table_ptr" not in message
    place = f"element {128 if reach == 1 else -1} of a tensor that is no argument, which has 128 elements"
    assert f"an address where no tensor lies; the nearest is {place}" in message
