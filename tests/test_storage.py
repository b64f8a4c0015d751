"""Files are written whole or not at all, and no disk or neighbour can bring the program down."""

import ast
import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

import tilesmith
from tilesmith import storage

# The compiler's tools read a file, which lies in a temporary folder that goes with it.
MAY_WRITE = {
    "storage.py",
    "toolchain/compiler/nvidia.py",
    # Copies of a learner's file in a folder that goes away with the check; one that was deleted is put back.
    "workshop/cuda/check.py",
    "workshop/notebook.py",
    "workshop/isolation/worker.py",
    "workshop/mutants/trying.py",
    "workshop/mutants/survivors.py",  # to the null device
    # Sources in a temporary folder, for Python or Triton to read.
    "lab/judge/bridges/opening.py",
    "lab/judge/candidate.py",
    "toolchain/portable/rebuild.py",
    # What the confined program is given or writes, in a folder that goes away with the check.
    "lab/judge/conversing/host.py",
    "lab/judge/conversing/program.py",
    # Sources, libraries and inputs of CUDA candidates, in folders that go away with the judge.
    "lab/judge/cuda/building.py",
    "lab/judge/cuda/builds.py",
    "lab/judge/cuda/sanitizer.py",
    "lab/judge/cuda/worker.py",
    # Settings of the process in /proc, which no file could replace.
    "lab/judge/isolation/sandbox.py",
}


