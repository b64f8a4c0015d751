"""Plant faults in installed or checked-out kernel libraries, and count those that `inspect` finds.

    python benchmarks/inspect/planted.py --root liger=~/Liger-Kernel/src --json benchmarks/inspect/planted.json

Each script under `scripts/` first runs on the unchanged library. Then `mutations.py` edits one statement at a time in a
copy. A fault is found if a finding of an expected kind, which the clean run does not have, is at the edited statement;
`elsewhere` if it is at another line. A fault has no effect if the script prints the same as before and no access was
out of bounds. Nothing of a library is stored here.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import multiprocessing
import os
import random
import resource
import runpy
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mutations import Fault, Seen, faults_of, faults_of_host

HERE = Path(__file__).parent
PACKAGES = {
    "liger": "liger_kernel", "fla": "fla", "attorch": "attorch", "gems": "flag_gems", "mamba": "mamba_ssm",
    "flash": "flash_attn", "bnb": "bitsandbytes", "xformers": "xformers", "lightllm": "lightllm", "torchao": "torchao",
    "vllm": "vllm", "sglang": "sglang", "unsloth": "unsloth", "sage": "sageattention", "cce": "cut_cross_entropy",
    "megablocks": "megablocks", "colossal": "colossalai", "ring": "ring_flash_attn", "protenix": "protenix",
    "openfold": "openfold3", "aiter": "aiter", "lmdeploy": "lmdeploy",
    "adasplash": "adasplash", "deepspeed": "deepspeed", "rwkv": "rwkvfla", "conch": "conch", "trifast": "trifast",
    "mlstm": "mlstm_kernels", "scan": "accelerated_scan",
    "nsa": "native_sparse_attention_pytorch", "lightning": "lightning_attn",
    "softmaxn": "flash_attention_softmax_n", "sinkhorn": "flash_sinkhorn", "rotarytorch": "rotary_embedding_torch",
    "flashinfer": "flashinfer",
}  # fmt: skip
FOLDERS = ("deepseek", "applied", "tutorials")  # of scripts, no packages: only --root names them
BARE = {  # scripts/_bare.py
    *("mamba", "flash", "bnb", "xformers", "lightllm", "torchao", "vllm", "sglang", "unsloth", "sage", "megablocks"),
    *("colossal", "ring", "protenix", "openfold", "aiter", "lmdeploy", "deepspeed", "nsa"),
    *("rotarytorch", "flashinfer"),
}
MODULES = {"liger_kernel": "liger_kernel.transformers.functional", "fla": "fla.ops.gla"}  # import what scripts use
SECONDS = 120  # of CPU time, for one script


def run(script: Path, roots: list[str], compiles: bool, pipe: Any) -> None:
    """Inspect a script in this process, a fork; send its findings and what it printed."""
    import torch

    from tilesmith.lab.inspect import InspectError, inspection_of, watching
    from tilesmith.lab.inspect.options import InspectOptions
    from tilesmith.lab.inspect.session import Session
    from tilesmith.toolchain.compiler import Target

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))  # other work on the machine changes no verdict
    torch.set_num_threads(1)
    sys.path[:0] = [*roots, str(script.parent)]
    printed, error = io.StringIO(), ""

    class Uncompiled(Session):
        """A session without the compiler, which takes most of the time: the interpreter finds these faults."""

        def _binary(self, launched: Any, target: Any) -> str:
            return "not compiled"

    session = (Session if compiles else Uncompiled)(
        InspectOptions(targets=(Target.parse("cuda:90"),), asked=True, seconds=1.0), has_gpu=False
    )
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            with watching(session):
                runpy.run_path(str(script), run_name="__main__")
                with torch._C.DisableTorchFunction():
                    session.run_deferred()
        except (Exception, SystemExit, InspectError) as caught:
            error = f"{type(caught).__name__}: {caught}".splitlines()[0]
    found = inspection_of(session, str(script))
    pipe.send(
        {
            "error": error,
            "printed": hashlib.sha256(printed.getvalue().encode()).hexdigest(),
            "kernels": [
                {
                    "name": kernel.name, "file": kernel.file, "line": kernel.line,
                    "lines": len(kernel.source.splitlines()),
                    "accesses": {one.line: {"masked_fraction": one.masked_fraction} for one in kernel.accesses},
                    "findings": [
                        (one.kind, one.severity, os.path.basename(one.file), one.line, one.message)
                        for one in kernel.findings
                        if one.severity != "info" and (compiles or one.kind != "compile-error")
                    ],
                }
                for kernel in found.kernels
            ],
        }
    )  # fmt: skip
    pipe.close()
    os._exit(0)


def inspected(script: Path, roots: list[str], compiles: bool = False) -> dict[str, Any]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run, args=(script, roots, compiles, theirs))
    process.start()
    theirs.close()
    result: dict[str, Any] = {"error": f"more than {SECONDS} s of CPU time", "printed": "", "kernels": []}
    with contextlib.suppress(EOFError):
        result = ours.recv()
    process.kill()
    process.join()
    return result


def overlay(root: Path, file: Path, text: str, into: Path) -> None:
    """Make a copy of a source tree from links, with one file of its own."""
    folder = into
    real = root
    for part in file.relative_to(root).parts[:-1]:
        folder.mkdir(exist_ok=True)
        for one in real.iterdir():
            if one.name not in (part, "__pycache__"):
                (folder / one.name).symlink_to(one)
        folder, real = folder / part, real / part
    folder.mkdir(exist_ok=True)
    for one in real.iterdir():
        if one.name not in (file.name, "__pycache__"):
            (folder / one.name).symlink_to(one)
    (folder / file.name).write_text(text)


def verdict(fault: Fault, clean: dict[str, Any], faulty: dict[str, Any]) -> tuple[str, str]:
    """Return "found", "elsewhere", "missed", "no effect" or "not run", and the finding or error."""
    before = Counter((kind, file, line) for kernel in clean["kernels"] for kind, _, file, line, _ in kernel["findings"])
    new = [
        one
        for kernel in faulty["kernels"]
        for one in kernel["findings"]
        if (one[0], one[2], one[3]) not in before and one[0] in (*fault.expected, "kernel-error", "out-of-bounds")
    ]
    here = [
        one
        for one in new
        if fault.anywhere
        or (one[2] == os.path.basename(fault.file) and fault.first_line <= (one[3] or 0) <= fault.last_line)
    ]
    if here or new:
        kind, _, file, line, message = (here or new)[0]
        return ("found" if here else "elsewhere"), f"{kind} at {file}:{line}: {message}"[:300]
    if not faulty["kernels"]:
        return "not run", faulty["error"]
    same = faulty["printed"] == clean["printed"] and faulty["error"] == clean["error"]
    return ("no effect" if same else "missed"), faulty["error"]


def planted_in(script: Path, root: Path, most: int, used: Counter[str]) -> list[dict[str, Any]]:
    """Return the verdicts of the faults planted in the kernels of one script; kinds that were used less come first."""
    clean = inspected(script, [str(root)])
    errors = [one for kernel in clean["kernels"] for one in kernel["findings"] if one[1] == "error"]
    rows = [{"script": script.stem, "fault": "none", "verdict": "clean" if not errors else "false error",
             "finding": str(errors[:1] or clean["error"])}]  # fmt: skip
    faults: list[Fault] = []
    for kernel in clean["kernels"]:
        if not Path(kernel["file"]).is_relative_to(root):
            continue
        seen = Seen(kernel["file"], kernel["line"], kernel["line"] + kernel["lines"], kernel["accesses"])
        faults += faults_of(seen)
        faults += faults_of_host(kernel["file"])
    by_kind: defaultdict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        by_kind[fault.kind].append(fault)
    chosen = random.Random(script.stem)
    kinds = sorted(by_kind, key=lambda kind: (used[kind], chosen.random()))[:most]
    used.update(kinds)
    for kind in kinds:
        fault = chosen.choice(by_kind[kind])
        with tempfile.TemporaryDirectory() as folder:
            overlay(root, Path(fault.file), fault.text, Path(folder) / "root")
            start = time.monotonic()
            faulty = inspected(script, [str(Path(folder) / "root")], "compile-error" in fault.expected)
            word, finding = verdict(fault, clean, faulty)
        place = f"{Path(fault.file).name}:{fault.first_line}"
        rows.append({"script": script.stem, "fault": kind, "place": place, "verdict": word, "finding": finding})
        print(
            f"{time.monotonic() - start:5.1f} s {word:10} {kind:32} {script.stem} {place}  {finding[:110]}", flush=True
        )
    return rows


def roots_of(given: list[str]) -> dict[str, Path]:
    """Return the folder that holds each library: from --root (LIBRARY=FOLDER@VERSION), else where it is installed."""
    named = (one.partition("@")[0].partition("=") for one in given)
    roots = {name: Path(path).expanduser().resolve() for name, _, path in named}
    for name, package in PACKAGES.items():
        spec = None if name in roots else importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            roots[name] = Path(spec.origin).parent.parent
    return roots


def import_others(package: str, root: Path) -> None:
    """Import what a library imports, but not the library: forks start faster."""
    sys.path.insert(0, str(root))
    with contextlib.suppress(Exception):
        importlib.import_module(MODULES.get(package, package))
    sys.path.remove(str(root))
    for name in [one for one in sys.modules if one.partition(".")[0] == package]:
        del sys.modules[name]


def table(rows: list[dict[str, Any]]) -> str:
    """Return how many faults of each class were found, as a table."""
    words = ("found", "elsewhere", "missed", "no effect", "not run")
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row["fault"] != "none":
            counts[row["fault"]][row["verdict"]] += 1
    lines = ["| fault | " + " | ".join(words) + " |", "|---" * (len(words) + 1) + "|"]
    for kind in sorted(counts):
        lines.append(f"| {kind} | " + " | ".join(str(counts[kind][word]) for word in words) + " |")
    total = sum(counts.values(), Counter())
    lines.append("| all | " + " | ".join(str(total[word]) for word in words) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", action="append", default=[], metavar="LIBRARY=FOLDER")
    parser.add_argument("--script", action="append", default=[], help="only scripts whose names start so")
    parser.add_argument("--most", type=int, default=6, help="faults for each script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch
    import triton

    import tilesmith
    import tilesmith.lab.inspect.session  # imported before the forks

    roots = roots_of(options.root)
    for name in ({*roots} & {*PACKAGES}) - BARE:
        import_others(PACKAGES[name], roots[name])
    rows: list[dict[str, Any]] = []
    used: Counter[str] = Counter()
    for script in sorted((HERE / "scripts").glob("*.py")):
        root = roots.get(script.stem.partition("_")[0])
        wanted = not options.script or any(script.stem.startswith(one) for one in options.script)
        if root is not None and wanted:
            rows += planted_in(script, root, options.most, used)
    print(table(rows))
    if options.json:
        versions = {"tilesmith": tilesmith.__version__, "torch": torch.__version__, "triton": triton.__version__}
        options.json.write_text(json.dumps({**versions, "rows": rows}, indent=1) + "\n")
    shutil.rmtree("__pycache__", ignore_errors=True)


if __name__ == "__main__":
    main()
