"""All chapters of `tilesmith tour`, and most of their code: the machine, checks, compiling, timing, next steps."""

from __future__ import annotations

import linecache
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch

from tilesmith.cli.doctor import described, findings
from tilesmith.cli.operator_source import source_of
from tilesmith.cli.tour_chapters.chapter import Chapter, Report, Told
from tilesmith.cli.tour_chapters.inspection import SCRIPT, inspected_chapter
from tilesmith.cli.tour_chapters.training import trained_chapter
from tilesmith.hardware.devices import for_target
from tilesmith.hardware.occupancy import Occupancy, occupancy
from tilesmith.lab.bench.measuring.sensors import first_gpu_sensors
from tilesmith.lab.bench.output.contests import MODES, Contest, contests
from tilesmith.lab.bench.output.table import blocks as bench_blocks
from tilesmith.lab.bench.result import result as bench_result
from tilesmith.lab.bench.running.child_process import Event, Job, Started
from tilesmith.lab.bench.running.measurer import start_measuring
from tilesmith.lab.bench.running.predictor import start_predicting
from tilesmith.lab.bench.running.run_jobs import collect
from tilesmith.lab.bench.selection import Selection, units
from tilesmith.lab.check import Result, Trial, run, trials
from tilesmith.lab.report.content import Cell, Column, Facts, Headline, Listing, Paragraph, Points, Table, Tone
from tilesmith.lab.report.number_format import duration, figure, memory
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.spec import Case, Spec, load_file
from tilesmith.toolchain.compiler import Binary, Target, compile_kernel
from tilesmith.toolchain.machine import Machine

CHECKED = {"rms_norm": ("tiny", "odd"), "silu": ("odd", "past-a-block")}
BROKEN = files("tilesmith.cli.examples").joinpath("broken_rms_norm.py")
SHOWN = "rms_norm"  # compiled and benched
SHOWN_CASE = "large"
SHOWN_DTYPE = torch.bfloat16
COMPILED_TARGETS = ("cuda:90", "hip:gfx942")
PREDICTED_DEVICES = ("h200", "h100", "mi300x")


def chapters(machine: Machine) -> list[Chapter]:
    """Return all chapters, in order."""
    return [
        Chapter(
            "This machine",
            "The other commands depend on what this machine can run, compile and measure.",
            lambda report: _machine(machine),
        ),
        Chapter(
            "Is it right?",
            "Kernels run in Triton's interpreter. Their results and gradients are compared with a reference in "
            "float64, over dtypes and memory layouts: a fast kernel that is wrong is worth nothing.",
            _right,
        ),
        Chapter(
            "Would a mistake be found?",
            "In this kernel, columns beyond the end of a row wrap around, and its sum counts them twice. Sizes that "
            "are a power of two do not show the mistake; the check finds it.",
            _broken,
        ),
        Chapter(
            "What does the compiler make of it?",
            "The forward kernel of rms_norm is compiled for GPUs that this machine need not have. Registers, spills "
            "and the width of each memory access decide how close the kernel comes to the hardware's limit.",
            lambda report: _compiled(machine, report),
        ),
        inspected_chapter(),
        _bench_chapter(machine),
        trained_chapter(),
        Chapter(
            "Where to go next",
            "Commands to paste; each works on this machine.",
            lambda report: _next(),
        ),
    ]


def _machine(machine: Machine) -> Told:
    advice = (Points(machine.advice),) if machine.advice else ()
    return Told((Facts(described(machine)), *advice), {"machine": findings(machine)})


def _right(report: Report) -> Told:
    results: list[Result] = []
    for name, cases in CHECKED.items():
        spec = SPECS[name]
        results += _run(trials(spec, cases=[spec.case(case) for case in cases], device="cpu"), report)
    compared = sorted({(result.op, result.what) for result in results})
    groups = {key: [result for result in results if (result.op, result.what) == key] for key in compared}
    table = Table(
        "Compared with the reference in float64",
        [
            Column("operator"), Column("what"), Column("verdict"),
            Column("compared", "number"), Column("error, of allowed", "number"),
        ],
        [[Cell(op), Cell(what), *_judged(group)] for (op, what), group in groups.items()],
    )  # fmt: skip
    wrong = [result for result in results if not result.passed]
    complaints = [Listing(_complaint(wrong[0]), "bad")] if wrong else []
    headline = (
        Headline(f"{len(wrong)} wrong", f"of {len(results)} comparisons with the reference", "bad")
        if wrong
        else Headline(f"{len(results)} right", f"of {len(results)} comparisons with the reference", "good")
    )
    return Told((table, *complaints), {"check": _as_json(results)}, (headline,), passed=not wrong)


