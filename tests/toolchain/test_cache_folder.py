"""Triton's cache where its own folder cannot be written."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tilesmith.toolchain.cache_folder import cache_folder, require_writable_cache
from tilesmith.toolchain.compiler import CompileError, Target, compile_kernel
from tilesmith.toolchain.compiler import compile as compiling


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def doubling(x_ptr, y_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # a kernel
    columns = tl.arange(0, BLOCK)
    tl.store(y_ptr + columns, 2 * tl.load(x_ptr + columns))


@pytest.fixture
def broken_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Triton's folder is below a file; temporary files lie in the folder that the test gets."""
    (tmp_path / "home").write_text("a file where a folder should be")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "home" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    require_writable_cache.cache_clear()
    yield tmp_path
    require_writable_cache.cache_clear()


def compiled() -> Any:
    x = torch.empty(16, device="meta")
    return compile_kernel(doubling, Target.parse("cuda:90"), {"x_ptr": x, "y_ptr": x, "BLOCK": 16})


def test_unwritable_folder_is_replaced_by_a_temporary_one_of_this_user(broken_cache: Path) -> None:
    assert compiled().registers > 0
    folder = Path(os.environ["TRITON_CACHE_DIR"])
    assert folder == broken_cache / f"tilesmith-triton-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert any(folder.iterdir()), "the kernel is cached"


def test_a_link_of_the_same_name_is_not_followed(broken_cache: Path) -> None:
    (broken_cache / "elsewhere").mkdir()
    (broken_cache / f"tilesmith-triton-{os.getuid()}").symlink_to(broken_cache / "elsewhere")
    require_writable_cache()
    assert os.environ["TRITON_CACHE_DIR"].startswith(f"{broken_cache}/tilesmith-triton-")
    assert not any((broken_cache / "elsewhere").iterdir())


def test_writable_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    require_writable_cache.cache_clear()
    require_writable_cache()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "cache")


def test_failure_of_the_machine_does_not_blame_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiling, "_compile", full)
    with pytest.raises(CompileError, match=r"no fault of the kernel: .*No space left on device"):
        compiled()


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    assert cache_folder() == str(tmp_path / "cache")
