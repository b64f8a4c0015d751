"""What each pair's sum is multiplied by: one over the number of sequences that have both of its residues."""

from __future__ import annotations

import torch
from torch import Tensor


def share_of_all(sequences: int, eps: float) -> float:
    """Of every pair, where nothing is masked."""
    return 1 / (eps + sequences) if sequences else 0.0


def shares(a: Tensor, mask: Tensor | None, eps: float) -> Tensor:
    """[batch, residues, residues] of operands [batch, sequences, residues, channels], in single precision or better. A
    pair without any sequence has no part in anything."""
    batch, sequences, residues, _ = a.shape
    dtype = torch.promote_types(a.dtype, torch.float32)
    if mask is None:
        return a.new_full((batch, residues, residues), share_of_all(sequences, eps), dtype=dtype)
    present = mask.to(dtype)
    count = present.mT @ present
    return (1 / (eps + count)).masked_fill(count == 0, 0.0)
