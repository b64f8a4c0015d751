"""`tilesmith tune`: measure the fastest configurations on this device, and where PyTorch is faster, and store both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilesmith.cli.check import chosen_specs
from tilesmith.cli.options import Dtypes, listed_dtypes
from tilesmith.cli.terminal import console, refuse

if TYPE_CHECKING:
    import torch

    from tilesmith.lab.bench.measuring.timed_calls import TimedCalls
    from tilesmith.lab.bench.measuring.timing import Rotation
    from tilesmith.ops.runtime.tuned_case import Timer, Tuned
    from tilesmith.spec import Case, Spec


def tune(
    what: Annotated[list[str] | None, typer.Argument(metavar="[OP…]", help="Operators. Default: all.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="A case by name; may be repeated.")] = None,
    dtype: Dtypes = None,
) -> None:
    """Measure and store the fastest configurations for this GPU.

    For each case of each operator, the search starts at the built-in configuration and moves to faster neighbours. Then
    PyTorch is timed, with the timer of `tilesmith bench`. Later calls look up the fastest. A call never tunes.
    """
    jobs = _jobs(what or [], case or [], [name for name in listed_dtypes(dtype) if name != "all"])
    import torch

    if not torch.cuda.is_available():
        refuse("tuning measures kernels on a GPU, and this machine has none; see `tilesmith doctor`")
    from rich.progress import Progress

    from tilesmith.ops.runtime import tuning
    from tilesmith.ops.runtime.tuned_case import tune_case

    timer = _bench_timer()

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("tuning", total=len(jobs))
        for spec, one_case, one_dtype in jobs:
            progress.update(task, description=f"{spec.name} {one_case.name} {one_dtype}")
            progress.console.print(_line(spec, one_case, tune_case(spec, one_case, one_dtype, timer)))
            progress.advance(task)
    console.print(f"stored in {tuning.table_path(torch.device('cuda', torch.cuda.current_device()))}")


def _bench_timer() -> Timer:
    """Return the timer of `bench`, since both decide what `auto` does: graph replay, inputs from memory."""
    from tilesmith.lab.bench.measuring.gpu_stopwatch import GpuStopwatch
    from tilesmith.lab.bench.measuring.timed_calls import TimedCalls
    from tilesmith.lab.bench.measuring.timing import device_milliseconds

    stopwatch = GpuStopwatch()
    last: dict[tuple[object, ...], tuple[TimedCalls, Rotation]] = {}  # all configurations are timed on the same inputs

    def timer(spec: Spec, case: Case, dtype: torch.dtype, mode: str) -> float:
        key = spec.name, case.name, dtype, mode
        if key not in last:
            last.clear()
            timed = TimedCalls(spec, case, dtype, "cuda", mode, spec.op)
            last[key] = timed, timed.add_rotated_sets(stopwatch.cache_bytes, warm=False)
        timed, rotated = last[key]
        return device_milliseconds(stopwatch, timed.calls, rotated)

    return timer


def _jobs(names: Sequence[str], cases: Sequence[str], dtypes: Sequence[str]) -> list[tuple[Any, Any, Any]]:
    from tilesmith.ops import SPECS
    from tilesmith.spec import SpecError

    for name in names:
        if name.endswith(".py"):
            refuse(f"tune takes Tilesmith's operators; for a file: tilesmith bench {name} --sweep FIELD=VALUE,VALUE,…")
        if name not in SPECS:
            refuse(f"{name!r} is not an operator; the operators are {', '.join(SPECS)}")
    specs = chosen_specs(names)
    known = {str(one).removeprefix("torch.") for spec in specs for one in spec.dtypes}
    if unknown := set(dtypes) - known:
        refuse(f"{', '.join(sorted(unknown))} is not one of {', '.join(sorted(known))}")
    try:
        return [
            (spec, case, dtype)
            for spec in specs
            for case in ([spec.case(name) for name in cases] or spec.cases)
            for dtype in spec.dtypes
            if not dtypes or str(dtype).removeprefix("torch.") in dtypes
        ]
    except SpecError as error:
        refuse(str(error))


def _line(spec: Any, case: Any, tuned: Tuned) -> str:
    ours = f"{tuned.before_ms:.4f} → {tuned.after_ms:.4f} ms"
    return f"{spec.name} {case.name} {tuned.dtype}: {ours}, torch {tuned.torch_ms:.4f} ms"
