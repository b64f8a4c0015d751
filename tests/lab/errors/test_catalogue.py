"""The catalogue of errors: every entry explains a real error of Triton's compiler, interpreter or launch."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from triton_mistakes import BODIES, FILES, LAUNCHES

import tilesmith as ts
from tilesmith.lab.errors import CATALOGUE, did_you_mean, explain, with_explanation
from tilesmith.toolchain.interpreter import interpreting

FILE = """import math

import numpy as np
import torch
import triton
import triton.language as tl

SCALE = 2.0


@triton.jit
def helper(x):
    return x + 1


@triton.jit
def kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    {body}


def run():
    x, y, out = torch.zeros(64), torch.zeros(64), torch.zeros(64)
    n, programs = 64, 2
    {launch}
"""
SHORT = {
    "@L": "x = tl.load(x_ptr + offsets, mask=mask)",
    "@S": "tl.store(out_ptr + offsets, x, mask=mask)",
    "@O": "o = tl.arange(0, 16)",
    "@A": "a = tl.load(x_ptr + o[:, None] + o[None, :])",
    "@B": "tl.store(out_ptr + o[:, None] + o[None, :], b)",
}
LAUNCH = "kernel[(programs,)](x, y, out, n, BLOCK=32)"


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str, str], Callable[[], None]]:
    def loaded(body: str, launch: str) -> Callable[[], None]:
        for short, whole in SHORT.items():
            body = body.replace(short, whole)
        file = tmp_path / "mistake.py"
        file.write_text(FILE.format(body="\n    ".join(body.splitlines()), launch=launch))
        spec = importlib.util.spec_from_file_location("mistake", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["mistake"] = module
        spec.loader.exec_module(module)
        run: Callable[[], None] = module.run
        return run

    return loaded


def advice_of_inspect(run: Callable[[], None]) -> str:
    """Return the advice of all errors that inspect reports, and the explanation of an error that the launch raises."""
    try:
        kernels = ts.lab.inspect(run, targets=["cuda:90"]).kernels
    except Exception as error:
        return with_explanation(f"{type(error).__name__}: {error}")
    found = [one for kernel in kernels for one in kernel.findings if one.kind in ("compile-error", "kernel-error")]
    return "\n".join(one.advice for one in found)


def text_of(name: str) -> str:
    (entry,) = [one for one in CATALOGUE if one.name == name]
    return entry.text


def with_first_of_each_fast(mistakes: Sequence[tuple[str, str]]) -> list[Any]:
    """Return the parameters of a test. A further mistake with the same explanation is a slow test."""
    names = [name for name, _ in mistakes]
    slow = [pytest.mark.slow]
    return [
        pytest.param(name, code, marks=[] if names.index(name) == number else slow, id=f"{name}-{number}")
        for number, (name, code) in enumerate(mistakes)
    ]


@pytest.mark.parametrize(("name", "body"), with_first_of_each_fast(BODIES))
def test_error_in_kernel_is_explained_by_inspect(name: str, body: str, program: Any) -> None:
    assert text_of(name) in advice_of_inspect(program(body, LAUNCH))


@pytest.mark.parametrize(("name", "launch"), with_first_of_each_fast(LAUNCHES))
def test_error_of_launch_is_explained_by_inspect(name: str, launch: str, program: Any) -> None:
    assert text_of(name) in advice_of_inspect(program("@L\n@S", launch))


@pytest.mark.parametrize(("name", "source"), FILES, ids=[name for name, _ in FILES])
def test_error_around_a_kernel_is_explained(name: str, source: str, tmp_path: Path) -> None:
    file = tmp_path / "around.py"
    file.write_text(source)
    content: dict[str, Any] = {}
    exec(compile(source, str(file), "exec"), content)
    with pytest.raises((TypeError, ValueError, RuntimeError, AttributeError, KeyError)) as raised:
        content["run"]()
    place = raised.traceback[-1]
    message = f"{raised.type.__name__}: {raised.value} ({place.path}:{place.lineno + 1})"
    assert text_of(name) in with_explanation(message)


def test_chained_comparison_of_older_triton_is_explained() -> None:
    assert text_of("chained-comparison") in with_explanation("simultaneous multiple comparison is not supported")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("launch-needs-gpu", "RuntimeError: 0 active drivers ([]). There should only be one."),
        ("tensor-needs-gpu", "AssertionError: Torch not compiled with CUDA enabled (own.py:20)"),
        ("no-keyboard", "EOFError: EOF when reading a line"),
        ("no-keyboard", "BdbQuit"),
        ("refused-name", "invalid function identifier: größe"),
        ("descriptor-alignment", "AssertionError: stride must be 16-byte aligned"),
        ("block-pointer", "Block pointers have been removed in favor of the tensor descriptor API"),
    ],
)
def test_error_that_depends_on_machine_or_release_is_explained(name: str, message: str) -> None:
    assert text_of(name) in with_explanation(message)


def test_question_about_the_properties_of_an_absent_gpu_is_explained() -> None:
    message, line = "AssertionError: Torch not compiled with CUDA enabled", "n = torch.cuda.get_device_properties(0)"
    assert text_of("properties-need-gpu") in with_explanation(message, line)
    assert text_of("tensor-needs-gpu") in with_explanation(message, "x = torch.ones(4, device='cuda')")


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ("module 'triton.language' has no attribute 'laod'", "Did you mean tl.load?"),
        ("AttributeError: module 'torch' has no attribute 'emtpy_like'", "Did you mean torch.empty_like?"),
        ("NameError('offset is not defined')", "Did you mean offsets?"),
        ("NameError: name 'x_prt' is not defined", "Did you mean x_ptr?"),
        ("NameError: name 'abs' is not defined", ""),
        ("NameError('x_offsets is not defined')", ""),  # set elsewhere, not misspelt
        ("module 'triton.language' has no attribute 'matmul'", ""),
        ("no name at all", ""),
    ],
)
def test_misspelt_name_gets_the_name_it_resembles(message: str, meant: str) -> None:
    assert did_you_mean(message, "def kernel(x_ptr, n):\n    x_offsets = offsets = n\n") == meant


def test_catalogue_has_forty_entries_with_a_test_each() -> None:
    names = [one.name for one in CATALOGUE]
    assert len(names) == len(set(names)) >= 40
    apart = {"foreign-function", "bad-operand", "chained-comparison"}  # the tests above and below
    apart |= {
        "launch-needs-gpu",
        "tensor-needs-gpu",
        "properties-need-gpu",
        "no-keyboard",
        "descriptor-alignment",
        "block-pointer",
        "refused-name",
    }
    apart.add("helper-without-jit")  # inspect says that: tests/lab/inspect/test_foreign_scripts.py
    about_triton = {name for name in names if not name.startswith("cuda-")}  # the others: test_cuda_errors.py
    assert {name for name, _ in (*BODIES, *LAUNCHES, *FILES)} | apart == about_triton


@pytest.mark.parametrize("message", ["TypeError: 'int' object is not iterable", "NameError: name 'a' is not defined"])
def test_error_around_a_kernel_is_not_explained_by_blocks(message: str) -> None:
    assert explain(message, "kernel[(rows,)](x)", in_kernel=False) == explain(message) is not None
    assert explain(message, "for row in rows:", in_kernel=False) is None


def test_unknown_error_stays_as_it_is() -> None:
    assert explain("a new kind of error") is None
    assert with_explanation("a new kind of error") == "a new kind of error"


@pytest.mark.parametrize(
    ("name", "body"), [("foreign-function", "@L\nx = torch.exp(x)\n@S"), ("bad-operand", "@L\nx = abs(x)\n@S")]
)
def test_error_of_the_interpreter_is_explained(name: str, body: str, program: Any) -> None:
    with pytest.raises(Exception, match=r".") as raised, interpreting():
        program(body, LAUNCH)()
    assert text_of(name) in with_explanation(str(raised.value))


def test_check_explains_the_error_of_an_operator(program: Any) -> None:
    run = program("x = x_ptr + y_ptr\n@S", LAUNCH)
    spec = ts.Spec(
        name="broken", op=lambda x: run(), reference=lambda x: x, cases=[ts.Case("one", rows=4)],
        make_inputs=lambda case, dtype, device: {"x": torch.zeros(case.rows)}, differentiable=False,
    )  # fmt: skip
    messages = [one.message for one in ts.lab.check(spec, device="cpu").results]
    assert any("cannot add pointers together. Two addresses cannot be added" in one for one in messages)
