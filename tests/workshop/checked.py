"""Checks of changed solutions, for the tests of the stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilesmith.workshop.checking.triton_check import TritonCheck
from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.course.catalogue import BUILT_IN
from tilesmith.workshop.course.exercise_file import load_exercise
from tilesmith.workshop.course.wrong_variants import wrong_variants

SOLUTION = (BUILT_IN / "vector-add" / "solution.py").read_text()


def wrong_variant(exercise: str, name: str) -> str:
    variants = wrong_variants(load_exercise(BUILT_IN / exercise))
    return next(variant.text for variant in variants if variant.name == name)


def verdict_on(source: str, folder: Path, exercise: str = "vector-add", hidden: Sequence[str] | None = None) -> Verdict:
    """Check with all hidden cases of the exercise, or with those named: every case takes its time."""
    chosen = load_exercise(BUILT_IN / exercise)
    if hidden is not None:
        chosen = replace(chosen, hidden=tuple(one for one in chosen.hidden if one.name in hidden))
    file = folder / chosen.file_name
    file.write_text(source)
    return TritonCheck(chosen, file).verdict()


def changed(old: str, new: str, source: str = SOLUTION) -> str:
    assert old in source
    return source.replace(old, new)
