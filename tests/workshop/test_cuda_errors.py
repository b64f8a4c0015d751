"""Compile errors of the CUDA track in a learner's words, and the mistakes that only nvcc would find."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cuda_mistakes import FILE, LAUNCHES, MISTAKES, OTHER_COMPILERS, PRELUDE

from tilesmith.lab.errors import CATALOGUE, with_explanation
from tilesmith.workshop.course.catalogue import BUILT_IN
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.cuda.check import INCLUDES, CudaCheck
from tilesmith.workshop.cuda.compiler_messages import first_error
from tilesmith.workshop.cuda.source_rules import first_mistake, host_signature, without_comments

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def text_of(name: str) -> str:
    (entry,) = [one for one in CATALOGUE if one.name == name]
    return entry.text


def changed(old: str, new: str) -> str:
    assert old in FILE
    return FILE.replace(old, new, 1)


def compiled(source: str, folder: Path, *options: str) -> str:
    """Return what a learner reads about a source that does not compile."""
    file = folder / "mine.cu"
    file.write_text(source)
    made = subprocess.run(
        ["g++", "-fsyntax-only", "-std=c++20", *options, "-x", "c++", str(file)], capture_output=True, text=True
    )
    assert made.returncode, "the mistake compiles"
    return first_error(made.stderr, file, "void run(int n)")


@needs_compiler
@pytest.mark.parametrize(("name", "old", "new"), MISTAKES)
def test_compile_error_is_explained_with_its_line(name: str, old: str, new: str, tmp_path: Path) -> None:
    prelude = tmp_path / "prelude.h"
    prelude.write_text(PRELUDE)
    message = compiled(changed(old, new), tmp_path, "-include", str(prelude))
    assert message.startswith("mine.cu:")
    assert text_of(name) in message


@needs_compiler
def test_compile_error_of_a_launch_is_explained_without_our_names(tmp_path: Path) -> None:
    check = CudaCheck(load_exercise(BUILT_IN / "cuda-silu"), tmp_path / "mine.cu")
    for name, old, new in LAUNCHES:
        (tmp_path / "mine.cu").write_text(f"#include <cuda_runtime.h>\n{changed(old, new)}")
        message = compiled(check.rewritten_source(), tmp_path, f"-I{INCLUDES}")
        assert text_of(name) in message
        assert "tilesmith" not in message


def test_launch_with_other_arguments_names_both_lists(tmp_path: Path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text("kernel<<<1, 2>>>(x, out);\n")
    told = "no match for call to '(tilesmith::Launch<const float*, float*, int>) (const float*&, float*&)'"
    message = first_error(f"mine.cu:1:41: error: {told}", file, "")
    assert "the kernel takes (const float*, float*, int), but the launch passes (const float*, float*)." in message


@pytest.mark.parametrize(("name", "message"), OTHER_COMPILERS)
def test_errors_of_clang_and_nvcc_are_explained(name: str, message: str) -> None:
    assert text_of(name) in with_explanation(message)


def test_every_entry_about_cuda_has_a_mistake() -> None:
    named = {one[0] for one in (*MISTAKES, *LAUNCHES, *OTHER_COMPILERS)}
    assert named == {one.name for one in CATALOGUE if one.name.startswith("cuda-")}


def test_error_in_the_harness_names_the_function_that_the_check_calls(tmp_path: Path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text("void other() {}\n")
    message = first_error("/a/harness.cu:8:5: error: 'run' was not declared in this scope", file, "void run(int n)")
    assert message == (
        "'run' was not declared in this scope. The check calls void run(int n): keep its name and the order of its "
        "arguments."
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "part"),
    [
        ("__global__ void", "void", 1, "write __global__ void kernel(…)."),
        ("__global__ void", "__device__ void", 1, "write __global__ void kernel(…)."),
        ("__global__ void", "__global__ float", 1, "A kernel returns nothing"),
        ("__global__ void", "__global__", 1, "A kernel returns nothing"),
        ("kernel<<<(n + 63) / 64, threads>>>", "kernel", 10, "Write kernel<<<blocks, threads>>>(…)."),
        ("kernel<<<(n + 63) / 64, threads>>>", "kernel[n, threads]", 10, "Write kernel<<<blocks, threads>>>(…)."),
        ("__global__", "float half(float v) { return v / 2; }\n__global__", 5, "line that defines half"),
        ("    kernel<<<", "    __syncthreads();\n    kernel<<<", 10, "__syncthreads is a function of the GPU"),
        ("out[i] = x[i]", "cudaMemset(out, 0, 4); out[i] = x[i]", 4, "cannot call cudaMemset"),
        ("out[i] = x[i]", "out[i] = std::max(x[i], 0.0f)", 4, "cannot call std::max"),
        ("__global__", "__device__ float half(float v) { v / 2; }\n__global__", 1, "half has a result, but no return."),
        ("    }\n}", "    }\n", 1, "The { of this line has no }."),
        ("64, threads>>>(x, out, n);\n}", "64, threads>>>(x, out, n);\n", 8, "The { of this line has no }."),
    ],
)  # fmt: skip
def test_mistake_that_only_nvcc_finds_is_found(old: str, new: str, line: int, part: str) -> None:
    source = changed(old, new)
    if "half" in new:
        source = source.replace("expf(-x[i])", "half(x[i])")
    found = first_mistake(source)
    assert found is not None
    assert part in found.message
    assert found.line == line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("__global__ void kernel", "template <typename T>\n__global__ void __launch_bounds__(64) kernel"),
        ("__global__", "__device__ float half(float v) { return v / 2; }\n__global__"),
        ("__global__", "// kernel(x) without a launch\n__global__"),
        ("__global__", 'namespace mine {\n__device__ float half(float v) { return v / 2; }\n}  // "{"\n__global__'),
        ("__global__", "#define KERNEL __global__ void\nKERNEL other(int n) {}\n__global__"),
        ("__global__", "__global__ void kernel(const float* x, float* out, int n);\n__global__"),
        ("__global__", "__host__ __device__ int up(int a, int b) { return (a + b - 1) / b; }\n__global__"),
        ("__global__", "struct Sum { __device__ float add(float v) { return v; } };\n__global__"),
        ("out[i] = x[i]", "const auto half = [](float v) { return v / 2; }; out[i] = half(x[i])"),
    ],
)
def test_file_that_nvcc_accepts_has_no_mistake(old: str, new: str) -> None:
    assert first_mistake(changed(old, new)) is None


def test_solutions_have_no_mistake_that_nvcc_finds() -> None:
    for solution in BUILT_IN.glob("cuda-*/solution.cu"):
        assert first_mistake(solution.read_text()) is None, solution


def test_missing_global_fails_at_compiles(tmp_path: Path) -> None:
    exercise = load_exercise(BUILT_IN / "cuda-silu")
    file = tmp_path / exercise.file_name
    file.write_text(exercise.solution.read_text().replace("__global__ ", ""))
    found = CudaCheck(exercise, file).verdict()
    assert (found.passed, found.stage) == (False, "compiles")
    assert found.message.startswith("cuda_silu.cu:3\n    void silu_kernel(")


def test_signature_of_the_host_function_is_one_line() -> None:
    assert host_signature(FILE) == "void run(const float* x, float* out, int n)"


def test_comments_become_blanks_and_texts_stay() -> None:
    assert without_comments('a // b\n"// c" /* d\n */ e') == 'a     \n"// c"     \n    e'


@needs_compiler
@pytest.mark.parametrize(
    ("content", "stage", "expected"),
    [
        (FILE.encode("utf-16"), "parses", "is not saved as UTF-8"),
        (b"import torch\n\n\ndef silu(x):\n    return x\n", "compiles", "This word is not C++"),
    ],
)
def test_file_that_is_no_cpp_is_named_as_such(content: bytes, stage: str, expected: str, tmp_path: Path) -> None:
    exercise = load_exercise(BUILT_IN / "cuda-silu")
    file = tmp_path / exercise.file_name
    file.write_bytes(content)
    verdict = CudaCheck(exercise, file).verdict()
    assert verdict.stage == stage
    assert expected in verdict.message


def test_question_of_a_compiler_keeps_its_mark_alone() -> None:
    found = with_explanation("'krnel' was not declared in this scope; did you mean 'kernel'?")
    assert "'kernel'? No variable" in found
