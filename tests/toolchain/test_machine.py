import importlib
import os
import shutil
import subprocess
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilesmith.toolchain import machine
from tilesmith.toolchain.machine import examine

MIB = 1 << 20


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Make packages look as if they were not installed."""
    stock = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return stock(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)


def with_gpu(monkeypatch: pytest.MonkeyPatch, *, hip: str | None = None, target: Any = lambda: "cuda:90") -> None:
    """A machine with two GPUs, as far as PyTorch and Triton can tell."""
    properties = SimpleNamespace(
        name="Test GPU", major=9, minor=0, total_memory=512 * MIB, gcnArchName="gfx942:sramecc+:xnack-"
    )
    cuda = SimpleNamespace(
        is_available=lambda: True, get_device_properties=lambda index: properties, device_count=lambda: 2
    )
    driver = SimpleNamespace(active=SimpleNamespace(get_current_target=target))
    stock = importlib.import_module
    stand_ins = {
        "torch": SimpleNamespace(__version__="2.99", cuda=cuda, version=SimpleNamespace(hip=hip, cuda="13.0")),
        "triton": SimpleNamespace(__version__="3.99"),
        "triton.runtime": SimpleNamespace(driver=driver),
    }
    monkeypatch.setattr(importlib, "import_module", lambda name: stand_ins.get(name) or stock(name))


def only_on_path(monkeypatch: pytest.MonkeyPatch, *commands: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda command: f"/bin/{command}" if command in commands else None)


def test_names_the_installed_versions() -> None:
    torch, triton = importlib.import_module("torch"), importlib.import_module("triton")
    assert (examine().torch, examine().triton) == (torch.__version__, triton.__version__)


def test_lists_every_target_that_the_wheel_can_compile_for() -> None:
    assert examine().targets == ("cuda:80", "cuda:90", "cuda:100", "hip:gfx90a", "hip:gfx942")


def test_leaves_out_targets_whose_tool_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    knobs = importlib.import_module("triton.knobs")

    class Tools:
        ptxas = cuobjdump = SimpleNamespace(path="/bin/tool")

        @property
        def ptxas_blackwell(self) -> Any:
            raise RuntimeError("Cannot find ptxas-blackwell")

    monkeypatch.setattr(knobs, "nvidia", Tools())
    found = examine()
    assert found.targets == ("cuda:80", "cuda:90", "hip:gfx90a", "hip:gfx942")
    assert any("cannot compile for cuda:100" in sentence for sentence in found.advice)


def test_says_so_when_triton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "triton")
    found = examine()
    assert found.triton is None
    assert found.targets == ()
    assert "proton" not in found.profilers
    assert found.advice[0].startswith("Triton is not installed")


def test_says_so_when_everything_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch", "triton")
    found = examine()
    assert found.torch is None
    assert found.advice[0].startswith("PyTorch is not installed")


def test_gives_the_reason_why_a_package_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        raise OSError(f"lib{name}.so: wrong ELF class\nand more")

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert "Triton cannot be imported: libtriton.so: wrong ELF class. Without it" in examine().advice[1]


def test_says_that_speed_cannot_be_measured_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = examine()
    assert found.gpu is None
    assert not found.triton_launches
    assert any("Speed cannot be measured here" in sentence for sentence in found.advice)


def test_passes_on_what_pytorch_says_about_a_gpu_it_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("The NVIDIA driver on your system is too old (found version 11040).", stacklevel=1)
        return False

    monkeypatch.setattr("torch.cuda.is_available", is_available)
    assert any("driver on your system is too old" in sentence for sentence in examine().advice)


def test_describes_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch)
    answer = SimpleNamespace(stdout="580.65\n580.65\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: answer)
    found = examine()
    assert found.gpu == machine.Gpu("Test GPU", "nvidia", "580.65", "9.0", 512 * MIB, 2)
    assert found.triton_launches


def test_describes_an_amd_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_gpu(monkeypatch, hip="7.0")
    only_on_path(monkeypatch)
    (tmp_path / "version").write_text("6.12.12\n")
    monkeypatch.setattr(machine, "_AMD_DRIVER", tmp_path / "version")
    found = examine()
    assert found.gpu == machine.Gpu("Test GPU", "amd", "6.12.12", "gfx942", 512 * MIB, 2)
    assert any("rocprofv3" in sentence for sentence in found.advice)
    assert not any("ncu" in sentence for sentence in found.advice)


@pytest.mark.parametrize("failure", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 10)])
def test_driver_version_may_be_unknown(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def run(*arguments: Any, timeout: float, **options: Any) -> Any:
        assert timeout <= 10
        raise failure

    with_gpu(monkeypatch)
    monkeypatch.setattr(subprocess, "run", run)
    found = examine()
    assert found.gpu is not None
    assert found.gpu.driver is None


def test_says_why_triton_cannot_launch_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def target() -> Any:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    with_gpu(monkeypatch, target=target)
    found = examine()
    assert not found.triton_launches
    assert any("Failed to find C compiler" in sentence for sentence in found.advice)


def test_finds_profilers_and_advises_on_the_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_gpu(monkeypatch)
    only_on_path(monkeypatch, "ncu")
    (tmp_path / "params").write_text("RmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(machine, "_NVIDIA_PARAMETERS", tmp_path / "params")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = examine()
    assert "ncu" in found.profilers
    assert "nsys" not in found.profilers
    assert any("ncu needs root" in sentence for sentence in found.advice)
    assert any("install Nsight Systems" in sentence for sentence in found.advice)


def test_warns_of_the_interpreter_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert any("TRITON_INTERPRET is set" in sentence for sentence in examine().advice)