def _run(chosen: Sequence[Trial], report: Report) -> list[Result]:
    results: list[Result] = []
    for number, trial in enumerate(chosen, start=1):
        dtype = str(trial.dtype).removeprefix("torch.")
        report(f"{trial.spec.name}: {trial.case.name}, {dtype}, {trial.layout.name} ({number} of {len(chosen)})")
        results += run(trial)
    return results


def _judged(results: Sequence[Result]) -> list[Cell]:
    """Return the verdict, the number of comparisons, and the largest error among them."""
    used = max((result.error / result.allowed for result in results if result.allowed), default=0.0)
    passed = all(result.passed for result in results)
    error = f"{used:.0%}" if used < 10 else f"{used:,.0f} times"
    verdict = Cell("right", "good") if passed else Cell("wrong", "bad")
    return [verdict, Cell(str(len(results))), Cell(error, share=used)]


def _complaint(result: Result) -> str:
    where = f"{result.op} {result.case} {result.dtype} {result.layout}, {result.what}"
    return f"wrong: {where} (error {result.error:.2g}, allowed {result.allowed:.2g})\n{result.message}"


def _as_json(results: Iterable[Result]) -> dict[str, Any]:
    return {"results": [asdict(result) for result in results]}


def _broken(report: Report) -> Told:
    with as_file(BROKEN) as path:
        spec = load_file(path)
        results = _run(trials(spec, device="cpu"), report)
    table = Table(
        "The same check on the broken kernel",
        [
            Column("case"), Column("columns", "number"), Column("verdict"),
            Column("compared", "number"), Column("error, of allowed", "number"),
        ],
        [
            [Cell(case.name), Cell(str(case.cols)), *_judged([one for one in results if one.case == case.name])]
            for case in spec.cases
        ],
    )  # fmt: skip
    wrong = [result for result in results if not result.passed]
    found = {"broken": {**_as_json(results), "caught": bool(wrong)}}
    if not wrong:
        missed = Paragraph("The check missed the mistake. This is a bug in Tilesmith: please report it.")
        return Told((table, missed), found, (Headline("missed", "a kernel with a mistake in it", "bad"),), passed=False)
    explained = Paragraph("The message names the element, the expected value, and the program and line that stored it:")
    caught = Headline("caught", "a kernel that is wrong for some sizes only", "good")
    return Told((table, explained, Listing(_complaint(wrong[0]), "bad")), found, (caught,))


def _compiled(machine: Machine, report: Report) -> Told:
    spec, case = _shown_case()
    targets = [target for target in COMPILED_TARGETS if target in machine.targets]
    if not targets:
        return Told((Paragraph("This Triton compiles for none of the targets; see the advice above."),))
    binaries = []
    for target in targets:
        launch = _planned(spec, case, target)
        report(f"compiling {launch.kernel.__name__} for {target}")
        binaries.append(compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options()))
    found = {"kernel": launch.kernel.__name__, "targets": {str(one.target): _binary_findings(one) for one in binaries}}
    blocks = (_resources(launch, case, binaries), _widths(binaries))
    spilled = sum(binary.spill_bytes for binary in binaries)
    headline = Headline(
        f"{spilled} bytes", f"spilled by rms_norm on {' and '.join(targets)}", "bad" if spilled else "good",
        minor=not spilled,
    )  # fmt: skip
    return Told(blocks, {"compiled": found}, (headline,))


def _shown_case() -> tuple[Spec, Case]:
    return SPECS[SHOWN], SPECS[SHOWN].case(SHOWN_CASE)


def _planned(spec: Spec, case: Case, target: str) -> PlannedLaunch:
    """Return the forward launch that a GPU would get for tensors of this size. Allocates nothing."""
    with recorded_plans(target) as plans:
        spec.op(**spec.inputs(case, SHOWN_DTYPE, "meta"))
    return plans[0].launches[0]


