"""Run `inspect` over scripts that use other people's kernels, and keep a table of verdicts.

    python benchmarks/inspect/field.py --root liger=~/Liger-Kernel/src --root tutorials=~/triton/python/tutorials@3.9.0

Libraries come from --root or from where pip installed them; absent ones are skipped and named. A script is right if it
ends well, launches a kernel, and no finding is an error. `--json FILE` replaces the rows of this run in FILE. A row has
its date, commit and releases; each release of Triton has its own rows. With `--compare FILE` the exit status is 1 where
a verdict is worse than in FILE.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import datetime
import functools
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from planted import FOLDERS, PACKAGES, roots_of

from tilesmith.lab.inspect.model import Inspection
from tilesmith.lab.inspect.options import InspectOptions
from tilesmith.lab.inspect.running.script import Limits, inspect_script
from tilesmith.toolchain.compiler import Target

Script = tuple[str, Path | str, tuple[str, ...], str]  # name, file or module, arguments, the library's folder

HERE = Path(__file__).parent
GLUON_TESTS = {  # of Triton's Gluon tutorials: which tests pytest selects with -k, small sizes
    "01-intro": "test",
    "02-layouts": "test_memcpy_1d or test_memcpy_2d_inout",
    "03-async-copy": "test_memcpy_1d_cpasync or (pipelined and 2-32-64-4000)",
    "04-tma": "message or memcpy or (pipelined and 2-32-64-4000)",
    "05-wgmma": "(small_mma and 4-16) or (blocked and 64-64-64-208)",
    "07-persistence": "pipelined and 4-3-64-64-64-208",
    "08-warp-specialization": "elementwise and 4-2-2-32-64-4000",
}
BLACKWELL = ("tutorial_10-block-scaled-matmul",)  # scripts that launch nothing on an older GPU
KNOWN_FAULTS: dict[str, tuple[str, ...]] = {  # by script: the kinds of errors that are true
    # Block pointers left Triton with 3.9.
    **dict.fromkeys(
        ("gems_pointwise", "protenix_tri_attention", "mlstm_chunkwise", "mlstm_step", "softmaxn_attention"),
        ("compile-error", "kernel-error"),
    ),
    "scan_scalar": ("out-of-bounds",),  # states past the end of the last sequence: faults.md
    "flashinfer_gemm": ("uninitialised",),  # 0 · c of fresh memory: faults.md
    "applied_groupwise_quant": ("compile-error",),  # a global variable that is no tl.constexpr
    "tutorial_06-fused-attention": ("out-of-bounds",),  # v of every head but the first, in fp8: faults.md
}


def verdict(name: str, found: Inspection) -> dict[str, Any]:
    """Return one row of the table."""
    ending = found.ending
    errors = [one for one in found.findings if one.severity == "error"]
    true = [one for one in errors if one.kind in KNOWN_FAULTS.get(name, ())]
    if not found.kernels and ending.kind == "finished":
        word, reason = "fails", "no kernel was launched"
    elif ending.kind != "finished" or ending.status:
        word, reason = "fails", ending.message or f"status {ending.status}"
    elif len(errors) > len(true):
        first = next(one for one in errors if one not in true)
        word, reason = "false error", f"{first.kind} at {Path(first.file).name}:{first.line}: {first.message}"
    else:
        word, reason = ("right", f"{true[0].kind}, a true fault") if true else ("right", "")
    return {
        "script": name,
        "source": name.partition("_")[0],
        "verdict": word,
        "kernels": len(found.kernels),
        "reason": reason[:300],
    }


def scripts(roots: dict[str, Path], wanted: list[str]) -> list[Script]:
    """Return name, file or module, arguments and the library's folder of each script that can run."""
    known: list[Script] = []
    if "tutorials" in roots:  # first, since these take longest
        known += [(f"tutorial_{file.stem}", file, (), "") for file in sorted(roots["tutorials"].glob("[01]*.py"))]
        for stem, chosen in GLUON_TESTS.items():
            file = roots["tutorials"] / "gluon" / f"{stem}.py"
            if file.is_file():
                known.append((f"gluon_{stem}", "pytest", ("-q", "-x", str(file), "-k", chosen), str(file.parent)))
    known += [
        (script.stem, script, (), str(roots.get(script.stem.partition("_")[0], "")))
        for script in sorted((HERE / "scripts").glob("*.py"))
        if script.stem.partition("_")[0] in {*roots, "inductor"}
    ]
    return [one for one in known if not wanted or any(one[0].startswith(start) for start in wanted)]


