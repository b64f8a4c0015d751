"""The task at a path, whatever its format; and a candidate for it."""

from __future__ import annotations

import tempfile
import tokenize
from dataclasses import replace
from pathlib import Path

from tilesmith.lab.expected import writable_layouts
from tilesmith.lab.judge.bridges import gpu_mode, kernelbench
from tilesmith.lab.judge.bridges.splitting import split
from tilesmith.lab.judge.candidate import Candidate
from tilesmith.lab.judge.task import Rules, Task, TaskError


def task_at(path: Path | str, rules: Rules | None = None) -> Task:
    """Return the task of a file with a SPEC, a KernelBench problem, or a GPU MODE folder. Raises TaskError."""
    path = Path(path)
    if gpu_mode.is_task(path):
        return gpu_mode.task_of(path, rules)
    if path.is_dir():
        raise TaskError(f"{path}: is a folder without reference.py and task.yml")
    if not path.is_file():
        raise TaskError(_missing(path))
    if kernelbench.is_problem(path.read_text(encoding="utf-8", errors="replace")):
        return kernelbench.task_of(path, rules)
    return Task.of(path, rules)


def candidate_for(task_path: Path | str, candidate_path: Path | str) -> Candidate:
    """Return the candidate at a path, with what the task's format gives every candidate."""
    return with_format(task_path, Candidate.of(candidate_path))


def with_format(task_path: Path | str, candidate: Candidate) -> Candidate:
    """Return a candidate with what the task's format gives every candidate."""
    folder = Path(task_path)
    return gpu_mode.with_neighbours(candidate, folder) if gpu_mode.is_task(folder) else candidate


def both_of(path: Path | str, rules: Rules | None = None) -> tuple[Task, Candidate]:
    """Split one file with a SPEC into its task and its candidate. Raises TaskError."""
    path = Path(path)
    if not path.is_file():
        raise TaskError(_missing(path))
    try:
        with tokenize.open(path) as source:
            text = source.read()
    except (SyntaxError, UnicodeDecodeError):
        raise TaskError(f"{path}: is neither UTF-8 nor of the encoding that it declares") from None
    parts = split(text, str(path))
    with tempfile.TemporaryDirectory(prefix="tilesmith-task-") as folder:
        file = Path(folder) / path.name
        file.write_text(parts.task, encoding="utf-8")
        task = Task.of(file, rules)
    task = replace(task, layouts=writable_layouts(task.spec), function_names=(parts.function,))
    return task, Candidate(path.stem, {path.name: parts.candidate.encode()}, path.name)


def _missing(path: Path) -> str:
    return f"{path}: no such file; a task is an operator, a file with a SPEC, a KernelBench problem, a GPU MODE folder"
