"""`ts.lab.bench`: measure an operator beside its rivals, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console

from tilesmith.hardware.devices import device as known_device
from tilesmith.lab.bench.output.contests import Contest, contests
from tilesmith.lab.bench.result import OURS, Row
from tilesmith.lab.bench.result import result as gathered
from tilesmith.lab.bench.running.child_process import Job
from tilesmith.lab.bench.running.run_jobs import collect
from tilesmith.lab.bench.selection import Selection, units
from tilesmith.lab.subjects import What, subject_of

DEFAULT_DEVICE = "h200"


@dataclass(frozen=True, repr=False)
class Benchmark:
    """The result of a benchmark. `to_json()` is what `tilesmith bench --json` writes."""

    result: Mapping[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self.result["rows"])

    @property
    def contests(self) -> list[Contest]:
        """The rows by case, dtype and mode: our time, the best rival's, and who is faster."""
        return contests(self.result)

    @property
    def passed(self) -> bool:
        """Whether every result of the operator itself was right."""
        return not any(row["error"] for row in self.rows if row["provider"] == OURS)

    def to_json(self) -> dict[str, Any]:
        return dict(self.result)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __str__(self) -> str:
        from tilesmith.lab.bench.output.table import blocks
        from tilesmith.lab.report.terminal import as_text, show_block

        def show(console: Console) -> None:
            for block in blocks(self.result):
                show_block(console, block)

        return as_text(show)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from tilesmith.lab.bench.output.page import write_html
        from tilesmith.lab.report.page import in_notebook

        return in_notebook(write_html(self.result), "Benchmark")


def bench(
    what: What,
    *,
    cases: Sequence[str] | None = None,
    sizes: Mapping[str, int] | None = None,
    dtypes: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
    against: Sequence[str] | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    device: str | None = None,
    warm: bool = False,
) -> Benchmark:
    """Measure an operator beside its rivals and against the limits of the device.

    `what` is an operator, its name, a Spec, or a file with a SPEC. The other arguments are the options of
    `tilesmith bench`. Without a GPU, or with `device`, the result is the least time that the datasheet allows, marked
    as predicted.
    """
    subject = subject_of(what)
    measuring = torch.cuda.is_available() and device is None
    selection = Selection(
        cases=cases, sizes=sizes or {}, dtypes=dtypes, modes=modes, sweep=sweep or {},
        rivals=against if measuring else [], predicting=not measuring,
    )  # fmt: skip
    chosen = units(subject.spec, subject.source, selection)
    job = Job(subject.spec.name, subject.source, chosen, _start(measuring, device, warm))
    if measuring and subject.portable:
        return Benchmark(collect([job]))
    return Benchmark(_in_this_process(job))  # a prediction launches nothing that can crash


def _start(measuring: bool, device: str | None, warm: bool) -> Callable[..., Any]:
    from tilesmith.lab.bench.running.measurer import start_measuring
    from tilesmith.lab.bench.running.predictor import start_predicting

    if measuring:
        return partial(start_measuring, warm=warm, limits_anew=False)
    named = device or DEFAULT_DEVICE
    known_device(named)  # raises ValueError for an unknown device
    return partial(start_predicting, device_name=named)


def _in_this_process(job: Job) -> dict[str, Any]:
    worker, about = job.start(job.source)
    rows = [row for unit in job.units if isinstance(row := worker.row(unit), Row)]
    return gathered(rows, about=about, limits=about.get("limits"), partial=False)
