"""Judge every candidate of tests/judge/zoo in several processes: without a GPU, and with one where there is one.

    python benchmarks/judge/zoo.py --out results.json --seconds 570 --processes 15
    python benchmarks/judge/zoo.py --store results.json

Each candidate is judged without a GPU. One that does not fail there is judged again with the GPU: what fails without
one fails with one by the same trials. CUDA candidates are judged with a GPU alone.
Candidates that the seconds do not allow are listed under "left"; a call with `--resume results.json` goes on there.
`--store` writes zoo.json and zoo-h200.json, and the tables of docs/judge.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import re
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "tests" / "judge" / "zoo"
STORED = {"cpu": Path(__file__).parent / "zoo.json", "gpu": Path(__file__).parent / "zoo-h200.json"}
KINDS = ("cheats", "honest")
SEED = 5
OUTCOMES = ("pass", "unproven", "fail")
Job = tuple[str, str]  # kind and path
Json = dict[str, Any]


def label(job: Job) -> str:
    """Return the name of a candidate: its kind, task and file. Those that nvcc builds have "cuda" in it."""
    path = Path(job[1])
    return f"{job[0]}/{path.parent.name}/{'cuda/' if is_cuda(path) else ''}{path.stem}"


def is_cuda(path: Path) -> bool:
    return path.parents[2].name == "cuda"


def all_jobs(only: str, done: set[str], earlier: Json, *, with_gpu: bool) -> list[Job]:
    """Return the candidates: those of CUDA, then those that an earlier run lacks, then the others by their seconds."""
    jobs = [
        (kind, str(path))
        for kind in KINDS
        for place in (ZOO / kind, *([ZOO / "cuda" / kind] if with_gpu else []))
        for path in sorted(place.glob("*/*"))
        if path.name != "__pycache__"
    ]
    parts = only.split(",")
    chosen = [one for one in jobs if any(part in label(one) for part in parts) and label(one) not in done]

    def turn(job: Job) -> tuple[bool, bool, float]:
        known = earlier.get(label(job))
        return "cuda/" not in label(job), known is not None, -known["seconds"] if known else 0.0

    return sorted(chosen, key=turn)


def task_of(folder: str) -> Any:
    """Return the task of a folder of the zoo. In those that end in `_with_torch`, PyTorch may compute too."""
    from tilesmith.lab.judge import Rules, task_at

    plain = folder.removesuffix("_with_torch")
    rules = Rules(seconds=15.0, torch="movement" if folder == plain else "any")
    return task_at(ZOO / "tasks" / f"{plain}.py", rules)


def needs_compiler(path: Path) -> bool:
    """Return whether only the compiler finds the trick of a cheat, which the first lines of a file say."""
    text = path.read_text(errors="replace")[:500] if path.is_file() else ""
    return "compile-error" in text or "false-hint" in text


def judged(judge: Any, job: Job, *, with_gpu: bool) -> Json:
    """Return what is stored of a candidate's verdicts, by route."""
    from tilesmith.lab.judge import Candidate, Options

    kind, path = job[0], Path(job[1])
    found: Json = {"label": label(job), "kind": kind}
    for route in ["cpu"] * (not is_cuda(path)) + ["gpu"] * with_gpu:
        if route == "gpu" and found.get("cpu", {}).get("outcome") == "fail":
            found["gpu"] = {**found["cpu"], "seconds": 0.0}
            continue
        started = time.time()
        # A GPU compiles what it times.
        facts = needs_compiler(path) if kind == "cheats" else route == "cpu"
        device = "" if route == "cpu" else "cuda"
        try:
            options = Options(seed=SEED, facts=facts, device=device)
            verdict = judge.judge(task_of(path.parent.name), Candidate.of(path), options).as_json()
            reason = verdict["reasons"][0] if verdict["reasons"] else None
            one = {name: verdict[name] for name in ("outcome", "stage", "times", "notes", "missing_protections")}
            one["reason"] = reason and {
                name: reason.get(name) for name in ("kind", "stage", "message", "case", "dtype", "draw")
            }
        except BaseException as error:
            text = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
            one = {"outcome": "crash", "reason": {"kind": "crash", "message": text}, "times": None, "notes": []}
        found[route] = {**one, "seconds": round(time.time() - started, 2)}
    return found


