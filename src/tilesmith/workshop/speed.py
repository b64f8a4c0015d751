"""The last stage, where there is a GPU: the learner's function timed beside PyTorch's, against the device's limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tilesmith.lab.bench.result import OURS, Row
from tilesmith.lab.bench.units import Measurer, Source, Unit, start_measuring
from tilesmith.spec import Case, Spec
from tilesmith.workshop.exercise import Size


@dataclass(frozen=True)
class Speed:
    """What was measured, in lines to read; `error` is why the learner's function was not timed."""

    lines: tuple[str, ...] = ()
    error: str | None = None


def timed_on_gpu(spec: Spec, case: Case) -> Speed:
    """Measures on this machine's GPU, which must be there."""
    measurer, facts = start_measuring(Source(lambda: spec), warm=False, limits_anew=False)
    return timed(measurer, case, spec.dtypes[0], str(facts["device"]))


def device_us(spec: Spec, size: Size) -> float | None:
    """How long the learner's function takes on this machine's GPU; None where it is not right there."""
    measurer, _ = start_measuring(Source(lambda: spec), warm=False, limits_anew=False)
    row = measurer.row(Unit(Case(size.name, **size.sizes), spec.dtypes[0], "fwd", OURS))
    return None if row.device_ms is None else row.device_ms * 1000


def timed(measurer: Measurer, case: Case, dtype: torch.dtype, device: str) -> Speed:
    """The learner's function and plain PyTorch on one size."""
    ours, torchs = (measurer.row(Unit(case, dtype, "fwd", provider)) for provider in (OURS, "torch"))
    if ours.error:
        return Speed(error=ours.error)
    sizes = ", ".join(f"{name} = {size:,}" for name, size in case.sizes.items())
    return Speed((f"measured on {device}, {sizes}:", *_lines("your kernel", ours), *_lines("PyTorch", torchs)))


def _lines(name: str, row: Row) -> Iterator[str]:
    if row.device_ms is None:
        yield f"{name}: not measured ({row.error})"
        return
    share = f", {row.percent_of_limit:.0f} % of the limit" if row.percent_of_limit is not None else ""
    yield f"{name}: {row.device_ms:.4f} ms on the device{share}, {row.host_us:.0f} µs on the host"
    if row.verdict and row.provider == OURS:
        yield row.verdict
