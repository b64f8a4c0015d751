"""The factor of each pair's sum: one over the number of sequences that have both residues."""

from __future__ import annotations

import torch
from torch import Tensor


def unmasked_inverse_count(sequences: int, eps: float) -> float:
    """Return the factor of every pair where nothing is masked."""
    return 1 / (eps + sequences) if sequences else 0.0


def inverse_counts(a: Tensor, mask: Tensor | None, eps: float) -> Tensor:
    """Return 1 / (eps + count) of each pair, [batch, residues, residues], in single precision or better.

    a is [batch, sequences, residues, channels]. A pair that no sequence has gets zero.
    """
    batch, sequences, residues, _ = a.shape
    dtype = torch.promote_types(a.dtype, torch.float32)
    if mask is None:
        return a.new_full((batch, residues, residues), unmasked_inverse_count(sequences, eps), dtype=dtype)
    present = mask.to(dtype)
    count = present.mT @ present
    return (1 / (eps + count)).masked_fill(count == 0, 0.0)
