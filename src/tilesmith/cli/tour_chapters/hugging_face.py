"""The tour's last measurement: training steps of a whole Llama of Hugging Face, as it is and patched."""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from tilesmith.cli.tour_chapters.chapter import Report, Told
from tilesmith.lab.report.content import Cell, Column, Headline, Table, Tone
from tilesmith.lab.report.number_format import duration, memory

SIZES = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
"""The sizes of Llama 3.2 1B; the weights are random numbers."""
TOKENS = (1, 2048)
LEAST_FREE = 24 << 30  # bytes: weights, gradients and two moments take 10 GB, transformers' logits several more
WARM_UP, STEPS = 4, 10


def can_be_timed() -> bool:
    """Return whether transformers is installed and the GPU has memory for the model."""
    return importlib.util.find_spec("transformers") is not None and torch.cuda.mem_get_info()[0] >= LEAST_FREE


def llama_beside_transformers(report: Report, device: str = "cuda") -> Told:
    """Return the measured time of a training step: transformers' own model beside the patched one."""
    results = {name: _timed(name, report, device) for name in ("transformers", "tilesmith")}
    plain, ours = (one["step_ms"] for one in results.values())
    billions = next(iter(results.values()))["parameters"] / 1e9
    table = Table(
        f"A training step of a Llama of Hugging Face on this machine: {billions:.1f} billion parameters, "
        f"random weights, {TOKENS[0]} × {TOKENS[1]:,} tokens, bf16",
        [Column("version"), Column("step", "number"), Column("peak memory", "number"), Column("loss", "number")],
        [
            [Cell(name), Cell(duration(one["step_ms"])), Cell(memory(one["peak_bytes"])), Cell(f"{one['loss']:.3f}")]
            for name, one in results.items()
        ],
        origin="measured",
    )
    tone: Tone = "good" if ours < plain else "bad"
    label = f"training step of a Llama of {billions:.1f} billion parameters, PyTorch → Tilesmith"
    headline = Headline(f"{duration(plain)} → {duration(ours)}", label, tone, "measured")
    return Told((table,), {"steps": list(results.values())}, (headline,))


def _timed(version: str, report: Report, device: str) -> dict[str, Any]:
    from tilesmith.patch import patch

    transformers: Any = importlib.import_module("transformers")
    report(f"timing a Llama of Hugging Face: {version}")
    torch.manual_seed(0)
    with torch.device(device):
        config = transformers.LlamaConfig(**SIZES, use_cache=False)
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
        tokens = torch.randint(SIZES["vocab_size"], TOKENS)
    if version == "tilesmith":
        patch(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    times, loss = [], torch.zeros(())
    for _ in range(WARM_UP + STEPS):
        wait()
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        wait()
        times.append(1000 * (time.perf_counter() - start))
        if device == "cuda" and len(times) == WARM_UP:
            torch.cuda.reset_peak_memory_stats()
    result = {
        "variant": version,
        "parameters": sum(one.numel() for one in model.parameters()),
        "step_ms": median(times[WARM_UP:]),
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
        "loss": float(loss.detach()),
    }
    del model, optimiser, loss
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return result
