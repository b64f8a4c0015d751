"""Hints to the compiler that the traced values contradict."""

from __future__ import annotations

import faulty
import pytest
import torch
from reading import HOPPER, kinds, line_of, only

from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.model import Inspection


def copied(start: int) -> Inspection:
    x, y = torch.randn(512), torch.zeros(256)
    return inspect(lambda: faulty.hinted_copy[(1,)](x, y, start, 512, BLOCK=256), targets=HOPPER)


def test_a_false_multiple_of_that_widens_a_load_is_an_error() -> None:
    finding = only(copied(3), "false-hint")
    assert (finding.severity, finding.line) == ("error", line_of(faulty.hinted_copy, "start decides"))
    assert "tl.multiple_of" in finding.message
    assert "3 is no multiple of 16" in finding.message


def test_a_true_multiple_of_is_no_finding() -> None:
    assert "false-hint" not in kinds(copied(32))


@pytest.mark.parametrize(("start", "stride", "severity"), [(0, 24, None), (1, 24, "error"), (0, 23, "error")])
def test_multiple_of_speaks_of_the_starts_of_rows(start: int, stride: int, severity: str | None) -> None:
    x, y = torch.randn(512), torch.zeros(16, 16)
    found = inspect(lambda: faulty.hinted_tile[(1,)](x, y, start, stride, BLOCK=16), targets=HOPPER)
    assert [one.severity for one in found.kernels[0].findings if one.kind == "false-hint"] == [severity] * bool(
        severity
    )


@pytest.mark.parametrize(("stride", "severity"), [(1, "error"), (7, "warning")])
def test_a_false_max_contiguous_is_an_error_where_a_wide_load_relies_on_it(stride: int, severity: str) -> None:
    x, y = torch.randn(4096), torch.zeros(512)
    found = inspect(lambda: faulty.hinted_wrap[(1,)](x, y, 401, stride, BLOCK=512), targets=HOPPER)
    finding = only(found, "false-hint")
    assert (finding.severity, finding.line) == (severity, line_of(faulty.hinted_wrap, "n decides"))
    assert "tl.max_contiguous" in finding.message


def test_a_false_max_constancy_is_reported_at_its_line() -> None:
    x, y = torch.randn(256), torch.zeros(128)
    found = inspect(lambda: faulty.hinted_constancy[(1,)](x, y, 3, BLOCK=128), targets=HOPPER)
    assert only(found, "false-hint").line == line_of(faulty.hinted_constancy, "width decides")
    found = inspect(lambda: faulty.hinted_constancy[(1,)](x, y, 4, BLOCK=128), targets=HOPPER)
    assert "false-hint" not in kinds(found)


@pytest.mark.parametrize(("n", "false"), [(8, True), (9, False)])
def test_a_false_assumption_is_an_error_and_the_trace_goes_on(n: int, false: bool) -> None:
    x, y = torch.randn(16), torch.zeros(16)
    found = inspect(lambda: faulty.assumed_copy[(1,)](x, y, n, BLOCK=16), targets=HOPPER)
    assert ("false-hint" in kinds(found)) is false
    assert torch.equal(y[:n], x[:n])
    if false:
        finding = only(found, "false-hint")
        assert (finding.severity, finding.line) == ("error", line_of(faulty.assumed_copy, "n decides"))