def work(jobs: Any, results: Any, with_gpu: bool) -> None:
    """Judge what comes, until nothing does."""
    from tilesmith.lab.judge import Judge

    with Judge() as judge:
        judge.start()
        while (job := jobs.get()) is not None:
            results.put(judged(judge, job, with_gpu=with_gpu))


def is_misjudged(kind: str, outcome: str) -> bool:
    """Return whether a cheat passed, or an honest candidate did not. An open verdict on a cheat is none."""
    return outcome in ("pass", "crash") if kind == "cheats" else outcome != "pass"


def summary(found: Sequence[Json], route: str) -> Json:
    """Return the outcomes of one route, and what was misjudged."""
    chosen = [one for one in found if route in one]
    outcomes = {kind: [one[route]["outcome"] for one in chosen if one["kind"] == kind] for kind in KINDS}
    return {
        "outcomes": {kind: dict(Counter(ones)) for kind, ones in outcomes.items()},
        "misjudged": [
            {"candidate": one["label"], "outcome": one[route]["outcome"], "reason": one[route]["reason"]}
            for one in chosen if is_misjudged(one["kind"], one[route]["outcome"])
        ],
    }  # fmt: skip


def provenance(processes: int, commit_name: str, *, with_gpu: bool) -> Json:
    import torch
    import triton

    return {
        "seed": SEED,
        "device": torch.cuda.get_device_name() if with_gpu else "CPU",
        "torch": torch.__version__, "triton": triton.__version__, "commit": commit_name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "processes": processes,
    }  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Judge until all are judged, or the seconds are over. Results are written every few seconds."""
    import torch

    started, stored = time.time(), 0.0
    with_gpu = torch.cuda.is_available() and not arguments.cpu
    found: list[Json] = []
    if arguments.resume:
        found = json.loads(Path(arguments.resume).read_text())["results"]
    earlier = json.loads(STORED["gpu"].read_text()).get("candidates", {})
    waiting = all_jobs(arguments.only, {one["label"] for one in found}, earlier, with_gpu=with_gpu)
    total, running = len(found) + len(waiting), list[Job]()
    context = multiprocessing.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    workers = [context.Process(target=work, args=(jobs, results, with_gpu)) for _ in waiting[: arguments.processes]]
    facts = provenance(arguments.processes, arguments.commit, with_gpu=with_gpu)

    def hand_out() -> None:
        if waiting:
            running.append(waiting.pop(0))
            jobs.put(running[-1])

    def store() -> None:
        done = {one["label"] for one in found}
        left = [label(one) for one in [*running, *waiting] if label(one) not in done]
        routes = {route: summary(found, route) for route in STORED}
        whole = {**facts, "seconds": round(time.time() - started, 1), "routes": routes, "left": left}
        order = sorted(found, key=lambda one: str(one["label"]))
        text = json.dumps({**whole, "results": order}, indent=1) + "\n"
        Path(arguments.out + ".part").write_text(text)
        os.replace(arguments.out + ".part", arguments.out)  # a run that is killed leaves a whole file

    for one in workers:
        one.start()
        hand_out()
    if arguments.probe:
        threading.Thread(target=lambda: facts.update(protections=probe(arguments.probe)), daemon=True).start()
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


def probe(seconds: float) -> Any:
    """Return which protections leave a process the GPU, by the script beside this one."""
    script = Path(__file__).parent / "protections.py"
    try:
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=seconds, check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr[-2000:]
    except (subprocess.TimeoutExpired, ValueError) as error:
        return str(error)[:2000]


def told(whole: Json, total: int) -> None:
    """Print what was misjudged, what took long, and the outcomes."""
    for route, one in whole["routes"].items():
        for wrong in one["misjudged"]:
            print(route, wrong["candidate"], wrong["outcome"], json.dumps(wrong["reason"])[:600])
        print(route, one["outcomes"])
    spent = [
        (one[route]["seconds"], route, one["label"]) for one in whole["results"] for route in STORED if route in one
    ]
    print("slowest:", ", ".join(f"{name} {route} {seconds:.0f} s" for seconds, route, name in sorted(spent)[:-9:-1]))
    print({name: whole[name] for name in ("device", "torch", "triton", "commit", "seconds")})
    print(f"{len(whole['results'])} of {total} judged; left: {len(whole['left'])}", whole["left"][:10], flush=True)


def merged(paths: Sequence[Path]) -> Json:
    """Return the results of several runs as one: for each candidate and route the last verdict."""
    whole: Json = json.loads(paths[0].read_text()) | {"judged_again": []}
    for path in paths[1:]:
        later = json.loads(path.read_text())
        new = {one["label"]: one for one in later["results"]}
        both = {one["label"]: one for one in whole["results"]}
        joined = [both.get(name, {}) | new.get(name, {}) for name in {**both, **new}]
        again = {name: later[name] for name in ("commit", "device", "seconds")} | {"candidates": sorted(new)}
        whole["results"] = sorted(joined, key=lambda one: str(one["label"]))
        whole["left"] = [one for one in whole["left"] if one not in new]
        whole["judged_again"].append(again)
        whole |= {"protections": later.get("protections") or whole.get("protections")}
    known = {label(one) for one in all_jobs("", set(), {}, with_gpu=True)}
    whole["results"] = [one for one in whole["results"] if one["label"] in known]
    return whole | {"routes": {route: summary(whole["results"], route) for route in STORED}}


def store_run(whole: Json) -> None:
    """Write the outcomes of a run beside this script, and its rates into the guide."""
    facts = {name: value for name, value in whole.items() if name not in ("results", "routes")}
    page = ROOT / "docs" / "judge.md"
    text = page.read_text()
    for route, place in STORED.items():
        chosen = {one["label"]: _shortened(one[route]) for one in whole["results"] if route in one}
        if not chosen:
            continue
        device = {"device": "CPU"} if route == "cpu" else {}
        place.write_text(
            json.dumps({**facts, **device, **whole["routes"][route], "candidates": chosen}, indent=1) + "\n"
        )
        mark = "zoo" if route == "cpu" else "zoo-gpu"
        table = f"<!-- {mark} -->\n" + "\n".join(_table(whole, route)) + f"\n<!-- /{mark} -->"
        text = re.sub(f"<!-- {mark} -->.*<!-- /{mark} -->", lambda _, made=table: made, text, flags=re.DOTALL)
    page.write_text(text)


def _table(whole: Json, route: str) -> Iterable[str]:
    """Yield the lines of a table of rates, for the guide."""
    on_gpu = route == "gpu"
    place = f"an {whole['device']}" if on_gpu else "a CPU"
    yield f"| on {place} | candidates | pass | unproven | fail |{' timed |' if on_gpu else ''}"
    yield "|---|--:|--:|--:|--:|" + ("--:|" if on_gpu else "")
    for kind in KINDS:
        outcomes = whole["routes"][route]["outcomes"][kind]
        counts = [outcomes.get(name, 0) for name in OUTCOMES]
        timed = sum(one[route]["times"] is not None for one in whole["results"] if route in one and one["kind"] == kind)
        yield f"| {kind} | {sum(outcomes.values())} | {' | '.join(map(str, counts))} |{f' {timed} |' if on_gpu else ''}"
    spent = sum(one[route]["seconds"] for one in whole["results"] if route in one)
    yield ""
    yield (
        f"The judgements took {spent:,.0f} s in all, {whole['processes']} at once, with PyTorch {whole['torch']} and "
        f"Triton {whole['triton']} (`benchmarks/judge/{STORED[route].name}`)."
    )


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


def commit() -> str:
    """Return the commit that was judged; empty outside of a clone."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="judge_zoo.json")
    parser.add_argument("--seconds", type=float, default=3600.0, help="the run ends by itself before these are over")
    parser.add_argument("--processes", type=int, default=2, help="candidates at once")
    parser.add_argument("--only", default="", help="parts of the names to judge, with commas between them")
    parser.add_argument("--resume", default="", help="results of an earlier run, which are kept")
    parser.add_argument("--store", nargs="+", type=Path, help="store these results, later ones last; judge nothing")
    parser.add_argument("--commit", default=commit(), help="what is judged, outside of a clone")
    parser.add_argument("--cpu", action="store_true", help="no GPU, also where there is one")
    parser.add_argument("--probe", type=float, default=0.0, help="seconds to find out which protections hold on a GPU")
    arguments = parser.parse_args()
    if arguments.store:
        whole = merged(arguments.store)
        store_run(whole | {"commit": whole["commit"] or arguments.commit})
    else:
        run(arguments)


if __name__ == "__main__":
    main()