def versions_of(given: list[str]) -> dict[str, str]:
    """Return the version of each library: after @ in --root, else from its metadata."""
    named = {one.partition("=")[0]: one.rpartition("@")[2] for one in given if "@" in one}
    for name, package in PACKAGES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            named.setdefault(name, importlib.metadata.version(package.replace("_", "-")))
    return named


def children_seconds() -> float:
    """Return the CPU time of the processes that ended: other work on the machine does not change it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout, with a + if files differ from it; empty outside one."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def row_of(script: Script, seconds: float, known: dict[str, str], commit: str) -> dict[str, Any]:
    """Inspect one script in processes of its own and return its row. `known`: version of each library."""
    name, file, arguments, folder = script
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
    start, busy = time.monotonic(), children_seconds()
    target = Target.parse("cuda:100" if name in BLACKWELL else "cuda:90")
    settings = replace(InspectOptions(), targets=(target,))
    try:
        found = inspect_script(file, arguments, settings, Limits(seconds=seconds, of_cpu=True))
    finally:
        os.environ["PYTHONPATH"] = before
    row = {**verdict(name, found), "seconds": round(time.monotonic() - start, 1)}
    row["cpu_seconds"] = round(children_seconds() - busy, 1)
    library = "tutorials" if row["source"] in ("tutorial", "gluon") else row["source"]
    row["version"] = known.get(library, found.torch if library == "inductor" else "")
    row |= {"torch": found.torch, "triton": found.triton, "commit": commit, "date": str(datetime.date.today())}
    print(
        f"{row['verdict']:12} {name:32} {row['kernels']:3} kernels {row['cpu_seconds']:6.1f} s  {row['reason'][:120]}",
        flush=True,
    )
    return row


def stored(rows: list[dict[str, Any]], table: Path) -> None:
    """Write rows into a table, in place of earlier rows of the same scripts and release of Triton."""
    earlier = json.loads(table.read_text())["rows"] if table.is_file() else []
    merged = {(row["triton"], row["script"]): row for row in [*earlier, *rows]}
    table.write_text(json.dumps({"rows": [merged[name] for name in sorted(merged)]}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", action="append", default=[], metavar="LIBRARY=FOLDER[@VERSION]")
    parser.add_argument("--script", action="append", default=[], help="only scripts whose names start so")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of CPU time for each script")
    parser.add_argument("--jobs", type=int, default=1, help="how many scripts run at once")
    parser.add_argument("--commit", default=commit_of(HERE), help="of Tilesmith, where this folder is no checkout")
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument("--compare", type=Path, help="a table of an earlier run")
    options = parser.parse_args()
    roots = roots_of(options.root)
    for absent in sorted({*PACKAGES, *FOLDERS} - {*roots}):
        print(f"{absent} is not here: pass --root {absent}=FOLDER")
    earlier = json.loads(options.compare.read_text())["rows"] if options.compare else []
    known = versions_of(options.root)
    of_script = functools.partial(row_of, seconds=options.timeout, known=known, commit=options.commit)
    rows: list[dict[str, Any]] = []
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        running = [pool.submit(of_script, script) for script in scripts(roots, options.script)]
        for one in concurrent.futures.as_completed(running):
            rows.append(one.result())
            if options.json:
                stored(rows, options.json)
    print(f"{sum(row['verdict'] == 'right' for row in rows)} of {len(rows)} right")
    right = {row["script"] for row in earlier if row["verdict"] == "right"}
    worse = [row["script"] for row in rows if row["verdict"] != "right" and row["script"] in right]
    if worse:
        sys.exit(f"worse than in {options.compare}: {', '.join(sorted(worse))}")


if __name__ == "__main__":
    main()
