"""Judge every candidate of tests/judge/zoo on a GPU, in several processes, and store outcomes and times.

    python benchmarks/judge/zoo_gpu.py --out results.json --seconds 390 --processes 15
    python benchmarks/judge/zoo_gpu.py --store results.json

Candidates that the stored run lacks come first. What the seconds do not allow is listed under "left"; a second
call with `--resume results.json` goes on there. `--store` writes zoo-h200.json and the table of docs/judge.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import queue
import re
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "tests" / "judge" / "zoo"
STORED = Path(__file__).parent / "zoo-h200.json"
KINDS = ("cheats", "honest")
Job = tuple[str, str]  # kind and path
Json = dict[str, Any]


def zoo() -> Any:
    """Return the script beside this one, as a module."""
    spec = importlib.util.spec_from_file_location("zoo_of_the_judge", Path(__file__).parent / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def label(job: Job) -> str:
    """Return the name of a candidate: its kind, task and file. Those that nvcc builds have "cuda" in it."""
    path = Path(job[1])
    name = f"cuda/{path.stem}" if path.parents[2].name == "cuda" else path.stem
    return f"{job[0]}/{path.parent.name}/{name}"


def all_jobs(only: str, done: set[str], earlier: Json) -> list[Job]:
    """Return the candidates: those of CUDA, then those that an earlier run lacks, then the others by their seconds."""
    bench = zoo()
    jobs = [
        (kind, str(path))
        for kind in KINDS
        for place in (ZOO / kind, ZOO / "cuda" / kind)
        for folder in sorted(one for one in place.iterdir() if one.is_dir())
        for path in bench.candidates_in(folder)
    ]
    chosen = [one for one in jobs if only in label(one) and label(one) not in done]

    def turn(job: Job) -> tuple[bool, bool, float]:
        known = earlier.get(label(job))
        return "cuda/" not in label(job), known is not None, -known["seconds"] if known else 0.0

    return sorted(chosen, key=turn)


def judged(judge: Any, bench: Any, tasks: Json, job: Job, device: str | None) -> Json:
    """Return what is stored of one verdict."""
    from tilesmith.lab.judge import Candidate, Options

    kind, path = job[0], Path(job[1])
    started = time.time()
    found: Json = {"label": label(job), "kind": kind}
    try:
        task = tasks.setdefault(path.parent.name, bench.task_of(path.parent.name))
        # A GPU compiles what it times, so the compiler's facts are for cheats that only they uncover.
        facts = kind == "cheats" and bench.needs_compiler(path)
        verdict = judge.judge(task, Candidate.of(path), Options(seed=bench.SEED, facts=facts, device=device)).as_json()
        reason = verdict["reasons"][0] if verdict["reasons"] else None
        found |= {name: verdict[name] for name in ("outcome", "stage", "times", "notes", "missing_protections")}
        found |= {"reason": reason and {name: reason[name] for name in ("kind", "stage", "message")}}
    except BaseException as error:
        text = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
        found |= {"outcome": "crash", "reason": {"message": text}, "times": None, "notes": []}
    return {**found, "seconds": round(time.time() - started, 2)}


def work(jobs: Any, results: Any, device: str | None) -> None:
    """Judge what comes, until nothing does."""
    from tilesmith.lab.judge import Judge

    bench, tasks = zoo(), dict[str, Any]()
    with Judge() as judge:
        judge.start()
        while (job := jobs.get()) is not None:
            results.put(judged(judge, bench, tasks, job, device))


def is_misjudged(one: Json) -> bool:
    return one["outcome"] == "crash" or bool(zoo().is_misjudged(one["kind"], one["outcome"]))


def summary(found: Sequence[Json], left: Sequence[Job], arguments: argparse.Namespace, started: float) -> Json:
    """Return results with their provenance."""
    import torch
    import triton

    bench, order = zoo(), sorted(found, key=lambda one: one["label"])
    return {
        "seed": bench.SEED,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() and not arguments.cpu else "CPU",
        "torch": torch.__version__, "triton": triton.__version__, "commit": bench.commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "processes": arguments.processes,
        "seconds": round(time.time() - started, 1),
        "outcomes": {kind: dict(Counter(one["outcome"] for one in order if one["kind"] == kind)) for kind in KINDS},
        "misjudged": [{"candidate": one["label"], "reason": one["reason"]} for one in order if is_misjudged(one)],
        "left": [label(one) for one in left],
        "results": order,
    }  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Judge until all are judged, or the seconds are over. Results are written every few seconds."""
    started, stored = time.time(), 0.0
    found: list[Json] = []
    if arguments.resume:
        found = [one for one in json.loads(Path(arguments.resume).read_text())["results"] if one["outcome"] != "crash"]
    earlier = json.loads(Path(arguments.earlier).read_text()).get("candidates", {})
    waiting = all_jobs(arguments.only, {one["label"] for one in found}, earlier)
    total, running = len(found) + len(waiting), list[Job]()
    context = multiprocessing.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    device = "" if arguments.cpu else None
    workers = [context.Process(target=work, args=(jobs, results, device)) for _ in waiting[: arguments.processes]]

    def hand_out() -> None:
        if waiting:
            running.append(waiting.pop(0))
            jobs.put(running[-1])

    def store() -> None:
        done = {one["label"] for one in found}
        left = [one for one in [*running, *waiting] if label(one) not in done]
        Path(arguments.out).write_text(json.dumps(summary(found, left, arguments, started), indent=1) + "\n")

    for one in workers:
        one.start()
        hand_out()
    while len(found) < total and time.time() - started < arguments.seconds - 4:
        try:
            found.append(results.get(timeout=1.0))
            hand_out()
        except queue.Empty:
            if not any(one.is_alive() for one in workers):
                break
        if time.time() - stored > 5:
            store()
            stored = time.time()
    store()
    for one in workers:
        one.terminate()
    told(json.loads(Path(arguments.out).read_text()), total)
    os._exit(0)  # without waiting for what still runs


