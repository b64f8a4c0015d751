"""Run the GPU tests and keep a receipt of the run; say which kernels changed since.

CI has no GPU. `make test-gpu` runs the tests marked `gpu` and writes `gpu-receipt.json`: commit, device, versions,
counts, duration, and a digest of every source file that the run used. `make test` prints the files that changed since.

    python tests/gpu_receipt.py run [--workers N]
    python tests/gpu_receipt.py finish             # what an interrupted run left
    python tests/gpu_receipt.py rerun              # the tests that failed, after a change; the receipt says so
    python tests/gpu_receipt.py changed
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
RECEIPT = ROOT / "tests" / "gpu-receipt.json"
# Rooms whose code runs on the GPU, and the tests that see it run.
SOURCES = tuple(f"src/tilesmith/{room}" for room in ("ops", "optim", "nn", "patch", "toolchain", "models"))
TESTS = ("tests/ops", "tests/optim", "tests/patch", "tests/models", "tests/toolchain")


def digests(root: Path = ROOT) -> dict[str, str]:
    """Return the digest of every source file and test that a GPU run depends on, by path."""
    files = (path for folder in (*SOURCES, *TESTS) for path in (root / folder).rglob("*.py"))
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in sorted(files)
        if not has_cpu_tests_alone(path)
    }


GPU_WORDS = r"\b(gpu|on_gpu|on_hopper)\b"


CROWD, ALONE = "gpu and not alone", "gpu and alone"


def files_with_gpu_tests(root: Path = ROOT, words: str = GPU_WORDS) -> list[str]:
    """Return the test files that name the mark, or a fixture that gives it. Collecting only these takes a third."""
    files = (root / "tests").rglob("test_*.py")
    named = (path for path in files if re.search(words, path.read_text()))
    return sorted(path.relative_to(root).as_posix() for path in named)


def has_cpu_tests_alone(path: Path) -> bool:
    return path.name.startswith("test_") and path.is_file() and not re.search(GPU_WORDS, path.read_text())


def changed_files(receipt: dict[str, Any], root: Path = ROOT) -> list[str]:
    """Return the files that were added, changed or removed since the receipt; a receipt may name CPU tests too."""
    then, now = receipt["files"], digests(root)
    return sorted(
        path
        for path in then.keys() | now.keys()
        if then.get(path) != now.get(path) and not has_cpu_tests_alone(root / path)
    )


def has_kernel(path: Path) -> bool:
    """Return whether a file has device code."""
    return path.is_file() and re.search(r"^@(triton|gluon)\.jit", path.read_text(), re.MULTILINE) is not None


def note(receipt: dict[str, Any], changed: list[str], root: Path = ROOT) -> str:
    """Return what `make test` prints: the kernel files that changed by name, the others by number."""
    ran = f"GPU suite: {receipt['passed']} passed, {receipt['failed']} failed on {receipt['device']}"
    ran += "".join(f", '{marks}' not run" for marks in receipt.get("left", ()))
    at = f"at commit {(receipt['commit'] or 'unknown')[:10]} on {receipt['date'][:10]}"
    sources = [path for path in changed if path.startswith("src/")]
    kernels = [path for path in sources if has_kernel(root / path)]
    numbers = f"{len(kernels)} kernel files, {len(sources) - len(kernels)} other sources and"
    if not changed:
        return f"{ran} {at}; nothing that it tests has changed since."
    listed = "".join(f"\n  {path}" for path in kernels)
    return f"{ran} {at}; since then {numbers} {len(changed) - len(sources)} tests changed.{listed}"


def run(workers: int) -> int:
    """Run the GPU tests, those that need the GPU alone last; write the receipt; return pytest's worse exit status."""
    import torch
    import triton

    files = digests()
    receipt = {
        "commit": _commit(),
        "date": _now(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "passed": 0,
        "failed": 0,
        "skipped": 0,
        "seconds": 0.0,
        "failures": [],
        "left": [CROWD, ALONE],
        "digest": hashlib.sha256(json.dumps(files).encode()).hexdigest(),
        "files": files,
    }
    return _run_what_is_left(receipt, workers)


def finish(workers: int) -> int:
    """Run what an interrupted run left."""
    receipt = json.loads(RECEIPT.read_text())
    if changed_files(receipt):
        print("test-gpu: files changed since the interrupted run; run all tests again")
        return 2
    return _run_what_is_left(receipt, workers)


def _run_what_is_left(receipt: dict[str, Any], workers: int) -> int:
    worst = 0
    for marks in receipt["left"]:
        counts: Counter[str] = Counter()
        failures: list[str] = []
        began = time.monotonic()
        if marks == ALONE:
            options = files_with_gpu_tests(words=r"mark\.alone\b")
        else:
            options = ["-n", str(workers), "--dist", "worksteal", "--durations=40", *files_with_gpu_tests()]
        worst = max(worst, _pytest(["-m", marks, *options], counts, failures))
        receipt = with_part(receipt, marks, counts, failures, time.monotonic() - began)
        RECEIPT.write_text(json.dumps(receipt, indent=1) + "\n")
    print(f"receipt written to {RECEIPT.relative_to(ROOT)}: {receipt['passed']} passed, {receipt['failed']} failed")
    return worst


def with_part(
    receipt: dict[str, Any], marks: str, counts: Counter[str], failures: list[str], seconds: float
) -> dict[str, Any]:
    """Return the receipt after the tests with these marks."""
    return {
        **receipt,
        **{name: receipt[name] + counts[name] for name in ("passed", "failed", "skipped")},
        "seconds": round(receipt["seconds"] + seconds, 1),
        "failures": sorted([*receipt["failures"], *failures]),
        "left": [one for one in receipt["left"] if one != marks],
    }


def rerun() -> int:
    """Run the failed tests of the stored receipt again, and note in it which passed at which commit."""
    receipt = json.loads(RECEIPT.read_text())
    counts: Counter[str] = Counter()
    failures: list[str] = []
    status = _pytest(receipt["failures"], counts, failures)
    RECEIPT.write_text(json.dumps(with_rerun(receipt, counts, failures, _commit()), indent=1) + "\n")
    print(f"{counts['passed']} of {len(receipt['failures'])} tests that failed pass now")
    return status


def with_rerun(
    receipt: dict[str, Any], counts: Counter[str], failures: list[str], commit: str | None
) -> dict[str, Any]:
    """Return the receipt after a run of its failed tests. The digests stay those of the whole run."""
    again = {"commit": commit, "date": _now(), "tests": receipt["failures"], "passed": counts["passed"]}
    return {
        **receipt,
        "passed": receipt["passed"] + counts["passed"],
        "failed": receipt["failed"] - counts["passed"],
        "failures": sorted(failures),
        "reruns": [*receipt.get("reruns", []), again],
    }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _commit() -> str | None:
    import tilesmith
    from tilesmith.lab.bench.result import commit

    return os.environ.get("TILESMITH_COMMIT") or commit(Path(tilesmith.__file__).parent)


def _pytest(options: list[str], counts: Counter[str], failures: list[str]) -> int:
    """Run pytest with these options and add its results to the counts. A run that ends without a report has failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
        command += ["-o", "junit_family=xunit1"]  # with the file of each test
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if not report.exists():
            counts["failed"] += 1
            failures.append(f"pytest {' '.join(options)} ended with status {status} and no report")
            return status or 1
        for case in ElementTree.parse(report).iter("testcase"):
            outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
            counts["failed" if outcome in ("failure", "error") else outcome] += 1
            if outcome in ("failure", "error"):
                failures.append(_node(case))
    return status


def _node(case: ElementTree.Element) -> str:
    """Return a test as pytest takes it: file, class if any, name."""
    file, place = case.get("file") or "", case.get("classname") or ""
    inside = place.removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join(part for part in (file, inside, case.get("name")) if part)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "finish"):
        commands.add_parser(name).add_argument("--workers", type=int, default=15)
    commands.add_parser("rerun")
    commands.add_parser("changed")
    arguments = parser.parse_args()
    if arguments.command in ("run", "finish"):
        import torch

        if not torch.cuda.is_available():
            print("test-gpu: PyTorch sees no GPU here, so there is nothing to run")
            return 2
        return run(arguments.workers) if arguments.command == "run" else finish(arguments.workers)
    if arguments.command == "rerun":
        return rerun()
    if not RECEIPT.exists():
        print("GPU suite: no receipt; run `make test-gpu` on a machine with a GPU")
        return 0
    receipt = json.loads(RECEIPT.read_text())
    print(note(receipt, changed_files(receipt)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
