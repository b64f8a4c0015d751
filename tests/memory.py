"""Measure memory over calls whose shapes change: `python tests/memory.py --route torch --json memory.json`.

Each call draws an operator's arguments anew and computes gradients where there are any. On a GPU a fixed list of
operators runs with another number of rows in each call, because most drawn calls would compile a kernel of their own:
`--route kernels` by our kernels alone, `--route auto` by whom `auto` chooses. `--route sdpa` calls PyTorch's own
attention alone, another length in each call, and `--no-cudnn` keeps PyTorch from cuDNN. After every fiftieth part of
the calls the script notes the process's memory, Python's objects, Triton's compiled kernels and the bytes of text and
binaries that they hold, and the GPU's allocated bytes. `--plans` bounds each operator's plans, so that a short run
fills them.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# PyTorch keeps oneDNN's code for 1,024 shapes of convolutions. A short run fills 32.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")

import torch
from torch import Tensor
from triton.compiler import CompiledKernel

import tilesmith as ts

SAMPLES = 50
# Modules that hold their own copy of the bound.
WITH_PLANS = ("ops.runtime.kernels", "ops.runtime.composing.in_place", "ops.runtime.operator",
              "ops.matmul.internal.suitability", "models.llama.fused_layer")  # fmt: skip


def calls_of_rows(number: int, device: str) -> dict[str, Callable[[], Tensor]]:
    """Return one call of each operator, with a number of rows that follows from `number`."""
    rows = 1 + number * 7919 % 6007
    length = 1 + number * 211 % 509

    def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)

    def targets(count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.long, device=device)

    ops = ts.ops
    return {
        "silu": lambda: ops.silu(drawn(rows * 3)),
        "softmax": lambda: ops.softmax(drawn(rows, 200)),
        "rms_norm": lambda: ops.rms_norm(drawn(rows, 320), drawn(320)),
        "layer_norm": lambda: ops.layer_norm(drawn(rows, 256), drawn(256), drawn(256)),
        "swiglu": lambda: ops.swiglu(drawn(rows, 96), drawn(rows, 96)),
        "cross_entropy": lambda: ops.cross_entropy(drawn(rows, 300), targets(rows)),
        "linear_cross_entropy": lambda: ops.linear_cross_entropy(drawn(rows, 64), drawn(512, 64), targets(rows)),
        "matmul": lambda: ops.matmul(drawn(rows, 128), drawn(128, 192)),
        "attention": lambda: ops.attention(*(drawn(1, 4, length, 64) for _ in range(3)), causal=True),
        "sum": lambda: ops.sum(drawn(rows, 48), -1),
    }


def called_with_rows(number: int, device: str = "cuda") -> None:
    """Run one operator with its gradients, with other rows than in every call near this one."""
    calls = calls_of_rows(number, device)
    made = calls[list(calls)[number % len(calls)]]()
    made.float().sum().backward()  # type: ignore[no-untyped-call]  # PyTorch ships it untyped


def called_by_sdpa(number: int) -> None:
    """Run PyTorch's attention with its gradients, with another length than in the 4,000 calls before."""
    length = 1 + number * 211 % 4093
    q, k, v = (torch.randn(1, 4, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    made.float().sum().backward()  # type: ignore[no-untyped-call]  # PyTorch ships it untyped


def called_as_drawn(route: str) -> Callable[[int], None]:
    """Return a function that draws one call of one operator and runs it with its gradients."""
    from drawn.values import Draw
    from drawn.verdict import CALLS, _computed, _is_floating, is_clear, operator_named

    names = list(CALLS)

    def called(number: int) -> None:
        name = names[number % len(names)]
        draw = Draw(random.Random(f"{name} {number}").choice, route)
        inputs = CALLS[name](draw)
        wanted = [key for key, value in inputs.items() if _is_floating(value)]
        try:
            with ts.use(route):  # type: ignore[arg-type]  # an option of the command
                _computed(operator_named(name), inputs, wanted, [], draw)
        except (TypeError, ValueError, RuntimeError) as error:  # a refused call must hold nothing either
            if not is_clear(name, str(error), inputs):
                print(f"{name} {number}: {type(error).__name__}: {error}", flush=True)

    return called


def bounded_plans(most: int) -> None:
    """Let each operator keep this many plans."""
    for name in WITH_PLANS:
        module = importlib.import_module(f"tilesmith.{name}")
        assert hasattr(module, "MOST_PLANS"), name
        module.MOST_PLANS = most  # type: ignore[attr-defined]  # asserted above


def sampled(call: Callable[[int], None], calls: int, until: float) -> Iterator[dict[str, int]]:
    """Run the calls. Yield what the process holds after every fiftieth of them."""
    for number in range(calls):
        call(number)
        over = time.monotonic() > until
        if (number + 1) % max(calls // SAMPLES, 1) == 0 or over:
            gc.collect()
            _given_back()
            objects = gc.get_objects()
            kernels = [one for one in objects if type(one) is CompiledKernel]
            held = {
                "calls": number + 1, **_resident(), "objects": len(objects), "kernels": len(kernels),
                "bytes_in_kernels": sum(len(part) for one in kernels for part in one.asm.values()),
            }  # fmt: skip
            del objects, kernels
            if torch.cuda.is_available():
                torch.cuda.synchronize()
                held["gpu_bytes"] = torch.cuda.memory_allocated()
            yield held
        if over:
            break


def _resident() -> dict[str, int]:
    """Return the process's resident bytes, and how many of them are of no file, such as what malloc returns."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kilobytes = {name: int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon")}
    return {"resident_bytes": 1024 * kilobytes["VmRSS"], "anonymous_bytes": 1024 * kilobytes["RssAnon"]}


def _given_back() -> None:
    """Ask the C library to return freed memory, so that what is resident is in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def growth(samples: list[dict[str, int]]) -> dict[str, float]:
    """Return, for each figure, by how much its median grows from the third quarter of the run to the last."""
    quarter = max(len(samples) // 4, 1)
    last, before = samples[-quarter:], samples[-2 * quarter : -quarter] or samples[:1]
    return {
        key: statistics.median(one[key] for one in last) - statistics.median(one[key] for one in before)
        for key in samples[-1]
        if key != "calls"
    }


def growth_after_start(samples: list[dict[str, int]]) -> dict[str, int]:
    """Return, for each figure, by how much it grows after the first tenth of the run."""
    first = samples[len(samples) // 10]
    return {key: samples[-1][key] - first[key] for key in first}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--route", choices=["interpret", "torch", *ON_GPU], default="torch")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--no-cudnn", action="store_true", help="keep PyTorch's attention from cuDNN")
    parser.add_argument("--plans", type=int, default=32, help="the most plans of one operator; 0: as shipped")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--json", type=Path, help="store the samples in this file, as they come")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.route in ON_GPU and not torch.cuda.is_available():
        sys.exit(f"memory: --route {options.route} needs a GPU")
    if options.plans:
        bounded_plans(options.plans)
    torch.backends.cuda.enable_cudnn_sdp(not options.no_cudnn)
    ts.use("triton" if options.route == "kernels" else "auto")
    call = ON_GPU.get(options.route) or called_as_drawn(options.route)
    about: dict[str, Any] = {
        "route": options.route, "cudnn": not options.no_cudnn, "plans": options.plans or "as shipped",
        "machine": _machine(), "torch": torch.__version__, "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }  # fmt: skip
    samples: list[dict[str, int]] = []
    for one in sampled(call, options.calls, time.monotonic() + options.seconds):
        samples.append(one)
        found = {**about, "calls": one["calls"], "growth_over_last_quarter": growth(samples)}
        found |= {"growth_after_first_tenth": growth_after_start(samples), "samples": samples}
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
        if len(samples) % 10 == 1:
            print(one, flush=True)
    print(f"{samples[-1]['calls']} calls; growth over the last quarter: {growth(samples)}")
    return 0


ON_GPU: dict[str, Callable[[int], None]] = {
    "kernels": called_with_rows, "auto": called_with_rows, "sdpa": called_by_sdpa,
}  # fmt: skip


def _machine() -> str:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{platform.system()} {platform.machine()}, {name}"


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return (
            os.environ.get("TILESMITH_COMMIT") or subprocess.run(command, capture_output=True, text=True).stdout.strip()
        )
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
