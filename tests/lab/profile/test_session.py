import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilesmith.lab.profile.commands import python_program
from tilesmith.lab.profile.session import TOOLS, choose, fresh_folder
from tilesmith.lab.profile.summary import Entry, ProfileError, Summary, blocks
from tilesmith.lab.report.content import Table
from tilesmith.toolchain.machine import Gpu, Machine

NVIDIA = Gpu("NVIDIA H200", "nvidia", "580", "9.0", 140 << 30, 1)
AMD = Gpu("AMD Instinct MI300X", "amd", None, "gfx942", 192 << 30, 1)
BARE = Machine("3.12", "2.11", "3.6", None, False, (), ("torch", "proton"), ())
FULL = replace(BARE, profilers=tuple(TOOLS))
PYTHON = [sys.executable, "-c", "pass"]


@pytest.mark.parametrize(
    ("command", "gpu", "tool"),
    [
        (PYTHON, None, "torch"),
        (PYTHON, NVIDIA, "torch"),
        (["sh", "-c", "true"], NVIDIA, "ncu"),
        (["sh", "-c", "true"], AMD, "rocprofv3"),
    ],
)
def test_auto_chooses_the_tool_for_command_and_machine(command: list[str], gpu: Gpu | None, tool: str) -> None:
    assert choose("auto", command, replace(FULL, gpu=gpu)).name == tool


@pytest.mark.parametrize("name", [name for name in TOOLS if name not in BARE.profilers])
def test_missing_tool_error_names_its_installation(name: str) -> None:
    with pytest.raises(ProfileError, match=f"^{name} is not installed: it comes with "):
        choose(name, PYTHON, replace(BARE, gpu=NVIDIA))


@pytest.mark.parametrize(("name", "gpu"), [("ncu", None), ("ncu", AMD), ("rocprofv3", NVIDIA), ("proton", None)])
def test_wrong_vendor_error_names_the_gpu(name: str, gpu: Gpu | None) -> None:
    with pytest.raises(ProfileError, match=f"^{name} needs a GPU by .*; --tool torch profiles the CPU"):
        choose(name, PYTHON, replace(FULL, gpu=gpu))


def test_unknown_tool_error_lists_the_tools() -> None:
    with pytest.raises(ProfileError, match="'perf', but must be one of auto, torch, proton, ncu, rocprofv3"):
        choose("perf", PYTHON, FULL)


def test_finds_the_program_behind_an_interpreter_and_its_flags(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert python_program([str(script), "--fast"]) == ([sys.executable], [str(script), "--fast"])
    python = [sys.executable, "-u", "-W", "ignore", "-X", "dev"]
    assert python_program([*python, str(script), "-m"]) == (python, [str(script), "-m"])
    assert python_program([*python, "-m", "pytest", "-q"]) == (python, ["-m", "pytest", "-q"])


def test_finds_the_interpreter_of_an_installed_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train"
    script.write_text("#!/some/bin/python3 -E\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert python_program(["train", "x"]) == (["/some/bin/python3", "-E"], [str(script), "x"])


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["missing.py"], "missing.py: no such file"),
        ([sys.executable, "missing.py"], "missing.py: no such file"),
        (["no-such-program"], "no-such-program: no such command"),
        ([sys.executable, "-u"], "names no program to run"),
        ([sys.executable, "-m"], "names no program to run"),
        (["sh"], "sh is not a Python program"),
    ],
)
def test_rejects_commands_that_cannot_run(command: list[str], complaint: str) -> None:
    with pytest.raises(ProfileError, match=complaint):
        python_program(command)


def test_each_run_gets_a_new_folder(tmp_path: Path) -> None:
    folders = [fresh_folder(tmp_path / "out", TOOLS["torch"]) for _ in range(2)]
    assert [folder.name for folder in folders] == ["torch-1", "torch-2"]
    (tmp_path / "file").touch()
    with pytest.raises(ProfileError, match="cannot write to"):
        fresh_folder(tmp_path / "file", TOOLS["torch"])


def test_shows_the_longest_first_and_only_columns_the_tool_knows() -> None:
    summary = Summary(
        "kernels", [Entry("short", 4, 10.0), Entry("long", 1, 990.0, tb_per_s=4.1)], launches=5, launch_us=6.25
    )
    facts, table = blocks(summary)
    assert isinstance(table, Table)
    assert [column.heading for column in table.columns] == ["name", "calls", "total", "each", "share", "TB/s"]
    assert [cell.text for cell in table.rows[0]] == ["long", "1", "990 µs", "990 µs", "99%", "4.1"]
    assert [cell.text for cell in table.rows[1]] == ["short", "4", "10 µs", "2.5 µs", "1%", "–"]
    assert "6.2 µs of host time per launch" in str(facts)
