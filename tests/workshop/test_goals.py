# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# A kernel has no type annotations: Triton interprets annotations itself.
"""The metrics of goals, on kernels with known values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from tilesmith.workshop.checking.goals import METRICS, measure
from tilesmith.workshop.checking.traced_call import TracedCall, trace_call
from tilesmith.workshop.course.exercise import ExerciseError, Goal


@triton.jit
def sum_of_two_kernel(x_ptr, out_ptr, distance, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    once = tl.load(x_ptr + offsets * distance)
    again = tl.load(x_ptr + offsets * distance)
    tl.store(out_ptr + offsets, once + again)


def traced_with(distance: int) -> TracedCall:
    def program() -> None:
        x = torch.ones(1024 * distance)
        sum_of_two_kernel[(4,)](x, torch.empty(1024), distance, BLOCK_SIZE=256)

    return trace_call(program, {}, Path(__file__))


@pytest.fixture(scope="module")
def packed() -> TracedCall:
    return traced_with(1)


@pytest.fixture(scope="module")
def apart() -> TracedCall:
    return traced_with(8)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("loads_per_element", 2), ("stores_per_element", 1), ("sector_efficiency", 1), ("launches", 1), ("programs", 4),
        ("spills", 0), ("bytes_moved", 3 * 4096), ("masked_fraction", 0), ("tensor_cores", 0), ("bank_conflicts", 0),
        ("loads_per_element_in_program", 2), ("shared_bytes", 0), ("pipelined", 0), ("missing_masks", 3),
        ("candidates", 0), ("requests", 4 * (4 + 4)),  # four warps each; the compiler makes one load of the two
    ],
)  # fmt: skip
def test_metric_has_the_known_value(packed: TracedCall, metric: str, value: float) -> None:
    assert measure(Goal(metric, "", at_most=0), packed).value == pytest.approx(value)


def test_every_metric_gives_a_number(packed: TracedCall) -> None:
    for metric in METRICS:
        assert measure(Goal(metric, "", at_most=0), packed).value >= 0


def test_launches_with_many_different_arguments_are_all_counted() -> None:
    def program() -> None:
        x = torch.ones(4096)
        for start in range(9):  # Triton specialises each alignment and each distance
            sum_of_two_kernel[(2,)](x[start:], torch.empty(512), start + 1, BLOCK_SIZE=256)

    call = trace_call(program, {}, Path(__file__))
    assert measure(Goal("launches", "", at_most=0), call).value == 9
    assert measure(Goal("programs", "", at_most=0), call).value == 18


def test_strided_load_lowers_sector_efficiency_and_is_named(apart: TracedCall) -> None:
    found = measure(Goal("sector_efficiency", "", at_least=0.9), apart)
    assert found.value == pytest.approx(1 / 8)
    assert found.where.startswith("the load of x_ptr on line ")
    assert measure(Goal("sector_efficiency", "", at_least=0.9, argument="out_ptr"), apart).value == 1


def test_goal_with_argument_measures_only_that_argument(packed: TracedCall) -> None:
    assert measure(Goal("loads_per_element", "", at_most=1, argument="out_ptr"), packed).value == 0
    with pytest.raises(LookupError, match="no kernel takes a tensor called 'z_ptr'"):
        measure(Goal("loads_per_element", "", at_most=1, argument="z_ptr"), packed)


def test_goal_measures_its_own_target(packed: TracedCall) -> None:
    ours = measure(Goal("registers", "", at_most=1), packed)
    amds = measure(Goal("registers", "", at_most=1, target="hip:gfx942"), packed)
    assert (ours.where, amds.where) == ("on cuda:90", "on hip:gfx942")
    with pytest.raises(LookupError, match="no kernel was compiled for cuda:1"):
        measure(Goal("registers", "", at_most=1, target="cuda:1"), packed)


def test_unknown_metric_is_refused(packed: TracedCall) -> None:
    with pytest.raises(ExerciseError, match="there is no metric 'beauty'"):
        measure(Goal("beauty", "", at_least=1), packed)
