# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels carry no types: Triton reads their annotations as its own.
"""Triton's front end loses assignments in loops; the interpreter executes them, and the toolchain names them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tilesmith.lab.inspect import inspect
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.toolchain.compiler import MiscompileError, Target, may_lose_assignments, translate_kernel

HOPPER = Target.parse("cuda:90")


@triton.jit
def shifted(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    previous = tl.zeros([BLOCK], tl.float32)
    current = previous
    for i in range(n):
        previous = current  # lost
        current = tl.load(x_ptr + i * BLOCK + columns)
    tl.store(y_ptr + columns, previous)


@triton.jit
def shifted_in_a_while_loop(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    previous = tl.zeros([BLOCK], tl.float32)
    current = previous
    i = 0
    while i < n:
        tl.store(y_ptr + columns, previous)
        previous, current = current, tl.load(x_ptr + i * BLOCK + columns)  # lost
        i += 1


@triton.jit
def shifted_in_a_nested_loop(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    previous = tl.zeros([BLOCK], tl.float32)
    current = previous
    for _ in range(n):
        tl.store(y_ptr + columns, previous)
        for i in range(n):
            previous = current  # lost
            current = tl.load(x_ptr + i * BLOCK + columns)


@triton.jit
def the_same(value):
    return value


@triton.jit
def shifted_by_a_function(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    previous = tl.zeros([BLOCK], tl.float32)
    current = previous
    for i in range(n):
        previous = the_same(current)
        current = tl.load(x_ptr + i * BLOCK + columns)
    tl.store(y_ptr + columns, previous)


@triton.jit
def own_zeros(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    previous = tl.zeros([BLOCK], tl.float32)
    current = tl.zeros([BLOCK], tl.float32)
    for i in range(n):
        previous = current
        current = tl.load(x_ptr + i * BLOCK + columns)
    tl.store(y_ptr + columns, previous)


@triton.jit
def read_in_the_same_iteration_only(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    before = total
    for i in range(n):
        before = total
        total = before + tl.load(x_ptr + i * BLOCK + columns)
    tl.store(y_ptr + columns, total)


@triton.jit
def set_back(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    zeros = tl.zeros([BLOCK], tl.float32)
    part = zeros
    total = zeros
    for i in range(n):
        total += tl.load(x_ptr + i * BLOCK + columns)
        part = zeros
    tl.store(y_ptr + columns, total + part)


def translated(kernel: Any) -> None:
    x, y = torch.empty(64, device="meta"), torch.empty(16, device="meta")
    translate_kernel(kernel, HOPPER, {"x_ptr": x, "y_ptr": y, "n": 4, "BLOCK": 16}, set())


def line_of(kernel: Any, text: str) -> int:
    return int(kernel.starting_line_number) + next(n for n, line in enumerate(kernel.raw_src) if text in line)


@pytest.mark.parametrize("kernel", [shifted, shifted_in_a_while_loop, shifted_in_a_nested_loop], ids=str)
def test_a_lost_assignment_is_named_with_its_line(kernel: Any) -> None:
    with pytest.raises(MiscompileError, match="is compiled wrongly for cuda:90") as raised:
        translated(kernel)
    assert raised.value.line == line_of(kernel, "# lost")
    assert "loses the assignment to previous" in raised.value.message
    assert may_lose_assignments(kernel)


@pytest.mark.parametrize(
    "kernel", [shifted_by_a_function, own_zeros, read_in_the_same_iteration_only, set_back], ids=str
)
def test_other_assignments_are_translated(kernel: Any) -> None:
    """A device function returns a new value, and so no value is the same before the loop."""
    translated(kernel)


def test_inspect_has_a_finding_where_the_interpreter_is_right() -> None:
    x, y = torch.randn(64), torch.empty(16)
    found = inspect(lambda: shifted[(1,)](x, y, 4, BLOCK=16), targets=("cuda:90",))
    assert torch.equal(y, x[32:48])
    (finding,) = [one for one in found.kernels[0].findings if one.kind == "lost-assignment"]
    assert (finding.severity, finding.line) == ("error", line_of(shifted, "# lost"))
    assert "tl.zeros" in finding.advice
    found = inspect(lambda: own_zeros[(1,)](x, y, 4, BLOCK=16), targets=("cuda:90",))
    assert not [one for one in found.kernels[0].findings if one.kind == "lost-assignment"]


@pytest.mark.parametrize("name", ["attention", "rms_norm", "matmul", "softmax", "triangle_multiply"])
def test_operators_lose_no_assignment(name: str) -> None:
    spec = SPECS[name]
    with recorded_plans(str(HOPPER)) as plans:
        spec.op(**spec.inputs(spec.cases[0], torch.bfloat16, "meta"))
    launches = [launch for plan in plans for launch in plan.launches]
    assert launches
    for launch in launches:
        translate_kernel(launch.kernel, HOPPER, launch.arguments, set(), **launch.options())


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "expected"), [(shifted, "zeros"), (own_zeros, "shifted")], ids=["shared", "own"])
def test_the_compiled_kernel_computes_what_is_said(kernel: Any, expected: str) -> None:
    """If this fails for `shifted`, this release of Triton no longer loses the assignment: say so in the docs."""
    x, y = torch.randn(64, device="cuda"), torch.empty(16, device="cuda")
    kernel[(1,)](x, y, 4, BLOCK=16)
    assert torch.equal(y, torch.zeros_like(y) if expected == "zeros" else x[32:48])
