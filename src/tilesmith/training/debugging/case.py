"""What a stage is: a program with a fault, what it shows, and what reveals it. Every number is found when asked for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

COUNT = 6


class StageError(Exception):
    """Why a stage cannot show what it is to show, in one line."""


@dataclass(frozen=True)
class Fact:
    """A number with its name. Predicted is what comes from a trace, compiled from a binary, counted from sizes."""

    name: str
    value: float
    unit: str = ""
    kind: Literal["measured", "predicted", "compiled", "counted"] = "measured"

    @property
    def text(self) -> str:
        number = (
            f"{self.value:,.0f}" if self.value == int(self.value) and abs(self.value) < 1e12 else f"{self.value:.4g}"
        )
        return f"{number} {self.unit}".rstrip()


@dataclass(frozen=True)
class Seen:
    """What a look has found: numbers, and what is to be said about them on this machine."""

    facts: Sequence[Fact]
    remarks: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        return {"facts": [asdict(fact) for fact in self.facts], "remarks": list(self.remarks)}


@dataclass(frozen=True)
class Stage:
    """`run` runs the program and shows its symptom; `look` finds what reveals the fault, and compares with the mend."""

    number: int
    title: str
    symptom: str
    command: str
    """What reveals the fault, with {program} for the program's file."""
    cause: str
    fix: str
    run: Callable[[], Seen]
    look: Callable[[], Seen]
    program: Path

    @property
    def revealing_command(self) -> str:
        return self.command.format(program=self.program)


def stage(number: int) -> Stage:
    """The stage of this number, from 1 to COUNT."""
    found: Stage = import_module(f"tilesmith.training.debugging.stage_{number}").STAGE
    return found


def main(one: Stage) -> None:
    """The stage as a program of its own."""
    parser = argparse.ArgumentParser(description=f"Stage {one.number}. {one.symptom}")
    parser.add_argument("--look", action="store_true", help="show what reveals the fault")
    seen = one.look() if parser.parse_args().look else one.run()
    width = max(len(fact.name) for fact in seen.facts)
    for fact in seen.facts:
        print(f"{fact.name:{width}}  {fact.text}  ({fact.kind})")
    for remark in seen.remarks:
        print(remark)
