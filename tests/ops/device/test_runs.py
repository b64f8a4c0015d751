"""Runs visit every element once, for any strides, and never cross the end of the innermost dimension."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilesmith.ops.device.runs import Runs, as_runs
from tilesmith.ops.runtime.layout import NotWalkable


def offsets(runs: Runs, tensor: int, length: int) -> list[int]:
    """Return the offsets of all elements, run by run, computed as the kernels do."""
    found = []
    runs_per_row = -(-runs.inner // length)
    for run in range(runs.count(length)):
        row, first = run // runs_per_row, run % runs_per_row * length
        outer = (row // runs.sizes[1], row % runs.sizes[1])
        for inner in range(first, min(first + length, runs.inner)):
            steps = zip((*outer, inner), runs.strides[tensor], strict=True)
            found.append(sum(index * stride for index, stride in steps))
    return found


def of(x: Tensor, *others: Tensor) -> Runs:
    return as_runs(tuple(x.shape), x.stride(), *(one.stride() for one in others))


VIEWS = {
    "contiguous": torch.empty(3, 5, 34),
    "turned round": torch.empty(34, 5, 3).permute(2, 1, 0),
    "with gaps": torch.empty(6, 10, 14)[::2, ::2, ::2],
    "short rows with gaps": torch.empty(200, 8)[:, :3],
    "one dimension": torch.empty(33),
    "no dimension": torch.empty(()),
    "size one dimensions": torch.empty(1, 5, 1, 6),
    "empty": torch.empty(3, 0, 5),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("length", [1, 4, 64])
def test_runs_visit_every_element_once(name: str, length: int) -> None:
    x = VIEWS[name]
    numbered = torch.arange(max(x.untyped_storage().nbytes() // 4, 1)).as_strided(x.shape, x.stride())
    assert sorted(offsets(of(x), 0, length)) == sorted(numbered.flatten().tolist())


def test_several_tensors_are_walked_in_the_same_order() -> None:
    x, y = torch.empty(4, 6, 5).permute(2, 0, 1), torch.empty(5, 4, 6)
    runs = of(x, y)
    met = dict(zip(offsets(runs, 0, 4), offsets(runs, 1, 4), strict=True))
    for index in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
        places = [sum(i * s for i, s in zip(index, one.stride(), strict=True)) for one in (x, y)]
        assert met[places[0]] == places[1]


def test_dimensions_that_merge_become_one() -> None:
    assert of(torch.empty(3, 5, 34)).sizes == (1, 1, 510)


def test_single_outer_dimension_comes_first() -> None:
    assert of(torch.empty(16, 40)[:, :20]).sizes == (16, 1, 20)


def test_dimensions_of_stride_zero_are_outermost() -> None:
    assert of(torch.empty(1, 30).expand(7, 30)).sizes == (7, 1, 30)
    assert of(torch.empty(30, 1).expand(30, 7)).sizes == (7, 1, 30)


def test_short_innermost_dimension_is_replaced_by_the_longest() -> None:
    runs = of(torch.empty(200, 8)[:, :3])
    assert (runs.sizes, runs.strides) == ((3, 1, 200), ((1, 0, 8),))


def test_contiguous_multiples_of_16_are_aligned() -> None:
    assert of(torch.empty(3, 48)).aligned
    assert not of(torch.empty(3, 50)[:, :49]).aligned
    assert not of(torch.empty(3, 96)[:, ::2]).aligned


def test_too_many_dimensions_raise_not_walkable() -> None:
    with pytest.raises(NotWalkable):
        of(torch.empty(4, 4, 4, 4)[::2, ::2, ::2, ::2])
