"""What attention is made of."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.ops.rope import rope

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(torch.nn.Module):
    """Turns q and k by their positions: pair i of `rotary_dim` elements by position · base^(−2i / rotary_dim).

    `interleaved` says which elements make a pair, as in `ops.rope`; elements of a head beyond rotary_dim are passed
    through. Cosines and sines are kept in single precision, whatever dtype the module is moved to, for as many
    positions as were needed so far. They follow from the constructor's arguments, so a state dict has nothing of them.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, rotary_dim: int, base: float = 10000.0, interleaved: bool = False) -> None:
        super().__init__()
        if rotary_dim < 2 or rotary_dim % 2:
            raise ValueError(f"RotaryEmbedding: rotary_dim is {rotary_dim}, but must be even and at least 2")
        self.rotary_dim = rotary_dim
        self.base = base
        self.interleaved = interleaved
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(0, rotary_dim // 2), persistent=False)

    def forward(self, q: Tensor, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """q and k are [batch, heads, length, head_dim]; positions [length] or [batch, length], without them 0, 1, 2…"""
        length = q.shape[-2]
        if positions is None:
            cos, sin = self._of_first(length, q.device)
        elif positions.ndim not in (1, 2) or positions.shape[-1] != length:
            raise ValueError(
                f"RotaryEmbedding: positions has shape {tuple(positions.shape)}, "
                f"but must be [length] or [batch, length] with the length of {length} that q has"
            )
        else:
            cos, sin = self._tables(positions)
        return rope(q, k, cos, sin, self.interleaved, self.rotary_dim)  # type: ignore[no-any-return]  # an Operator

    def _of_first(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The tables of so many positions from 0 on."""
        fits = self.cos.shape[0] >= length and self.cos.device == device and self.cos.dtype == torch.float32
        if not fits:
            # Twice as many, so that a sequence which grows step by step needs new ones seldom; and not as inference
            # tensors, which a later training step could not use.
            with torch.inference_mode(False):
                self.cos, self.sin = self._tables(torch.arange(2 * length, device=device))
        return self.cos[:length], self.sin[:length]

    @torch.no_grad()
    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Of any positions. The angles are in double precision: far positions leave single too few digits."""
        exponents = torch.arange(0, self.rotary_dim, 2, device=positions.device, dtype=torch.float64) / self.rotary_dim
        angles = positions[..., None].double() * self.base**-exponents
        return angles.cos().float(), angles.sin().float()
