"""CUDA files that compute nothing on the GPU, end too early, or want all memory: none is marked solved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilesmith.workshop.course.catalogue import BUILT_IN
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.cuda import check as cuda_check
from tilesmith.workshop.cuda.check import CudaCheck

pytestmark = [
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"),
    pytest.mark.usefixtures("kept_builds"),
]
SILU = load_exercise(BUILT_IN / "cuda-silu")
HEADER = "#include <cuda_runtime.h>\n#include <vector>\n#include <unistd.h>\n"
LOOP = "for (int i = 0; i < elements; ++i) {0}[i] = {1}[i] / (1.0f + expf(-{1}[i]));"
CHEATS = {
    "host loop": (LOOP.format("out", "x"), "The host reads or writes GPU memory"),
    "copies to the host and back": (
        "std::vector<float> h(elements); cudaMemcpy(h.data(), x, 4 * elements, cudaMemcpyDeviceToHost); "
        + LOOP.format("h", "h")
        + " cudaMemcpy(out, h.data(), 4 * elements, cudaMemcpyHostToDevice);",
        "No kernel is launched",
    ),
    "copies beside a decoy kernel": (
        "std::vector<float> h(elements); cudaMemcpy(h.data(), x, 4 * elements, cudaMemcpyDeviceToHost); "
        + LOOP.format("h", "h")
        + " nothing<<<1, 1>>>(); cudaMemcpy(out, h.data(), 4 * elements, cudaMemcpyHostToDevice);",
        "copies memory with cudaMemcpy",
    ),
    "exit": ("exit(0);", "ends before the results are compared"),
    "_exit": ("_exit(0);", "ends before the results are compared"),
    "quick_exit with a forged line": (
        'printf("run 0 cases=3 alive=0 launches=3 copies=0\\n"); fflush(stdout); quick_exit(0);',
        "ends before the results are compared",
    ),
}


@pytest.fixture(autouse=True)
def _no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_check, "nvcc", lambda: None)


QUICK = ("host loop",)  # a build takes seconds


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CHEATS]
)
def test_cheat_is_not_solved(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = CudaCheck._built
    monkeypatch.setattr(CudaCheck, "_built", lambda check, how: build(check, "address"))  # one build is enough
    body, message = CHEATS[name]
    file = tmp_path / SILU.file_name
    file.write_text(
        f"{HEADER}__global__ void nothing() {{}}\nvoid silu(const float* x, float* out, int elements) {{ {body} }}\n"
    )
    found = CudaCheck(SILU, file).verdict()
    assert not found.passed
    assert message in found.message, found.message


def test_include_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cuda_check.MOST_MEGABYTES_OF_COMPILER, "compiles", 512)
    file = tmp_path / SILU.file_name
    file.write_text('#include "/dev/zero"\n' + SILU.solution.read_text())
    found = CudaCheck(SILU, file).verdict()
    assert (found.passed, found.stage) == (False, "compiles")
    assert "0.5 GB of memory" in found.message
