"""What a stage is: a program with a fault, its symptom, and its evidence. Every number is computed when needed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

COUNT = 6


class StageError(Exception):
    """A stage cannot show its symptom or evidence; the message is one line."""


@dataclass(frozen=True)
class Fact:
    """A number with its name. `kind` is its origin: a trace (predicted), a binary (compiled) or sizes (counted)."""

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
class Observation:
    """Numbers, and remarks about them on this machine."""

    facts: Sequence[Fact]
    remarks: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        return {"facts": [asdict(fact) for fact in self.facts], "remarks": list(self.remarks)}


@dataclass(frozen=True)
class Stage:
    """`run` runs the program and shows its symptom; `reveal` finds the evidence and compares with the fix."""

    number: int
    title: str
    symptom: str
    command: str
    """The command that reveals the fault, with {program} for the program's file."""
    cause: str
    fix: str
    run: Callable[[], Observation]
    reveal: Callable[[], Observation]
    program: Path

    @property
    def revealing_command(self) -> str:
        return self.command.format(program=self.program)


def stage(number: int) -> Stage:
    """Return the stage of this number, from 1 to COUNT."""
    found: Stage = import_module(f"tilesmith.training.debugging.stage_{number}").STAGE
    return found


def program_of(number: int) -> Path:
    """Return the program of a stage, without importing it."""
    return Path(__file__).with_name(f"stage_{number}.py")


def main(one: Stage) -> None:
    """Run the stage as a program."""
    parser = argparse.ArgumentParser(description=f"Stage {one.number}. {one.symptom}")
    parser.add_argument("--reveal", action="store_true", help="show the evidence of the fault")
    observed = one.reveal() if parser.parse_args().reveal else one.run()
    width = max(len(fact.name) for fact in observed.facts)
    for fact in observed.facts:
        print(f"{fact.name:{width}}  {fact.text}  ({fact.kind})")
    for remark in observed.remarks:
        print(remark)
