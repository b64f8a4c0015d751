"""Try all mutants of exercises, each exercise in a child process, because a mutant may end its process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.mutants.known_equivalents import known_equivalents
from tilesmith.workshop.mutants.trying import Fate, MutantTrial, mutants_of_exercise


@dataclass(frozen=True)
class MutationResult:
    """The fates of an exercise's mutants, and listed equivalents that match no mutant."""

    exercise: Exercise
    fates: tuple[Fate, ...]
    unknown: tuple[str, ...] = ()

    def counted(self, fate: str) -> int:
        return sum(one.fate == fate for one in self.fates)

    @property
    def survivors(self) -> list[Fate]:
        return [one for one in self.fates if one.fate == "survived"]

    def as_json(self) -> dict[str, Any]:
        counts = {"mutants": len(self.fates)} | {one: self.counted(one) for one in ("failed", "equivalent", "survived")}
        passed = [one.as_json() for one in self.fates if one.fate != "failed"]
        return {"id": self.exercise.id, **counts, "passed": passed, "unknown": list(self.unknown)}


def try_mutants(exercises: Sequence[Exercise], jobs: int = 1, every: int = 1) -> Iterator[MutationResult]:
    """Try every mutant of exercises, or every n-th. Yield each exercise's result as soon as it is known."""
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(_result, exercise, every) for exercise in exercises]):
            yield future.result()


def _result(exercise: Exercise, every: int) -> MutationResult:
    known = known_equivalents(exercise.folder)
    mutants = mutants_of_exercise(exercise)
    unknown = tuple(sorted(known.keys() - {one.name for one in mutants}))
    chosen = mutants[::every]
    fates: list[Fate] = []
    while len(fates) < len(chosen):
        fates += _fates_in_child(exercise, len(fates), every)
        if len(fates) < len(chosen):
            ended = chosen[len(fates)]
            fates.append(Fate(ended.name, ended.line, "failed", "runs: it ended the process"))
    return MutationResult(exercise, tuple(fates), unknown)


def _fates_in_child(exercise: Exercise, first: int, every: int) -> list[Fate]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_try_in_child, args=(exercise.folder, first, every, sender))
    child.start()
    sender.close()
    fates: list[Fate] = []
    try:
        while True:
            told = receiver.recv()
            if isinstance(told, str):
                raise ExerciseError(f"{exercise.id}: a mutant could not be tried: {told}")
            fates.append(Fate(**told))
    except EOFError:
        return fates
    finally:
        child.kill()
        child.join()


def _try_in_child(folder: Path, first: int, every: int, sender: Connection) -> None:
    torch.set_num_threads(1)  # the tensors are small, and the other cores try other exercises
    exercise = load_exercise(folder)
    trial = MutantTrial(exercise, known_equivalents(folder))
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        for mutant in mutants_of_exercise(exercise)[::every][first:]:
            try:
                sender.send(trial.fate(mutant).as_json())
            except Exception as error:  # our own mistake, not the mutant's: never count it as a failed mutant
                sender.send(f"{mutant.name}: {type(error).__name__}: {error}")
                raise
