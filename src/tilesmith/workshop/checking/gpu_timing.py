"""The stage "speed": the learner's function timed on this machine's GPU, beside PyTorch and the device's limit.

A CUDA program is timed by its harness and shown beside its Triton twin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from tilesmith.lab.bench.result import OURS, Row
from tilesmith.lab.bench.running.bench_units import Source, Unit
from tilesmith.lab.bench.running.measurer import Measurer, start_measuring
from tilesmith.spec import Case, Spec
from tilesmith.workshop.course.exercise import Size


@dataclass(frozen=True)
class Speed:
    """The measured times as lines of text, or the reason why the learner's function was not timed."""

    lines: tuple[str, ...] = ()
    error: str | None = None


def time_on_gpu(spec: Spec, case: Case) -> Speed:
    """Time the learner's function and PyTorch on this machine's GPU."""
    measurer, facts = start_measuring(Source(lambda: spec), warm=False, limits_anew=False)
    return time_beside_torch(measurer, case, spec.dtypes[0], str(facts["device"]))


def device_microseconds(spec: Spec, size: Size) -> float | None:
    """Return the device time of the learner's function; None where the result is wrong on the GPU."""
    measurer, _ = start_measuring(Source(lambda: spec), warm=False, limits_anew=False)
    row = measurer.row(Unit(Case(size.name, **size.sizes), spec.dtypes[0], "fwd", OURS))
    return None if row.device_ms is None else row.device_ms * 1000


def time_beside_twin(milliseconds: float, twin: Spec, size: Size) -> list[str]:
    """Return the time of a CUDA program beside its Triton twin and PyTorch, which this function measures."""
    measurer, facts = start_measuring(Source(lambda: twin), warm=False, limits_anew=False)
    case = Case(size.name, **size.sizes)
    tritons, torchs = (measurer.row(Unit(case, twin.dtypes[0], "fwd", provider)) for provider in (OURS, "torch"))
    # The same work has the same lower bound in every language.
    floor_ms = tritons.floor_ms if tritons.percent_of_limit is not None else None
    share = None if floor_ms is None else 100 * floor_ms / milliseconds
    learners = replace(torchs, provider="cuda", device_ms=milliseconds, percent_of_limit=share, host_us=None)
    return [
        _heading(str(facts["device"]), case),
        *_lines("your kernel", learners),
        *_lines(f"its twin in Triton, {twin.name}", replace(tritons, verdict=None)),
        *_lines("PyTorch", torchs),
    ]


def time_beside_torch(measurer: Measurer, case: Case, dtype: torch.dtype, device: str) -> Speed:
    """Time the learner's function and plain PyTorch on one size."""
    ours, torchs = (measurer.row(Unit(case, dtype, "fwd", provider)) for provider in (OURS, "torch"))
    if ours.error:
        return Speed(error=ours.error)
    return Speed((_heading(device, case), *_lines("your kernel", ours), *_lines("PyTorch", torchs)))


def _heading(device: str, case: Case) -> str:
    sizes = ", ".join(f"{name} = {size:,}" for name, size in case.sizes.items())
    return f"measured on {device}, {sizes}:"


def _lines(name: str, row: Row) -> Iterator[str]:
    if row.device_ms is None:
        yield f"{name}: not measured ({row.error})"
        return
    share = f", {row.percent_of_limit:.0f} % of the limit" if row.percent_of_limit is not None else ""
    host = f", {row.host_us:.0f} µs on the host" if row.host_us is not None else ""
    yield f"{name}: {row.device_ms:.4f} ms on the device{share}{host}"
    if row.verdict and row.provider == OURS:
        yield row.verdict
