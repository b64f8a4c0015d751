"""Measure the CPU time that `tilesmith inspect` takes, and store it.

    python benchmarks/inspect/cost.py --json benchmarks/inspect/cost.json

The command runs as a user's would; its CPU time includes all its processes, imports and compilations. Other work on the
machine changes it little.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

COPY = """
import torch, triton, triton.language as tl

@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)

x = torch.randn(12, device="cuda")
y = torch.empty_like(x)
copy[(1,)](x, y, 12, BLOCK=16)
assert torch.equal(x, y)
"""
NORM = """
import torch, triton, triton.language as tl

@triton.jit
def forward(x_ptr, weight_ptr, y_ptr, scale_ptr, n, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0)
    scale = 1 / tl.sqrt(tl.sum(x * x, 0) / n + 1e-6)
    tl.store(scale_ptr + row, scale)
    weight = tl.load(weight_ptr + columns, mask=columns < n, other=0.0)
    tl.store(y_ptr + row * n + columns, x * scale * weight, mask=columns < n)

@triton.jit
def backward(x_ptr, weight_ptr, dy_ptr, scale_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0)
    dy = tl.load(dy_ptr + row * n + columns, mask=columns < n, other=0.0)
    dy *= tl.load(weight_ptr + columns, mask=columns < n, other=0.0)
    scale = tl.load(scale_ptr + row)
    mean = tl.sum(x * scale * dy, 0) / n
    tl.store(dx_ptr + row * n + columns, (dy - x * scale * mean) * scale, mask=columns < n)

rows, n = 262_144, 96
x, dy = torch.randn(rows, n, device="cuda"), torch.randn(rows, n, device="cuda")
weight, scale = torch.randn(n, device="cuda"), torch.empty(rows, device="cuda")
y, dx = torch.empty_like(x), torch.empty_like(x)
forward[(rows,)](x, weight, y, scale, n, BLOCK=128)
backward[(rows,)](x, weight, dy, scale, dx, n, BLOCK=128)
x.requires_grad_()
expected = torch.nn.functional.rms_norm(x, (n,), weight, 1e-6)
torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4)
torch.testing.assert_close(dx, torch.autograd.grad(expected, x, dy)[0], atol=1e-3, rtol=1e-3)
"""
SCRIPTS = {"a copy of 12 elements": COPY, "forward and backward, 262,144 programs each, results read": NORM}


def measured(text: str) -> dict[str, float]:
    """Return the CPU and the elapsed seconds of `tilesmith inspect` on a script."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(text)
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [sys.executable, "-m", "tilesmith", "inspect", "--timeout", "900", str(script)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_seconds": round(used, 1), "seconds": round(time.monotonic() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    results = {
        "torch": version("torch"),
        "triton": version("triton"),
        "cores": os.cpu_count(),
        "scripts": {name: measured(text) for name, text in SCRIPTS.items()},
    }
    print(json.dumps(results, indent=1))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
