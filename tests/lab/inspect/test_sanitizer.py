"""The sanitizer finds races and other faults in any order of programs."""

from __future__ import annotations

import planted
import pytest
import torch
from reading import HOPPER, kinds, line_of, only

import tilesmith as ts
from tilesmith.lab.inspect import inspect


def test_an_off_by_one_load_is_out_of_bounds_on_its_line() -> None:
    x, y = torch.randn(1000), torch.empty(1000)
    found = inspect(lambda: planted.off_by_one[(4,)](x, y, 1000, BLOCK=256), targets=HOPPER)
    finding = only(found, "out-of-bounds")
    assert (finding.severity, finding.program) == ("error", (3, 0, 0))
    assert finding.line == line_of(planted.off_by_one, "one too far")
    assert "x_ptr[1000], which has 1000 elements" in finding.message
    assert found.has_errors
    assert torch.equal(y[:-1], x[1:]), "what is in bounds was performed"
    with pytest.raises(AssertionError, match=r"x_ptr\[1000\]"):
        ts.lab.assert_in_bounds(found)
    ts.lab.assert_in_bounds(lambda: planted.copy[(4,)](x, y, 1000, BLOCK=256))


def test_overlapping_stores_are_a_race() -> None:
    y = torch.zeros(1024)
    found = inspect(lambda: planted.overlapping_stores[(2,)](y, BLOCK=256), targets=HOPPER)
    finding = only(found, "race")
    assert (finding.severity, finding.line) == ("error", line_of(planted.overlapping_stores, "tl.store"))
    assert "(0, 0, 0) and (1, 0, 0) both write y_ptr[128] (128 elements in total)" in finding.message


def test_overlapping_stores_of_one_value_are_a_warning() -> None:
    y = torch.zeros(1024)
    found = inspect(lambda: planted.overlapping_same_values[(2,)](y, BLOCK=256), targets=HOPPER)
    assert only(found, "race").severity == "warning"


def test_atomics_to_one_element_are_not_a_race() -> None:
    y = torch.zeros(1024)
    found = inspect(lambda: planted.overlapping_atomics[(2,)](y, BLOCK=256), targets=HOPPER)
    assert "race" not in kinds(found)
    assert y.sum() == 512


def test_reading_what_another_program_writes_is_a_race() -> None:
    x = torch.arange(1024.0)
    found = inspect(lambda: planted.shift_in_place[(4,)](x, 1024, BLOCK=256), targets=HOPPER)
    races = [one for one in found.findings if one.kind == "race"]
    assert races
    assert {one.severity for one in races} == {"error"}
    assert any("x_ptr[256]" in one.message for one in races)


def test_accesses_under_a_lock_are_not_a_race() -> None:
    x, total, lock = torch.ones(1024), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    found = inspect(lambda: planted.locked_sum[(4,)](x, total, lock, BLOCK=256), targets=HOPPER)
    assert "race" not in kinds(found)
    assert total.item() == 1024


def test_accesses_under_different_locks_are_a_race() -> None:
    x, total, locks = torch.ones(1024), torch.zeros(1), torch.zeros(4, dtype=torch.int32)
    found = inspect(lambda: planted.sum_under_own_lock[(4,)](x, total, locks, BLOCK=256), targets=HOPPER)
    races = [one for one in found.findings if one.kind == "race"]
    assert {one.severity for one in races} == {"error"}
    assert all("total_ptr[0]" in one.message for one in races)


def test_a_lock_that_nobody_takes_orders_nothing() -> None:
    x, total, lock = torch.ones(1024), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    found = inspect(lambda: planted.sum_under_open_lock[(4,)](x, total, lock, BLOCK=256), targets=HOPPER)
    races = [one for one in found.findings if one.kind == "race"]
    assert {one.severity for one in races} == {"error"}
    assert {one.line for one in races} == {line_of(planted.sum_under_open_lock, "tl.store(total_ptr")}


