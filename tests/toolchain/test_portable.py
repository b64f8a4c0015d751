"""Kernels as text: rebuilt kernels compute the same, and text that is more than a kernel is refused."""

from __future__ import annotations

import json
import math
from collections import namedtuple
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tilesmith.toolchain.compiler import Target, compile_kernel
from tilesmith.toolchain.interpreter import interpret
from tilesmith.toolchain.portable import KernelRefused, Kernels, NotPortable, RebuiltKernels
from tilesmith.toolchain.portable.rules import parsed
from tilesmith.toolchain.portable.tensor_cores import exact_products
from tilesmith.toolchain.portable.values import Decoder, encode

FACTOR: tl.constexpr = 3
OFFSET = tl.constexpr(0.5)


@triton.jit
def scaled(x):  # type: ignore[no-untyped-def]  # a kernel has Triton's types
    return x * FACTOR + OFFSET


@triton.jit(do_not_specialize=["n"])  # type: ignore[untyped-decorator]  # Triton has no types
def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr = 16):  # type: ignore[no-untyped-def]  # likewise
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, scaled(tl.load(x_ptr + offsets, mask=offsets < n)), mask=offsets < n)


def rebuilt(kernel: Any, folder: Path) -> Any:
    described = Kernels()
    number = described.number(kernel)
    return RebuiltKernels(json.loads(json.dumps(described.descriptions)), folder).kernel(number)


def test_rebuilt_kernel_computes_the_same(tmp_path: Path) -> None:
    x, y = torch.randn(20), torch.zeros(20)
    interpret(rebuilt(scale_kernel, tmp_path), (2,), {"x_ptr": x, "y_ptr": y, "n": 20, "BLOCK": 16})
    assert torch.equal(y, x * 3 + 0.5)


settings: Any = ModuleType("settings")  # a module of the user's, such as one of constants
settings.SHIFT = tl.constexpr(2)
settings.scaled = scaled
settings.inner = ModuleType("settings.inner")
settings.inner.MODE = "Halved"


@triton.jit  # type: ignore[untyped-decorator]  # Triton leaves it so
def constants_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # a kernel has Triton's types
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets != BLOCK.bit_length(), other=-np.inf)
    if settings.inner.MODE == "Halved":
        x = settings.scaled(x) / settings.SHIFT
    tl.store(y_ptr + offsets, tl.where(x == -torch.inf, math.pi, x))


def test_plain_values_of_modules_are_portable(tmp_path: Path) -> None:
    made = rebuilt(constants_kernel, tmp_path)
    x, y = torch.randn(16), torch.zeros(16)
    expected = (x * 3 + 0.5) / 2
    expected[5] = math.pi
    arguments = {"x_ptr": x, "y_ptr": y, "BLOCK": 16}
    interpret(made, (1,), arguments)
    assert torch.equal(y, expected)
    assert compile_kernel(made, Target.parse("cuda:90"), arguments).registers > 0


@triton.jit
def foreign_kernel(y_ptr):  # type: ignore[no-untyped-def]  # a kernel has Triton's types
    tl.store(y_ptr, np.random.rand())


def test_function_of_another_module_is_not_portable() -> None:
    with pytest.raises(NotPortable, match=r"^np\.random of module numpy$"):
        Kernels().number(foreign_kernel)


def total(x: Any) -> Any:
    """Return the sum; a kernel below has a variable of this name."""
    return x.sum()


@triton.jit  # type: ignore[untyped-decorator]  # Triton leaves it so
def total_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # a kernel has Triton's types
    total = 0.0
    total += tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK)), axis=0)
    tl.store(y_ptr, total)


def test_local_name_of_a_kernel_hides_a_function_of_the_file(tmp_path: Path) -> None:
    x, y = torch.ones(16), torch.zeros(1)
    interpret(rebuilt(total_kernel, tmp_path), (1,), {"x_ptr": x, "y_ptr": y, "BLOCK": 16})
    assert y.item() == 16


def test_rebuilt_kernel_keeps_its_line_and_file_name(tmp_path: Path) -> None:
    made = rebuilt(scale_kernel, tmp_path)
    assert made.fn.__code__.co_firstlineno == scale_kernel.fn.__code__.co_firstlineno + 1  # without the decorator
    assert Path(made.fn.__code__.co_filename).name == Path(__file__).name


def test_text_of_a_rebuilt_kernel_does_not_follow_its_file(tmp_path: Path) -> None:
    kernels = Kernels()
    number = kernels.number(scaled)
    made = RebuiltKernels(kernels.descriptions, tmp_path)
    first = made.kernel(number)
    Path(first.fn.__code__.co_filename).write_text("def scaled(x):\n    return 0\n")
    assert "FACTOR" in first.src


