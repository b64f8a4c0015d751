"""Operators that are right at the first call and wrong otherwise fail the check: races, kept results, no kernels."""

import re
import textwrap
from pathlib import Path

import pytest

from tilesmith.lab import Result, check
from tilesmith.spec import CONTIGUOUS, load_file

SCALE = """
    import torch, triton, triton.language as tl
    from tilesmith import Case, Spec

    @triton.jit
    def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        tl.store(y_ptr + offsets, 2 * x, mask=offsets < n)

    def launched(x):
        y = torch.empty_like(x)
        scale_kernel[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), BLOCK=16)
        return y

    kept = {}
    {code}

    SPEC = Spec(name="scale", op=op, reference=lambda x: 2 * x, cases=[Case("odd", elements=41)],
                make_inputs=lambda case, dtype, device: {{"x": torch.randn(case.elements, dtype=dtype)}},
                dtypes=[torch.float32], differentiable=False)
"""

SUM = """
    import torch, triton, triton.language as tl
    from tilesmith import Case, Spec

    @triton.jit
    def sum_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        total = tl.sum(tl.load(x_ptr + offsets, mask=offsets < n, other=0.0), 0)
        {store}

    def op(x):
        y = torch.zeros((), dtype=x.dtype)
        sum_kernel[(16,)](x, y, x.numel(), BLOCK=16)
        return y

    SPEC = Spec(name="total", op=op, reference=lambda x: x.sum(), cases=[Case("all", elements=250)],
                make_inputs=lambda case, dtype, device: {{"x": torch.randn(case.elements, dtype=dtype)}},
                dtypes=[torch.float32], differentiable=False)
"""


def results_of(folder: Path, template: str, **parts: str) -> list[Result]:
    code = textwrap.dedent(template)
    for name, part in parts.items():
        indent = "    " if name == "store" else ""
        code = code.replace(f"{{{name}}}", textwrap.dedent(part).strip().replace("\n", f"\n{indent}"))
    file = folder / "mine.py"
    file.write_text(code.replace("{{", "{").replace("}}", "}"))
    return list(check(load_file(file), layouts=[CONTIGUOUS], device="cpu"))


def messages(results: list[Result]) -> list[str]:
    return [f"{result.what}: {result.message}" for result in results if not result.passed]


KEPT = "second call: a second call with other numbers of the same shape returns the first result again"
AGAIN = "second call: a second call returns the memory of the first result: a later call overwrites an earlier result"
NONE = "kernels: the operator launches no kernel: PyTorch computes the result"
DUMMY = "kernels: the result is right without the kernels that the operator launches: PyTorch computes it"
CHEATS = {
    "kept by shape": ("def op(x):\n    key = x.shape, x.dtype\n    if key not in kept: kept[key] = launched(x)\n"
                      "    return kept[key].clone()", KEPT),
    "kept by address": ("def op(x):\n    key = x.data_ptr()\n    if key not in kept: kept[key] = launched(x)\n"
                        "    return kept[key].clone()", KEPT),
    "kept by identity and version": (
        "def op(x):\n    key = x.data_ptr(), x._version\n    if key not in kept: kept[key] = launched(x)\n"
        "    return kept[key].clone()", KEPT),
    "kept by the first and the last element": (
        "def op(x):\n    key = float(x[0]), float(x[-1])\n    if key not in kept: kept[key] = launched(x)\n"
        "    return kept[key].clone()", KEPT),
    "one buffer": ("def op(x):\n    y = launched(x)\n    if 'y' not in kept: kept['y'] = torch.empty_like(y)\n"
                   "    return kept['y'].copy_(y)", AGAIN),
    "two buffers by turns": ("def op(x):\n    y = launched(x)\n    kept['n'] = kept.get('n', 0) + 1\n"
                             "    if not 'a' in kept: kept['a'] = torch.empty(2, 41)\n"
                             "    return kept['a'][kept['n'] % 2].copy_(y)", AGAIN),
    "eleven buffers by turns": ("def op(x):\n    y = launched(x)\n    kept['n'] = kept.get('n', 0) + 1\n"
                                "    return kept.setdefault(kept['n'] % 11, torch.empty(41)).copy_(y)", AGAIN),
    "no kernel": ("def op(x):\n    return 2 * x", NONE),
    "a kernel for show": ("def op(x):\n    launched(torch.zeros(3))\n    return 2 * x", DUMMY),
    "a kernel whose result PyTorch replaces": ("def op(x):\n    return launched(x).copy_(2 * x)", DUMMY),
    "the input's memory": (
        "def op(x):\n    scale_kernel[(3,)](x, x, x.numel(), BLOCK=16)\n    return x",
        "memory: the output shares memory with the input x"),
    "an early result changed later": (
        "def op(x):\n    if 'old' in kept: kept['old'].zero_()\n    kept['old'] = launched(x)\n    return kept['old']",
        "second call: a second call changes the result of the first"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "message"), CHEATS.values(), ids=CHEATS.keys())
