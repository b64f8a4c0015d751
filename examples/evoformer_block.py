"""Train one Evoformer block to recover a hidden contact map from an alignment.

Pairs of residues that touch change together in the alignment. The block reads the alignment and predicts which pairs
touch, from the pair representation alone.

    python examples/evoformer_block.py --steps 40
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from tilesmith.nn.evoformer import EvoformerBlock
from tilesmith.optim import AdamW

LETTERS = 4


class ContactModel(nn.Module):
    """Embeds an alignment, runs one block, and reads contacts from the pairs."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, channels)
        self.position = nn.Embedding(64, channels)
        self.block = EvoformerBlock(msa_channels=channels, pair_channels=channels)
        self.head = nn.Linear(channels, 1)

    def forward(self, alignment: Tensor) -> Tensor:
        batch, sequences, residues = alignment.shape
        places = self.position(torch.arange(residues, device=alignment.device))
        m = self.embed(alignment) + places  # (B, S, R, C)
        z = (places[:, None] + places[None, :]).expand(batch, -1, -1, -1).contiguous()  # (B, R, R, C)
        msa_mask = torch.ones(batch, sequences, residues, dtype=torch.bool, device=m.device)
        pair_mask = torch.ones(batch, residues, residues, dtype=torch.bool, device=m.device)
        m, z = self.block(m, z, msa_mask, pair_mask)
        logits: Tensor = self.head(z).squeeze(-1)
        return (logits + logits.mT) / 2  # (B, R, R), symmetric


def make_alignment(sequences: int, residues: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return an alignment in which the residues i and partner[i] always carry the same letter, and the contact map."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(residues, generator=generator)
    partner = torch.empty_like(order)
    partner[order[0::2]], partner[order[1::2]] = order[1::2], order[0::2]
    letters = torch.randint(LETTERS, (sequences, residues), generator=generator)
    alignment = torch.where(torch.arange(residues) < partner, letters, letters[:, partner])
    return alignment, nn.functional.one_hot(partner, residues).float()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one Evoformer block to recover a hidden contact map.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--residues", type=int, default=16)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--channels", type=int, default=32)
    chosen = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = ContactModel(chosen.channels).to(device)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    alignment, contacts = make_alignment(chosen.sequences, chosen.residues, seed=0)
    alignment, contacts = alignment[None].to(device), contacts[None].to(device)
    weight = torch.tensor(float(chosen.residues - 1), device=device)  # contacts are rare
    first = last = 0.0
    for step in range(chosen.steps):
        loss = nn.functional.binary_cross_entropy_with_logits(model(alignment), contacts, pos_weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        first = first or last
        if step % 10 == 0:
            print(f"step {step:3d}: loss {last:.4f}")
    print(f"loss {first:.4f} → {last:.4f} on {device}")


if __name__ == "__main__":
    main()
