"""Accesses outside the view that a script passes, and descriptor tiles outside their tensor."""

from __future__ import annotations

import faulty
import pytest
import torch
from reading import HOPPER, kinds, line_of, only
from triton.tools.tensor_descriptor import TensorDescriptor

from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.model import Inspection


def test_a_load_that_ignores_the_stride_leaves_the_view() -> None:
    x, y = torch.randn(8, 64)[:, :32], torch.zeros(8, 32)
    found = inspect(lambda: faulty.rows_as_if_contiguous[(8,)](x, y, COLUMNS=32), targets=HOPPER)
    finding = only(found, "out-of-bounds")
    assert (finding.severity, finding.line) == ("warning", line_of(faulty.rows_as_if_contiguous, "ignores"))
    assert "outside the view x_ptr" in finding.message


def test_a_store_that_ignores_the_stride_leaves_the_view() -> None:
    y = torch.zeros(8, 64)[:, :32]
    found = inspect(lambda: faulty.fill_as_if_contiguous[(8,)](y, COLUMNS=32), targets=HOPPER)
    finding = only(found, "out-of-bounds")
    assert (finding.severity, finding.line) == ("error", line_of(faulty.fill_as_if_contiguous, "ignores"))


@pytest.mark.parametrize(("columns", "faulty_load"), [(32, False), (33, True)])
def test_a_load_outside_the_view_matters_only_where_its_value_does(columns: int, faulty_load: bool) -> None:
    x, y = torch.randn(8, 64)[:, :32], torch.zeros(8)
    found = inspect(lambda: faulty.rows[(8,)](x, y, 64, COLUMNS=columns, READ=64), targets=HOPPER)
    assert ("out-of-bounds" in kinds(found)) is faulty_load


def test_a_program_between_the_sampled_ones_that_leaves_the_view_is_found() -> None:
    x, y = torch.randn(4096, 64)[:4000, :32], torch.zeros(4096)
    found = inspect(lambda: faulty.rows[(4096,)](x, y, 64, COLUMNS=32, READ=32), targets=HOPPER, programs=20)
    assert "outside the view x_ptr" in only(found, "out-of-bounds").message


def of_heads(step: int, heads: int = 4) -> Inspection:
    x, y = torch.randn(heads * 32, 64), torch.zeros(heads * 32, 64)
    described = [TensorDescriptor(one, list(one.shape), list(one.stride()), [32, 64]) for one in (x, y)]
    return inspect(lambda: faulty.heads[(heads,)](*described, LENGTH=32, STEP=step), targets=HOPPER)


def test_a_tile_wholly_outside_its_descriptor_is_an_error() -> None:
    finding = only(of_heads(step=128), "out-of-bounds")
    assert (finding.severity, finding.line) == ("error", line_of(faulty.heads, "should be LENGTH"))
    assert "3 of 4 tiles" in finding.message


def test_tiles_inside_their_descriptor_are_no_finding() -> None:
    assert "out-of-bounds" not in kinds(of_heads(step=32))
