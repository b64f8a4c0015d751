"""`tilesmith check` as a user meets it: right and wrong files, one line for each mistake, no half-written results."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from typer.testing import CliRunner

import tilesmith as ts
from tilesmith.cli import app

KERNELS = Path(__file__).parents[1] / "kernels"
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "check.md"
CONTROL_CHARACTERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
COMMAND = [sys.executable, "-c", "from tilesmith.cli import main; main()", "check"]
FORKED = pytest.mark.usefixtures("forked")
KEYS = {"op", "case", "dtype", "layout", "what", "error", "allowed", "passed", "message"}

SIMPLE = """
import time
import torch
from tilesmith import Case, Spec

def op(x):
    return x * 2

def make_inputs(case, dtype, device):
    return torch.randn(case.elements, dtype=dtype, device=device)

SPEC = Spec(
    name="double", op=op, reference=lambda x: x + x, cases=[Case("five", elements=5)], make_inputs=make_inputs,
    differentiable=False, dtypes=[torch.float32], kernels=False,
)
"""

runner = CliRunner()


class Checked(NamedTuple):
    exit_code: int
    output: str


def checked(*arguments: str | Path) -> Checked:
    result = runner.invoke(app, ["check", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return Checked(result.exit_code, result.output)


def written(folder: Path, text: str, name: str = "kernel.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def line_of(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), start=1) if text in line)


def strict(path: Path) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


class TestRight:
    def test_operators_of_the_package(self) -> None:
        # Tests of the operators try the others.
        result = checked("rms_norm", "silu", "add", "--layout", "row-strided", "--dtype", "float32", "--case", "odd")
        assert result.exit_code == 0
        assert re.findall(r"^(\w+): right, \d+ comparisons", result.output, re.MULTILINE) == ["rms_norm", "silu", "add"]

    def test_one_operator_in_one_dtype_case_and_layout(self) -> None:
        result = checked("silu", "--dtype", "bfloat16", "--case", "odd", "--layout", "transposed")
        assert result.exit_code == 0
        assert result.output.splitlines()[-1] == "all 2 comparisons passed"

    @pytest.mark.parametrize("dtypes", [["bf16,fp32"], ["float32,", "--dtype", "bfloat16"], ["fp32, bfloat16 ,fp32"]])
    def test_names_are_separated_by_commas_or_the_option_repeated(self, dtypes: list[str]) -> None:
        result = checked("silu", "--dtype", *dtypes, "--case", "odd", "--layout", "transposed,offset")
        assert result.exit_code == 0
        assert result.output.splitlines()[-1] == "all 8 comparisons passed"

    @pytest.mark.parametrize(("text", "said"), [
        (SIMPLE, ["double: right, 1 comparison; largest error 0% of the allowed error", "1 comparison passed"]),
        (SIMPLE.replace("x * 2", "x * 3"), ["double: 1 wrong, 1 comparison", "1 of 1 comparison failed"]),
    ])  # fmt: skip
    def test_one_comparison_is_singular(self, tmp_path: Path, text: str, said: list[str]) -> None:
        file = written(tmp_path, text)
        assert checked(file, "--layout", "contiguous").output.splitlines()[-2:] == said
        assert str(ts.lab.check(file, layouts=["contiguous"], device="cpu")).splitlines()[-1] == said[0]

    @pytest.mark.parametrize("file", ["multiply.py", "largest_of_rows.py"])
    def test_files_outside_the_package(self, file: str) -> None:
        result = checked(KERNELS / file, "--case", "odd")
        assert result.exit_code == 0
        assert f"{Path(file).stem}: right" in result.output

    @pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU every case is tried")
    def test_cases_left_to_a_gpu_are_named(self) -> None:
        result = checked(KERNELS / "multiply.py", "--dtype", "float32", "--layout", "contiguous")
        assert "only on a GPU: large" in result.output

    def test_file_that_prints_is_heard(self, tmp_path: Path) -> None:
        file = written(
            tmp_path, SIMPLE.replace("    return x * 2", "    print('[bold]x is', len(x))\n    return x * 2")
        )
        result = checked(file)
        assert result.exit_code == 0
        assert "[bold]x is 5\n" in result.output

    def test_file_that_prints_much_is_cut(self, tmp_path: Path) -> None:
        much = "    print('y' * 6_000)\n    return x * 2"
        result = checked(written(tmp_path, SIMPLE.replace("    return x * 2", much)))
        assert result.exit_code == 0
        *printed, cut, summary, _ = result.output.splitlines()
        assert [len(line) for line in printed] == [6_000, 3_999]
        assert re.fullmatch(r"… and [\d,]+ more characters that the operator's code printed", cut)
        assert summary.startswith("double: right")


class TestWrong:
    @pytest.fixture
    def broken(self, tmp_path: Path) -> Path:
        source = (KERNELS / "multiply.py").read_text()
        broken = source.replace("    z = x * y\n", "    z = tl.where(offsets == n_elements - 1, 0.0, x * y)\n")
        assert broken != source
        return written(tmp_path, broken, "broken.py")

    def test_copy_of_a_kernel_ends_with_1_and_says_where(self, broken: Path) -> None:
        result = checked(broken, "--case", "odd", "--dtype", "float32", "--layout", "contiguous")
        assert result.exit_code == 1
        lines = result.output.splitlines()
        assert re.fullmatch(
            r"wrong multiply odd float32 contiguous, forward \(error [\d.e-]+, allowed [\d.e-]+\): "
            r"element \[2, 42\] is 0, but must be \S+ \(off by \S+, allowed \S+\); "
            rf"stored by program \(2, 0, 0\) of multiply_kernel, broken.py:{line_of(broken, 'tl.store(z_ptr')}",
            lines[0],
        )
        assert lines[1].startswith("multiply: 1 wrong, 3 comparisons")
        assert lines[2] == "1 of 3 comparisons failed"

    def test_one_mistake_is_told_once_and_the_json_has_every_failure(self, broken: Path, tmp_path: Path) -> None:
        result = checked(broken, "--case", "odd", "--json", tmp_path / "result.json")
        assert result.exit_code == 1
        assert result.output.count("wrong multiply") == 1
        layouts = "row-strided, transposed, offset, expanded, contiguous"
        assert f"\n    and 14 comparisons more: odd; float32, float16, bfloat16; {layouts}\n" in result.output
        failed = [one for one in strict(tmp_path / "result.json")["results"] if not one["passed"]]
        assert len(failed) == 15

    def test_many_mistakes_do_not_fill_the_screen(self, tmp_path: Path) -> None:
        source = SIMPLE.replace('Case("five", elements=5)', "*(Case(f'of{n}', elements=n) for n in range(1, 13))")
        file = written(tmp_path, source.replace("    return x * 2", "    raise ValueError('abcdefghijklm'[len(x)])"))
        result = checked(file, "--layout", "contiguous")
        assert result.output.count("wrong double") == 10
        assert "… and 2 more; --json FILE writes all of them" in result.output

    def test_operator_that_raises_ends_with_1_and_its_line(self, tmp_path: Path) -> None:
        file = written(tmp_path, SIMPLE.replace("    return x * 2", "    raise ValueError('[/] no [red]way[3, 5]')"))
        result = checked(file, "--layout", "contiguous")
        assert result.exit_code == 1
        first = result.output.splitlines()[0]
        assert first == (
            "wrong double five float32 contiguous, forward: ValueError: [/] no [red]way[3, 5] (kernel.py:7)"
        )

    def test_error_in_a_kernel_ends_with_1_and_its_line(self, tmp_path: Path) -> None:
        source = (KERNELS / "multiply.py").read_text().replace("    z = x * y\n", "    z = x * y.no_such_thing\n")
        file = written(tmp_path, source)
        result = checked(file, "--case", "odd", "--layout", "contiguous")
        assert result.exit_code == 1
        place = rf"kernel.py:{line_of(file, 'no_such_thing')}"
        assert re.search(rf"multiply_kernel \(.*{place}\), program \(0, 0, 0\): AttributeError", result.output)


class TestEndedProcesses:
    """An operator that ends, kills or stops its process is wrong, and the next one is still checked."""

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("import os; os._exit(7)", "ended its process with status 7"),
            ("import os; os._exit(0)", "ended its process with status 0"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV, a segmentation fault"),
            ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL, as the system does when memory runs out"),
            ("while True: pass", "did not end within 2 s: it is in op, {place}"),
            ("import signal; signal.pause()", "did not end within 2 s: it is in op, {place}"),
        ],
        ids=["exit 7", "exit 0", "segfault", "killed", "endless", "asleep"],
    )
    def test_end_of_the_process_is_a_verdict(self, tmp_path: Path, line: str, reason: str) -> None:
        wrong = written(tmp_path, SIMPLE.replace("    return x * 2", f"    {line}\n    return x * 2"), "wrong.py")
        right = written(tmp_path, SIMPLE.replace('"double"', '"twice"'), "right.py")
        result = checked(
            wrong, right, "--layout", "contiguous", "--time-limit", "2", "--json", tmp_path / "result.json"
        )
        assert result.exit_code == 1
        reason = reason.format(place=f"{wrong}:{line_of(wrong, line)}")
        assert result.output.splitlines()[0] == (
            f"wrong double five float32 contiguous, process: the operator {reason}; the rest of double was not checked"
        )
        assert "twice: right" in result.output
        assert [one["passed"] for one in strict(tmp_path / "result.json")["results"]] == [False, True]

    def test_kernel_whose_loop_changes_nothing_is_named_with_its_line(self, tmp_path: Path) -> None:
        loop = "    total = x * 0\n    while tl.sum(total, 0) < 1:\n        total = total * 1\n    tl.store("
        path = written(tmp_path, TUNED.replace("    tl.store(", loop))
        result = checked(path, "--layout", "contiguous")
        assert result.exit_code == 1
        assert "this loop never ends" in result.output
        assert f"{path.name}:{line_of(path, 'while tl.sum')}" in result.output

    def test_kernel_that_never_ends_is_named_with_its_line(self, tmp_path: Path) -> None:
        loop = "    total = x * 0\n    while tl.max(total, 0) < 1:\n        total = total - 1\n    tl.store("
        path = written(tmp_path, TUNED.replace("    tl.store(", loop))
        result = checked(path, "--layout", "contiguous", "--time-limit", "3")
        assert result.exit_code == 1
        lines = [line_of(path, text) for text in ("while tl.max", "total - 1")]
        places = [f"did not end within 3 s: it is in double_kernel, {path}:{line}; the rest" for line in lines]
        assert any(place in result.output for place in places)

    def test_file_that_ends_the_process_when_imported_gets_one_line_and_2(self, tmp_path: Path) -> None:
        result = checked(written(tmp_path, "import os; os._exit(7)\n"))
        assert result.exit_code == 2
        assert "kernel.py: ended its process with status 7 when imported" in result.output


class TestUnusable:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x = 1\n", "defines no SPEC"),
            ("def broken(:\n", ":1: syntax error: invalid syntax"),
            ("SPEC = 'mine'\n", "SPEC is a str, not a tilesmith.Spec"),
            ("import not_there_at_all\n", "fails when imported: ModuleNotFoundError"),
            (SIMPLE.replace("case.elements", "case.rows"),
             "double: make_inputs fails for Case('five', elements=5), torch.float32: "
             "AttributeError: case 'five' has no size 'rows' (kernel.py:10)"),
            (SIMPLE.replace("x + x", "x.no_such_thing"), "the reference fails for Case('five', elements=5)"),
            (SIMPLE.replace("lambda x: x + x", "lambda x: None"), "TypeError: returns a NoneType, not a tensor"),
        ],
        ids=["no SPEC", "syntax", "not a SPEC", "import", "make_inputs", "reference", "reference without result"],
    )  # fmt: skip
    def test_file_gets_one_line_and_2(self, tmp_path: Path, text: str, message: str) -> None:
        result = checked(written(tmp_path, text), "--json", tmp_path / "result.json")
        assert result.exit_code == 2
        (line,) = result.output.splitlines()
        assert line.startswith("tilesmith: ")
        assert message in line
        assert not (tmp_path / "result.json").exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nothing.py"], "nothing.py: no such file"),
            (["rms_norn"], "'rms_norn' is neither an operator nor a Python file; did you mean rms_norm"),
            (["silu", "--dtype", "fp8"], "dtype 'fp8' is not one of float32, float16, bfloat16"),
            (["silu", "--dtype", "fp32,int8"], "dtype 'int8' is not one of float32, float16, bfloat16"),
            (["silu", "--dtype", ","], "--dtype ',' names nothing"),
            (["silu", "--layout", "diagonal"], "layout 'diagonal' is not one of contiguous, row-strided"),
            (["silu", "--case", "huge"], "silu has no case 'huge'; it has one, odd"),
        ],
        ids=["no file", "no operator", "no dtype", "one of two", "nothing", "no layout", "no case"],
    )
    def test_argument_gets_one_line_and_2(self, arguments: list[str], message: str) -> None:
        result = checked(*arguments)
        assert result.exit_code == 2
        (line,) = result.output.splitlines()
        assert message in line

    def test_one_bad_file_of_two_stops_before_the_first_is_run(self, tmp_path: Path) -> None:
        result = checked(written(tmp_path, SIMPLE), tmp_path / "nothing.py")
        assert result.exit_code == 2
        assert "right" not in result.output

    @pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU every case is tried")
    def test_only_large_cases_are_not_called_right(self, tmp_path: Path) -> None:
        result = checked(written(tmp_path, SIMPLE.replace("elements=5", "elements=10_000_000")))
        assert result.exit_code == 2
        assert "without a GPU every case is too large (five)" in result.output


class TestJson:
    def test_has_the_documented_keys(self, tmp_path: Path) -> None:
        assert checked(written(tmp_path, SIMPLE), "--json", tmp_path / "result.json").exit_code == 0
        content = strict(tmp_path / "result.json")
        assert set(content) == {"tilesmith", "schema", "results"}
        assert [set(result) for result in content["results"]] == [KEYS] * 5
        assert all(result["passed"] is True and result["message"] == "" for result in content["results"])

    @pytest.mark.parametrize("wrong", ["x / 0", "x * float('nan')", "x.double()"], ids=["inf", "nan", "no number"])
    def test_has_no_infinity_and_no_nan(self, tmp_path: Path, wrong: str) -> None:
        file = written(tmp_path, SIMPLE.replace("x * 2", wrong))
        assert checked(file, "--json", tmp_path / "result.json").exit_code == 1
        result = strict(tmp_path / "result.json")["results"][0]
        assert (result["passed"], result["error"]) == (False, None)
        assert result["message"]

    def test_to_an_unwritable_path_gets_one_line_and_2(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        result = checked(written(tmp_path, SIMPLE), "--json", tmp_path / "file" / "result.json")
        assert result.exit_code == 2
        assert result.output.splitlines()[-1].startswith(f"tilesmith: cannot write {tmp_path}/file/result.json: ")


class TestProcess:
    """What only shows in a process of its own."""

    @FORKED
    def test_interrupted_leaves_nothing_and_no_traceback(self, tmp_path: Path) -> None:
        file = written(tmp_path, SIMPLE.replace("return x * 2", "print('working', flush=True)\n    time.sleep(500)"))
        command = [*COMMAND, str(file), "--json", str(tmp_path / "result.json")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "working\n"
            process.send_signal(signal.SIGINT)
            output, error = process.communicate(timeout=200)
        assert process.returncode not in (0, 1, 2)
        assert "Traceback" not in output + error
        assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["kernel.py"]

    @FORKED
    def test_piped_output_is_plain_lines(self, tmp_path: Path) -> None:
        file = written(tmp_path, SIMPLE.replace("x * 2", "x * 3"))
        done = subprocess.run([*COMMAND, str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == ""
        assert not CONTROL_CHARACTERS.search(done.stdout)
        lines = done.stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["wrong", "and", "double:", "5"]
        assert max(map(len, lines)) > 100  # not broken at the width of a terminal that is not there

    def test_terminal_shows_what_is_being_tried(self, tmp_path: Path) -> None:
        file = written(tmp_path, SIMPLE.replace("return x * 2", "time.sleep(0.1)\n    return x * 2"))
        output = _on_a_terminal([*COMMAND, str(file)])
        assert "double five float32 row-strided" in output
        assert re.search(r"[1-5]/5", output)  # which ones are seen depends on the time that each took
        assert "6/5" not in output
        assert "all 5 comparisons passed" in output

    @pytest.mark.slow
    def test_works_where_triton_itself_was_told_to_interpret(self, tmp_path: Path) -> None:
        command = [*COMMAND, str(KERNELS / "multiply.py"), "--case", "odd", "--layout", "contiguous"]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"}, check=False
        )
        assert done.stdout.splitlines()[-1] == "all 9 comparisons passed"


def _on_a_terminal(command: list[str]) -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        output = b""
        try:
            while piece := os.read(ours, 4096):
                output += piece
        except OSError:  # how Linux says that the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    return output.decode()


TUNED = """
import torch, triton, triton.language as tl
from tilesmith import Case, Spec

