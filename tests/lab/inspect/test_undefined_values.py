"""Undefined values are reported where they reach a result, and only there."""

from __future__ import annotations

import planted
import pytest
import torch
import triton
import triton.language as tl
from reading import HOPPER, kinds, line_of, only

from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.model import Inspection


def of_columns(kernel: object, outputs: int, **constants: bool) -> Inspection:
    x, y = torch.randn(4, 100), torch.zeros(outputs)
    return inspect(lambda: kernel[(4,)](x, y, 100, BLOCK=128, **constants), targets=HOPPER)  # type: ignore[index]


def test_masked_lanes_that_change_a_maximum_are_an_error() -> None:
    finding = only(of_columns(planted.softmax_without_other, 400), "undefined")
    assert finding.severity == "error"
    assert finding.line == line_of(planted.softmax_without_other, "-inf is missing")


def test_masked_lanes_in_a_sum_are_a_warning() -> None:
    finding = only(of_columns(planted.row_sum, 4, DISCARD=False), "undefined")
    assert finding.severity == "warning"
    assert finding.line == line_of(planted.row_sum, "x = tl.load")


def test_a_mean_that_zeros_do_not_change_stays_a_warning_in_what_follows() -> None:
    assert only(of_columns(planted.variance, 4), "undefined").severity == "warning"


def test_masked_lanes_that_a_where_discards_do_no_harm() -> None:
    assert "undefined" not in kinds(of_columns(planted.row_sum, 4, DISCARD=True))


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def sum_in_steps(x_ptr, y_ptr, columns, STEP: tl.constexpr, HOW: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, STEP)
    found = tl.zeros((STEP,), tl.float32) if HOW != "max" else tl.full((STEP,), -1e30, tl.float32)
    for start in range(0, columns, STEP):
        x = tl.load(x_ptr + tl.program_id(0) * columns + start + offsets, mask=start + offsets < columns)
        if HOW == "sum":
            found += x * x
        elif HOW == "exp":
            found += tl.exp(x)
        else:
            found = tl.maximum(found, x)
    result = tl.max(found) if HOW == "max" else tl.sum(tl.reshape(found, (2, STEP // 2)))
    tl.store(y_ptr + tl.program_id(0), result)


@pytest.mark.parametrize(
    ("how", "sign", "severity"),
    [("sum", 1, "warning"), ("exp", 1, "error"), ("max", 1, "warning"), ("max", -1, "error")],
)
def test_an_accumulator_is_wrong_only_where_zeros_change_it(how: str, sign: int, severity: str) -> None:
    x, y = sign * (torch.rand(4, 100) + 0.5), torch.zeros(4)
    found = inspect(lambda: sum_in_steps[(4,)](x, y, 100, STEP=32, HOW=how), targets=HOPPER)
    assert only(found, "undefined").severity == severity


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def softmax_of_products(q_ptr, k_ptr, y_ptr, rows, DISCARD: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, 32)
    square = lane[:, None] * 32 + lane[None, :]
    q = tl.load(q_ptr + square, mask=lane[:, None] < rows)
    k = tl.load(k_ptr + square, mask=lane[None, :] < rows)
    scores = tl.dot(q, k)
    if DISCARD:
        scores += tl.where(lane[None, :] < rows, 0, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    tl.store(y_ptr + square, weights / tl.sum(weights, 1)[:, None], mask=lane[:, None] < rows)


@pytest.mark.parametrize(("discard", "severity"), [(True, "warning"), (False, "error")])
def test_lanes_that_an_infinity_discards_are_no_error(discard: bool, severity: str) -> None:
    q, k = torch.randn(32, 32), torch.randn(32, 32)
    found = inspect(lambda: softmax_of_products[(1,)](q, k, torch.zeros(32, 32), 20, DISCARD=discard), targets=HOPPER)
    lines = {one.line: one.severity for one in found.findings if one.kind == "undefined"}
    assert lines == {line_of(softmax_of_products, "k = tl.load"): severity}  # rows of q are masked off at the store


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def first_of_none(x_ptr, y_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < 0, other=0.0))


@pytest.mark.parametrize("lanes", [1, 2])
def test_masked_lanes_with_other_zero_have_a_value(lanes: int) -> None:
    x, y = torch.ones(lanes), torch.empty(lanes)
    found = inspect(lambda: first_of_none[(1,)](x, y, BLOCK=lanes), targets=HOPPER)
    assert "undefined" not in kinds(found)


@pytest.mark.parametrize(("kept", "errors"), [(100, 0), (101, 1)])
def test_unwritten_memory_matters_only_where_its_value_does(kept: int, errors: int) -> None:
    def program() -> None:
        x, padded, y = (torch.empty(128, device="cuda") for _ in range(3))
        planted.copy[(1,)](x.fill_(1.0), padded, 100, BLOCK=128)
        planted.keep_first[(1,)](padded, y, kept, BLOCK=128)

    found = inspect(program, targets=HOPPER)
    assert [one.kind for one in found.findings if one.severity == "error"] == ["uninitialised"] * errors


@pytest.mark.parametrize("programs", [3, None])
def test_a_floored_grid_leaves_elements_that_the_script_reads(programs: int | None) -> None:
    def program() -> None:
        x, y = torch.ones(1000, device="cuda"), torch.empty(1000, device="cuda")
        planted.copy[(1000 // 256,)](x, y, 1000, BLOCK=256)
        y[:700].sum()  # all of it was written
        y.clone().cpu().sum()

    finding = only(inspect(program, targets=HOPPER, programs=programs), "uninitialised")
    assert (finding.severity, finding.line) == ("error", line_of(planted.copy, "tl.store"))
    assert "232 of 1,000 elements of y_ptr, the first at [768]" in finding.message


def test_a_covered_tensor_is_written_also_by_programs_that_run_later() -> None:
    def program() -> None:
        x, y = torch.ones(1 << 15, device="cuda"), torch.empty(1 << 15, device="cuda")
        planted.copy[(128,)](x, y, 1 << 15, BLOCK=256)
        assert y.sum() == 1 << 15

    assert not inspect(program, targets=HOPPER, programs=2).has_errors


def test_an_atomic_on_unwritten_memory_is_an_error() -> None:
    found = inspect(lambda: planted.overlapping_atomics[(2,)](torch.empty(1024), BLOCK=256), targets=HOPPER)
    assert "updates y_ptr[0], which nobody has written" in only(found, "uninitialised").message
