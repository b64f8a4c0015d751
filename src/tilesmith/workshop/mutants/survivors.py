"""Try all mutants of exercises, some at a time in a child process, because a mutant may end its process."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
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

PARTS_PER_JOB, LEAST_TOGETHER = 6, 8  # more parts spread long exercises better; each part imports PyTorch


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
    numbers = {one.id: len(mutants_of_exercise(one)[::every]) for one in exercises}
    together = max(LEAST_TOGETHER, math.ceil(sum(numbers.values()) / (PARTS_PER_JOB * jobs)))
    parts: dict[str, list[Future[list[Fate]]]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for exercise in exercises:
            places = range(0, numbers[exercise.id], together) or range(1)
            parts[exercise.id] = [pool.submit(_fates, exercise, place, together, every) for place in places]
        part_of = {future: exercise for exercise in exercises for future in parts[exercise.id]}
        missing = {name: len(futures) for name, futures in parts.items()}
        for future in as_completed(part_of):
            exercise = part_of[future]
            missing[exercise.id] -= 1
            if not missing[exercise.id]:
                fates = tuple(fate for one in parts[exercise.id] for fate in one.result())
                yield MutationResult(exercise, fates, _unknown(exercise))


def _unknown(exercise: Exercise) -> tuple[str, ...]:
    there = {one.name for one in mutants_of_exercise(exercise)}
    return tuple(sorted(known_equivalents(exercise.folder).keys() - there))


def _fates(exercise: Exercise, first: int, together: int, every: int) -> list[Fate]:
    """Return the fates of some of the chosen mutants. A mutant that ends its process fails."""
    chosen = mutants_of_exercise(exercise)[::every][first : first + together]
    fates: list[Fate] = []
    while len(fates) < len(chosen):
        fates += _fates_in_child(exercise, first + len(fates), first + len(chosen), every)
        if len(fates) < len(chosen):
            ended = chosen[len(fates)]
            fates.append(Fate(ended.name, ended.line, "failed", "runs: it ended the process"))
    return fates


def _fates_in_child(exercise: Exercise, first: int, last: int, every: int) -> list[Fate]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_try_in_child, args=(exercise.folder, first, last, every, sender))
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


def _try_in_child(folder: Path, first: int, last: int, every: int, sender: Connection) -> None:
    torch.set_num_threads(1)  # the tensors are small, and the other cores try other exercises
    exercise = load_exercise(folder)
    trial = MutantTrial(exercise, known_equivalents(folder))
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        for mutant in mutants_of_exercise(exercise)[::every][first:last]:
            try:
                sender.send(trial.fate(mutant).as_json())
            except Exception as error:  # our own mistake, not the mutant's: never count it as a failed mutant
                sender.send(f"{mutant.name}: {type(error).__name__}: {error}")
                raise
