"""`ts.lab.check`: compare an operator with its reference, from Python."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, TypeVar

import torch

from tilesmith import __version__
from tilesmith.lab.bench.result import strict
from tilesmith.lab.bench.running.bench_units import configuration
from tilesmith.lab.check.choosing import trials
from tilesmith.lab.check.further_calls import kernels_matter
from tilesmith.lab.check.launches import Launches
from tilesmith.lab.check.trial import Result
from tilesmith.lab.report.content import Cell, Column, Headline, Listing, Section, Table
from tilesmith.lab.subjects import What, subject_of
from tilesmith.spec import Case, Layout, SpecError

SCHEMA = 1
MOST_FAULTS = 10  # more lines would push the first ones off the screen
_LINE_OF_CODE = re.compile(r"[^\s/\\(]+\.py:\d+")
_DETAILS = re.compile(r"; |, wh| \(off ")  # how many, how large: they differ from case to case
_NUMBER = re.compile(r"-?\b((b?float|fp|bf|u?int)?\d[\w.+-]*|nan|inf)\b")  # and names of dtypes
Choice = TypeVar("Choice")


@dataclass(frozen=True, repr=False)
class Checked(Sequence[Result]):
    """The results of a check: a sequence of comparisons that prints a summary."""

    op: str
    results: tuple[Result, ...]
    left_out: tuple[str, ...] = ()  # cases that are too large without a GPU
    configurations: str = ""  # how many configurations of an autotuner ran
    notes: tuple[str, ...] = ()  # sentences about a right kernel

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if not result.passed)

    def to_json(self) -> dict[str, Any]:
        """Return what `tilesmith check --json` writes."""
        return as_json(self.results)

    def __getitem__(self, index: Any) -> Any:
        return self.results[index]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __str__(self) -> str:
        faults = faults_in(self.results)
        more = len(faults) - MOST_FAULTS
        rest = [f"… and {more} more in .failures"] if more > 0 else []
        return "\n".join([*map(str, faults[:MOST_FAULTS]), *rest, *map(from_here, self.notes), self._summary()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from tilesmith.lab.report.page import in_notebook, render  # needed in notebooks only

        page = render(
            "tour.html",
            title=f"Is {self.op} right?",
            summary=self._summary(),
            headlines=[self._headline()],
            sections=[
                Section("Comparisons", "The reference runs in float64.", [*self._complaints(), self._table()]),
            ],
            provenance={"By": f"tilesmith check, version {__version__}", "With": f"PyTorch {torch.__version__}"},
        )
        return in_notebook(page, f"Check of {self.op}", height=600)

    def _summary(self) -> str:
        used = max((result.error / result.allowed for result in self.results if result.allowed), default=0.0)
        verdict = f"{len(self.failures)} wrong" if self.failures else "right"
        error = "" if self.failures else f"; largest error {used:.0%} of the allowed error"
        beyond = f"; only on a GPU: {', '.join(self.left_out)}" if self.left_out else ""
        tuned = f"; {self.configurations}" if self.configurations else ""
        return f"{self.op}: {verdict}, {comparisons(len(self.results))}{error}{tuned}{beyond}"

    def _headline(self) -> Headline:
        if self.passed:
            return Headline(f"{len(self.results)} right", f"of {comparisons(len(self.results))}", "good")
        return Headline(f"{len(self.failures)} wrong", f"of {comparisons(len(self.results))}", "bad")

    def _complaints(self) -> list[Listing]:
        return [Listing(str(fault), "bad") for fault in faults_in(self.results)[:MOST_FAULTS]]

    def _table(self) -> Table:
        headings = ("case", "dtype", "layout", "what", "verdict")
        return Table(
            f"All comparisons of {self.op}",
            [*map(Column, headings), Column("error", "number"), Column("allowed", "number")],
            [
                [
                    *map(Cell, (one.case, one.dtype, one.layout, one.what)),
                    Cell("right", "good") if one.passed else Cell("wrong", "bad"),
                    Cell(f"{one.error:.2g}"), Cell(f"{one.allowed:.2g}"),
                ]
                for one in self.results
            ],
        )  # fmt: skip


def check(
    what: What,
    *,
    cases: Iterable[Case | str] | None = None,
    dtypes: Iterable[torch.dtype | str] | None = None,
    layouts: Iterable[Layout | str] | None = None,
    device: str | None = None,
) -> Checked:
    """Compare an operator and its gradients with the reference, over cases, dtypes and layouts.

    `what` is an operator, its name, a Spec, or a file with a SPEC. Without a GPU, or with `device="cpu"`, the kernels
    run in the interpreter, on the cases that are small enough for it.
    """
    subject = subject_of(what)
    spec = subject.spec
    chosen = trials(
        spec,
        cases=None if cases is None else [spec.case(one) if isinstance(one, str) else one for one in cases],
        dtypes=_chosen("dtype", dtypes, {str(one).removeprefix("torch."): one for one in spec.dtypes}),
        layouts=_chosen("layout", layouts, {one.name: one for one in spec.layouts}),
        device=device,
    )
    with configuration(subject.source, {}):  # our kernels, even where PyTorch was measured faster
        launches = Launches(is_file=bool(subject.source.file))
        results = [result for trial in chosen for result in launches.run(trial)]
        results += [result for trial in launches.tuned(chosen) for result in launches.run_configurations(trial)]
        results += kernels_matter(chosen)
    tried = {trial.case.name for trial in chosen}
    left_out = () if cases is not None else tuple(case.name for case in spec.cases if case.name not in tried)
    return Checked(spec.name, tuple(results), left_out, launches.summary(), tuple(launches.notes()))


def comparisons(number: int) -> str:
    return f"{number} comparison{'' if number == 1 else 's'}"


def as_json(results: Iterable[Result]) -> dict[str, Any]:
    """Return results as the data of `tilesmith check --json`."""
    made: dict[str, Any] = strict(
        {"tilesmith": __version__, "schema": SCHEMA, "results": [asdict(result) for result in results]}
    )
    return made


def _chosen(kind: str, given: Iterable[Choice | str] | None, known: Mapping[str, Choice]) -> list[Choice] | None:
    if given is None:
        return None
    names = list(given)
    unknown = [one for one in names if isinstance(one, str) and one not in known]
    if unknown:
        raise SpecError(f"{kind} {unknown[0]!r} is not one of {', '.join(known)}")
    return [known[one] if isinstance(one, str) else one for one in names]


@dataclass(frozen=True)
class Fault:
    """Failures that are most likely one mistake: their messages name the same lines, in the same words."""

    failures: tuple[Result, ...]

    @property
    def head(self) -> str:
        """What the first failure is of, and its figures."""
        first = self.failures[0]
        figures = f" (error {first.error:.2g}, allowed {first.allowed:.2g})" if isfinite(first.error) else ""
        return f"{first.op} {first.case} {first.dtype} {first.layout}, {first.what}{figures}"

    @property
    def message(self) -> str:
        """The message of the first failure, and where the others are."""
        message = from_here(self.failures[0].message)
        if len(self.failures) == 1:
            return message
        others = self.failures[1:]
        places = ("case", "dtype", "layout")
        where = "; ".join(", ".join(dict.fromkeys(getattr(one, place) for one in others)) for place in places)
        return f"{message}\n    and {comparisons(len(others))} more: {where}"

    def __str__(self) -> str:
        return f"wrong {self.head}: {self.message}"


def from_here(text: str) -> str:
    """Return a text with the files of the working folder named as seen from there."""
    return text.replace(f"{os.getcwd()}{os.sep}", "")


def faults_in(results: Iterable[Result]) -> list[Fault]:
    """Return the faults that results show, in the order of their first failures."""
    alike: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        if not result.passed:
            words = _NUMBER.sub("0", _DETAILS.split(result.message)[0])
            alike.setdefault((result.what, words, *_LINE_OF_CODE.findall(result.message)), []).append(result)
    return [Fault(tuple(failures)) for failures in alike.values()]
