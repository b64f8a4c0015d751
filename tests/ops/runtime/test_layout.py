"""Rows and columns of tensors, compared with offsets computed one by one."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from tilesmith.ops.runtime.layout import MAX_ROW_DIMENSIONS, NotWalkable, Rows, as_elements, as_rows

Shape = tuple[int, ...]


def offsets_one_by_one(shape: Shape, strides: tuple[Shape, ...]) -> list[tuple[int, ...]]:
    """Return the offset of every element in each tensor, in row-major order."""
    return [
        tuple(sum(index * stride for index, stride in zip(place, one, strict=True)) for one in strides)
        for place in itertools.product(*map(range, shape))
    ]


def offsets_of_walk(walk: Rows) -> list[tuple[int, ...]]:
    """Return the offsets as a kernel computes them, with divisions by the sizes."""
    found = []
    for row in range(walk.rows):
        place = (
            row // walk.sizes[2] // walk.sizes[1],
            row // walk.sizes[2] % walk.sizes[1],
            row % walk.sizes[2],
        )
        for column in range(walk.columns):
            found.append(
                tuple(
                    sum(index * stride for index, stride in zip(place, row_strides, strict=True))
                    + column * column_stride
                    for row_strides, column_stride in zip(walk.strides, walk.column_strides, strict=True)
                )
            )
    return found


def random_shape(chance: random.Random) -> Shape:
    return tuple(chance.choice([0, 1, 1, 2, 3, 4]) for _ in range(chance.randint(1, 6)))


def random_strides(chance: random.Random, shape: Shape) -> Shape:
    """Draw strides of a permuted tensor, with some dimensions strided or expanded."""
    order = list(range(len(shape)))
    if chance.random() < 0.6:
        chance.shuffle(order)
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = 0 if chance.random() < 0.15 else step
        step *= max(shape[dimension], 1) + (chance.randint(1, 3) if chance.random() < 0.2 else 0)
    return tuple(strides)


def samples(count: int) -> list[tuple[Shape, tuple[Shape, ...]]]:
    chance = random.Random(0)
    made = []
    for _ in range(count):
        shape = random_shape(chance)
        made.append((shape, tuple(random_strides(chance, shape) for _ in range(chance.randint(1, 3)))))
    return made


def dimensions_above_one(shape: Shape) -> int:
    return sum(size != 1 for size in shape)


def test_rows_are_walked_in_order() -> None:
    walked = 0
    for shape, strides in samples(600):
        try:
            walk = as_rows(shape, *strides)
        except NotWalkable:
            assert dimensions_above_one(shape[:-1]) > MAX_ROW_DIMENSIONS
            continue
        assert offsets_of_walk(walk) == offsets_one_by_one(shape, strides)
        walked += 1
    assert walked > 300


def test_every_element_is_walked_once() -> None:
    walked = 0
    for shape, strides in samples(600):
        try:
            walk = as_elements(shape, *strides)
        except NotWalkable:
            assert dimensions_above_one(shape) > MAX_ROW_DIMENSIONS + 1
            continue
        assert sorted(offsets_of_walk(walk)) == sorted(offsets_one_by_one(shape, strides))
        walked += 1
    assert walked > 300


def test_elements_are_walked_in_the_order_of_the_first_tensors_memory() -> None:
    for permutation in itertools.permutations(range(4)):
        x = torch.empty(2, 3, 4, 5).permute(permutation)
        walk = as_elements(tuple(x.shape), x.stride())
        assert offsets_of_walk(walk) == [(offset,) for offset in range(120)]


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 4, 5), (1, 7, 1), (1, 1), (2, 2, 2, 2, 2, 2)], ids=str)
def test_contiguous_tensor_is_a_single_row(shape: Shape) -> None:
    strides = torch.empty(shape).stride()
    walk = as_elements(shape, strides, strides)
    assert walk.rows == 1
    assert walk.columns == torch.Size(shape).numel()
    assert set(walk.column_strides) == {1}


def test_merged_rows_are_not_nested() -> None:
    contiguous = torch.empty(2, 3, 4, 5, 6)
    assert not as_rows(tuple(contiguous.shape), contiguous.stride()).nested
    head = torch.empty(2, 3, 3, 4, 6)[:, :, 1]
    assert as_rows(tuple(head.shape), head.stride()).nested


def test_scalar_is_one_row_of_one_element() -> None:
    walk = as_elements((), (), ())
    assert (walk.rows, walk.columns) == (1, 1)


def test_more_than_three_unmerged_row_dimensions_raise() -> None:
    x = torch.empty(4, 4, 4, 4, 6)[::2, ::2, ::2, ::2]
    with pytest.raises(NotWalkable, match="4 row dimensions that do not merge"):
        as_rows(tuple(x.shape), x.stride())


def test_arguments_are_named_after_the_tensors_in_order() -> None:
    walk = as_rows((4, 6), (6, 1), (1, 4))
    arguments = walk.arguments("x", "y")
    assert arguments["n_rows"] == 4
    assert arguments["sizes"] == (6, 1, 1)
    assert arguments["x_strides"] == (6, 0, 0, 1)
    assert arguments["y_strides"] == (1, 0, 0, 4)
    with pytest.raises(ValueError, match="zip"):
        walk.arguments("x")