def test_right_numbers_got_wrongly_fail(tmp_path: Path, code: str, message: str) -> None:
    assert any(one.startswith(message) for one in messages(results_of(tmp_path, SCALE, code=code)))


@pytest.mark.parametrize("code", [
    "op = launched",
    "def op(x):\n    return launched(x) + 0",
    "table = torch.arange(41.0)\ndef op(x):\n    return launched(x) + 0 * table",
    "def op(x):\n    return launched(x.clone().view(41))",
])  # fmt: skip
def test_operators_that_compute_anew_pass(tmp_path: Path, code: str) -> None:
    assert messages(results_of(tmp_path, SCALE, code=code)) == []


RACES = {
    "a sum without atomics": (
        "tl.store(y_ptr, tl.load(y_ptr) + total)",
        r"race: race in sum_kernel, mine.py:9: programs (0, 0, 0) and (1, 0, 0) read and write y_ptr[0]"),
    "lanes that write one element": (
        "tl.atomic_add(y_ptr, total)\ntl.store(x_ptr + tl.zeros([BLOCK], tl.int32), offsets.to(tl.float32))",
        "race: race in sum_kernel, mine.py:10: lanes of one store write different values to one element of x_ptr"),
}  # fmt: skip


@pytest.mark.parametrize(("store", "message"), RACES.values(), ids=RACES.keys())
def test_race_fails_with_its_line(tmp_path: Path, store: str, message: str) -> None:
    assert any(one.startswith(message) for one in messages(results_of(tmp_path, SUM, store=store)))


def test_atomic_sum_has_no_race(tmp_path: Path) -> None:
    assert messages(results_of(tmp_path, SUM, store="tl.atomic_add(y_ptr, total)")) == []


UNWRITTEN = "the atomic of program (0, 0, 0) of sum_kernel, mine.py:9, adds to y_ptr, which nobody wrote before"


@pytest.mark.parametrize(("dtype", "returned"), [
    ("x.dtype", "y"), ("x.dtype", "y + 0"), ("torch.bfloat16", "y.to(x.dtype)"),  # no kernel stores PyTorch's copies
])  # fmt: skip
def test_atomic_on_memory_that_nobody_wrote_is_named(tmp_path: Path, dtype: str, returned: str) -> None:
    template = SUM.replace("torch.zeros((), dtype=x.dtype)", f"torch.empty((), dtype={dtype})")
    template = template.replace("return y\n", f"return {returned}\n")
    store = "tl.atomic_add(y_ptr, total.to(y_ptr.dtype.element_ty))"
    message = messages(results_of(tmp_path, template, store=store))[0]
    assert message.startswith("forward: the value is nan, but must be ")
    assert message.endswith(f": {UNWRITTEN}; initialise that tensor: torch.zeros instead of torch.empty")


def test_unwritten_integer_counter_is_named(tmp_path: Path) -> None:
    template = SUM.replace("torch.zeros((), dtype=x.dtype)", "torch.empty((), dtype=torch.int64)")
    template = template.replace("x.sum()", "torch.tensor(16)").replace("total = ", "total = 1 + 0 * ")
    store = "tl.atomic_add(y_ptr, total.to(tl.int64))"
    assert UNWRITTEN in messages(results_of(tmp_path, template, store=store))[0]


@pytest.mark.parametrize("store", [
    "tl.atomic_add(y_ptr, total / (total - total))",  # the second program finds the NaN of the first
    "tl.atomic_add(y_ptr, total + 1)",
])  # fmt: skip
def test_wrong_atomic_on_written_memory_is_traced_to_its_line(tmp_path: Path, store: str) -> None:
    message = messages(results_of(tmp_path, SUM, store=store))[0]
    assert "which nobody wrote" not in message
    assert "sum_kernel, mine.py:9" in message


