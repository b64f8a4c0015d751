"""CUDA candidates: what needs no GPU of the way from sources to launches, and the zoo of them on a GPU with nvcc."""

from __future__ import annotations

import ctypes
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from tilesmith.lab.judge import Candidate, Judge, Options, Rules, Task, task_at
from tilesmith.lab.judge.cuda import building, device_tape, sources
from tilesmith.lab.judge.cuda.device_tape import DeviceTape
from tilesmith.lab.judge.cuda.launch_recorder import COPY, FILL, LAUNCH, OTHER, WRAPPED, text
from tilesmith.lab.judge.cuda.launching import CudaKernels
from tilesmith.lab.judge.cuda.sanitizer import FOUND, first_report, kernel_in, sanitized
from tilesmith.lab.judge.cuda.toolkit import BUILT, missing_tool
from tilesmith.lab.judge.cuda.worker import GpuSession
from tilesmith.lab.judge.isolation.arena import Arena
from tilesmith.lab.judge.shared_values import lay, read_output
from tilesmith.lab.judge.tape_checks import findings
from tilesmith.lab.judge.timing.device_sets import DeviceSets
from tilesmith.lab.judge.timing.fresh import FreshInputs

CUDA_ZOO = Path(__file__).parents[2] / "judge" / "zoo" / "cuda"
DIGEST = "0123456789abcdef"
SYMBOL = "_Z12scale_kernelPKfPfif"


class _Scale:
    """Stands for the device code of y[i] = factor * x[i], with the parameters (x, y, n, factor)."""

    sizes = (8, 8, 4, 4)
    launches = 0

    def launch(self, grid: Any, block: Any, shared: int, stream: int, parameters: list[bytes], **options: Any) -> None:
        self.launches += 1
        count = int.from_bytes(parameters[2], "little")
        x, y = ((ctypes.c_float * count).from_address(int.from_bytes(one, "little")) for one in parameters[:2])
        factor = ctypes.c_float.from_buffer_copy(parameters[3]).value
        for number in range(count):
            y[number] = factor * x[number]


class _Images:
    def __init__(self) -> None:
        self.scale = _Scale()

    def function(self, name: str) -> Any:
        return self.scale if name == SYMBOL else None


def scaled(session: GpuSession, images: _Images, x: torch.Tensor) -> torch.Tensor:
    """Do what a candidate's host code does: allocate, launch by pointers, return."""
    y = torch.empty_like(x)
    values: list[Any] = [
        ctypes.c_uint64(x.data_ptr()), ctypes.c_uint64(y.data_ptr()), ctypes.c_int32(x.numel()), ctypes.c_float(3.0)
    ]  # fmt: skip
    pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(one) for one in values))
    numbers = (ctypes.c_uint32 * 11)(1, 1, 1, 32, 1, 1, 1, 1, 1, 0, 0)
    session._heard(DIGEST, images)(LAUNCH, SYMBOL.encode(), numbers, 0, 0, 0, 0, pointers)  # type: ignore[arg-type]
    given = [ctypes.string_at(ctypes.addressof(one), size) for one, size in zip(values, _Scale.sizes, strict=True)]
    images.scale.launch((1, 1, 1), (32, 1, 1), 0, 0, given)
    return y


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuSession:
    for name in ("load", "load_inline"):  # a session replaces them for good
        monkeypatch.setattr(cpp_extension, name, getattr(cpp_extension, name))
    ours, _ = socket.socketpair()
    return GpuSession(Arena.new(1 << 20), tmp_path, ours, device="cpu")


def recorded(session: GpuSession, function: Any, x: torch.Tensor) -> dict[str, Any]:
    session._function = function
    laid = lay({"x": x}, session._arena)
    request = {
        "do": "call", "inputs": laid.encoded, "leaves": [], "style": "positional", "record": True, "again": False,
        "perform": True, "configuration": 0, "tf32": False, "room": laid.room, "shift": 0,
        "circumstance": "",
    }  # fmt: skip
    answer = session.answer(request)
    assert "error" not in answer, answer["error"]
    return answer


