"""Faults of programs outside the sample are found by computing the addresses of all programs."""

from __future__ import annotations

import planted
import torch
from reading import HOPPER, line_of, only

from tilesmith.lab.inspect import inspect


def test_a_race_between_two_programs_in_the_middle_is_found() -> None:
    y = torch.zeros(8192 * 16, dtype=torch.int32)
    found = inspect(lambda: planted.race_in_the_middle[(8192,)](y, BLOCK=16), targets=HOPPER, programs=4)
    finding = only(found, "race")
    assert finding.line == line_of(planted.race_in_the_middle, "its neighbour's")
    assert "(4711, 0, 0)" in finding.message
    assert "(4710, 0, 0)" in finding.message
    assert "the addresses of all programs checked" in found.kernels[0].sampled


def test_a_program_out_of_bounds_in_the_middle_is_found() -> None:
    y = torch.zeros(4096 * 16 + 4, dtype=torch.int32)
    found = inspect(lambda: planted.stray_in_the_middle[(4096,)](y, BLOCK=16), targets=HOPPER, programs=4)
    finding = next(one for one in found.findings if one.kind == "out-of-bounds")
    assert (finding.line, finding.program) == (line_of(planted.stray_in_the_middle, "3334 strays"), (3334, 0, 0))


def test_indices_from_memory_are_followed() -> None:
    index, x, y = torch.arange(4096), torch.ones(16), torch.zeros(4096 * 16)
    clean = inspect(lambda: planted.gather_rows[(4096,)](index, x, y, BLOCK=16), targets=HOPPER, programs=4)
    assert not clean.has_errors
    assert "the addresses of all programs checked" in clean.kernels[0].sampled
    index[2000] = 1999
    twice = inspect(lambda: planted.gather_rows[(4096,)](index, x, y, BLOCK=16), targets=HOPPER, programs=4)
    assert "y_ptr[31984]" in only(twice, "race").message
