"""A candidate: a Python file with a function, or a folder with a main file. The judge reads it and never runs it."""

from __future__ import annotations

import ast
import hashlib
import threading
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

MAIN_FILES = ("candidate.py", "solution.py", "submission.py", "main.py", "__init__.py")
LARGEST_CANDIDATE = 4 << 20
MOST_FILES = 200
_SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".h", ".json", ".txt", ".toml", ".yml", ".yaml")
_CUDA_BUILDERS = frozenset(
    {"cpp_extension", "_compile_kernel", "RawKernel", "RawModule", "nvrtc", "SourceModule", "cupy", "pycuda"}
)
_PARSER = threading.Lock()
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)  # what Python's parser raises


class CandidateError(Exception):
    """There is nothing to judge at a path; the message is one line for the user."""


@dataclass(frozen=True)
class Candidate:
    """The files of a candidate by name, and the name of the file to import."""

    name: str
    files: dict[str, bytes]
    main: str
    problem: str | None = None  # why there is nothing to judge

    @classmethod
    def of(cls, path: Path | str) -> Candidate:
        """Read a file or folder. Raises CandidateError."""
        path = Path(path)
        if path.is_file():
            if path.suffix != ".py":
                raise CandidateError(f"{path}: is not a Python file: its name must end in .py")
            name = readable(path.name)
            return cls(readable(path.stem), {name: _content([path])[path]}, name)
        if not path.is_dir():
            raise CandidateError(f"{path}: no such file or folder")
        found = [one for one in sorted(path.rglob("*")) if one.is_file() and one.suffix in _SUFFIXES]
        links = [one for one in found if not one.resolve().is_relative_to(path.resolve())]
        if links:
            raise CandidateError(f"{path}: {links[0].relative_to(path)} is a link to a file outside of the folder")
        if len(found) > MOST_FILES:
            raise CandidateError(f"{path}: has {len(found)} files; a candidate has at most {MOST_FILES}")
        files = {readable(str(one.relative_to(path))): content for one, content in _content(found).items()}
        python = [name for name in files if name.endswith(".py") and "/" not in name]
        main = next((name for name in MAIN_FILES if name in files), python[0] if len(python) == 1 else None)
        if main is None:
            raise CandidateError(f"{path}: has none of {', '.join(MAIN_FILES)}")
        return cls(readable(path.name), files, main)

    @classmethod
    def of_each(cls, path: Path, read: Callable[[Path], Candidate]) -> Candidate:
        """Read one of many candidates. A candidate that cannot be read fails alone; the others are judged."""
        try:
            return read(path)
        except CandidateError as error:
            return cls(readable(path.stem), {}, "", readable(str(error)))

    @classmethod
    def of_text(cls, text: str, name: str = "candidate") -> Candidate:
        """Return a candidate of one file with this text."""
        if len(text) > LARGEST_CANDIDATE:
            raise CandidateError(f"{name}: is larger than {LARGEST_CANDIDATE >> 20} MiB")
        return cls(name, {f"{name}.py": text.encode(errors="replace")}, f"{name}.py")

    @property
    def digest(self) -> str:
        """A digest of names and contents: the same candidate has the same digest everywhere."""
        digest = hashlib.sha256((self.problem or "").encode())
        for name, content in sorted(self.files.items()):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()[:16]

    @property
    def builds_extensions(self) -> bool:
        """Whether the candidate builds C++ or CUDA by torch.utils.cpp_extension."""
        return self._uses({"cpp_extension"})

    @property
    def uses_cuda_sources(self) -> bool:
        """Whether the candidate compiles CUDA sources, by nvcc or by NVRTC."""
        return self._uses(_CUDA_BUILDERS)

    def _uses(self, names: Set[str]) -> bool:
        return any(names & _names_in(content) for name, content in self.files.items() if name.endswith(".py"))

    def write_to(self, folder: Path) -> None:
        for name, content in self.files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    def defines(self, kernel_text: str) -> bool:
        """Whether a kernel's text stands in one of the files, apart from layout and comments."""
        wanted = _normal(kernel_text)
        return wanted is not None and wanted in self._functions

    @cached_property
    def _functions(self) -> set[str]:
        found = set()
        for name, content in self.files.items():
            if name.endswith(".py"):
                try:
                    tree = parsed(content)
                except UNREADABLE:
                    continue
                for node in ast.walk(tree):
                    if isinstance(node, ast.FunctionDef):
                        node.decorator_list = []
                        with suppress(RecursionError):  # no kernel is nested that deeply
                            found.add(ast.dump(node))
        return found


def parsed(text: str | bytes) -> ast.Module:
    """Return the syntax tree of a file. Raises one of UNREADABLE.

    One thread at a time: Python before 3.12 counts the depth of the trees of all threads together.
    """
    with _PARSER:
        return ast.parse(text)


def readable(text: str) -> str:
    """Return a text without control characters, which a terminal obeys, and without broken Unicode."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


def _names_in(content: bytes) -> set[str]:
    """Return the parts of all dotted names in a file, imported or used."""
    try:
        tree = parsed(content)
    except UNREADABLE:
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.update(node.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            found.update((node.module or "").split("."))
    return found


@lru_cache(64)
def _normal(text: str) -> str | None:
    try:
        tree = parsed(text)
        return ast.dump(tree.body[0]) if len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef) else None
    except UNREADABLE:
        return None


def _content(files: list[Path]) -> dict[Path, bytes]:
    total, found = 0, {}
    for file in files:
        try:
            with file.open("rb") as opened:
                found[file] = opened.read(LARGEST_CANDIDATE + 1)
        except OSError as error:
            raise CandidateError(f"{file}: cannot be read: {error.strerror}") from None
        total += len(found[file])
        if total > LARGEST_CANDIDATE:
            raise CandidateError(f"{file}: the candidate is larger than {LARGEST_CANDIDATE >> 20} MiB")
    return found
