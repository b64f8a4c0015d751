"""Judge many candidates on one task: in parallel, with one warm nursery, resumable, one line of JSON each."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilesmith.lab.judge.candidate import Candidate, CandidateError
from tilesmith.lab.judge.judging import Judge, Options
from tilesmith.lab.judge.task import Task
from tilesmith.lab.judge.verdict import SCHEMA

_BEGINNING = json.dumps({"schema": SCHEMA})[:-1]  # of a line


def candidates_in(folder: Path) -> list[Path]:
    """Return the Python files of a folder, and its folders with a main file, by name. Raises CandidateError."""
    if not folder.is_dir():
        raise CandidateError(f"{folder}: no such folder")
    found = [one for one in sorted(folder.iterdir()) if one.suffix == ".py" or (one.is_dir() and any(one.glob("*.py")))]
    if not found:
        raise CandidateError(f"{folder}: has no Python files")
    return found


def verdicts_in(path: Path) -> list[dict[str, Any]]:
    """Return the verdicts that a file holds. Raises CandidateError for a file that holds anything else.

    A line that begins like a verdict may be cut off: the run that wrote it was killed.
    """
    if path.is_dir():
        raise CandidateError(f"{path}: is a folder, not a file for verdicts")
    found = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            one = json.loads(line) if line.strip() else {"schema": ""}
        except ValueError:
            one = {"schema": ""} if line.startswith(_BEGINNING[: len(line)]) else None
        if not isinstance(one, dict) or "schema" not in one:
            raise CandidateError(f"{path}: line {number} is no verdict; name a new file, or one that judge wrote")
        found.append(one)
    return [one for one in found if "digest" in one]


def _seed_in(verdicts: Sequence[dict[str, Any]], task: str) -> int | None:
    """Return the seed of the verdicts that a file already holds, so that a later run goes on with it."""
    seeds = (one.get("seed") for one in verdicts if one.get("task") == task)
    return next((one for one in seeds if isinstance(one, int)), None)


def judge_series(
    task: Task,
    candidates: Iterable[Candidate],
    *,
    options: Options | None = None,
    jobs: int | None = None,
    results: Path | None = None,
    judge: Judge | None = None,
    finished: Callable[[dict[str, Any]], None] = lambda verdict: None,
) -> list[dict[str, Any]]:
    """Judge each candidate, and return the verdicts as JSON, in the order of the candidates.

    Candidates of one digest are judged once. With `results`, each verdict is appended to that file as soon as it is
    known, and candidates whose verdicts are in the file are not judged again.
    Raises CandidateError for a file that holds something else.
    """
    options = options or Options()
    stored = verdicts_in(results) if results is not None else []
    seed = _seed_in(stored, task.name) if options.seed is None else options.seed
    seed = secrets.randbits(48) if seed is None else seed
    options = replace(options, seed=seed)
    chosen = list(candidates)
    known = {str(one["digest"]): one for one in stored if (one.get("task"), one.get("seed")) == (task.name, seed)}
    waiting = {one.digest: one for one in chosen if one.digest not in known}
    lock = threading.Lock()
    own = judge is None
    working = judge or Judge()

    def work(candidate: Candidate) -> dict[str, Any]:
        verdict = working.judge(task, candidate, options).as_json()
        with lock:
            if results is not None:
                _append(results, verdict)
            finished(verdict)
        return verdict

    try:
        with ThreadPoolExecutor(jobs or max(1, (os.cpu_count() or 2) // 2)) as pool:
            futures = [pool.submit(work, one) for one in waiting.values()]
            try:
                for future in as_completed(futures):
                    one = future.result()
                    known[one["digest"]] = one
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
    finally:
        if own:
            working.close()
    return list(_ordered(chosen, known))


def _ordered(candidates: Sequence[Candidate], known: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in candidates:
        yield {**known[one.digest], "candidate": one.name}


def _append(path: Path, verdict: dict[str, Any]) -> None:
    """Add one line. A single write keeps lines whole when several processes share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(verdict) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.fstat(descriptor).st_size and not _ends_with_newline(path):
            line = b"\n" + line
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
