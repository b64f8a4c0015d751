"""Strips: every element is met once, in whatever strides, and never across the end of the innermost dimension."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilesmith.ops.device.strips import Strips, as_strips
from tilesmith.ops.runtime.layout import NotWalkable


def offsets(strips: Strips, tensor: int, length: int) -> list[int]:
    """Where the elements lie, strip by strip, worked out as the kernels do."""
    found = []
    per_run = -(-strips.inner // length)
    for strip in range(strips.count(length)):
        run, first = strip // per_run, strip % per_run * length
        outer = (run // strips.sizes[1], run % strips.sizes[1])
        for inner in range(first, min(first + length, strips.inner)):
            steps = zip((*outer, inner), strips.strides[tensor], strict=True)
            found.append(sum(index * stride for index, stride in steps))
    return found


def of(x: Tensor, *others: Tensor) -> Strips:
    return as_strips(tuple(x.shape), x.stride(), *(one.stride() for one in others))


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
def test_every_element_is_met_once(name: str, length: int) -> None:
    x = VIEWS[name]
    numbered = torch.arange(max(x.untyped_storage().nbytes() // 4, 1)).as_strided(x.shape, x.stride())
    assert sorted(offsets(of(x), 0, length)) == sorted(numbered.flatten().tolist())


def test_several_tensors_are_walked_alike() -> None:
    x, y = torch.empty(4, 6, 5).permute(2, 0, 1), torch.empty(5, 4, 6)
    strips = of(x, y)
    met = dict(zip(offsets(strips, 0, 4), offsets(strips, 1, 4), strict=True))
    for index in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
        places = [sum(i * s for i, s in zip(index, one.stride(), strict=True)) for one in (x, y)]
        assert met[places[0]] == places[1]


def test_what_merges_is_one_dimension() -> None:
    assert of(torch.empty(3, 5, 34)).sizes == (1, 1, 510)


def test_a_single_outer_dimension_is_never_divided_by() -> None:
    assert of(torch.empty(16, 40)[:, :20]).sizes == (16, 1, 20)


def test_repeated_elements_are_outermost() -> None:
    assert of(torch.empty(1, 30).expand(7, 30)).sizes == (7, 1, 30)
    assert of(torch.empty(30, 1).expand(30, 7)).sizes == (7, 1, 30)


def test_a_short_innermost_dimension_gives_way_to_the_longest() -> None:
    strips = of(torch.empty(200, 8)[:, :3])
    assert (strips.sizes, strips.strides) == ((3, 1, 200), ((1, 0, 8),))


def test_elements_are_aligned_where_they_are_neighbours_in_multiples_of_16() -> None:
    assert of(torch.empty(3, 48)).aligned
    assert not of(torch.empty(3, 50)[:, :49]).aligned
    assert not of(torch.empty(3, 96)[:, ::2]).aligned


def test_too_many_dimensions_are_refused() -> None:
    with pytest.raises(NotWalkable):
        of(torch.empty(4, 4, 4, 4)[::2, ::2, ::2, ::2])