def test_wrong_second_call_names_output_element_and_line(tmp_path: Path) -> None:
    code = """
    calls = []
    def op(x):
        calls.append(x)
        y = torch.empty_like(x)
        scale_kernel[(3,)](x if len(calls) == 1 else x + (torch.arange(41) == 17), y, 41, BLOCK=16)
        return {returned}
    """
    wrong = r"second call: a second call with other numbers of the same shape gives a wrong result: "
    element = r"element \[17\] is \S+, but must be \S+ \(off by 2, allowed \S+\); stored by program \(1, 0, 0\) of "
    (message,) = messages(results_of(tmp_path, SCALE, code=code.replace("{returned}", "y")))
    assert re.fullmatch(wrong + element + r"scale_kernel, mine.py:9", message)
    template = SCALE.replace("reference=lambda x: 2 * x", "reference=lambda x: (x + 1, 2 * x)")
    (message,) = messages(results_of(tmp_path, template, code=code.replace("{returned}", "x + 1, y")))
    assert re.fullmatch(wrong + "output 1, " + element + r"scale_kernel, mine.py:9", message)


def test_spec_without_kernels_passes(tmp_path: Path) -> None:
    template = SCALE.replace("differentiable=False)", "differentiable=False, kernels=False)")
    assert messages(results_of(tmp_path, template, code="def op(x):\n    return 2 * x")) == []


def test_pytorch_without_gradients_and_kernels_with_them_fail(tmp_path: Path) -> None:
    template = SCALE.replace("differentiable=False)", ")")
    code = """
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return launched(x)
        @staticmethod
        def backward(context, dy):
            return launched(dy)

    def op(x):
        return Scale.apply(x) if x.requires_grad {choice} else 2 * x
    """
    right = results_of(tmp_path, template, code=code.replace("{choice}", "or True"))
    assert messages(right) == []
    other_path = tmp_path / "other"
    other_path.mkdir()
    wrong = results_of(other_path, template, code=code.replace("{choice}", ""))
    assert any(one.startswith("kernels: without gradients, the operator launches no kernel") for one in messages(wrong))


COUNT = """
    import torch, triton, triton.language as tl
    from tilesmith import Case, Spec

    @triton.jit
    def count_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
        tl.atomic_add(y_ptr + x, 1, mask=offsets < n)

    def op(x):
        y = torch.zeros(8, dtype=torch.int64)
        if x.numel():
            {compute}
        return y

    SPEC = Spec(name="count", op=op, reference=lambda x: torch.bincount(x, minlength=8), dtypes=[torch.float32],
                make_inputs=lambda case, dtype, device: {{"x": torch.randint(0, 8, (case.n,))}}, differentiable=False,
                cases=[Case("none", n=0), Case("odd", n=57)])
"""
LAUNCH = "count_kernel[({programs},)](x, y, x.numel(), BLOCK=16)"


def test_empty_input_needs_no_launch(tmp_path: Path) -> None:
    right = results_of(tmp_path, COUNT, compute=LAUNCH.replace("{programs}", "triton.cdiv(x.numel(), 16)"))
    assert messages(right) == []


def test_operator_without_kernels_fails_though_its_first_case_is_empty(tmp_path: Path) -> None:
    wrong = results_of(tmp_path, COUNT, compute="y += torch.bincount(x, minlength=8)")
    assert {one.split(":")[0] for one in messages(wrong)} == {"kernels"}


def test_launch_without_programs_is_named(tmp_path: Path) -> None:
    wrong = results_of(tmp_path, COUNT, compute=LAUNCH.replace("{programs}", "x.numel() // 64"))
    assert any("; no program of count_kernel ran: its grid is (0, 1, 1)" in one for one in messages(wrong))


def test_integers_that_nobody_wrote_are_named(tmp_path: Path) -> None:
    code = textwrap.dedent(COUNT).replace("torch.zeros(8", "torch.empty(8")
    wrong = results_of(tmp_path, code, compute="pass")
    assert any("new memory holds this number, so it may never have been written" in one for one in messages(wrong))
