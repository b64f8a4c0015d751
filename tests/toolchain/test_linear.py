"""Layouts of matrix units, as Triton converts them."""

from __future__ import annotations

import numpy as np

from tilesmith.toolchain.compiler.layouts import Blocked, owners
from tilesmith.toolchain.compiler.linear import Linear, as_linear

MMA = ("#mma", "#ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 8]}>")
BLOCKED = (
    "#blocked",
    "#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>",
)


def test_an_accumulator_has_two_neighbours_in_each_lane() -> None:
    layout = as_linear((64, 8), "#mma", (MMA,))
    assert layout is not None
    warp, lane, register = owners((64, 8), layout)
    assert lane[:2].tolist() == [[0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6, 7, 7]]
    assert register[0, :2].tolist() == [0, 1]
    assert (register[8, 0], lane[8, 0]) == (2, 0)
    assert warp[::16, 0].tolist() == [0, 1, 2, 3]
    assert len(set(zip(warp.flat, lane.flat, register.flat, strict=True))) == 64 * 8


def test_linear_layout_agrees_with_the_formula_for_blocked_layouts() -> None:
    layout = as_linear((64, 32), "#blocked", (BLOCKED,))
    assert layout is not None
    formula = owners((64, 32), Blocked((1, 4), (8, 4), (4, 1), (1, 0)))
    warp, lane, register = owners((64, 32), layout)
    assert np.array_equal(warp, formula[0])
    assert np.array_equal(lane, formula[1])
    for one in range(4):
        mine = register[(warp == one)]
        assert len(set(mine.tolist())) == len(set(formula[2][warp == one].tolist()))


def test_a_slice_of_a_matrix_layout() -> None:
    layout = as_linear((64,), "#ttg.slice<{dim = 1, parent = #mma}>", (MMA,))
    assert layout is not None
    warp, lane, _ = owners((64,), layout)
    assert warp[::16].tolist() == [0, 1, 2, 3]
    assert lane[:3].tolist() == [0, 4, 8]


def test_unknown_layout_gives_none() -> None:
    assert as_linear((64, 8), "#ttg.of_next_year<{}>", ()) is None


def test_of_several_owners_the_first_counts() -> None:
    layout = Linear(registers=(), lanes=((1,), (0,)), warps=((0,),))
    warp, lane, _ = owners((2,), layout)
    assert (warp.tolist(), lane.tolist()) == ([0, 0], [0, 1])
