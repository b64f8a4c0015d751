"""An Evoformer block forward and backward: plain PyTorch, torch.compile of that, and Tilesmith's.

    python benchmarks/evoformer_block.py --json benchmarks/results/models/evoformer_block-h200.json

All have the same parameters and inputs, in bf16, and nothing is dropped. A step is timed as a user's loop runs it, with
the host's time in it, and once more as a CUDA graph, which is the device's time alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tilesmith.nn.evoformer import EvoformerBlock
from tilesmith.nn.evoformer_reference import PlainEvoformerBlock
from tilesmith.training.results.provenance import stamped

SEQUENCES, RESIDUES, MSA, PAIR = 128, 256, 256, 128
STEPS, WARM_UP = 25, 5

Step = Callable[[], list[Tensor]]


def made(kind: type[EvoformerBlock]) -> EvoformerBlock:
    torch.manual_seed(0)
    return kind(MSA, PAIR, msa_dropout=0.0, pair_dropout=0.0).to("cuda", torch.bfloat16)


VERSIONS: dict[str, Callable[[], nn.Module]] = {
    "torch": lambda: made(PlainEvoformerBlock),
    "compile": lambda: torch.compile(made(PlainEvoformerBlock)),  # type: ignore[return-value]  # a module again
    "tilesmith": lambda: made(EvoformerBlock),
}


def step_of(block: nn.Module) -> Step:
    """Forward and backward; returns the outputs and the gradients of the inputs."""
    torch.manual_seed(1)
    shapes = (1, SEQUENCES, RESIDUES, MSA), (1, RESIDUES, RESIDUES, PAIR)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for shape in shapes]
    cotangents = [torch.randn_like(one) for one in inputs]
    wanted = [*inputs, *block.parameters()]

    def step() -> list[Tensor]:
        outputs = block(*inputs)
        return [*outputs, *torch.autograd.grad(outputs, wanted, cotangents)[:2]]

    return step


def milliseconds(action: Callable[[], Any]) -> list[float]:
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times[WARM_UP:])


def captured(step: Step) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    return graph.replay


def measured(version: str, right: list[Tensor] | None) -> tuple[dict[str, Any], list[Tensor]]:
    """One version's row, and what it computes. `right` is what the first one did."""
    step = step_of(VERSIONS[version]())
    found = [one.detach().float() for one in step()]
    differences = [float((one - other).norm() / other.norm()) for one, other in zip(found, right or found, strict=True)]
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    times = milliseconds(step)
    peak = torch.cuda.max_memory_allocated() - held
    on_device = milliseconds(captured(step))
    quarter = len(times) // 4
    row = {
        "version": version,
        "milliseconds": statistics.median(times),
        "spread": times[-1 - quarter] - times[quarter],
        "samples": len(times),
        "graph_milliseconds": statistics.median(on_device),
        "peak_bytes": peak,
        "largest_difference": max(differences),
    }
    return row, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    right: list[Tensor] | None = None
    for version in VERSIONS:
        row, found = measured(version, right)
        right = found if right is None else right
        rows.append(row)
        torch.cuda.empty_cache()
        print(json.dumps(row))
    sizes = {"sequences": SEQUENCES, "residues": RESIDUES, "msa": MSA, "pair": PAIR}
    content = {"model": "evoformer-block", **sizes, "dtype": "bfloat16", "rows": rows}
    options.json.write_text(json.dumps(stamped(content), indent=1) + "\n")


if __name__ == "__main__":
    main()