def _binary_findings(binary: Binary) -> dict[str, Any]:
    filled = _occupancy(binary)
    return {
        "registers": binary.registers,
        "spill_bytes": binary.spill_bytes,
        "shared_bytes": binary.shared_bytes,
        "tensor_cores": binary.tensor_cores,
        "occupancy": filled.occupancy,
        "limited_by": filled.limited_by,
        "accesses": [
            {"kind": access.kind, "line": access.line, "vector_bytes": access.vector_bytes}
            for access in binary.accesses
        ],
    }


def _occupancy(binary: Binary) -> Occupancy:
    return occupancy(
        for_target(str(binary.target)),
        num_warps=binary.num_warps, registers=binary.registers, shared_bytes=binary.shared_bytes,
    )  # fmt: skip


def _resources(launch: PlannedLaunch, case: Case, binaries: Sequence[Binary]) -> Table:
    filled = [_occupancy(binary) for binary in binaries]
    rows = {
        "registers per thread": [Cell(str(binary.registers)) for binary in binaries],
        "bytes spilled": [Cell(str(one.spill_bytes), "bad" if one.spill_bytes else "good") for one in binaries],
        "shared bytes per block": [Cell(str(binary.shared_bytes)) for binary in binaries],
        "warps per block": [Cell(str(binary.num_warps)) for binary in binaries],
        "occupancy": [Cell(f"{one.occupancy:.0%}") for one in filled],
        "occupancy limited by": [Cell(one.limited_by if one.occupancy < 1 else "nothing") for one in filled],
    }
    return Table(
        f"{launch.kernel.__name__}, {_size(case)}",
        [Column(""), *(Column(str(binary.target), "number") for binary in binaries)],
        [[Cell(name), *cells] for name, cells in rows.items()],
    )


def _size(case: Case) -> str:
    return f"{case.rows} × {case.cols}, {str(SHOWN_DTYPE).removeprefix('torch.')}"


def _widths(binaries: Sequence[Binary]) -> Table:
    """Return the bytes per thread and instruction for each line that accesses memory; 16 is the maximum."""
    places = sorted({(access.file, access.line, access.kind) for binary in binaries for access in binary.accesses})
    return Table(
        "Bytes one thread moves with one instruction; 16 is best",
        [Column("line"), *(Column(str(binary.target), "number") for binary in binaries), Column("source", "code")],
        [
            [
                Cell(f"{Path(file).name}:{line} {kind}"),
                *(Cell(_narrowest(binary, file, line, kind)) for binary in binaries),
                Cell(linecache.getline(file, line).strip()),
            ]
            for file, line, kind in places
        ],
    )


def _narrowest(binary: Binary, file: str, line: int, kind: str) -> str:
    widths = [
        access.vector_bytes
        for access in binary.accesses
        if (access.file, access.line, access.kind) == (file, line, kind)
    ]
    return str(min(widths)) if widths else "none"


def _bench_chapter(machine: Machine) -> Chapter:
    if machine.triton_launches:
        return Chapter(
            "How fast is it?",
            "A time alone says little, so the table also shows PyTorch's time, and the percentage of this GPU's "
            "measured limit.",
            _measured,
        )
    return Chapter(
        "How fast could it be?",
        "The bytes that a kernel must move and the flops that it must do give the least possible time. This limit is "
        "known without a GPU too.",
        lambda report: _predicted(),
    )


def _measured(report: Report) -> Told:
    def tell(job: Job, event: Event) -> None:
        if isinstance(event, Started):
            report(f"{job.op} {MODES[event.unit.mode]}, {event.unit.provider}")

    report("measuring the limits of this GPU")
    job = _bench_job(partial(start_measuring, warm=False, limits_anew=False), rivals=("torch",))
    return _measured_told(collect([job], sensors=first_gpu_sensors(), report=tell))


def _bench_job(start: Callable[..., Any], rivals: Sequence[str]) -> Job:
    spec, case = _shown_case()
    source = source_of(spec, SHOWN)
    dtype = str(SHOWN_DTYPE).removeprefix("torch.")
    return Job(SHOWN, source, units(spec, source, Selection(cases=[case.name], dtypes=[dtype], rivals=rivals)), start)