def test_launch_by_pointers_is_replayed_on_other_inputs(
    session: GpuSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = _Images()
    answer = recorded(session, lambda x: scaled(session, images, x), torch.arange(4.0))
    (step,) = answer["tape"]["steps"]
    assert answer["tape"]["kernels"][0]["name"] == "scale_kernel"
    assert [len(one["pointers"]) for one in step["arguments"].values()] == [1, 1, 0, 0]
    assert read_output(answer["outputs"][0], session._arena).tolist() == [0.0, 3.0, 6.0, 9.0]

    (tmp_path / BUILT / DIGEST).mkdir(parents=True)
    kernels = CudaKernels(tmp_path)
    kernels._images[DIGEST] = images  # type: ignore[assignment]
    monkeypatch.setattr("torch.cuda.current_stream", lambda: type("Stream", (), {"cuda_stream": 0}))
    other = torch.tensor([5.0, 6.0, 7.0, 8.0])
    drawn = {"0": other.view(torch.uint8)}
    sets = DeviceSets(
        answer["tape"], {}, [answer["outputs"][0]["reference"]], FreshInputs((drawn, drawn), {"0": None}, 0),
        tmp_path, device="cpu", allow_any=False, sets=1, cuda=kernels,
    )  # fmt: skip
    assert torch.equal(sets.once(0)[0], 3 * other)
    assert sets.memories[0].guards_hold()


def test_outputs_with_exchanged_results_show_who_computes(
    session: GpuSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = _Images()
    moved = recorded(session, lambda x: torch.cat([scaled(session, images, x), x]), torch.arange(4.0))
    (tmp_path / BUILT / DIGEST).mkdir(parents=True)
    kernels = CudaKernels(tmp_path)
    kernels._images[DIGEST] = images  # type: ignore[assignment]
    monkeypatch.setattr("torch.cuda.current_stream", lambda: type("Stream", (), {"cuda_stream": 0}))
    draws = tuple({"0": torch.full((4,), value).view(torch.uint8)} for value in (1.0, 2.0))
    inputs = FreshInputs(draws, {"0": "float32"}, 0)  # type: ignore[arg-type]
    sets = DeviceSets(
        moved["tape"], {}, [one["reference"] for one in moved["outputs"]], inputs, tmp_path, device="cpu",
        allow_any=False, sets=1, cuda=kernels,
    )  # fmt: skip
    (other,), (right,), (stale,) = sets.with_other_results(0, 5)
    assert torch.equal(stale[:4], other[:4])  # stored by the kernel
    assert torch.equal(stale[4:], right[4:])  # moved by PyTorch
    assert not torch.equal(other, right)


def test_memset_and_copies_are_operators_of_the_tape(session: GpuSession) -> None:
    def host_code(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        session._heard(DIGEST, _Images())(FILL, b"cudaMemsetAsync", None, y.data_ptr(), 7, 8, 0, None)  # type: ignore[arg-type]
        return y

    (step,) = recorded(session, host_code, torch.arange(4.0))["tape"]["steps"]
    assert (step["operator"], step["args"][1], step["results"][0][3]) == ("aten::fill_.Scalar", 7, [8])


@pytest.mark.parametrize(("kind", "name", "stream"), [(OTHER, b"cudaGraphLaunch", 0), (LAUNCH, SYMBOL.encode(), 12345)])
def test_what_a_tape_cannot_hold_leaves_the_verdict_open(
    session: GpuSession, kind: int, name: bytes, stream: int
) -> None:
    def host_code(x: torch.Tensor) -> torch.Tensor:
        session._heard(DIGEST, _Images())(kind, name, None, 0, 0, 0, stream, None)  # type: ignore[arg-type]
        return torch.zeros_like(x)

    steps = recorded(session, host_code, torch.arange(4.0))["tape"]["steps"]
    assert any("opaque" in step for step in steps)


def test_copy_from_the_host_is_opaque(session: GpuSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_tape, "address_range", lambda address: None)

    def host_code(x: torch.Tensor) -> torch.Tensor:
        session._heard(DIGEST, _Images())(COPY, b"cudaMemcpy", None, x.data_ptr(), 1, 8, 0, None)  # type: ignore[arg-type]
        return torch.zeros_like(x)

    steps = recorded(session, host_code, torch.arange(4.0))["tape"]["steps"]
    assert "memory of the host" in str(steps[0]["opaque"])


def test_forged_kernel_of_the_tape_is_refused(tmp_path: Path) -> None:
    kernels = CudaKernels(tmp_path)
    for digest in ("../../../etc", DIGEST):
        step = {"kernel": 0, "grid": [1, 1, 1], "arguments": {}, "options": {}}
        with pytest.raises(Exception, match="did not build"):
            kernels.launch(step, {"cuda": digest, "symbol": "f"}, lambda number: (0, 0))


def test_kernel_of_triton_that_claims_to_be_cuda_is_refused() -> None:
    """A CUDA kernel needs no text in the candidate's files, so only the judge's own builds may have one."""
    step = {"kernel": 0, "grid": [1, 1, 1], "arguments": {}, "options": {}, "line": "f.py:1"}
    tape = {"kernels": [{"name": "k", "cuda": DIGEST, "text": "def k(): pass"}], "steps": [step], "storages": []}
    candidate = Candidate.of_text("def add(x, y): pass\n")
    kinds = [one.reason.kind for one in findings([step], tape, Rules(), candidate, builds=False)]
    assert kinds == ["forged"]
    assert not list(findings([step], tape, Rules(), candidate, builds=True))


def test_inline_sources_get_headers_and_bindings() -> None:
    request = sources.of_inline(
        "adds", "int f();", "__global__ void k() {}", functions=["f"], extra_cuda_cflags=["-O3", ""]
    )
    assert "torch::wrap_pybind_function(f)" in request["texts"]["main.cpp"]
    assert request["texts"]["cuda.cu"].startswith("#include <torch/types.h>")
    assert request["cuda_cflags"] == ["-O3"]
    with pytest.raises(sources.CannotBuild, match="named"):
        sources.of_inline("no name", "")


def test_sources_outside_of_the_candidate_are_refused(tmp_path: Path) -> None:
    with pytest.raises(sources.CannotBuild, match="outside"):
        sources.of_files("f", ["/etc/passwd"], tmp_path)


def test_build_names_the_errors_of_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for both compilers writes what it is told, and refuses the text `broken`."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("g++", "nvcc"):
        tool = tools / name
        tool.write_text(
            '#!/bin/sh\nout=""; keep=""; source=""\n'
            'while [ $# -gt 0 ]; do case "$1" in -o) out=$2; shift;; --keep-dir) keep=$2; shift;; '
            "*.cu|*.cpp) source=$1;; esac; shift; done\n"
            'if [ -n "$source" ] && grep -q broken "$source"; then echo "x.cu(1): error: broken" >&2; exit 1; fi\n'
            'echo made > "$out"; if [ -n "$keep" ]; then echo code > "$keep/x.cubin"; fi\n'
        )
        tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tools}:{'/usr/bin:/bin'}")
    facts = {"digest": DIGEST, "module": "m", "nvcc": str(tools / "nvcc"), "home": "/none", "architecture": "90a"}
    arena = Arena.new(1 << 20)
    good = sources.of_inline("m", "", "__global__ void k() {}")
    answer = building.built({**good, **facts}, arena, tmp_path)
    assert bytes(arena.bytes_at(*answer["library"])) == b"made\n"
    assert [bytes(arena.bytes_at(*one)) for one in answer["images"]] == [b"code\n"]
    bad = sources.of_inline("m", "", "broken")
    with pytest.raises(building.BuildError, match=r"nvcc refuses the sources: .*error: broken"):
        building.built({**bad, **facts, "digest": "other"}, arena, tmp_path)


def test_recorder_defines_every_wrapped_function() -> None:
    assert all(f"__wrap_{name}(" in text() and f"__real_{name}(" in text() for name in WRAPPED)


def test_tape_of_a_gpu_names_kernels_without_mangling(tmp_path: Path) -> None:
    tape = DeviceTape(str(tmp_path), "cpu")
    for number, symbol in enumerate((SYMBOL, "_ZN12_GLOBAL__N_110add_kernelIfEEvPT_", "plain")):
        tape._cuda_kernel(DIGEST, symbol)
        assert tape.kernels.descriptions[number]["symbol"] == symbol
    assert [one["name"] for one in tape.kernels.descriptions] == ["scale_kernel", "add_kernel", "plain"]


REPORT = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at void softmax_kernel<float>(const T1 *, T1 *, int)+0x120
=========     by thread (33,0,0) in block (6,0,0)
========= ERROR SUMMARY: 1 error
"""


def test_report_of_the_sanitizer_names_the_kernel() -> None:
    assert first_report(REPORT) == (
        "Invalid __global__ read of size 4 bytes at void softmax_kernel<float>(const T1 *, T1 *, int)+0x120"
    )
    assert kernel_in(REPORT) == "softmax_kernel"
    assert first_report("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") is None


def test_tools_of_the_sanitizer_become_reasons_and_notes(tmp_path: Path) -> None:
    """A stand-in for the program reports for one tool, finds nothing by another, and fails for the third."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        f"#!/bin/sh\ncase $2 in memcheck) cat <<'END'\n{REPORT}END\nexit {FOUND};; racecheck) exit 0;; esac\n"
        "echo unsupported >&2; exit 1\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    reasons, notes = sanitized(str(program), [], tmp_path, tmp_path / "trials")
    assert [(one.kind, one.stage, one.kernel) for one in reasons] == [("out-of-bounds", "safe", "softmax_kernel")]
    assert notes == ["compute-sanitizer racecheck: no report", "compute-sanitizer initcheck did not run (unsupported)"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a GPU says")
def test_without_a_gpu_the_verdict_is_open_and_says_why(warm_judge: Judge) -> None:
    task = zoo_task("add")
    candidate = Candidate.of(CUDA_ZOO / "honest" / "add" / "pointers_in_a_structure.py")
    verdict = warm_judge.judge(task, candidate, Options(seed=5))
    assert verdict.outcome == "unproven"
    assert verdict.reason is not None
    assert verdict.reason.kind == "cuda-sources"
    assert "needs a GPU" in verdict.reason.message


def zoo_task(name: str) -> Task:
    return task_at(CUDA_ZOO.parent / "tasks" / f"{name}.py", Rules(seconds=60.0))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "path", [pytest.param(one, id=f"{one.parent.name}/{one.stem}") for one in sorted(CUDA_ZOO.glob("*/*/*.py"))]
)
def test_cuda_candidate_is_judged_on_a_gpu(path: Path, warm_judge: Judge) -> None:
    if missing_tool("cuda") is not None:
        pytest.skip("no nvcc")
    verdict = warm_judge.judge(zoo_task(path.parent.name), Candidate.of(path), Options(seed=5))
    expected = path.read_text().splitlines()[1].removeprefix("# judge: ").split("|")
    if expected == ["pass"]:
        assert verdict.passed, str(verdict)
        assert verdict.times is not None, verdict.notes
    else:
        assert verdict.outcome != "pass"
        assert verdict.reason is not None
        assert verdict.reason.kind in expected, str(verdict)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "expected"), [("linear_relu_cuda", None), ("linear_relu_cuda_decoy", "decoy-kernel")])
def test_kernelbench_model_with_cuda_sources_is_judged_on_a_gpu(
    name: str, expected: str | None, warm_judge: Judge
) -> None:
    if missing_tool("cuda") is not None:
        pytest.skip("no nvcc")
    folder = CUDA_ZOO.parents[1] / "bridges" / "kernelbench"
    verdict = warm_judge.judge(task_at(folder / "linear_relu.py"), Candidate.of(folder / f"{name}.py"), Options(seed=5))
    assert (verdict.reason.kind if verdict.reason else None) == expected, str(verdict)
