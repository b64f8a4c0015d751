"""Fine-tune a small Llama of Hugging Face on text, once as it is and once patched, and compare losses and times.

The text is bytes of the Markdown pages of this repository, or of a file: `--text book.txt`. The model starts from
random weights; `LlamaForCausalLM.from_pretrained(...)` in `made_model` continues from trained ones.

    python examples/finetune_hugging_face.py --steps 20
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tilesmith.optim import AdamW
from tilesmith.patch import patch, report

VOCABULARY = 256  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--text", type=Path, help="a file to learn; default: the Markdown pages of this repository")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    chosen = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = torch.tensor(list(read_text(chosen.text)), dtype=torch.int64)
    batches = [batch(tokens, chosen.batch, chosen.length, seed).to(device) for seed in range(chosen.steps)]
    print(f"{len(tokens):,} bytes of text, {chosen.steps} steps on {device}")

    plain = train(made_model(chosen.hidden, chosen.layers, chosen.length).to(device), torch.optim.AdamW, batches)
    print(f"transformers: loss {plain[0][0]:.3f} → {plain[0][-1]:.3f}, {plain[1]:.1f} ms a step")

    model = made_model(chosen.hidden, chosen.layers, chosen.length).to(device)
    patch(model)
    print(report(model))
    ours = train(model, AdamW, batches)
    print(f"patched:      loss {ours[0][0]:.3f} → {ours[0][-1]:.3f}, {ours[1]:.1f} ms a step")

    difference = max(abs(one - other) for one, other in zip(plain[0], ours[0], strict=True))
    print(f"largest difference of a loss: {difference:.1e}")
    if device == "cpu":
        print("without a GPU PyTorch computes both; the times say nothing about kernels")


def read_text(path: Path | None) -> bytes:
    if path is not None:
        return path.read_bytes()
    pages = sorted(Path(__file__).parents[1].rglob("*.md"))
    return b"\n".join(page.read_bytes() for page in pages)


def made_model(hidden: int, layers: int, length: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 32, num_key_value_heads=hidden // 64 or 1, max_position_embeddings=length,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def batch(tokens: torch.Tensor, size: int, length: int, seed: int) -> torch.Tensor:
    """Return random pieces of the text. (size, length)"""
    starts = torch.randint(len(tokens) - length, (size,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([tokens[start : start + length] for start in starts])


def train(
    model: LlamaForCausalLM, optimiser: type[torch.optim.AdamW], batches: list[torch.Tensor]
) -> tuple[list[float], float]:
    """Return the loss of every step, and the median time of a step in milliseconds."""
    model.train()
    stepper = optimiser(model.parameters(), lr=1e-3)
    losses, times = [], []
    for tokens in batches:
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())  # waits for the GPU
        times.append(1000 * (time.perf_counter() - start))
    return losses, sorted(times)[len(times) // 2]


if __name__ == "__main__":
    main()
