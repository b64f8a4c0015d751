"""Unmodified scripts run under inspection on a machine without a GPU."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from tilesmith.lab.inspect.model import Inspection
from tilesmith.lab.inspect.options import InspectOptions
from tilesmith.lab.inspect.output.json_output import as_json
from tilesmith.lab.inspect.running.child_process import _kernel_that_runs
from tilesmith.lab.inspect.running.script import Limits, inspect_script
from tilesmith.toolchain.compiler import Target
from tilesmith.toolchain.interpreter import running
from tilesmith.workshop.isolation.process_use import resident_bytes

SCRIPTS = Path(__file__).parent / "scripts"
FORKED = pytest.mark.usefixtures("forked")

KERNEL = """
import sys
import torch
import triton
import triton.language as tl

@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    tl.store(y_ptr + places, tl.load(x_ptr + places, mask=mask) * 2, mask=mask)

def double(x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
"""


def run(
    tmp_path: Path, text: str, *arguments: str, seconds: float = 120.0, seconds_to_trace: float = 3.0
) -> Inspection:
    script = tmp_path / "script.py"
    script.write_text(text)
    options = InspectOptions(targets=(Target("cuda", 90),), seconds=seconds_to_trace)
    return inspect_script(script, arguments, options, Limits(seconds=seconds))


@FORKED
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("vector_add", ["add_kernel", "add_kernel"]),
        ("fused_softmax", ["softmax_kernel"]),
        pytest.param("matmul", ["matmul_kernel"], marks=pytest.mark.slow),  # attention multiplies too
        ("dropout", ["seeded_dropout_kernel", "seeded_dropout_kernel"]),  # one seed is a multiple of 16
        pytest.param(
            "layer_norm", ["layer_norm_forward", "layer_norm_backward", "layer_norm_sum"], marks=pytest.mark.slow
        ),
        ("attention", ["attention_forward", "attention_forward"]),
    ],
)
def test_a_tutorial_runs_without_a_gpu_and_has_no_errors(name: str, kernels: list[str]) -> None:
    found = inspect_script(SCRIPTS / f"{name}.py")
    assert found.ending.kind == "finished", found.ending.traceback
    assert [kernel.name for kernel in found.kernels] == kernels
    assert not found.has_errors, [one.message for one in found.findings if one.severity == "error"]
    for kernel in found.kernels:
        assert kernel.programs_traced == kernel.programs
        assert all(access.efficiency is not None for access in kernel.accesses)
        assert {facts.error for facts in kernel.targets.values()} == {None}


def test_a_script_gets_its_arguments_and_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "trace.py").write_text("SIZE = 512\n")  # also the name of a module of ours and of Python's
    found = run(tmp_path, KERNEL + "import trace\nassert sys.argv[1:] == ['--fast', '3']\n"
                "double(torch.ones(trace.SIZE, device='cuda'))\n", "--fast", "3")  # fmt: skip
    assert found.ending.kind == "finished", found.ending.traceback
    assert found.kernels[0].grid == (2, 1, 1)


@FORKED
def test_results_are_right_when_the_script_uses_them(tmp_path: Path) -> None:
    found = run(tmp_path, KERNEL + "x = torch.rand(1 << 16, device='cuda')\ny = double(x)\nz = double(y)\n"
                "assert torch.equal(z, 4 * x)\nassert z.is_cuda and not z.cpu().is_cuda\n")  # fmt: skip
    assert found.ending.kind == "finished", found.ending.traceback


@FORKED
def test_a_script_that_trains_runs_as_it_would_on_a_gpu(tmp_path: Path) -> None:
    # Module.to passes flags after the device; an optimiser imports PyTorch's tracer.
    found = run(tmp_path, KERNEL + "model = torch.nn.Linear(8, 8).to('cuda')\n"
                "optimiser = torch.optim.AdamW(model.parameters())\n"
                "model(double(torch.ones(4, 8, device='cuda'))).sum().backward()\noptimiser.step()\n"
                "assert model.weight.is_cuda\n")  # fmt: skip
    assert found.ending.kind == "finished", found.ending.traceback


@FORKED
def test_unused_results_are_not_computed(tmp_path: Path) -> None:
    # The interpreter would take minutes for this grid; its tensors use no memory until they are accessed.
    found = run(tmp_path, KERNEL + "x = torch.zeros(1, device='cuda').expand(1 << 21)\n"
                "y = torch.empty(1 << 21, device='cuda', dtype=torch.int8)\n"
                "double_kernel[(1 << 13,)](x, y, 256, BLOCK=256)\n", seconds_to_trace=0.1)  # fmt: skip
    assert found.ending.kind == "finished", found.ending.traceback
    (kernel,) = found.kernels
    assert kernel.programs == 1 << 13
    assert 16 <= kernel.programs_traced < kernel.programs


@FORKED
def test_exception_keeps_traceback_and_traced_kernels(tmp_path: Path) -> None:
    found = run(tmp_path, KERNEL + "double(torch.ones(512, device='cuda'))\nraise ValueError('on purpose')\n")
    assert (found.ending.kind, found.ending.message) == ("exception", "ValueError: on purpose")
    assert "raise ValueError('on purpose')" in found.ending.traceback
    assert "runpy" not in found.ending.traceback
    assert [kernel.name for kernel in found.kernels] == ["double_kernel"]


@FORKED
def test_error_whose_message_starts_on_the_next_line_is_named_with_its_last_line(tmp_path: Path) -> None:
    ending = run(tmp_path, "raise ValueError('\\n\\n-- the other process ended:\\nRuntimeError: on purpose')\n").ending
    assert ending.message == "ValueError: RuntimeError: on purpose"


@FORKED
def test_kernel_that_fails_after_the_shown_sizes_has_a_traceback_of_the_script_alone(tmp_path: Path) -> None:
    kernel = KERNEL.replace("    mask = places < n\n", "    mask = places < n if BLOCK < 1024 else places.wrong()\n")
    text = "x = torch.ones(512, device='cuda')\nfor size in (8, 16, 32, 64, 128, 256, 512, 1024):\n"
    text += "    double_kernel[(1,)](x, x, 512, BLOCK=size)\n    print(x.sum())\n"
    ending = run(tmp_path, kernel + text).ending
    assert ending.message.startswith("KernelError: double_kernel (")
    assert "in <module>" in ending.traceback
    assert "src/tilesmith" not in ending.traceback


@FORKED
@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("import os\nos._exit(7)", "signal", "status 7"),
        ("import sys\nsys.exit('enough')", "finished", "enough"),
    ],
)
def test_ending_describes_the_failure(tmp_path: Path, text: str, kind: str, message: str) -> None:
    found = run(tmp_path, text)
    assert found.kernels == ()
    assert found.ending.kind == kind
    assert message in found.ending.message


@FORKED
def test_endless_script_is_stopped(tmp_path: Path) -> None:
    endless = "double(torch.ones(512, device='cuda'))\nimport time\nwhile True: time.sleep(1)\n"
    found = run(tmp_path, KERNEL + endless, seconds=4)
    assert found.ending.kind == "timeout"
    assert [kernel.name for kernel in found.kernels] == ["double_kernel"]


@FORKED
@pytest.mark.parametrize(
    "library", [weakref.__file__, torch.utils.weak.__file__, np.ma.__file__], ids=["python", "torch", "numpy"]
)
def test_an_endless_kernel_is_named_while_a_library_runs_inside_it(library: str) -> None:
    texts = (
        ("def library():\n    return name()", library),
        ("def kernel():\n    x = 1\n    return library()", "mine.py"),
    )
    functions = {"name": lambda: _kernel_that_runs(sys._getframe(1))}
    for text, file in (*texts, ("def run():\n    return kernel()", running.__file__)):
        exec(compile(text, file, "exec"), functions)
    assert functions["kernel"]() == ""  # the interpreter does not run it
    assert functions["run"]() == "kernel (mine.py:3)"


def test_limit_of_cpu_time_stops_a_busy_script(tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text("while True:\n    pass\n")
    found = inspect_script(script, limits=Limits(seconds=0.5, of_cpu=True))
    assert (found.ending.kind, found.ending.message) == ("timeout", "was still running after 0.5 s of CPU time")


@FORKED
def test_script_over_the_memory_limit_is_stopped(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nkept = []\nwhile True: kept.append(torch.ones(1 << 25))\n")
    limit = resident_bytes(os.getpid()) / 2**30 + 0.5  # the script is a fork of this process
    found = inspect_script(script, limits=Limits(gigabytes=limit))
    assert found.ending.kind == "memory"


@FORKED
def test_compiler_crash_becomes_a_finding(tmp_path: Path) -> None:
    # Aborts the process at the first compilation, as a failed LLVM assertion does.
    text = KERNEL + (
        "import os, pathlib\nfrom tilesmith.lab.inspect import session\nproper = session.compiled_or_error\n"
        "session.compiled_or_error = lambda *a: os.abort()\ndouble(torch.ones(512, device='cuda'))\n"
    )
    found = run(tmp_path, text)
    assert found.ending.kind == "finished"
    (finding,) = [one for one in found.findings if one.kind == "compile-error"]
    assert "crashes" in finding.message


SPEC = (
    KERNEL
    + """
from tilesmith.spec import Case, Spec

def make_inputs(case, dtype, device):
    return {"x": torch.randn(case.n, dtype=dtype, device=device)}

SPEC = Spec(
    name="double", op=double, reference=lambda x: x * 2, cases=[Case("odd", n=1000)], make_inputs=make_inputs,
    dtypes=(torch.float32,), differentiable=False,
)
"""
)


@FORKED
def test_the_operator_of_a_spec_is_called_where_the_file_launches_nothing(tmp_path: Path) -> None:
    found = run(tmp_path, SPEC)
    assert found.ending.kind == "finished", found.ending.traceback
    assert [kernel.name for kernel in found.kernels] == ["double_kernel"]
    assert found.kernels[0].grid == (4, 1, 1)


@FORKED
def test_the_largest_case_that_needs_no_gpu_is_called(tmp_path: Path) -> None:
    cases = 'Case("one", n=1), Case("odd", n=1000), Case("few", n=10), Case("huge", n=1 << 40)'
    found = run(tmp_path, SPEC.replace('Case("odd", n=1000)', cases))
    assert found.kernels[0].grid == (4, 1, 1)
    assert found.notes == ("double was called with case odd; --case names another",)
    assert as_json(found)["notes"] == list(found.notes)


@FORKED
@pytest.mark.parametrize("by_node", [True, False])
def test_a_module_and_a_pytest_node_are_inspected(
    tmp_path: Path, by_node: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = KERNEL + "\ndef test_one():\n    assert double(torch.ones(300, device='cuda')).sum() == 600\n"
    name = "test_doubled" if by_node else "doubled"  # pytest takes over imports of tests
    (tmp_path / f"{name}.py").write_text(text + "\nif __name__ == '__main__':\n    test_one()\n")
    monkeypatch.chdir(tmp_path)
    arguments = ("test_doubled.py::test_one", "-q", "-p", "no:cacheprovider") if by_node else ()
    options = InspectOptions(targets=(Target("cuda", 90),))
    found = inspect_script("pytest" if by_node else name, arguments, options)
    assert (found.ending.kind, found.ending.status) == ("finished", 0), found.ending
    assert [kernel.name for kernel in found.kernels] == ["double_kernel"]


@FORKED
def test_error_without_a_message_names_its_line(tmp_path: Path) -> None:
    found = run(tmp_path, "def checked(x):\n    assert x > 1\n\nchecked(1)\n")
    assert found.ending.message.startswith("AssertionError at ")
    assert found.ending.message.endswith(":2: assert x > 1")


@FORKED
def test_long_loop_under_a_profiler_ends_early(tmp_path: Path) -> None:
    text = KERNEL + (
        "import triton.profiler as proton\n"
        "x = torch.ones(1000, device='cuda')\n"
        "proton.start('loop')\n"
        "proton.activate(0)\n"
        "for _ in range(20_000): double(x)\n"
    )
    found = run(tmp_path, text)
    assert found.ending.kind == "finished", found.ending.traceback
    assert 50 < found.kernels[0].launches < 100


@FORKED
def test_long_loop_ends_early_only_where_nobody_reads_its_results(tmp_path: Path) -> None:
    text = KERNEL + (
        "x = torch.ones(1000, device='cuda')\n"
        "def measured():\n"
        "    for _ in range(20_000): double(x)\n"
        "measured()\n"
        "rounds, total = 0, torch.zeros(1, device='cuda')\n"
        "for number in range(200):\n"
        "    rounds += 1\n"
        "    total += double(x)[0]\n"
        "assert (rounds, total.item()) == (200, 400)\n"
    )
    found = run(tmp_path, text)
    assert found.ending.kind == "finished", found.ending.traceback
    assert 50 < found.kernels[0].launches - 200 < 100
    assert [note for note in found.notes if "loop" in note] == [
        "a loop of 20,000 rounds ended after 51: nobody reads what its launches compute"
    ]
