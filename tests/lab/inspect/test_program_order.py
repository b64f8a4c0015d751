"""Races between the threads of one program, and offsets that overflow 32 bits."""

from __future__ import annotations

from typing import Any

import faulty
import pytest
import torch
from reading import HOPPER, kinds, line_of, only

import tilesmith as ts
from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.inspect_call import NotebookInspection
from tilesmith.lab.inspect.model import Inspection
from tilesmith.toolchain.interpreter import OutOfBounds, interpret


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


def rows_with(indices: torch.Tensor, row_stride: int, **options: Any) -> tuple[NotebookInspection, torch.Tensor]:
    x, y, counts = torch.randn(64), torch.zeros(indices.numel() * 16), torch.zeros(indices.numel())

    def program() -> None:
        faulty.counted_rows[(indices.numel(),)](x, indices, y, counts, row_stride, BLOCK=16)
        assert counts.sum() == indices.numel(), "every program runs once"

    return inspect(program, targets=HOPPER, **options), counts


def test_an_address_out_of_bounds_by_an_overflow_is_an_overflow() -> None:
    found, _ = rows_with(torch.tensor([0, 2, 0], dtype=torch.int32), 2**30)
    finding = only(found, "overflow")
    assert "out-of-bounds" not in kinds(found)
    assert f"faulty.py:{line_of(faulty.counted_rows, 'may not fit')}" in finding.message
    assert finding.advice.startswith("Compute the offset in 64 bits")
    with pytest.raises(AssertionError, match="int32 overflow"):
        ts.lab.assert_in_bounds(found)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])  # the addresses of all programs are not known of floats
@pytest.mark.parametrize(("row_stride", "kind"), [(2**30, "overflow"), (2**20, "out-of-bounds")])
@pytest.mark.parametrize("programs", [None, 2])  # all are traced, or two
def test_a_program_between_the_sampled_ones_tells_an_overflow(
    dtype: torch.dtype, row_stride: int, kind: str, programs: int | None
) -> None:
    indices = torch.zeros(40, dtype=dtype)
    indices[20] = 2
    found, counts = rows_with(indices, row_stride, programs=programs)
    assert {"overflow", "out-of-bounds"} & kinds(found) == {kind}
    assert only(found, kind).program == (20, 0, 0)
    assert torch.equal(counts, torch.ones(40)), "the search for the overflow stores nothing"


@pytest.mark.parametrize(("row_stride", "overflows"), [(2**30, True), (2**20, False)])
def test_an_error_of_the_interpreter_tells_an_overflow(row_stride: int, overflows: bool) -> None:
    given = {"x_ptr": torch.zeros(64), "index_ptr": torch.tensor([0, 2]), "y_ptr": torch.zeros(32)}
    with pytest.raises(OutOfBounds, match=r"x_ptr\[") as caught:
        interpret(
            faulty.counted_rows, (2,), {**given, "count_ptr": torch.zeros(2), "row_stride": row_stride, "BLOCK": 16}
        )
    assert ("int32 overflow at" in str(caught.value)) is overflows
    assert ("in 64 bits" in str(caught.value)) is overflows


def test_a_race_of_a_load_and_a_store_in_one_line_is_said_once() -> None:
    y = torch.zeros(16)
    found = inspect(lambda: faulty.add_without_atomic[(4,)](y, 16, BLOCK=16), targets=HOPPER)
    messages = [one.message for one in found.findings if one.kind == "race"]
    assert sorted("one reads it" in message for message in messages) == [False, True]


@pytest.mark.parametrize(("n", "share"), [(1, "more than 99%"), (256, "75%")])
def test_all_lanes_are_masked_off_only_where_none_is_live(n: int, share: str) -> None:
    y = torch.zeros(1024)
    found = inspect(lambda: faulty.add_without_atomic[(1,)](y, n, BLOCK=1024), targets=HOPPER)
    assert {one.message.partition(" of the")[0] for one in found.findings if one.kind == "masked-waste"} == {share}
