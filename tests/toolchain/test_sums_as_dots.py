"""A sum of products that Triton compiles to a dot of tf32 loses the same digits in the interpreter."""

from __future__ import annotations

import inspect as python_inspect
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler.compiler import ir

import tilesmith as ts
from tilesmith.toolchain.interpreter import interpret, reductions
from tilesmith.toolchain.versions import sums_become_tf32_dots

SIDE = 16


@triton.jit
def add(a, b):  # type: ignore[no-untyped-def]
    return a + b


@triton.jit
def larger(a, b):  # type: ignore[no-untyped-def]
    return tl.maximum(a, b)


@triton.jit  # type: ignore[untyped-decorator]
def reduce_kernel(x_ptr, y_ptr, z_ptr, SIDE: tl.constexpr, ADDS: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    x, y = tl.load(x_ptr + offsets), tl.load(y_ptr + offsets)
    product = x[:, :, None] * y[None, :, :]
    tl.store(z_ptr + offsets, tl.reduce(product, 1, add) if ADDS else tl.reduce(product, 1, larger))


@triton.jit  # type: ignore[untyped-decorator]
def sum_kernel(x_ptr, y_ptr, z_ptr, SIDE: tl.constexpr, SWAPPED: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    x, y = tl.load(x_ptr + offsets), tl.load(y_ptr + offsets)
    product = y[None, :, :] * x[:, :, None] if SWAPPED else x[:, :, None] * y[None, :, :]
    tl.store(z_ptr + offsets, tl.sum(product, axis=1))


def ttir(swapped: bool) -> str:
    """Return the TTIR of the kernel for cuda:90, after Triton's rewriting."""
    target = GPUTarget("cuda", 90, 32)
    signature = {**dict.fromkeys(("x_ptr", "y_ptr", "z_ptr"), "*fp32"), "SIDE": "constexpr", "SWAPPED": "constexpr"}
    source = ASTSource(sum_kernel, signature, {(3,): SIDE, (4,): swapped})
    backend: Any = make_backend(target)
    options, context = backend.parse_options({}), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    given = (options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
    takes_target = "target" in python_inspect.signature(source.make_ir).parameters
    module = source.make_ir(target, *given) if takes_target else source.make_ir(*given)
    return str(backend.make_ttir(module, {}, options, 90))


def error(swapped: bool) -> float:
    torch.manual_seed(0)
    x, y, z = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)
    interpret(sum_kernel, (1, 1, 1), {"x_ptr": x, "y_ptr": y, "z_ptr": z, "SIDE": SIDE, "SWAPPED": swapped})
    return float((z.double() - x.double() @ y.double()).abs().max())


def test_interpreter_knows_what_this_triton_compiles_the_sum_to() -> None:
    assert ("inputPrecision = tf32" in ttir(swapped=False)) == sums_become_tf32_dots()
    assert "inputPrecision = tf32" not in ttir(swapped=True)


@pytest.mark.parametrize("becomes_dot", [True, False])
def test_sum_loses_digits_only_where_it_becomes_a_dot(becomes_dot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "sums_become_tf32_dots", lambda: becomes_dot)
    assert (error(swapped=False) > 1e-4) == becomes_dot
    assert error(swapped=True) < 1e-5


@pytest.mark.parametrize("becomes_dot", [True, False])
def test_own_reduction_that_adds_becomes_a_dot_too(becomes_dot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "sums_become_tf32_dots", lambda: becomes_dot)
    torch.manual_seed(0)
    x, y, z = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)
    interpret(reduce_kernel, (1, 1, 1), {"x_ptr": x, "y_ptr": y, "z_ptr": z, "SIDE": SIDE, "ADDS": True})
    assert (float((z.double() - x.double() @ y.double()).abs().max()) > 1e-4) == becomes_dot
    interpret(reduce_kernel, (1, 1, 1), {"x_ptr": x, "y_ptr": y, "z_ptr": z, "SIDE": SIDE, "ADDS": False})
    assert torch.equal(z, (x[:, :, None] * y[None, :, :]).amax(1))


def test_inspect_reports_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "sums_become_tf32_dots", lambda: True)
    x = torch.randn(SIDE, SIDE)
    found = ts.lab.inspect(lambda: sum_kernel[(1,)](x, x, torch.empty_like(x), SIDE, False), precision=True)
    messages = [one.message for kernel in found.kernels for one in kernel.findings]
    assert any("this sum of products becomes a dot of tf32" in one for one in messages), messages
