"""Run `inspect` over scripts that use other people's kernels, and keep a table of verdicts.

    python benchmarks/inspect/field.py --root liger=~/Liger-Kernel/src --root tutorials=~/triton/python/tutorials@3.9.0

Libraries come from --root or from where pip installed them; absent ones are skipped and named. A script is right if it
ends well, launches a kernel, and no finding is an error. `--json FILE` stores the rows of this run alone. With
`--compare FILE` the exit status is 1 where a verdict is worse than in FILE.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import resource
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
KNOWN_FAULTS: dict[str, tuple[str, ...]] = {  # by script: the kinds of errors that are true
    # Block pointers left Triton with 3.9.
    **dict.fromkeys(("gems_pointwise", "protenix_tri_attention"), ("compile-error", "kernel-error")),
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


def scripts(roots: dict[str, Path], wanted: list[str]) -> list[tuple[str, Path | str, tuple[str, ...], str]]:
    """Return name, file or module, arguments and the library's folder of each script that can run."""
    known: list[tuple[str, Path | str, tuple[str, ...], str]] = [
        (script.stem, script, (), str(roots.get(script.stem.partition("_")[0], "")))
        for script in sorted((HERE / "scripts").glob("*.py"))
        if script.stem.partition("_")[0] in {*roots, "inductor"}
    ]
    if "tutorials" in roots:
        known += [(f"tutorial_{file.stem}", file, (), "") for file in sorted(roots["tutorials"].glob("[01]*.py"))]
        for stem, chosen in GLUON_TESTS.items():
            file = roots["tutorials"] / "gluon" / f"{stem}.py"
            if file.is_file():
                known.append((f"gluon_{stem}", "pytest", ("-q", "-x", str(file), "-k", chosen), str(file.parent)))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", action="append", default=[], metavar="LIBRARY=FOLDER")
    parser.add_argument("--script", action="append", default=[], help="only scripts whose names start so")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of CPU time for each script")
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument("--compare", type=Path, help="a table of an earlier run")
    options = parser.parse_args()
    given = versions_of(options.root)
    roots = roots_of(options.root)
    for absent in sorted({*PACKAGES, *FOLDERS} - {*roots}):
        print(f"{absent} is not here: pass --root {absent}=FOLDER")
    rows, before = [], os.environ.get("PYTHONPATH", "")
    settings = replace(InspectOptions(), targets=(Target.parse("cuda:90"),))
    for name, file, arguments, folder in scripts(roots, options.script):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
        start, busy = time.monotonic(), children_seconds()
        found = inspect_script(file, arguments, settings, Limits(seconds=options.timeout, of_cpu=True))
        versions = {"tilesmith": found.tilesmith, "torch": found.torch, "triton": found.triton}
        row = {**verdict(name, found), "seconds": round(time.monotonic() - start, 1)}
        row["cpu_seconds"] = round(children_seconds() - busy, 1)
        library = "tutorials" if row["source"] in ("tutorial", "gluon") else row["source"]
        row["version"] = given.get(library, found.torch if library == "inductor" else "")
        rows.append(row)
        print(
            f"{row['verdict']:12} {name:32} {row['kernels']:3} kernels {row['seconds']:6.1f} s  {row['reason'][:120]}",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps({**versions, "rows": rows}, indent=1) + "\n")
    right = sum(row["verdict"] == "right" for row in rows)
    print(f"{right} of {len(rows)} right")
    if options.compare:
        earlier = {row["script"]: row["verdict"] for row in json.loads(options.compare.read_text())["rows"]}
        worse = [row["script"] for row in rows if row["verdict"] != "right" and earlier.get(row["script"]) == "right"]
        if worse:
            sys.exit(f"worse than in {options.compare}: {', '.join(worse)}")


if __name__ == "__main__":
    main()