CONFIGURATIONS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (16, 64) for warps in (2, 4)]

@triton.autotune(CONFIGURATIONS, key=["n"])
@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, x * 2, mask=mask)

def double(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    double_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y

SPEC = Spec(
    name="double", op=double, reference=lambda x: x + x, cases=[Case("odd", n=71), Case("even", n=128)],
    make_inputs=lambda case, dtype, device: torch.randn(case.n, dtype=dtype, device=device),
    differentiable=False, dtypes=[torch.float32],
)
"""


class TestAutotuner:
    """On a GPU any configuration may be the fastest, so each one must be right."""

    def test_configuration_that_fails_is_named(self, tmp_path: Path) -> None:
        broken = TUNED.replace("mask = offsets < n\n", "mask = (offsets < n) | (BLOCK == 64)\n")
        result = checked(written(tmp_path, broken), "--layout", "contiguous")
        assert result.exit_code == 1
        first, *others = [line for line in result.output.splitlines() if line.startswith("wrong")]
        assert "configuration 3 of the autotuner (double_kernel: BLOCK: 64, num_warps: 2" in first
        assert "double odd" in first
        assert f"kernel.py:{line_of(tmp_path / 'kernel.py', 'tl.load')}" in first
        assert not others

    def test_summary_says_how_many_ran(self, tmp_path: Path) -> None:
        result = checked(written(tmp_path, TUNED), "--layout", "contiguous")
        assert result.exit_code == 0
        ran = "2 of 4 configurations of the autotuner ran, the others differ in warps and stages only"
        assert f"double: right, 4 comparisons; largest error 0% of the allowed error; {ran}" in result.output

    def test_warps_that_decide_the_result_count(self, tmp_path: Path) -> None:
        text = TUNED.replace(
            "@triton.jit\n", '@triton.heuristics({"WARPS": lambda all: all["num_warps"]})\n@triton.jit\n'
        )
        text = text.replace("BLOCK: tl.constexpr)", "BLOCK: tl.constexpr, WARPS: tl.constexpr)")
        result = checked(written(tmp_path, text.replace("x * 2", "x * (WARPS if BLOCK == 64 else 2)")))
        assert result.exit_code == 1
        assert "configuration 4 of the autotuner (double_kernel: BLOCK: 64, num_warps: 4" in result.output
        assert "all 4 configurations of the autotuner ran" in result.output

    def test_configurations_that_pruning_leaves_for_larger_sizes_only_run(self, tmp_path: Path) -> None:
        pruning = "lambda all, named, **given: [one for one in all if one.kwargs['BLOCK'] > 16 or named['n'] > 100]"
        text = TUNED.replace('key=["n"]', f'key=["n"], prune_configs_by={{"early_config_prune": {pruning}}}')
        text = text.replace("(16, 64)", "(16, 64, 128)")
        assert checked(written(tmp_path, text), "--layout", "contiguous").exit_code == 0
        wrong = text.replace("x * 2", "x * tl.where((BLOCK == 128) & (n > 100), 3, 2)")
        result = checked(written(tmp_path, wrong), "--layout", "contiguous")
        assert result.exit_code == 1
        assert "wrong double even float32 contiguous, forward" in result.output
        assert "configuration 3 of the autotuner (double_kernel: BLOCK: 128, num_warps: 2" in result.output
        assert "3 of 6 configurations of the autotuner ran" in result.output

    ADDED_TO = TUNED.replace("tl.store(y_ptr + offsets, x * 2", "tl.atomic_add(y_ptr + offsets, x * 2")
    ADDED_TO = ADDED_TO.replace("torch.empty_like(x)", "torch.zeros_like(x)")

    def test_sum_that_grows_with_each_timed_run_fails(self, tmp_path: Path) -> None:
        result = checked(written(tmp_path, self.ADDED_TO), "--layout", "contiguous")
        assert result.exit_code == 1
        assert "a second run of double_kernel changes y_ptr again" in result.output
        assert 'pass reset_to_zero=["y_ptr"]' in result.output

    @pytest.mark.parametrize(
        "way", ["reset_to_zero", "restore_value", "hook of the configurations", "hook of the tuner"]
    )
    def test_sum_that_is_reset_before_each_run_passes(self, tmp_path: Path, way: str) -> None:
        right, wrong = {
            "reset_to_zero": ('key=["n"]', 'key=["n"], reset_to_zero=["y_ptr"]'),
            "restore_value": ('key=["n"]', 'key=["n"], restore_value=["y_ptr"]'),
            "hook of the configurations": (
                "num_warps=warps)", 'num_warps=warps, pre_hook=lambda given: given["y_ptr"].zero_())'),
            "hook of the tuner": (
                'key=["n"]', 'key=["n"], pre_hook=lambda given, reset_only=False: given["y_ptr"].zero_()'),
        }[way]  # fmt: skip
        result = checked(written(tmp_path, self.ADDED_TO.replace(right, wrong)), "--layout", "contiguous")
        assert result.exit_code == 0

    def test_configuration_that_a_static_assert_excludes_is_not_wrong(self, tmp_path: Path) -> None:
        text = TUNED.replace("    mask = offsets < n\n", "    tl.static_assert(BLOCK < 64)\n    mask = offsets < n\n")
        result = checked(written(tmp_path, text), "--layout", "contiguous")
        assert result.exit_code == 0
        assert "1 of 4 configurations of the autotuner ran" in result.output

    def test_pruned_configuration_does_not_run(self, tmp_path: Path) -> None:
        pruning = 'key=["n"], prune_configs_by={"early_config_prune": lambda all, *_, **__: all[:2]})'
        text = TUNED.replace("mask = offsets < n\n", "mask = (offsets < n) | (BLOCK == 64)\n")
        result = checked(written(tmp_path, text.replace('key=["n"])', pruning)), "--layout", "contiguous")
        assert result.exit_code == 0
        assert "1 of 2 configurations of the autotuner ran" in result.output


CHANGED_IN_A_LOOP = """    total = tl.zeros((BLOCK,), tl.float16)
    for _ in range(2):
        total += x.to(tl.float32)
    tl.store(y_ptr + offsets, total, mask=mask)
"""


LOST_IN_A_LOOP = """    previous = tl.zeros((BLOCK,), tl.float32)
    current = previous
    for _ in range(2):
        previous = current
        current = x * 2
    tl.store(y_ptr + offsets, previous, mask=mask)
"""


class TestCompiler:
    """The interpreter has no types, so a kernel of a file must also pass Triton's front end."""

    def test_kernel_that_no_compiler_accepts_is_wrong(self, tmp_path: Path) -> None:
        text = TUNED.replace("    tl.store(y_ptr + offsets, x * 2, mask=mask)\n", CHANGED_IN_A_LOOP)
        path = written(tmp_path, text.replace("torch.float32", "torch.float16"))
        result = checked(path, "--layout", "contiguous")
        assert result.exit_code == 1
        wrong = [line for line in result.output.splitlines() if line.startswith("wrong")]
        place = f"{path}:{line_of(path, 'for _ in')}"
        assert f"compile: double_kernel does not compile for cuda:90 ({place}): " in wrong[0]
        assert "Loop-carried variable total has initial type" in wrong[0]
        assert "16" in wrong[0]
        assert len(wrong) == 2  # one for each block: the message names its shape

    def test_kernel_is_wrong_whose_assignment_the_compiler_loses(self, tmp_path: Path) -> None:
        """In the interpreter its result is right."""
        path = written(tmp_path, TUNED.replace("    tl.store(y_ptr + offsets, x * 2, mask=mask)\n", LOST_IN_A_LOOP))
        result = checked(path, "--layout", "contiguous")
        assert result.exit_code == 1
        (wrong,) = [line for line in result.output.splitlines() if line.startswith("wrong")]
        place = f"{path}:{line_of(path, 'previous = current')}"
        assert f"compile: double_kernel is compiled wrongly for cuda:90 ({place}): " in wrong
        assert "Triton loses the assignment to previous" in wrong
        mended = LOST_IN_A_LOOP.replace("current = previous", "current = tl.zeros((BLOCK,), tl.float32)")
        path = written(tmp_path, TUNED.replace("    tl.store(y_ptr + offsets, x * 2, mask=mask)\n", mended))
        assert checked(path, "--layout", "contiguous").exit_code == 0

    def test_gluon_kernel_is_wrong_too_whose_assignment_the_compiler_loses(self, tmp_path: Path) -> None:
        text = TUNED.replace("triton.language as tl", "triton.experimental.gluon.language as tl")
        text = text.replace('@triton.autotune(CONFIGURATIONS, key=["n"])\n@triton.jit', "@gluon.jit")
        text = text.replace("from tilesmith", "from triton.experimental import gluon\nfrom tilesmith")
        text = text.replace("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK, LAYOUT)").replace(
            "mask=mask)\n    tl", "mask=mask, other=0.0)\n    tl"
        )
        text = text.replace(
            "    offsets =", "    LAYOUT: tl.constexpr = tl.BlockedLayout([1], [32], [4], [0])\n    offsets ="
        )
        text = text.replace('lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)', "(triton.cdiv(x.numel(), 128),)")
        text = text.replace("y, x.numel())", "y, x.numel(), BLOCK=128)")
        lost = LOST_IN_A_LOOP.replace("tl.float32)", "tl.float32, LAYOUT)")
        path = written(tmp_path, text.replace("    tl.store(y_ptr + offsets, x * 2, mask=mask)\n", lost))
        result = checked(path, "--layout", "contiguous")
        assert result.exit_code == 1
        assert "double_kernel is compiled wrongly for cuda:90" in result.output

    def test_kernel_is_wrong_whose_inline_assembly_ptxas_refuses(self, tmp_path: Path) -> None:
        """The interpreter reads the instruction and the type, not the modifiers between them."""
        right = 'tl.inline_asm_elementwise("add.rn.f32 $0, $1, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)'
        path = written(tmp_path, TUNED.replace("x * 2", right))
        assert checked(path, "--layout", "contiguous").exit_code == 0
        path = written(tmp_path, TUNED.replace("x * 2", right.replace("rn", "rnn")))
        result = checked(path, "--layout", "contiguous")
        assert result.exit_code == 1
        place = f"{path}:{line_of(path, 'add.rnn')}"
        assert f"double_kernel does not compile for cuda:90 ({place}): Unknown modifier '.rnn'" in result.output

    def test_instruction_that_the_target_lacks_is_a_note(self, tmp_path: Path) -> None:
        newer = (
            'tl.inline_asm_elementwise("tcgen05.fence::before_thread_sync; mov.f32 $0, $1;", "=f,f", [x], tl.float32'
        )
        result = checked(
            written(tmp_path, TUNED.replace("x * 2", f"{newer}, is_pure=True, pack=1) * 2")), "--layout", "contiguous"
        )
        assert "double_kernel was not compiled for cuda:90: " in result.output
        assert "not supported on .target" in result.output
        assert "does not compile" not in result.output

    def test_kernel_that_makes_descriptors_needs_an_allocator(self, tmp_path: Path) -> None:
        described = "tl.make_tensor_descriptor(x_ptr, [n], [1], [BLOCK]).load([tl.program_id(0) * BLOCK])"
        text = TUNED.replace("tl.load(x_ptr + offsets, mask=mask)", described)
        path = written(tmp_path, text)
        result = checked(path, "--layout", "contiguous")
        assert result.exit_code == 1
        place = f"{path}:{line_of(path, 'def double_kernel')}"
        assert f"double_kernel does not launch on cuda:90 ({place}): no allocator was set. " in result.output
        given = "triton.set_allocator(lambda size, alignment, stream: None)\n\n\n"
        assert (
            checked(
                written(tmp_path, text.replace("def double(", f"{given}def double(")), "--layout", "contiguous"
            ).exit_code
            == 0
        )

    def test_dtype_that_the_target_lacks_is_a_note(self, tmp_path: Path) -> None:
        text = TUNED.replace("x * 2", "x.to(tl.float8e4b8).to(tl.float32) * 0 + x * 2")
        result = checked(written(tmp_path, text), "--layout", "contiguous")
        assert result.exit_code == 0
        assert "double_kernel was not compiled for cuda:90: " in result.output
        assert "not supported in this architecture" in result.output


class TestMaskedLanes:
    """A GPU fills masked lanes with zeros, but Triton does not promise it: a warning, not a failure."""

    SUMMED = "    tl.store(y_ptr + offsets, x * 2 + tl.sum(x, 0) * 0, mask=mask)"

    def test_load_without_other_whose_lanes_reach_a_sum_is_named(self, tmp_path: Path) -> None:
        path = written(tmp_path, TUNED.replace("    tl.store(y_ptr + offsets, x * 2, mask=mask)", self.SUMMED))
        result = checked(path, "--layout", "contiguous")
        assert result.exit_code == 0
        warning, *_ = result.output.splitlines()
        assert warning.startswith(f"warning: double_kernel ({path}:{line_of(path, 'tl.load')}), program ")
        assert "masked lanes of this load of x_ptr have no value, and reach a result" in warning
        assert result.output.count("warning") == 1

    def test_load_with_other_gets_no_warning(self, tmp_path: Path) -> None:
        text = TUNED.replace("    tl.store(y_ptr + offsets, x * 2, mask=mask)", self.SUMMED)
        result = checked(written(tmp_path, text.replace("mask=mask)\n    tl", "mask=mask, other=0)\n    tl")))
        assert result.exit_code == 0
        assert "warning" not in result.output


@pytest.fixture
def example() -> str:
    example, *_ = re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    return str(example)


class TestDocumentation:
    def test_example_passes(self, example: str, tmp_path: Path) -> None:
        result = checked(written(tmp_path, example, "my_kernel.py"))
        assert result.exit_code == 0
        assert "vector_add: right, 30 comparisons" in result.output

    def test_example_without_its_mask_fails_as_the_page_says(self, example: str, tmp_path: Path) -> None:
        broken = example.replace("x + y, mask=mask)", "x + y)")
        assert broken != example
        result = checked(written(tmp_path, broken, "my_kernel.py"))
        assert result.exit_code == 1
        assert "store to z_ptr[1]" in result.output

    @pytest.mark.parametrize(
        "phrase",
        [
            "was never written", "not stored by a kernel", "it may never have been written", "elements are wrong",
            "every element is within its limit", "no gradient reaches", "a second backward gives another gradient",
            "the operator changes its input", "which nobody wrote before", "of the same shape gives a wrong result: ",
        ],
    )  # fmt: skip
    def test_messages_are_those_of_the_check(self, phrase: str) -> None:
        assert phrase in DOCUMENTATION.read_text()
        lab = Path(ts.__file__).parent / "lab"
        files = [*(lab / "check").glob("*.py"), lab / "conduct.py", lab / "store_log.py"]
        assert any(phrase in file.read_text() for file in files)
