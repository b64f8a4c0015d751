"""Run `inspect` over scripts that use other people's kernels, and keep a table of verdicts.

    python benchmarks/inspect/field.py --root liger=~/Liger-Kernel/src --root tutorials=~/triton/python/tutorials

Libraries come from --root or from where pip installed them; absent ones are skipped and named. A script is right if it
ends well and no finding is an error. With `--compare FILE` the exit status is 1 where a verdict is worse than in FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from planted import PACKAGES, roots_of

from tilesmith.lab.inspect.model import Inspection
from tilesmith.lab.inspect.options import InspectOptions
from tilesmith.lab.inspect.running.script import Limits, inspect_script
from tilesmith.toolchain.compiler import Target

HERE = Path(__file__).parent
KNOWN_FAULTS: dict[str, str] = {}  # by script: the kind of an error that is true


def verdict(name: str, found: Inspection) -> dict[str, Any]:
    """Return one row of the table."""
    ending = found.ending
    errors = [one for one in found.findings if one.severity == "error"]
    true = [one for one in errors if one.kind == KNOWN_FAULTS.get(name)]
    if ending.kind != "finished" or ending.status:
        word, reason = "fails", ending.message or f"status {ending.status}"
    elif len(errors) > len(true):
        first = next(one for one in errors if one not in true)
        word, reason = "false error", f"{first.kind} at {Path(first.file).name}:{first.line}: {first.message}"
    else:
        word, reason = ("right", f"{true[0].kind}, a true fault") if true else ("right", "")
    return {"script": name, "verdict": word, "kernels": len(found.kernels), "reason": reason[:300]}


def scripts(roots: dict[str, Path], wanted: list[str]) -> list[tuple[str, Path, str]]:
    """Return name, file and the library's folder of each script that can run."""
    known = [
        (script.stem, script, str(roots[script.stem.partition("_")[0]]))
        for script in sorted((HERE / "scripts").glob("*.py"))
        if script.stem.partition("_")[0] in roots
    ]
    if "tutorials" in roots:
        known += [(f"tutorial_{file.stem}", file, "") for file in sorted(roots["tutorials"].glob("[01]*.py"))]
    return [one for one in known if not wanted or any(one[0].startswith(start) for start in wanted)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", action="append", default=[], metavar="LIBRARY=FOLDER")
    parser.add_argument("--script", action="append", default=[], help="only scripts whose names start so")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each script")
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument("--compare", type=Path, help="a table of an earlier run")
    options = parser.parse_args()
    roots = roots_of(options.root)
    for absent in sorted({*PACKAGES, "tutorials"} - {*roots}):
        print(f"{absent} is not here: pass --root {absent}=FOLDER")
    rows, versions, before = [], {}, os.environ.get("PYTHONPATH", "")
    settings = replace(InspectOptions(), targets=(Target.parse("cuda:90"),))
    for name, file, folder in scripts(roots, options.script):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
        start = time.monotonic()
        found = inspect_script(file, (), settings, Limits(seconds=options.timeout))
        versions = {"tilesmith": found.tilesmith, "torch": found.torch, "triton": found.triton}
        rows.append({**verdict(name, found), "seconds": round(time.monotonic() - start, 1)})
        row = rows[-1]
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