def full_disk(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(params=["fsync", "replace"])
def disk_is_full(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, request.param, full_disk)


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A path below something that is not a folder, as unwritable for root as for anyone."""
    (tmp_path / "home").write_text("a file where a folder should be")
    return tmp_path / "home" / "tilesmith" / "table.json"


class TestWriting:
    def test_makes_the_file_and_its_folder(self, tmp_path: Path) -> None:
        storage.write_atomically(tmp_path / "new" / "folder" / "file", "σ\n")
        assert (tmp_path / "new" / "folder" / "file").read_bytes() == "σ\n".encode()
        assert os.listdir(tmp_path / "new" / "folder") == ["file"]

    def test_gives_the_file_the_permissions_of_any_other(self, tmp_path: Path) -> None:
        storage.write_atomically(tmp_path / "ours", b"")
        (tmp_path / "plain").write_bytes(b"")
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain")]
        assert modes[0] == modes[1]

    def test_follows_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "target")
        storage.write_atomically(tmp_path / "link", "new")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "target").read_text() == "new"

    def test_leaves_devices_in_place(self) -> None:
        storage.write_atomically(Path("/dev/null"), "gone")
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)

    def test_removes_the_partial_files_of_killed_writers_only(self, tmp_path: Path) -> None:
        program = (
            "import os, signal, sys; from pathlib import Path; from tilesmith import storage\n"
            "def stop(file):\n    print('writing', flush=True)\n    sys.stdin.read(1)\n"
            "os.fsync = stop\nstorage.write_atomically(Path(sys.argv[1]), 'partial')"
        )
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(tmp_path / "file")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        killed, slow = writers
        for writer in writers:
            assert writer.stdout
            assert writer.stdout.readline() == "writing\n"
        killed.kill()
        killed.wait()
        assert len(os.listdir(tmp_path)) == 2, "two partial files"
        storage.write_atomically(tmp_path / "file", "whole")
        assert len(os.listdir(tmp_path)) == 2, "the file, and the partial file of the writer that still writes"
        slow.communicate("\n")
        assert os.listdir(tmp_path) == ["file"]
        assert (tmp_path / "file").read_text() == "partial", "the slow writer came last"

    def test_writes_names_of_the_greatest_length(self, tmp_path: Path) -> None:
        storage.write_atomically(tmp_path / ("n" * 255), "whole")
        assert os.listdir(tmp_path) == ["n" * 255]

    @pytest.mark.usefixtures("disk_is_full")
    def test_on_a_full_disk_keeps_the_old_file_and_leaves_nothing_beside_it(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("old")
        with pytest.raises(OSError, match="No space left"):
            storage.write_atomically(tmp_path / "file", "new")
        assert (tmp_path / "file").read_text() == "old"
        assert os.listdir(tmp_path) == ["file"]

    def test_that_is_interrupted_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(descriptor: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            storage.write_atomically(tmp_path / "file", "new")
        assert os.listdir(tmp_path) == []

    def test_is_never_seen_half_done(self, tmp_path: Path) -> None:
        path = tmp_path / "file.json"
        storage.write_atomically(path, json.dumps([0] * 50_000))
        program = (
            "import itertools, json, sys; from pathlib import Path; from tilesmith import storage\n"
            "for number in itertools.count():\n"
            "    storage.write_atomically(Path(sys.argv[1]), json.dumps([number] * 50_000))"
        )
        with subprocess.Popen([sys.executable, "-c", program, str(path)]) as writer:
            seen: set[int] = set()
            while writer.poll() is None and len(seen) < 20:
                content = json.loads(path.read_text())
                assert len(content) == 50_000
                seen.add(content[0])
                assert len(set(content)) == 1
            writer.kill()
        assert len(seen) == 20

    def test_nothing_else_in_the_package_writes_files(self) -> None:
        package = Path(tilesmith.__file__).parent
        writing = [
            f"{source.relative_to(package)}:{node.lineno}"
            for source in package.rglob("*.py")
            if source.relative_to(package).as_posix() not in MAY_WRITE
            and re.search("write_text|write_bytes|open", text := source.read_text())  # parsing all files takes seconds
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and _writes(node)
        ]
        assert writing == []


def _writes(call: ast.Call) -> bool:
    """Whether this is `….write_text(…)`, `….write_bytes(…)`, or `open` with a mode that writes."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name != "open":
        return name in ("write_text", "write_bytes")
    words = [one.value for one in ast.walk(call) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return any(set(word) & set("wax+") and set(word) <= set("wax+bt") for word in words)


class TestReading:
    def test_gives_what_was_written(self, tmp_path: Path) -> None:
        assert storage.update_json(tmp_path / "file", lambda before: {"σ": [1, None]})
        assert storage.read_json(tmp_path / "file") == {"σ": [1, None]}

    def test_of_what_is_not_there_is_none_without_a_word(
        self, tmp_path: Path, recwarn: pytest.WarningsRecorder
    ) -> None:
        assert storage.read_json(tmp_path / "file") is None
        assert len(recwarn) == 0

    @pytest.mark.parametrize(
        "damage", [b"", b'{"a": 1', b"\xff\xfe\x00", b"[" * 100_000], ids=["empty", "cut off", "no text", "too deep"]
    )
    def test_of_a_damaged_file_warns_and_is_none(self, tmp_path: Path, damage: bytes) -> None:
        (tmp_path / "file").write_bytes(damage)
        with pytest.warns(RuntimeWarning, match="file cannot be read and is ignored"):
            assert storage.read_json(tmp_path / "file") is None

    def test_below_a_file_warns_and_is_none(self, blocked: Path) -> None:
        with pytest.warns(RuntimeWarning, match=r"table.json cannot be read and is ignored: .*Not a directory"):
            assert storage.read_json(blocked) is None


class TestUpdating:
    def test_changes_what_is_there(self, tmp_path: Path) -> None:
        for _ in range(2):
            assert storage.update_json(tmp_path / "file", lambda before: (before or []) + [1])
        assert storage.read_json(tmp_path / "file") == [1, 1]

    def test_mends_a_damaged_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("{")
        with pytest.warns(RuntimeWarning, match="is ignored"):
            assert storage.update_json(tmp_path / "file", lambda before: {"before": before})
        assert storage.read_json(tmp_path / "file") == {"before": None}

    def test_where_nothing_can_be_written_warns_and_goes_on(self, blocked: Path) -> None:
        with pytest.warns(RuntimeWarning, match=r"table.json cannot be written, so the result is not stored"):
            assert not storage.update_json(blocked, lambda before: {})

    @pytest.mark.usefixtures("disk_is_full")
    def test_on_a_full_disk_warns_and_keeps_what_was(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("[1]")
        with pytest.warns(RuntimeWarning, match="No space left"):
            assert not storage.update_json(tmp_path / "file", lambda before: [2])
        assert storage.read_json(tmp_path / "file") == [1]

    def test_of_several_processes_loses_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        program = (
            "import sys; from pathlib import Path; from tilesmith import storage\n"
            "for number in range(40):\n"
            "    storage.update_json(Path(sys.argv[1]), lambda before: (before or []) + [f'{sys.argv[2]} {number}'])\n"
        )
        processes = [subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in "abc"]
        assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
        assert sorted(storage.read_json(path) or []) == sorted(
            f"{name} {number}" for name in "abc" for number in range(40)
        )


def test_the_cache_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path))
    assert storage.cache_directory() == tmp_path
    monkeypatch.delenv("TILESMITH_CACHE")
    assert storage.cache_directory().name == "tilesmith"


def test_unwritable_files_are_known_before_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "result", Path("/proc/result"), tmp_path / ("x" * 300)):
        with pytest.raises(OSError, match=r"Is a directory|Not a directory|No such file|name too long"):
            storage.require_writable(path)
    with pytest.raises(FileNotFoundError, match=f"there is no folder {tmp_path}/new/folder$"):
        storage.require_writable(tmp_path / "new" / "folder" / "result")
    storage.require_writable(tmp_path / "result")
    storage.require_writable(Path("/dev/null"))
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_loop_of_links_is_replaced_by_the_file(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    storage.require_writable(tmp_path / "loop")
    storage.write_atomically(tmp_path / "loop", "text")
    assert (tmp_path / "loop").read_text() == "text"
