"""Low precision, infinities and NaN, at the line where they arise."""

from __future__ import annotations

from typing import Any

import faulty
import pytest
import torch
import triton.language as tl
from reading import HOPPER, kinds, line_of, only

from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.model import Inspection
from tilesmith.toolchain.interpreter import interpreting


def product(precision: str) -> torch.Tensor:
    torch.manual_seed(0)
    a, b, c = torch.randn(32, 32), torch.randn(32, 32), torch.empty(32, 32)
    with interpreting():
        faulty.single_dot[(1,)](a, b, c, PRECISION=precision, BLOCK=32)
    return (c - a.double() @ b.double()).abs().max()


def test_the_interpreter_multiplies_as_the_tensor_cores_do() -> None:
    assert product("ieee") < 1e-5
    assert product("tf32x3") < 1e-4
    assert 1e-4 < product("bf16x3").item() * 10 < 1e-2
    assert 1e-3 < product("tf32") < 3e-2


def dot(input_precision: str, **options: Any) -> Inspection:
    a, b, c = torch.randn(32, 32), torch.randn(32, 32), torch.empty(32, 32)
    return inspect(
        lambda: faulty.single_dot[(1,)](a, b, c, PRECISION=input_precision, BLOCK=32), targets=HOPPER, **options
    )


def test_a_dot_in_tf32_is_named() -> None:
    finding = only(dot("tf32"), "low-precision")
    assert (finding.severity, finding.line) == ("warning", line_of(faulty.single_dot, "PRECISION decides"))
    assert "tf32" in finding.message
    assert "low-precision" not in kinds(dot("ieee"))


@pytest.mark.parametrize(("accumulate", "low"), [(tl.float16, True), (tl.bfloat16, True), (tl.float32, False)])
def test_an_accumulator_in_half_precision_is_named(accumulate: object, low: bool) -> None:
    x, y = torch.rand(64, 32).half(), torch.zeros(32)
    found = inspect(lambda: faulty.half_accumulator[(1,)](x, y, 64, ACCUMULATE=accumulate, BLOCK=32), targets=HOPPER)
    assert ("low-precision" in kinds(found)) is low
    if low:
        assert only(found, "low-precision").line == line_of(faulty.half_accumulator, "rounds at every step")


def test_a_loop_of_four_additions_in_half_precision_is_named() -> None:
    x, y = torch.rand(4, 32).half(), torch.zeros(32)
    for rows, low in ((4, True), (3, False)):
        kernel = faulty.half_accumulator
        found = inspect(lambda: kernel[(1,)](x, y, rows, ACCUMULATE=tl.float16, BLOCK=32), targets=HOPPER)  # noqa: B023
        assert ("low-precision" in kinds(found)) is low


@pytest.mark.parametrize(("sum_in", "low"), [(tl.float16, True), (tl.float32, False)])
def test_a_sum_in_half_precision_is_named(sum_in: object, low: bool) -> None:
    x, y = torch.rand(4, 256).half(), torch.zeros(4)
    found = inspect(lambda: faulty.row_sum[(4,)](x, y, SUM=sum_in, BLOCK=256), targets=HOPPER)
    assert ("low-precision" in kinds(found)) is low


@pytest.mark.parametrize("shift", [True, False])
def test_an_exponential_that_overflows_is_named_where_it_is_born(shift: bool) -> None:
    x, y = torch.full((4, 128), 100.0), torch.zeros(4, 128)
    found = inspect(lambda: faulty.naive_softmax[(4,)](x, y, SHIFT=shift, BLOCK=128), targets=HOPPER)
    births = [one for one in found.findings if one.kind == "not-finite"]
    assert not births if shift else {one.line for one in births} == {line_of(faulty.naive_softmax, "overflows without")}


def test_infinities_of_the_input_are_no_finding() -> None:
    x, y = torch.full((4, 128), float("inf")), torch.zeros(4, 128)
    found = inspect(lambda: faulty.naive_softmax[(4,)](x, y, SHIFT=False, BLOCK=128), targets=HOPPER)
    assert "not-finite" not in kinds(found)


def test_a_cast_that_overflows_is_named() -> None:
    x, y = torch.full((64,), 30000.0), torch.zeros(64, dtype=torch.float16)
    finding = only(inspect(lambda: faulty.to_half[(1,)](x, y, BLOCK=64), targets=HOPPER), "not-finite")
    assert finding.line == line_of(faulty.to_half, "65504")


def test_cancellation_is_found_beside_float64() -> None:
    x, y = 1000 + torch.rand(4, 256), torch.zeros(4)
    found = inspect(lambda: faulty.variance[(4,)](x, y, TWO_PASS=False, BLOCK=256), targets=HOPPER, precision=True)
    finding = only(found, "low-precision")
    assert finding.line == line_of(faulty.variance, "cancels")
    worst = max(found.kernels[0].precision, key=lambda one: one.introduced_ulp)
    assert worst.line == finding.line
    assert worst.ulp > 1000
    found = inspect(lambda: faulty.variance[(4,)](x, y, TWO_PASS=True, BLOCK=256), targets=HOPPER, precision=True)
    assert "low-precision" not in kinds(found)


def test_without_the_option_nothing_is_measured_beside_float64() -> None:
    assert dot("ieee").kernels[0].precision == ()


def test_the_error_of_tf32_is_measured_beside_float64() -> None:
    found = dot("tf32", precision=True)
    assert max(one.ulp for one in found.kernels[0].precision) > 1000
    assert len([one for one in found.findings if one.kind == "low-precision"]) == 1


@pytest.mark.parametrize("discard", [False, True])
def test_nan_of_masked_lanes_is_found_where_it_reaches_a_store(discard: bool) -> None:
    x, y = torch.ones(20), torch.empty(1)
    found = inspect(lambda: faulty.nan_in_masked_lanes[(1,)](x, y, 20, DISCARD=discard, BLOCK=32), targets=HOPPER)
    if discard:
        assert "not-finite" not in kinds(found)
    else:
        assert only(found, "not-finite").line == line_of(faulty.nan_in_masked_lanes, "tl.load")


@pytest.mark.parametrize("how", ["sort", "transpose", "split and join", "gather", "atomic"])
def test_infinities_that_move_are_not_born(how: str) -> None:
    x, old, y = torch.randn(50), torch.full((64,), -float("inf")), torch.empty(64)
    found = inspect(lambda: faulty.infinities_that_move[(1,)](x, old, y, 50, HOW=how), targets=HOPPER)
    assert kinds(found).isdisjoint({"kernel-error", "not-finite"})
