"""Compare the times that `inspect` predicts without a GPU with times measured on one.

    python benchmarks/inspect/prediction.py --sources FOLDER --out benchmarks/inspect/prediction.json

    python benchmarks/inspect/prediction.py --sources FOLDER --measured EARLIER.json --out NEW.json   # without a GPU

    python benchmarks/inspect/prediction.py --page docs/how-it-works/prediction.md   # the stored table, into the page

FOLDER holds the packages of the libraries (liger_kernel, fla, attorch, …). Processes that see no GPU predict; without a
GPU nothing else runs. A row is one kernel of one case of `prediction_cases.py`: all its launches in one call, forward
and backward. The file is written after every case, so a case that fails, or the limit of time, loses no other case.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

REPETITIONS = 10
SAMPLED = 16  # programs that inspect traces of each grid
FEW_ROWS = 5  # too few to rank
MARK = "@prediction "
MOST_CONFIGURATIONS = 4  # of an autotuner on the GPU, evenly spread: each takes a second to compile
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
            {
                "case": name,
                "kernel": kernel.name,
                "bound": kernel.bound,
                "limit": facts.predicted_limit,
                "launches": 0,
                "floor_us": 0.0,
                "predicted_us": 0.0,
            },
        )
        row["launches"] += kernel.launches
        row["floor_us"] += kernel.launches * (facts.predicted_floor_us or math.nan)
        row["predicted_us"] += kernel.launches * (facts.predicted_us or math.nan)
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
    """Let each autotuner try only a few of its configurations, each for a short time."""
    import triton.testing
    from triton.runtime.autotuner import Autotuner

    begin, time_call = Autotuner.__init__, triton.testing.do_bench

    def limited(tuner: Any, *arguments: Any, **options: Any) -> None:
        begin(tuner, *arguments, **options)
        step = max(1, len(tuner.configs) // MOST_CONFIGURATIONS)
        tuner.configs = tuner.configs[::step][:MOST_CONFIGURATIONS]

    def briefly(call: Any, **options: Any) -> Any:
        return time_call(call, **{"warmup": 5, "rep": 20, **options})

    Autotuner.__init__ = limited  # type: ignore[method-assign]
    triton.testing.do_bench = briefly


def run_cases(step: str, names: list[str]) -> None:
    """Run a step on each case; print a line as it starts and a line with its rows, which the parent process reads."""
    if step != "predict":
        limit_tuning()
    for name in names:
        start = time.monotonic()
        print(MARK + json.dumps({"case": name}), flush=True)
        line: dict[str, Any] = {"case": name, "rows": []}
        try:
            if step == "warm":
                cases()[name]()()
            else:
                line["rows"] = predicted_rows(name) if step == "predict" else measured_rows(name)
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {error}"[:300]
        print(MARK + json.dumps({**line, "seconds": round(time.monotonic() - start, 1)}), flush=True)


class Steps:
    """The results of all steps, written to a file after every case."""

    def __init__(self, sources: Path, out: Path, seconds: float) -> None:
        self.sources, self.out = sources, out
        self.start = time.monotonic()
        self.seconds = seconds
        self.lock = threading.Lock()
        self.results: dict[str, Any] = {**versions(), "predict": [], "measure": [], "warm": [], "failed": {}}

    def run(self, step: str, names: list[str], until: float) -> None:
        """Run a step on these cases in a child process, and again from the next case where the child dies."""
        left, deadline = list(names), self.start + until * self.seconds
        while left and time.monotonic() < deadline:
            process, current = self._child(step, left), ""
            stop = threading.Timer(max(0.1, deadline - time.monotonic()), process.kill)
            stop.start()
            for line in process.stdout or ():
                if not line.startswith(MARK):
                    continue  # a library printed something
                message = json.loads(line.removeprefix(MARK))
                current = message["case"]
                if "rows" in message:
                    left.remove(current)
                    self._keep(step, current, message["rows"], message.get("error", ""), message["seconds"])
                    current = ""
            process.wait()
            stop.cancel()
            if not current and left and process.returncode:
                break  # the child cannot start
            if current:
                left.remove(current)
                self._keep(step, current, [], f"the process ended with status {process.returncode}", 0)
        for name in left:
            self._keep(step, name, [], "no time was left", 0)

    def _child(self, step: str, names: list[str]) -> subprocess.Popen[str]:
        paths = [str(self.sources.resolve()), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
        if step == "predict":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return subprocess.Popen(
            [sys.executable, __file__, "--child", step, "--case", ",".join(names)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _keep(self, step: str, name: str, rows: list[dict[str, Any]], error: str, seconds: float) -> None:
        with self.lock:
            self.results[step] += rows
            if error:
                self.results["failed"][f"{step} {name}"] = error
            print(f"{step} {name}: {error or len(rows)} {seconds} s", flush=True)
            self.out.write_text(json.dumps({**self.results, "table": table(self.results)}, indent=1) + "\n")

    def run_all(self, names: list[str], processes: int, with_gpu: bool) -> None:
        """Predict and compile in so many processes each, then measure one case after another."""
        known = {row["case"] for row in self.results["predict"]}
        missing = [name for name in names if name not in known]
        shares = [("predict", missing[one::processes], 0.6) for one in range(processes)]
        if with_gpu:
            shares += [("warm", names[one::processes], 0.6) for one in range(processes)]
        threads = [threading.Thread(target=self.run, args=share) for share in shares if share[1]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if with_gpu:
            self.run("measure", names, 1.0)


def versions() -> dict[str, str]:
    """Return the versions and the device of a run."""
    from importlib.metadata import version

    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {"torch": torch.__version__, "triton": version("triton"), "device": device}


def table(results: dict[str, Any]) -> dict[str, Any]:
    """Return one row per kernel with both times, the rank correlation, and how far the times lie apart."""
    floors = {(row["case"], row["kernel"]): row for row in results["predict"]}
    rows = []
    for row in results["measure"]:
        floor = floors.get((row["case"], row["kernel"]))
        if floor and floor["launches"] == row["launches"] and row["measured_us"] > 0 and floor["predicted_us"] > 0:
            rows.append({**floor, "measured_us": row["measured_us"]})
    rows.sort(key=lambda row: float(row["measured_us"] / row["predicted_us"]))
    ratios = [round(row["measured_us"] / row["predicted_us"], 2) for row in rows]
    return {
        "kernels": len(rows),
        "rank_correlation": round(rank_correlation(rows), 3) if len(rows) > 2 else None,
        "rank_correlation_of_floor": round(rank_correlation(rows, "floor_us"), 3) if len(rows) > 2 else None,
        "measured_over_predicted": dict(zip(("least", "median", "most"), spread(ratios), strict=True)),
        "rows": rows,
    }


def in_words(found: dict[str, Any]) -> str:
    """Return the table of a run as Markdown."""
    rows = found["table"]["rows"]
    versions = f"Triton {found['triton']}, PyTorch {found['torch'].partition('+')[0]}"
    lines = [
        f"{found['device']}, {versions}: {len(rows)} kernels. Error: how many times longer or shorter, median.",
        "",
        "| limit | kernels | rank correlation | error | rank correlation of the least time | error |",
        "|---|---|---|---|---|---|",
        _class_row("all", rows),
    ]
    limits = Counter(row["limit"] for row in rows)
    lines += [_class_row(limit, [row for row in rows if row["limit"] == limit]) for limit, _ in limits.most_common()]
    lines += [
        "",
        "| call | kernel | limit | least, µs | predicted, µs | measured, µs | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = row["measured_us"] / row["predicted_us"]
        times = f"{row['floor_us']:.1f} | {row['predicted_us']:.1f} | {row['measured_us']:.1f} | {ratio:.2f}"
        lines.append(f"| {row['case']} | `{row['kernel']}` | {row['limit']} | {times} |")
    return "\n".join(lines)


def _class_row(name: str, rows: list[dict[str, Any]]) -> str:
    figures = []
    for predicted in ("predicted_us", "floor_us"):
        few = len(rows) < FEW_ROWS
        errors = sorted(max(row["measured_us"] / row[predicted], row[predicted] / row["measured_us"]) for row in rows)
        figures += ["" if few else f"{rank_correlation(rows, predicted):.2f}", f"{spread(errors)[1]:.2f}"]
    return f"| {name} | {len(rows)} | {' | '.join(figures)} |"


def write_page(page: Path, found: dict[str, Any]) -> None:
    """Put the table of a run between the two marks of a page."""
    text = f"<!-- prediction -->\n{in_words(found)}\n<!-- /prediction -->"
    page.write_text(re.sub(r"<!-- prediction -->.*<!-- /prediction -->", lambda _: text, page.read_text(), flags=re.S))


def spread(ratios: list[float]) -> list[float | None]:
    """Return the first, the middle and the last of sorted numbers."""
    return [ratios[0], ratios[len(ratios) // 2], ratios[-1]] if ratios else [None, None, None]


def rank_correlation(rows: list[dict[str, Any]], predicted: str = "predicted_us") -> float:
    """Return Spearman's correlation of predicted and measured times."""

    def ranks(key: str) -> list[float]:
        ordered = sorted(row[key] for row in rows)
        return [(2 * ordered.index(row[key]) + ordered.count(row[key]) - 1) / 2 for row in rows]

    first, second = ranks(predicted), ranks("measured_us")
    mean = (len(rows) - 1) / 2
    product = sum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    spread = math.sqrt(sum((a - mean) ** 2 for a in first) * sum((b - mean) ** 2 for b in second))
    return product / spread if spread else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, help="a folder with the libraries' packages")
    parser.add_argument("--case", default="", help="names, separated by commas; default: all")
    parser.add_argument("--seconds", type=float, default=140.0, help="the limit of the whole run")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("--processes", type=int, default=max(1, min(7, (os.cpu_count() or 2) // 2)))
    parser.add_argument("--predicted", type=Path, help="the JSON file of an earlier run whose predictions are taken")
    parser.add_argument("--measured", type=Path, help="the JSON file of an earlier run whose measurements are taken")
    parser.add_argument("--page", type=Path, help="a page of the docs that shows the stored table")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [name for name in options.case.split(",") if name] or [*cases()]
    if options.child:
        run_cases(options.child, names)
        return
    if options.page:
        write_page(options.page, json.loads((Path(__file__).parent / "prediction.json").read_text()))
        return
    if options.sources is None or options.out is None:
        parser.error("--sources and --out are required")
    steps = Steps(options.sources, options.out, options.seconds)
    if options.predicted:
        steps.results["predict"] = json.loads(options.predicted.read_text())["predict"]
    if options.measured:
        earlier = json.loads(options.measured.read_text())
        steps.results |= {name: earlier[name] for name in ("torch", "triton", "device", "measure")}
        steps.run_all(names, options.processes, with_gpu=False)
    else:
        steps.run_all(names, options.processes, with_gpu=bool(steps.results["device"]))
    print(json.dumps({name: value for name, value in table(steps.results).items() if name != "rows"}))


if __name__ == "__main__":
    main()
