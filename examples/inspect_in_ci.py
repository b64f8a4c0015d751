"""Tests of a kernel that hold on any machine, because they count accesses and registers instead of measuring time.

python -m pytest examples/inspect_in_ci.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import tilesmith as ts

sys.path.insert(0, str(Path(__file__).parent))
from own_kernel import SPEC, scaled_residual


@pytest.fixture(scope="module")
def found() -> ts.lab.Inspection:
    """The kernel on a size that is no multiple of its block; `cuda` needs no GPU here."""

    def program() -> None:
        x, r = torch.randn(2, 63, 1024, device="cuda")
        scaled_residual(x, r, torch.randn(1024, device="cuda"))

    return ts.lab.inspect(program)


def test_kernel_is_right() -> None:
    checked = ts.lab.check(SPEC, cases=["one", "odd"], device="cpu")
    assert checked.passed, checked


def test_kernel_stays_in_bounds(found: ts.lab.Inspection) -> None:
    ts.lab.assert_in_bounds(found)
    assert not found.has_errors, found


def test_kernel_is_coalesced(found: ts.lab.Inspection) -> None:
    ts.lab.assert_coalesced(found, at_least=0.9)


def test_kernel_reads_each_element_once(found: ts.lab.Inspection) -> None:
    ts.lab.assert_loads_per_element(found, "x_ptr", 1.0)
    ts.lab.assert_loads_per_element(found, "r_ptr", 1.0)


def test_kernel_spills_no_registers_on_any_target(found: ts.lab.Inspection) -> None:
    (kernel,) = found.kernels
    assert {name: facts.spill_bytes for name, facts in kernel.targets.items()} == {"cuda:90": 0, "hip:gfx942": 0}
