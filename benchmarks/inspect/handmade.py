"""Plant faults by hand in kernels of other libraries: `handmade_cases.py` calls, `handmade_faults.py` edits.

    python benchmarks/inspect/handmade.py --root torchao=~/ao --root tutorials=~/triton/python/tutorials --json FILE

Each case first runs on the unchanged file. Then a fault replaces one or two fragments in a copy of it. A fault is found
if a finding of an expected kind, which the clean run does not have, names the kernel's line where it does harm. Nothing
of a library is stored here but the fragments.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import datetime
import io
import json
import multiprocessing
import os
import resource
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from field import commit_of, versions_of
from handmade_cases import CASES, stand_ins
from handmade_faults import FAULTS, Planted
from planted import roots_of

SECONDS = 120  # of CPU time, for one call


def changed(text: str, edits: tuple[tuple[str, str], ...]) -> tuple[str, list[int]]:
    """Return the text with each fragment replaced, its lines keeping their numbers, and the edited lines."""
    lines: list[int] = []
    for old, new in edits:
        if old not in text:
            raise ValueError(f"the file does not have {old!r}")
        lines.append(text[: text.index(old)].count("\n") + 1)
        text = text.replace(old, new, 1)
    return text, lines


def definitions(text: str, file: str) -> Any:
    """Return the code of a script without the calls that run its tests and benchmarks."""
    tree = ast.parse(text)
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    words = ("randn", "benchmark")
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, kept)
        and not (isinstance(node, ast.Assign) and any(word in ast.unparse(node) for word in words))
    ]
    return compile(tree, file, "exec")


def run(case: str, text: str, source: Path, compiles: bool, pipe: Any) -> None:
    """Inspect one call in this process, a fork; send its findings."""
    import torch

    from tilesmith.lab.inspect import inspection_of, watching
    from tilesmith.lab.inspect.options import InspectOptions
    from tilesmith.lab.inspect.session import Session
    from tilesmith.toolchain.compiler import Target

    class Uncompiled(Session):
        """A session without the compiler, which takes most of the time."""

        def _binary(self, launched: Any, target: Any) -> str:
            return "not compiled"

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    file = Path(tempfile.mkdtemp()) / source.name
    file.write_text(text)
    sys.path.insert(0, str(source.parent))
    stand_ins()
    module = ModuleType("field.case")
    module.__dict__.update(__file__=str(file), __package__="field", HAS_APEX=False)
    sys.modules["field.case"] = module
    options = InspectOptions(targets=(Target.parse("cuda:90"),), asked=True, seconds=1.0)
    session, error = (Session if compiles else Uncompiled)(options, has_gpu=False), ""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            with watching(session):
                is_script = CASES[case].library == "tutorials"
                code = definitions(text, str(file)) if is_script else compile(text, str(file), "exec")
                exec(code, module.__dict__)
                results = CASES[case].call(module)
                for result in results if isinstance(results, tuple) else (results,):
                    result.float().sum().item()  # the script reads every element
                with torch._C.DisableTorchFunction():
                    session.run_deferred()
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"[:200]
    found = inspection_of(session, case)
    findings = [
        (one.kind, one.severity, one.line, one.message)
        for one in found.findings
        if one.severity != "info" and (compiles or one.kind != "compile-error")
    ]
    pipe.send((len(found.kernels), findings, error))
    pipe.close()
    os._exit(0)


def inspected(case: str, text: str, source: Path, compiles: bool = False) -> tuple[int, list[Any], str]:
    """Return the number of kernels, the findings and the error of one call."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run, args=(case, text, source, compiles, theirs))
    process.start()
    theirs.close()
    result: tuple[int, list[Any], str] = (0, [], f"more than {SECONDS} s of CPU time")
    with contextlib.suppress(EOFError):
        result = ours.recv()
    process.join()
    return result


def verdict(planted: Planted, clean: list[Any], found: list[Any], lines: list[int]) -> tuple[str, str]:
    """Return "found", "no effect" or "missed", and the finding or the reason. `lines` are those of the fault.

    "found" is a finding of an expected kind, at a line where the clean kernel has none of that kind; the nearest one to
    the fault is given. Whether it names the fault is for a reader to see.
    """
    before = {(kind, line) for kind, _, line, _ in clean}
    new = [one for one in found if one[0] in planted.expected and (one[0], one[2]) not in before]
    if new:
        kind, severity, line, message = min(new, key=lambda one: min(abs((one[2] or 0) - line) for line in lines))
        return "found", f"{severity}, {kind} at line {line}: {message}"[:300]
    return ("no effect", planted.harmless) if planted.harmless else ("missed", "")


def stored(rows: list[dict[str, Any]], table: Path) -> None:
    """Write rows into a table, in place of earlier rows of the same cases."""
    earlier = json.loads(table.read_text())["rows"] if table.is_file() else []
    cases = {row["case"] for row in rows}
    kept = [row for row in earlier if row["case"] not in cases]
    table.write_text(json.dumps({"rows": [*kept, *rows]}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", action="append", default=[], metavar="LIBRARY=FOLDER[@VERSION]")
    parser.add_argument("--case", action="append", default=[], help="only cases whose names start so")
    parser.add_argument("--commit", default=commit_of(Path(__file__).parent), help="of Tilesmith")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch
    import triton

    import tilesmith.lab.inspect.session  # noqa: F401  # imported before the forks

    roots = roots_of(options.root)
    versions = versions_of(options.root)
    rows: list[dict[str, Any]] = []
    for name, case in CASES.items():
        if case.library not in roots or not (not options.case or any(name.startswith(one) for one in options.case)):
            continue
        source = roots[case.library] / case.file
        text = source.read_text()
        origin = {"version": versions.get(case.library, ""), "torch": torch.__version__, "triton": triton.__version__}
        origin |= {"commit": options.commit, "date": str(datetime.date.today())}
        kernels, clean, error = inspected(name, text, source)
        errors = [one for one in clean if one[1] == "error"]
        word = "not run" if error or not kernels else "false error" if errors else "clean"
        rows.append(
            {"case": name, "fault": "none", "verdict": word, "finding": error or str(errors[:1] or "")} | origin
        )
        print(f"{word:10} {name} {error}", flush=True)
        for planted in (one for one in FAULTS if one.case == name):
            faulty, lines = changed(text, planted.edits)
            word, finding = verdict(planted, clean, inspected(name, faulty, source, planted.compiles)[1], lines)
            found = {"case": name, "fault": planted.kind, "lines": lines, "verdict": word, "finding": finding}
            rows.append(found | origin)
            print(f"{word:10} {name} {planted.kind} {lines} {finding[:110]}", flush=True)
        if options.json:
            stored(rows, options.json)
    print(Counter(row["verdict"] for row in rows))


if __name__ == "__main__":
    main()
