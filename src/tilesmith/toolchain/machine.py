"""What this machine has: a GPU, targets to compile for, profilers; and advice on what is missing.

Everything may be missing or broken. This module reports that: it never raises, and never hangs.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tilesmith.toolchain.availability import compiles_for, require_launching

TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx90a", "hip:gfx942")
PROFILER_COMMANDS = ("ncu", "nsys", "rocprofv3", "rocprof-compute")

_ENOUGH_SECONDS = 10
_AMD_DRIVER = Path("/sys/module/amdgpu/version")
_NVIDIA_PARAMETERS = Path("/proc/driver/nvidia/params")


@dataclass(frozen=True)
class Gpu:
    """The first GPU that PyTorch sees. `compute_capability` is "9.0", for example; on AMD "gfx942"."""

    name: str
    vendor: str  # "nvidia" or "amd"
    driver: str | None
    compute_capability: str
    memory_bytes: int
    count: int


@dataclass(frozen=True)
class Machine:
    """What `examine` found. Versions are None where a package cannot be imported. `targets` compile on this machine."""

    python: str
    torch: str | None
    triton: str | None
    gpu: Gpu | None
    triton_launches: bool
    targets: tuple[str, ...]
    profilers: tuple[str, ...]
    advice: tuple[str, ...]


@dataclass(frozen=True)
class _Package:
    """An imported package, or the reason why there is none."""

    name: str
    module: Any | None
    problem: str = ""

    @property
    def version(self) -> str | None:
        return str(self.module.__version__) if self.module else None


def examine() -> Machine:
    """Return what this machine has. Takes as long as importing PyTorch and Triton."""
    torch, triton = _package("torch"), _package("triton")
    gpu, gpu_problem = _gpu(torch.module)
    launch_problem = _launch_problem() if gpu else "there is no GPU"
    targets = tuple(target for target in TARGETS if compiles_for(target))
    profilers = tuple(_profilers(torch.module, triton.module))
    advice = [
        *_advice_on_packages(torch, triton),
        *(_advice_on_launching(triton, launch_problem) if gpu else _advice_without_gpu(torch, triton, gpu_problem)),
        *_advice_on_targets(triton, targets),
        *(_advice_on_profilers(gpu, profilers) if gpu else ()),
    ]
    return Machine(
        python=platform.python_version(),
        torch=torch.version,
        triton=triton.version,
        gpu=gpu,
        triton_launches=launch_problem is None,
        targets=targets,
        profilers=profilers,
        advice=tuple(advice),
    )


def _package(name: str) -> _Package:
    try:
        return _Package(name, importlib.import_module(name))
    except ModuleNotFoundError as error:
        if error.name == name:
            return _Package(name, None, "is not installed")
        return _Package(name, None, f"cannot be imported: {error}")
    except Exception as error:  # a half-installed package may raise anything
        return _Package(name, None, f"cannot be imported: {_first_line(error)}")


def _first_line(error: object) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _gpu(torch: Any | None) -> tuple[Gpu | None, str]:
    """Return the GPU, or PyTorch's reason for seeing none."""
    if torch is None:
        return None, ""
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        try:
            if torch.cuda.is_available():
                return _read_gpu(torch), ""
        except Exception as error:  # a broken driver may fail only at the second call
            return None, _first_line(error)
    return None, _first_line(complaints[0].message) if complaints else ""


def _read_gpu(torch: Any) -> Gpu:
    properties = torch.cuda.get_device_properties(0)
    is_amd = torch.version.hip is not None
    return Gpu(
        name=properties.name,
        vendor="amd" if is_amd else "nvidia",
        driver=_amd_driver() if is_amd else _nvidia_driver(),
        # AMD's name includes features: gfx942:sramecc+:xnack-
        compute_capability=properties.gcnArchName.split(":")[0] if is_amd else f"{properties.major}.{properties.minor}",
        memory_bytes=properties.total_memory,
        count=torch.cuda.device_count(),
    )


def _nvidia_driver() -> str | None:
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, check=True, timeout=_ENOUGH_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(answer.stdout.split()), None)


def _amd_driver() -> str | None:
    try:
        return _AMD_DRIVER.read_text().strip()
    except OSError:
        return None


def _launch_problem() -> str | None:
    """Return why Triton cannot launch on this GPU; None where it can."""
    try:
        require_launching()
    except Exception as error:  # each missing part raises another error
        return _first_line(error)
    return None


def _profilers(torch: ModuleType | None, triton: ModuleType | None) -> Iterator[str]:
    if torch is not None:
        yield "torch"
    if triton is not None and _package("triton.profiler").module is not None:
        yield "proton"
    yield from (command for command in PROFILER_COMMANDS if shutil.which(command))


def _advice_on_packages(torch: _Package, triton: _Package) -> Iterator[str]:
    if torch.module is None:
        yield f"PyTorch {torch.problem}. Everything needs it: pip install torch"
    if triton.module is None:
        where = "pip install triton" if platform.system() == "Linux" else "it needs Linux"
        yield f"Triton {triton.problem}. Without it no kernel runs or compiles here: {where}"
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        yield "TRITON_INTERPRET is set, which stops kernels from compiling. Unset it: the interpreter works without."


def _advice_without_gpu(torch: _Package, triton: _Package, problem: str) -> Iterator[str]:
    if problem:
        yield f"PyTorch finds no usable GPU: {problem}"
    elif torch.module is not None and torch.module.version.cuda is None and shutil.which("nvidia-smi"):
        yield "An NVIDIA driver is here, but this PyTorch is built without CUDA: install one from pytorch.org."
    if triton.module is not None:
        yield (
            "No GPU: kernels run in the interpreter and compile for the targets listed. Speed cannot be measured here, "
            "only predicted."
        )


def _advice_on_launching(triton: _Package, problem: str | None) -> Iterator[str]:
    if triton.module is not None and problem is not None:
        yield f"Triton cannot launch on this GPU: {problem}. It needs a C compiler and Python's headers (python3-dev)."


def _advice_on_targets(triton: _Package, targets: tuple[str, ...]) -> Iterator[str]:
    missing = [target for target in TARGETS if target not in targets]
    if triton.module is not None and missing:
        yield (
            f"This Triton cannot compile for {', '.join(missing)}: its backend, ptxas or cuobjdump is missing. "
            "Triton's wheels from PyPI hold them all: pip install --force-reinstall triton"
        )


def _advice_on_profilers(gpu: Gpu, profilers: tuple[str, ...]) -> Iterator[str]:
    if gpu.vendor == "amd":
        if "rocprofv3" not in profilers:
            yield "For hardware counters, install rocprofv3: it comes with ROCm, in the package rocprofiler-sdk."
        if "rocprof-compute" not in profilers:
            yield "For a roofline of each kernel, install rocprof-compute: it comes with ROCm."
        return
    if "ncu" not in profilers:
        yield "For hardware counters, install Nsight Compute (ncu): it comes with the CUDA toolkit, as nsight-compute."
    elif _counters_need_root():
        yield "ncu needs root here: the driver keeps counters to administrators (NVreg_RestrictProfilingToAdminUsers)."
    if "nsys" not in profilers:
        yield "For timelines of host and GPU, install Nsight Systems (nsys): it comes with the CUDA toolkit."


def _counters_need_root() -> bool:
    try:
        return "RmProfilingAdminOnly: 1" in _NVIDIA_PARAMETERS.read_text() and os.geteuid() != 0
    except OSError:
        return False
