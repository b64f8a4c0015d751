"""Races between the threads of one program, and offsets that overflow 32 bits."""

from __future__ import annotations

import faulty
import pytest
import torch
from reading import HOPPER, kinds, line_of, only

from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.model import Inspection


def reversed_once(barrier: bool, total: bool = False, **options: int) -> Inspection:
    x, y = torch.randn(256), torch.zeros(256)
    kernel = faulty.reversed_through_memory
    return inspect(lambda: kernel[(1,)](x, y, BARRIER=barrier, SUM=total, BLOCK=256, **options), targets=HOPPER)


def test_a_load_of_what_other_threads_stored_needs_a_barrier() -> None:
    finding = only(reversed_once(barrier=False), "race")
    assert (finding.severity, finding.line) == ("error", line_of(faulty.reversed_through_memory, "other threads'"))
    assert "no barrier" in finding.message


def test_a_barrier_orders_the_threads_of_a_program() -> None:
    assert "race" not in kinds(reversed_once(barrier=True))


def test_one_warp_without_a_barrier_is_a_warning() -> None:
    finding = only(reversed_once(barrier=False, num_warps=1), "race")
    assert finding.severity == "warning"
    assert "in step" in finding.message
    assert "race" not in kinds(reversed_once(barrier=True, num_warps=1))


def test_a_reduction_between_makes_it_a_warning() -> None:
    assert only(reversed_once(barrier=False, total=True), "race").severity == "warning"


@pytest.mark.parametrize(("shift", "racy"), [(0, False), (1, True)])
def test_a_store_over_what_other_threads_load_is_a_race(shift: int, racy: bool) -> None:
    x = torch.randn(512)
    found = inspect(lambda: faulty.shifted_in_place[(1,)](x, SHIFT=shift, BLOCK=256), targets=HOPPER)
    assert ("race" in kinds(found)) is racy


def test_a_shift_that_overflows_is_named() -> None:
    x, y = torch.randn(64), torch.zeros(64)
    found = inspect(lambda: faulty.shifted_offsets[(3,)](x, y, BLOCK=16), targets=HOPPER)
    assert {one.line for one in found.findings if one.kind == "overflow"} == {
        line_of(faulty.shifted_offsets, "tl.store")
    }
    assert any("int32" in one.message for one in found.findings if one.kind == "overflow")


def test_a_truncated_offset_is_named() -> None:
    x, y = torch.randn(64), torch.zeros(64)
    found = inspect(lambda: faulty.truncated_offset[(3,)](x, y, 1 << 31, BLOCK=16), targets=HOPPER)
    assert any("int32" in one.message for one in found.findings if one.kind == "overflow")
