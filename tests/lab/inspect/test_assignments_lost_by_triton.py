# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels carry no types: Triton reads their annotations as its own.
"""`inspect` finds assignments that Triton's front end loses, in nested loops and in device functions too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from reading import HOPPER, line_of

from tilesmith.lab.inspect import inspect


@triton.jit
def read_by_the_next_pass(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    previous = tl.load(x_ptr + columns)
    for _ in range(n):
        tl.store(y_ptr + columns, previous)
        current = tl.zeros([BLOCK], tl.float32)
        previous = current
        for i in range(n):
            previous = current  # lost
            current = tl.load(x_ptr + i * BLOCK + columns)


@triton.jit
def apart_after_the_first_pass(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    previous = tl.zeros([BLOCK], tl.float32)
    current = previous
    for _ in range(n):
        for i in range(n):
            previous = current
            current = tl.load(x_ptr + i * BLOCK + columns)
        previous += 1.0
    tl.store(y_ptr + columns, previous)


@triton.jit
def last_but_one(x_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    previous = tl.zeros([BLOCK], tl.float32)
    current = previous
    for i in range(n):
        previous = current  # lost
        current = tl.load(x_ptr + i * BLOCK + columns)
    return previous


@triton.jit
def by_a_function(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), last_but_one(x_ptr, n, BLOCK))


def lost_lines(kernel: Any) -> list[int | None]:
    x, y = torch.randn(64), torch.empty(16)
    found = inspect(lambda: kernel[(1,)](x, y, 4, BLOCK=16), targets=HOPPER)
    return [one.line for one in found.kernels[0].findings if one.kind == "lost-assignment"]


@pytest.mark.parametrize(
    ("kernel", "where"), [(read_by_the_next_pass, read_by_the_next_pass), (by_a_function, last_but_one)], ids=str
)
def test_a_lost_assignment_is_found(kernel: Any, where: Any) -> None:
    assert lost_lines(kernel) == [line_of(where, "# lost")]


def test_values_that_differ_when_the_inner_loop_begins_are_kept() -> None:
    """Only in Triton's first visit of the outer loop are they the same."""
    assert lost_lines(apart_after_the_first_pass) == []