def _measured_told(result: Mapping[str, Any]) -> Told:
    met = contests(result)
    headlines = [_measured_headline(contest, result["device"]) for contest in met]
    right = all(contest.ours is not None for contest in met)
    blocks = [replace(one, origin="measured") if isinstance(one, Table) else one for one in bench_blocks(result)]
    return Told(blocks, {"bench": [result]}, headlines, passed=right and not result["partial"])


def _measured_headline(contest: Contest, gpu: str) -> Headline:
    if contest.ours is None:
        return Headline("no time", f"for {contest.name}", "bad")
    what = f"{contest.op} {MODES[contest.mode]} on {gpu}"
    rival = contest.best_rival
    beside = f"; {rival['provider']} takes {duration(rival['device_ms'])}" if rival else ""
    tones: dict[str | None, Tone] = {"faster": "good", "slower": "bad"}
    tone = tones.get(contest.standing, "plain")
    return Headline(duration(contest.ours["device_ms"]), what + beside, tone, "measured", minor=contest.mode != "fwd")


def _predicted() -> Told:
    results = {name: _prediction(name) for name in PREDICTED_DEVICES}
    first = results[PREDICTED_DEVICES[0]]
    met = contests(first)
    longest = max(row["floor_ms"] for result in results.values() for row in result["rows"])
    table = Table(
        f"{SHOWN}, {met[0].size}, takes at least: predicted, not measured",
        [Column("device"), *(Column(MODES[contest.mode], "number") for contest in met), Column("TB/s", "number")],
        [
            [
                Cell(name.upper()),
                *(Cell(duration(row["floor_ms"]), share=row["floor_ms"] / longest) for row in result["rows"]),
                Cell(figure(result["limits"]["copy_tb_per_s"])),
            ]
            for name, result in results.items()
        ],
        origin="predicted",
    )
    moved = ", ".join(f"{memory(contest.rows[0]['bytes'])} {MODES[contest.mode]}" for contest in met)
    explained = Paragraph(
        f"The operator must move {moved}. The prediction divides that by the datasheet's bandwidth, which no kernel "
        "reaches; nothing was timed. On a machine with a GPU this chapter measures."
    )
    where = f"on {PREDICTED_DEVICES[0].upper()}"
    headlines = [
        Headline(
            duration(row["floor_ms"]), f"least time of {SHOWN} {MODES[row['mode']]} {where}",
            origin="predicted", minor=row["mode"] != "fwd",
        )
        for row in first["rows"]
    ]  # fmt: skip
    return Told((table, explained), {"bench": list(results.values())}, headlines)


def _prediction(device_name: str) -> dict[str, Any]:
    """Return the prediction of `tilesmith bench`, computed in this process because it launches no kernel."""
    start = partial(start_predicting, device_name=device_name)
    job = _bench_job(start, rivals=())
    predictor, about = start(job.source)
    return bench_result([predictor.row(unit) for unit in job.units], about=about, limits=about["limits"], partial=False)


def _next() -> Told:
    program = _program()
    commands = (
        f"{program} check rms_norm   # every case, dtype and layout",
        f"{program} bench rms_norm   # how fast: measured against rivals, or predicted without a GPU",
        f"{program} train llama      # train a tiny model on these operators",
        f"{program} ops              # the operators: formula, dtypes, gradient, cost",
        f"{program} doctor           # what to install for more",
    )
    own = Paragraph("The check takes any file with a SPEC. To write your own kernel, copy the broken one and fix it:")
    copying = f"cp {shlex.quote(str(BROKEN))} my_kernel.py\n{program} check my_kernel.py"
    scripts = Paragraph("Inspect takes any unmodified script that launches Triton kernels:")
    inspecting = f"{program} inspect {shlex.quote(str(SCRIPT))} --html inspection.html"
    learning = Paragraph("The workshop teaches kernel writing, exercise by exercise. The first exercise:")
    first = f"{program} learn start vector-add"
    told = (Listing("\n".join(commands)), own, Listing(copying), scripts, Listing(inspecting), learning, Listing(first))
    return Told(told)


def _program() -> str:
    """Return the command that runs this program: its name, or its path where the shell does not find the name."""
    started = Path(sys.argv[0])
    if shutil.which("tilesmith") or started.name != "tilesmith":
        return "tilesmith"
    inside = started.is_absolute() and started.is_relative_to(Path.cwd())
    return str(started.relative_to(Path.cwd()) if inside else started)
