"""Compare the times that `inspect` predicts without a GPU with times measured on one.

    python benchmarks/inspect/prediction.py predict --sources FOLDER --out predicted.json    # needs no GPU
    python benchmarks/inspect/prediction.py measure --sources FOLDER --out measured.json     # needs a GPU
    python benchmarks/inspect/prediction.py table --predicted predicted.json --measured measured.json --out FILE

FOLDER holds the packages of the libraries (liger_kernel, fla, attorch, …). A row is one kernel of one case of
`prediction_cases.py`: all its launches in one call, forward and backward. The file is written after every case, so a
case that fails, or the limit of time, loses no other case.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

REPETITIONS = 10
SAMPLED = 6  # programs that inspect traces of each grid
WARM_PROCESSES = 6
MOST_CONFIGURATIONS = 6  # of an autotuner on the GPU, evenly spread: each takes a second to compile
FLUSHED_BYTES = 256 << 20  # written between repetitions, so that no call finds its input in the L2 cache


def cases() -> dict[str, Any]:
    """Return the cases by name."""
    sys.path.insert(0, str(Path(__file__).parent))
    from prediction_cases import CASES

    return CASES


def predicted_rows(name: str) -> list[dict[str, Any]]:
    """Return the predicted time of each kernel of a case. Nothing runs on a GPU."""
    import triton.testing

    from tilesmith.lab.inspect import inspection_of, watching
    from tilesmith.lab.inspect.options import InspectOptions
    from tilesmith.lab.inspect.session import Session
    from tilesmith.toolchain.compiler import Target

    options = InspectOptions((Target.parse("cuda:90"),), programs=SAMPLED, suspects=False, device="h200")
    session = Session(options, has_gpu=False)
    with watching(session):
        triton.testing.do_bench(cases()[name]())  # inspect does not compute the results of a benchmark
    found = inspection_of(session, script=name)
    rows: dict[str, dict[str, Any]] = {}
    for kernel in found.kernels:
        facts = kernel.targets["cuda:90"]
        row = rows.setdefault(
            kernel.name,
            {"case": name, "kernel": kernel.name, "bound": kernel.bound, "launches": 0, "predicted_us": 0.0},
        )
        row["launches"] += kernel.launches
        row["predicted_us"] += kernel.launches * (facts.predicted_floor_us or math.nan)
    return [*rows.values()]


def measured_rows(name: str) -> list[dict[str, Any]]:
    """Return the measured time of each Triton kernel of a case: the median of its calls, with a cold L2 cache."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call = cases()[name]()
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    launches = launch_counts(call)
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        for _ in range(REPETITIONS):
            flushed.zero_()
            call()
        torch.cuda.synchronize()
    times: defaultdict[str, list[float]] = defaultdict(list)
    for event in watched.events() or ():
        if event.name in launches:
            times[event.name].append(float(event.device_time_total or event.time_range.elapsed_us()))
    rows = []
    for kernel, count in launches.items():
        found = times[kernel]
        calls = [sum(found[start : start + count]) for start in range(0, len(found), count)]
        middle = sorted(calls)[len(calls) // 2] if calls else math.nan
        rows.append({"case": name, "kernel": kernel, "launches": count, "measured_us": round(middle, 2)})
    return rows


def launch_counts(call: Any) -> Counter[str]:
    """Return how often one call launches each Triton kernel, after a first call that tunes and compiles."""
    import torch
    from triton.runtime import JITFunction

    call()
    torch.cuda.synchronize()
    counts: Counter[str] = Counter()
    run = JITFunction.run

    def counted(kernel: Any, *arguments: Any, **options: Any) -> Any:
        if not options.get("warmup"):
            counts[kernel.__name__] += 1
        return run(kernel, *arguments, **options)

    JITFunction.run = counted
    try:
        call()
    finally:
        JITFunction.run = run
    torch.cuda.synchronize()
    return counts


def limit_tuning() -> None:
    """Let each autotuner try only a few of its configurations."""
    from triton.runtime.autotuner import Autotuner

    begin = Autotuner.__init__

    def limited(tuner: Any, *arguments: Any, **options: Any) -> None:
        begin(tuner, *arguments, **options)
        step = max(1, len(tuner.configs) // MOST_CONFIGURATIONS)
        tuner.configs = tuner.configs[::step][:MOST_CONFIGURATIONS]

    Autotuner.__init__ = limited  # type: ignore[method-assign]


def run_cases(step: str, names: list[str]) -> None:
    """Run a step on each case; print one JSON line per case, which the parent process reads."""
    if step != "predict":
        limit_tuning()
    for name in names:
        start = time.monotonic()
        print(json.dumps({"starts": name}), flush=True)
        try:
            if step == "warm":
                cases()[name]()()
                rows: list[dict[str, Any]] = []
            else:
                rows = predicted_rows(name) if step == "predict" else measured_rows(name)
            line: dict[str, Any] = {"ends": name, "rows": rows}
        except Exception as error:
            line = {"ends": name, "rows": [], "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps({**line, "seconds": round(time.monotonic() - start, 1)}), flush=True)


def child(step: str, names: list[str], sources: Path) -> subprocess.Popen[str]:
    """Start a process that runs a step on these cases."""
    paths = [str(sources.resolve()), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, __file__, step, "--child", "--case", ",".join(names)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def run_step(step: str, names: list[str], sources: Path, out: Path, seconds: float) -> None:
    """Run a step in a child process, and again from the next case where the child dies."""
    deadline = time.monotonic() + seconds
    result: dict[str, Any] = {**versions(), "step": step, "rows": [], "failed": {}}
    if step == "measure":
        warmers = [child("warm", names[number::WARM_PROCESSES], sources) for number in range(WARM_PROCESSES)]
        for one in warmers:
            try:
                one.communicate(timeout=max(1.0, 0.5 * seconds - (seconds - (deadline - time.monotonic()))))
            except subprocess.TimeoutExpired:
                one.kill()
                one.communicate()
    left = list(names)
    while left and time.monotonic() < deadline:
        process, current = child(step, left, sources), ""
        stop = killed_at(process, deadline)
        for line in process.stdout or ():
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a library printed something
            if not isinstance(message, dict):
                continue
            if "starts" in message:
                current = message["starts"]
            elif "ends" in message:
                left.remove(current)
                result["rows"] += message["rows"]
                if message.get("error"):
                    result["failed"][current] = message["error"]
                print(f"{current}: {message.get('error') or message['rows']} {message['seconds']} s", flush=True)
                current = ""
                out.write_text(json.dumps(result, indent=1) + "\n")
        process.wait()
        stop.cancel()
        if current in left:
            left.remove(current)
            result["failed"][current] = f"the process ended with status {process.returncode}"
        elif not current and left and process.returncode:
            break
    result["failed"].update(dict.fromkeys(left, "no time was left"))
    out.write_text(json.dumps(result, indent=1) + "\n")


def killed_at(process: subprocess.Popen[str], deadline: float) -> Any:
    """Return a started timer that kills a process at the deadline."""
    from threading import Timer

    timer = Timer(max(0.1, deadline - time.monotonic()), process.kill)
    timer.daemon = True
    timer.start()
    return timer


def versions() -> dict[str, str]:
    """Return the versions and the device of a run."""
    from importlib.metadata import version

    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {"torch": torch.__version__, "triton": version("triton"), "device": device}


def table(predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Return one row per kernel with both times, the rank correlation, and how far the times lie apart."""
    floors = {(row["case"], row["kernel"]): row for row in predicted["rows"]}
    rows = []
    for row in measured["rows"]:
        floor = floors.get((row["case"], row["kernel"]))
        if floor and floor["launches"] == row["launches"] and row["measured_us"] > 0 and floor["predicted_us"] > 0:
            rows.append({**floor, "measured_us": row["measured_us"]})
    for row in rows:
        row["predicted_us"] = round(row["predicted_us"], 2)
    ratios = sorted(row["measured_us"] / row["predicted_us"] for row in rows)
    return {
        "torch": measured["torch"],
        "triton": measured["triton"],
        "device": measured["device"],
        "predicted_with": f"PyTorch {predicted['torch']}, Triton {predicted['triton']}, no GPU",
        "kernels": len(rows),
        "rank_correlation": round(rank_correlation(rows), 3) if len(rows) > 2 else None,
        "measured_over_predicted": {
            "least": round(ratios[0], 2), "median": round(ratios[len(ratios) // 2], 2), "most": round(ratios[-1], 2),
        } if ratios else None,
        "rows": sorted(rows, key=lambda row: row["measured_us"] / row["predicted_us"]),
        "failed": {**predicted["failed"], **measured["failed"]},
    }  # fmt: skip


def rank_correlation(rows: list[dict[str, Any]]) -> float:
    """Return Spearman's correlation of predicted and measured times."""

    def ranks(key: str) -> list[float]:
        ordered = sorted(row[key] for row in rows)
        return [(2 * ordered.index(row[key]) + ordered.count(row[key]) - 1) / 2 for row in rows]

    first, second = ranks("predicted_us"), ranks("measured_us")
    mean = (len(rows) - 1) / 2
    product = sum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    spread = math.sqrt(sum((a - mean) ** 2 for a in first) * sum((b - mean) ** 2 for b in second))
    return product / spread if spread else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["predict", "measure", "warm", "table"])
    parser.add_argument("--sources", type=Path, help="a folder with the libraries' packages")
    parser.add_argument("--case", default="", help="names, separated by commas; default: all")
    parser.add_argument("--seconds", type=float, default=140.0, help="limit of the whole step")
    parser.add_argument("--predicted", type=Path)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [name for name in options.case.split(",") if name]
    if options.child:
        run_cases(options.step, names)
    elif options.step == "table":
        made = table(json.loads(options.predicted.read_text()), json.loads(options.measured.read_text()))
        options.out.write_text(json.dumps(made, indent=1) + "\n")
        print({name: value for name, value in made.items() if name != "rows"})
    else:
        run_step(options.step, names or [*cases()], options.sources, options.out, options.seconds)


if __name__ == "__main__":
    main()