def told(whole: Json, total: int) -> None:
    """Print what was misjudged, what took long, and the outcomes."""
    for one in whole["results"]:
        if is_misjudged(one):
            print(one["label"], one["outcome"], json.dumps(one["reason"])[:600])
    slow = sorted(whole["results"], key=lambda one: -one["seconds"])[:8]
    print("slowest:", ", ".join(f"{one['label']} {one['seconds']:.0f} s" for one in slow))
    for key in ("device", "torch", "triton", "commit", "outcomes", "seconds"):
        print(key, whole[key])
    print(f"{len(whole['results'])} of {total} judged; left: {len(whole['left'])}", whole["left"][:10], flush=True)


def store_run(path: Path) -> None:
    """Write outcomes and times of a run beside this script, and its rates into the guide."""
    whole = json.loads(path.read_text())
    facts = {name: value for name, value in whole.items() if name != "results"}
    whole_times = {one["label"]: _shortened(one) for one in whole["results"]}
    STORED.write_text(json.dumps({**facts, "candidates": whole_times}, indent=1) + "\n")
    lines = [f"| on an {whole['device']} | candidates | pass | unproven | fail | timed |", "|---|--:|--:|--:|--:|--:|"]
    for kind in KINDS:
        counts = [whole["outcomes"][kind].get(name, 0) for name in ("pass", "unproven", "fail")]
        timed = sum(one["times"] is not None for one in whole["results"] if one["kind"] == kind)
        lines.append(f"| {kind} | {sum(counts)} | {' | '.join(map(str, counts))} | {timed} |")
    page = ROOT / "docs" / "judge.md"
    table = "<!-- zoo-gpu -->\n" + "\n".join(lines) + "\n<!-- /zoo-gpu -->"
    page.write_text(re.sub(r"<!-- zoo-gpu -->.*<!-- /zoo-gpu -->", table, page.read_text(), flags=re.DOTALL))


def _shortened(one: Json) -> Json:
    found: Json = {"outcome": one["outcome"], "seconds": one["seconds"]}
    if one["outcome"] != "pass" and one["reason"]:
        found["reason"] = one["reason"].get("kind")
    if one["times"]:
        times = one["times"]
        found["median_us"] = round(times["median_ms"] * 1e3, 2)
        found["spread_us"] = round(times["spread_ms"] * 1e3, 2)
        found["speedup"] = times["speedup"] and round(times["speedup"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="judge_zoo_gpu.json")
    parser.add_argument("--seconds", type=float, default=390.0)
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--only", default="", help="part of the names to judge")
    parser.add_argument("--earlier", default=str(STORED), help="a stored run: its candidates come last")
    parser.add_argument("--resume", default="", help="results of an earlier run, which are kept")
    parser.add_argument("--store", default="", help="store these results, and judge nothing")
    parser.add_argument("--cpu", action="store_true", help="no times: to try this script without a GPU")
    arguments = parser.parse_args()
    if arguments.store:
        store_run(Path(arguments.store))
    else:
        run(arguments)


if __name__ == "__main__":
    main()
