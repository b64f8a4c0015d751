"""The model. A version chooses how each part is computed; this file defines what is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tilesmith.models.openfold.parts import Parts

INITIAL_STD = 0.02
LARGEST_OFFSET = 32
"""The embedding does not distinguish larger distances along the chain, as published."""


@dataclass(frozen=True)
class Config:
    """The sizes of the model. `head_dim` has a default that depends on the other sizes."""

    num_residues: int = 64
    num_sequences: int = 16
    msa_dim: int = 64
    pair_dim: int = 128
    num_blocks: int = 4
    head_dim: int = 0
    outer_dim: int = 32
    residue_types: int = 20
    num_bins: int = 64

    def __post_init__(self) -> None:
        for name in ("num_residues", "num_sequences", "msa_dim", "pair_dim", "num_blocks", "outer_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.residue_types < 2 or self.num_bins < 2:
            raise ValueError(
                f"residue_types is {self.residue_types} and num_bins {self.num_bins}, but both must be at least 2"
            )
        if not self.head_dim:
            object.__setattr__(self, "head_dim", math.gcd(32, self.msa_dim, self.pair_dim))
        for name in ("msa_dim", "pair_dim"):
            if self.head_dim < 1 or getattr(self, name) % self.head_dim:
                raise ValueError(
                    f"head_dim is {self.head_dim}, which does not divide {name} {getattr(self, name)}; "
                    "every head has the same number of columns"
                )


class OpenFold(nn.Module):
    """`model(alignments)` returns logits over distance bins [B, N, N, bins], `model(alignments, bins)` the mean
    cross-entropy.

    Alignments are integers [B, sequences, N], with the target sequence first. There is no dropout, so all versions
    train alike.
    """

    def __init__(self, config: Config, parts: Parts, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.parts = parts
        types, msa, pair = config.residue_types, config.msa_dim, config.pair_dim
        self.alignment_embedding = nn.Parameter(torch.empty(types, msa))
        self.target_embedding = nn.Parameter(torch.empty(types, msa))
        self.left_embedding = nn.Parameter(torch.empty(types, pair))
        self.right_embedding = nn.Parameter(torch.empty(types, pair))
        self.offset_embedding = nn.Parameter(torch.empty(2 * LARGEST_OFFSET + 1, pair))
        self.blocks = nn.ModuleList(_block(config, parts) for _ in range(config.num_blocks))
        self.distance = nn.Linear(pair, config.num_bins)
        self.register_buffer("offsets", offsets(config.num_residues), persistent=False)
        self.reset_parameters(seed)

    def reset_parameters(self, seed: int) -> None:
        """Draw matrices from N(0, 0.02), set norms to one, biases to zero, and biases of gates to one, so that gates
        start open; the same for every version and device."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=INITIAL_STD, generator=generator)
            elif name.endswith("bias") and not name.endswith("gate.bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.ones_(parameter)

    def forward(self, alignments: Tensor, bins: Tensor | None = None) -> Tensor:
        m, z = self.embedded(alignments)
        for block in self.blocks:
            m, z = block(m, z)
        x = z + z.transpose(1, 2)  # distances are symmetric
        weight, bias = self.distance.weight, self.distance.bias
        if bins is None:
            return self.parts.linear(x, weight, bias)
        return self.parts.loss(x, weight, bias, bins)

    def embedded(self, alignments: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedded alignment, with the target added to every row, and the embedded pairs of the target's
        residues, with their distance along the chain."""
        target = alignments[:, 0]
        embedding = self.parts.embedding
        m = embedding(alignments, self.alignment_embedding) + embedding(target, self.target_embedding)[:, None]
        left, right = (embedding(target, table) for table in (self.left_embedding, self.right_embedding))
        along = embedding(self.offsets, self.offset_embedding)  # type: ignore[arg-type]  # a buffer is a tensor
        return m, left[:, :, None] + right[:, None] + along


def _block(config: Config, parts: Parts) -> nn.Module:
    block = parts.block(
        config.msa_dim,
        config.pair_dim,
        msa_heads=config.msa_dim // config.head_dim,
        pair_heads=config.pair_dim // config.head_dim,
        head_size=config.head_dim,
        outer_channels=config.outer_dim,
        triangle_channels=config.pair_dim,
        msa_dropout=0.0,
        pair_dropout=0.0,
    )
    # This bias shifts all scores of a softmax alike, so its gradient would be rounding errors only.
    block.get_submodule("msa_row_attention.pair_norm").register_parameter("bias", None)
    return block


def offsets(num_residues: int) -> Tensor:
    """Return the row of the offset embedding for each pair, [N, N]."""
    places = torch.arange(num_residues)
    return (places[:, None] - places).clamp(-LARGEST_OFFSET, LARGEST_OFFSET) + LARGEST_OFFSET
