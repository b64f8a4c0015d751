"""The picture of a learner's own CUDA file: the verdict, the goals, and what a warp does at each load and store."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.loaders import ChoiceLoader

from tilesmith import __version__
from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.cuda.access_counts import WARP, Access, ProgramCounts
from tilesmith.workshop.cuda.check import CudaCheck
from tilesmith.workshop.publishing.own_picture import preface

_SHOWN = ("launches", "blocks", "threads", "barriers", "atomics", "copies")
MOST_SQUARES = 64


@dataclass(frozen=True)
class WarpAccess:
    """One load or store, as a warp does it on average."""

    line: int
    kind: str
    memory: str
    lanes: int
    needed: int
    moved: int

    @property
    def unit(self) -> str:
        return "sectors of 32 bytes" if self.memory == "global" else "passes over the banks"

    @property
    def squares(self) -> list[bool]:
        """Return a square for each sector or pass: whether it is needed."""
        return [number < self.needed for number in range(min(self.moved, MOST_SQUARES))]

    @property
    def is_good(self) -> bool:
        return self.moved <= self.needed

    @property
    def active(self) -> list[bool]:
        return [lane < self.lanes for lane in range(WARP)]


def picture_of_cuda_check(check: CudaCheck, verdict: Verdict) -> str:
    """Return the page of a check. Accesses are drawn where the check came far enough to count them."""
    counted = check.counted
    lines = verdict.lines(check.file.name)
    source = check.file.read_text(encoding="utf-8", errors="replace").splitlines()
    return _environment().get_template("cuda.html").render(
        title=f"Kernels of {check.file.name}",
        summary="A CUDA program, run without a GPU: its accesses are counted per warp, in the first case.",
        sections=(),
        provenance={"Tilesmith": __version__},
        preface=preface(verdict, check.file.name),
        source=[(number, code, number in lines) for number, code in enumerate(source, 1)],
        accesses=[] if counted is None else _accesses(counted, check.file),
        counts={} if counted is None else {name: counted.counts[name] for name in _SHOWN if counted.counts.get(name)},
    )  # fmt: skip


def _accesses(counted: ProgramCounts, file: Path) -> list[WarpAccess]:
    """Return the accesses of the learner's own lines, in the order of the lines."""
    mine = [one for one in counted.accesses if one.place.startswith(f"{file.name}:")]
    return sorted((_of_a_warp(one) for one in mine), key=lambda one: one.line)


def _of_a_warp(access: Access) -> WarpAccess:
    line = int(access.place.rpartition(":")[2])
    each = [math.ceil(count / access.requests) for count in (access.lanes, access.least, access.moved)]
    return WarpAccess(line, access.kind, access.memory, *each)


@cache
def _environment() -> Environment:
    loaders = ChoiceLoader([PackageLoader("tilesmith.workshop.publishing"), PackageLoader("tilesmith.lab.report")])
    return Environment(loader=loaders, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