def test_load_after_the_store_of_another_program_is_a_race() -> None:
    """Programs run in order, so only the load meets the other program's access."""
    x, y = torch.zeros(512), torch.zeros(512)
    found = inspect(lambda: planted.reads_the_block_before[(2,)](x, y, BLOCK=256), targets=HOPPER)
    finding = only(found, "race")
    assert finding.severity == "error"
    assert finding.line == line_of(planted.reads_the_block_before, "another program's")
    assert "x_ptr[0]" in finding.message


def test_conflicting_lanes_of_one_store_are_a_race() -> None:
    y = torch.zeros(256)
    found = inspect(lambda: planted.clashing_lanes[(1,)](y, BLOCK=256), targets=HOPPER)
    assert "lanes of one store" in only(found, "race").message


def test_load_of_unwritten_memory_is_an_error() -> None:
    def program() -> None:
        first, second, third = torch.empty(1024), torch.empty(1024), torch.empty(1024)
        planted.copy[(4,)](first, second, 1024, BLOCK=256)  # first is uninitialised
        planted.copy[(2,)](second, third, 512, BLOCK=256)  # second was written by the kernel before

    found = inspect(program, targets=HOPPER)
    finding = only(found, "uninitialised")
    assert finding.severity == "error"
    assert "x_ptr[0], which nobody has written (1,024 elements in total)" in finding.message
    assert found.kernels[0].errors
    assert not found.kernels[1].errors


@pytest.mark.parametrize("fill", [lambda x: x.zero_(), lambda x: x.copy_(torch.ones(1024)), lambda x: x[:1].fill_(1)])
def test_memory_written_by_torch_is_initialised(fill) -> None:  # type: ignore[no-untyped-def]  # a lambda
    def program() -> None:
        x, y = torch.empty(1024), torch.empty(1024)
        fill(x)
        planted.copy[(4,)](x, y, 1024, BLOCK=256)

    assert "uninitialised" not in kinds(inspect(program, targets=HOPPER))


def test_overflow_of_a_32_bit_offset_is_an_error() -> None:
    x, y = torch.zeros(256), torch.empty(5 * 256)
    found = inspect(lambda: planted.far_rows[(5,)](x, y, 2**30, 256, BLOCK=256), targets=HOPPER)
    finding = only(found, "overflow")
    assert finding.program == (4, 0, 0)
    assert f":{line_of(planted.far_rows, 'wraps in the last')}" in finding.message


def test_overlapping_arguments_are_reported() -> None:
    memory = torch.zeros(2048)
    x, y = memory[:1024], memory[512:1536]
    found = inspect(lambda: planted.copy[(4,)](x, y, 1024, BLOCK=256), targets=HOPPER)
    assert only(found, "overlap").severity == "warning"
    assert "race" in kinds(found)
    in_place = inspect(lambda: planted.copy[(4,)](x, x, 1024, BLOCK=256), targets=HOPPER)
    assert not {"overlap", "race"} & kinds(in_place)


def test_failing_kernel_is_an_error_with_file_and_line() -> None:
    x, y = torch.zeros(256), torch.zeros(256)
    found = inspect(lambda: planted.copy[(1,)](x, y, None, BLOCK=256), targets=HOPPER)
    assert "kernel-error" not in kinds(found), "the compiler names the line of the same error"
    error = only(found, "compile-error")
    assert (error.severity, error.line) == ("error", line_of(planted.copy, "mask = places < n_elements"))


def test_a_ticket_is_no_lock() -> None:
    counter, y = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    found = inspect(lambda: planted.drawn_ticket[(4,)](counter, y), targets=HOPPER)
    assert only(found, "race").line == line_of(planted.drawn_ticket, "no lock")


def test_the_last_program_may_read_what_all_released() -> None:
    counter, parts, y = (torch.zeros(size, dtype=torch.int32) for size in (1, 4, 1))
    found = inspect(lambda: planted.last_one_sums[(4,)](counter, parts, y, COUNT=4), targets=HOPPER)
    assert not found.has_errors
    assert y.item() == 6
