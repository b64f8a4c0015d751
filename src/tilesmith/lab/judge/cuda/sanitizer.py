"""compute-sanitizer over the launches of trials: accesses out of bounds, races in shared memory, unwritten memory.

Tools without a report prove nothing about races between blocks in global memory: those are judged by outputs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from tilesmith.lab.judge.cuda.toolkit import Toolkit
from tilesmith.lab.judge.recorded import Recorded
from tilesmith.lab.judge.verdict import Reason

SECONDS = 120.0
FOUND = 86  # the exit status for a report
_TOOLS = {
    "memcheck": ("out-of-bounds", "Keep every thread inside of the tensors, and accesses aligned."),
    "racecheck": ("race", "Put a __syncthreads() between a write to shared memory and another thread's access."),
    "initcheck": ("uninitialised", "Write memory before a kernel reads it."),
}
_OPTIONS = {"memcheck": ("--padding", "8192")}  # bytes after each allocation, so that no access reaches the next one
Trials = Sequence[tuple[Recorded, Mapping[str, Tensor]]]  # with the bytes of each input


def sanitizer(toolkit: Toolkit) -> str | None:
    """Return the path of compute-sanitizer; None where the toolkit has none."""
    beside = f"{toolkit.home}/bin/compute-sanitizer"
    return beside if os.access(beside, os.X_OK) else shutil.which("compute-sanitizer")


def sanitized(program: str, trials: Trials, built: Path, folder: Path) -> tuple[list[Reason], list[str]]:
    """Run the launches of trials under each tool. Return the reasons against the kernels, and notes."""
    folder.mkdir()
    for number, (recorded, inputs) in enumerate(trials):
        _write(folder / str(number), recorded, inputs)
    with ThreadPoolExecutor(len(_TOOLS)) as pool:
        told = list(pool.map(lambda tool: _run(program, tool, built, folder), _TOOLS))
    reasons, notes = [], []
    for (tool, (kind, advice)), (status, said) in zip(_TOOLS.items(), told, strict=True):
        report = first_report(said)
        if status == FOUND and report is not None:
            reasons.append(Reason(kind, "safe", f"compute-sanitizer {tool}: {report}", advice, kernel=kernel_in(said)))
        elif status != 0:
            notes.append(f"compute-sanitizer {tool} did not run ({' '.join(said.split())[-160:]})")
        else:
            notes.append(f"compute-sanitizer {tool}: no report")
    return reasons, notes


def first_report(said: str) -> str | None:
    """Return the first report of a tool in one sentence; None without one."""
    lines = [one.removeprefix("=========").strip() for one in said.splitlines() if one.startswith("=========")]
    for number, line in enumerate(lines):
        if re.match(r"(Invalid|Error: |Warning: |Race|Uninitialized|Misaligned|Program hit)", line):
            return " ".join([line, *(one for one in lines[number + 1 : number + 2] if one.startswith("at "))])[:300]
    return None


def kernel_in(said: str) -> str | None:
    """Return the kernel that the first report names."""
    found = re.search(r"^=========\s+(?:at|.*access by.* at) (?:void )?([A-Za-z_]\w*)", said, re.MULTILINE)
    return found.group(1) if found else None


def _write(folder: Path, recorded: Recorded, inputs: Mapping[str, Tensor]) -> None:
    folder.mkdir()
    (folder / "tape.json").write_text(json.dumps(recorded.tape))
    for kind, contents in (("inputs", inputs), ("constants", recorded.constants)):
        (folder / kind).mkdir()
        for name, content in contents.items():
            (folder / kind / name).write_bytes(content.cpu().numpy().tobytes())


def _run(program: str, tool: str, built: Path, folder: Path) -> tuple[int, str]:
    command: list[Any] = [
        program, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "3",
        "--report-api-errors", "no", *_OPTIONS.get(tool, ()), sys.executable, "-m",
        "tilesmith.lab.judge.cuda.sanitized_run", str(built), str(folder),
    ]  # fmt: skip
    # Every tensor is an allocation of its own, so that the tool knows where it ends.
    environment = {
        **os.environ,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"it was still running after {SECONDS:g} s"
    return done.returncode, done.stdout + done.stderr
