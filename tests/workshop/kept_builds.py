"""C++ builds of the CUDA track, kept between runs of the tests: the same inputs give the same program.

A build takes seconds, and no test changes what a compiler does. What is tested runs: the checks around a build, and the
program. As Triton's cache, the folder of builds belongs to this machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tilesmith.workshop.cuda.check import INCLUDES, CudaCheck

_compile = CudaCheck._compile
_UNUSED_SECONDS = 7 * 24 * 3600  # a change of the headers leaves every earlier build unused


@contextmanager
def keeping_builds(folder: Path) -> Iterator[None]:
    """Copy a program or an object file from `folder` where the same build is there; else build, and keep the result."""
    for old in folder.iterdir():
        if time.time() - old.stat().st_mtime > _UNUSED_SECONDS:
            old.unlink(missing_ok=True)

    def compile_or_copy(check: CudaCheck, command: list[str], *others: str) -> None:
        made = Path(command[-1])
        compiler = shutil.which("g++") or shutil.which("clang++")
        if command[0] != compiler:
            _compile(check, command, *others)
            return
        kept = folder / build_key(command, check.file.parent)
        if kept.exists():
            os.utime(kept)
            shutil.copy(kept, made)
            return
        _compile(check, command, *others)
        number, beside = tempfile.mkstemp(dir=folder)
        os.close(number)
        shutil.copy(made, beside)
        os.replace(beside, kept)

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(CudaCheck, "_compile", compile_or_copy)
        yield


def build_key(command: list[str], folder: Path) -> str:
    """Return a digest of all that decides a build: the compiler, the words, our headers, and every file they name."""
    compiler = Path(command[0]).stat()
    digest = hashlib.blake2b(f"{compiler.st_mtime_ns} {compiler.st_size}".encode(), digest_size=16)
    for word in command[1:-1]:
        option, is_given, value = word.rpartition("=")
        file = Path(value.strip('"'))
        content = file.read_bytes() if file.is_file() else value.replace(str(folder), "folder").encode()
        digest.update(f"{option}{is_given}".encode() + content + b"\0")
    for header in sorted(one for one in INCLUDES.iterdir() if one.suffix in (".h", ".cpp")):
        digest.update(header.read_bytes() + b"\0")
    return digest.hexdigest()
