"""Train steps of a Hugging Face Llama of 1.2 billion parameters, as it is, patched by Tilesmith, and by Liger.

    python benchmarks/hugging_face.py --json benchmarks/results/models/hugging_face-h200.json

Every version starts from the same weights and sees the same tokens. A step is forward, loss, backward and AdamW in
bf16, timed as a user's loop runs it, eager and with the host's time in it. AdamW is PyTorch's fused one, but in one of
the versions ours. The first losses show whether all compute the same.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tilesmith.optim import AdamW
from tilesmith.patch import patch
from tilesmith.training.results.provenance import stamped

BATCH, LENGTH, VOCABULARY = 4, 2048, 128256
STEPS, WARM_UP = 20, 6


def as_it_is(model: nn.Module) -> None:
    pass


def by_liger(model: nn.Module) -> None:
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    # What they call the model is a model that already exists, which is patched in place.
    apply_liger_kernel_to_llama(
        rope=True, swiglu=True, rms_norm=True, fused_linear_cross_entropy=True, cross_entropy=False, model=model
    )


VERSIONS: dict[str, tuple[Callable[[Any], Any], type[torch.optim.AdamW]]] = {
    "transformers": (as_it_is, torch.optim.AdamW),
    "tilesmith": (patch, torch.optim.AdamW),
    "tilesmith-with-its-adamw": (patch, AdamW),
    "liger": (by_liger, torch.optim.AdamW),
}


def made() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=VOCABULARY,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(torch.bfloat16).train()


def measured(version: str) -> dict[str, Any]:
    model = made()
    changed, adamw = VERSIONS[version]
    changed(model)
    optimiser = adamw(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(
        0, VOCABULARY, (BATCH, LENGTH), device="cuda", generator=torch.Generator("cuda").manual_seed(1)
    )
    torch.cuda.reset_peak_memory_stats()
    losses, seconds = [], []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        losses.append(float(loss.detach()))
    timed = sorted(1000 * one for one in seconds[WARM_UP:])
    quarter = len(timed) // 4
    return {
        "version": version,
        "milliseconds": statistics.median(timed),
        "spread": timed[-1 - quarter] - timed[quarter],
        "samples": len(timed),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "losses": losses[:10],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--versions", default=",".join(VERSIONS), help="with commas")
    options = parser.parse_args()
    rows = []
    for version in options.versions.split(","):
        rows.append(measured(version))
        gc.collect()  # a model is full of cycles, and what is left of it must not count as the next one's
        torch.cuda.empty_cache()
        print("{version}: {milliseconds:.1f} ms a step, {peak_bytes} bytes at most, losses {losses}".format(**rows[-1]))
    content = {"model": "llama-1b", "batch": BATCH, "length": LENGTH, "dtype": "bfloat16", "rows": rows}
    options.json.write_text(json.dumps(stamped(content), indent=1) + "\n")


if __name__ == "__main__":
    main()