@pytest.mark.parametrize(
    "body",
    [
        "import os",
        "x.handle.data.tofile('a')",
        "x.__class__",
        "y = (lambda: 1)()",
        "open('a')",
        "getattr(tl, 'load')",
        "tl.core.os",
        "tl.core.warnings",
        "tl.core.functools.partial(print)",
        "eval('1')",
        "'{0.x}'.format(x)",
        "try:\n        pass\n    except Exception:\n        pass",
        "global x",
        "def inner(): pass",
        "class A: pass",
        "del x",
        "_interpreted_assigned = 1",
        "x.value = 3",
        "triton.runtime.build.compile_module_from_src('', 'm')",
        "triton.runtime.cache.get_cache_manager('a')",
        "triton.knobs.cache",
        "tl.core.ir.parse_mlir_module('a', 0)",
        "tl.core.knobs",
        "tl.sum.run(x)",
        "helper.run(x)",
        "named.handle.data.tofile('a')",
        "'{0.x}'.format_map(x)",
        "values.helper.run(x)",
        "values.absent",
        "values.text.format(x)",
    ],
)
def test_text_beyond_the_language_is_refused(body: str) -> None:
    kind: Any = namedtuple("kind", ["handle", "data", "tofile", "run", "format_map"])
    named = kind(1, 2, 3, 4, 5)
    values = Decoder(lambda one: one, lambda one: scaled).value({"values": {"helper": {"kernel": 0}, "text": "{0}"}})
    names = {"tl": tl, "triton": triton, "helper": scaled, "named": named, "values": values}
    with pytest.raises(KernelRefused):
        parsed(f"def kernel(x):\n    {body}\n", names)


@pytest.mark.parametrize(
    "body",
    [
        "triton.cdiv(x, 2)",
        "x.bit_length()",
        "x.is_integer()",
        "tl.PropagateNan.ALL",
        "tl.math.exp(x)",
        "named.rows",
        "tl.sum(x)",
    ],
)
def test_text_of_the_language_is_allowed(body: str) -> None:
    kind: Any = namedtuple("kind", ["rows"])
    named = kind(1)
    parsed(f"def kernel(x):\n    {body}\n", {"tl": tl, "triton": triton, "named": named})


@pytest.mark.parametrize(
    "text",
    [
        "def kernel(x=print('now')): pass",
        "def kernel(x: print('now')): pass",
        "@print\ndef kernel(x): pass",
        "print('now')",
        "def one(): pass\ndef two(): pass",
        "def kernel(:",
    ],
)
def test_text_that_would_run_when_defined_is_refused(text: str) -> None:
    with pytest.raises(KernelRefused):
        parsed(text, {"tl": tl})


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 2.5, "text", (1, (2.0, None)), [1, 2], tl.constexpr(4), tl.float16, tl.pointer_type(tl.int32), tl],
)
def test_values_survive_json(value: Any) -> None:
    def none(_: Any) -> Any:
        raise AssertionError

    found = Decoder(none, none).value(json.loads(json.dumps(encode(value, none, none))))
    assert found is value or found == value or (isinstance(value, tl.constexpr) and found.value == value.value)


@pytest.mark.parametrize(
    "encoded",
    [
        {"module": "os"}, {"reference": ["os", "system"]}, {"unknown": 1}, [1], {"type": "x"},
        {"module": "triton.runtime.build"}, {"reference": ["triton.runtime.build", "compile_module_from_src"]},
        {"reference": ["triton.language.core", "knobs.refresh_knobs"]},
        {"values": {"__class__": 1}}, {"values": {"os": {"module": "os"}}}, {"values": [1]},
    ],
)  # fmt: skip
def test_forged_values_are_refused(encoded: Any) -> None:
    with pytest.raises(NotPortable):
        Decoder(lambda one: one, lambda one: one).value(encoded)


@triton.jit
def multiplied_kernel(a_ptr, b_ptr, c_ptr):  # type: ignore[no-untyped-def]  # a kernel has Triton's types
    places = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(c_ptr + places, tl.dot(tl.load(a_ptr + places), tl.load(b_ptr + places)))


def test_products_are_exact_where_tf32_is_allowed() -> None:
    a, b, c = torch.randn(16, 16), torch.randn(16, 16), torch.empty(16, 16)
    named = {"a_ptr": a, "b_ptr": b, "c_ptr": c}
    interpret(multiplied_kernel, (1,), named)
    assert (c - a @ b).abs().max() > 1e-4
    with exact_products():
        interpret(multiplied_kernel, (1,), named)
    assert (c - a @ b).abs().max() < 1e-5
    interpret(multiplied_kernel, (1,), named)
    assert (c - a @ b).abs().max() > 1e-4
