"""What attention is made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.attention import attention
from tilesmith.ops.rope import rope

__all__ = ["Attention", "RotaryEmbedding"]


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
        return rope(q, k, cos, sin, self.interleaved, self.rotary_dim)

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


class Attention(torch.nn.Module):
    """Attention of a sequence with itself: projections to heads, rotary positions, `ops.attention`, and back.

    x is [batch, length, hidden_size]. With fewer `num_kv_heads` than `num_heads`, neighbouring heads share keys and
    values. Parameters have the names of Hugging Face's Llama: q_proj, k_proj, v_proj, o_proj. `rope_base=None` leaves
    positions out. What `causal`, `window`, `softcap` and `dropout` mean is told by `ops.attention`; dropout applies in
    training only.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        bias: bool = False,
        rope_base: float | None = 10000.0,
        causal: bool = True,
        window: tuple[int, int] | None = None,
        softcap: float = 0.0,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = hidden_size // num_heads if head_dim is None else head_dim
        if head_dim is None and hidden_size % num_heads:
            raise ValueError(f"Attention: hidden_size is {hidden_size}, which {num_heads} heads do not divide")
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise ValueError(
                f"Attention: num_kv_heads is {num_kv_heads}, but must divide num_heads, which is {num_heads}"
            )
        self.causal, self.window, self.softcap, self.dropout = causal, window, softcap, dropout
        placed: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = torch.nn.Linear(hidden_size, num_heads * self.head_dim, **placed)
        self.k_proj = torch.nn.Linear(hidden_size, self.num_kv_heads * self.head_dim, **placed)
        self.v_proj = torch.nn.Linear(hidden_size, self.num_kv_heads * self.head_dim, **placed)
        self.o_proj = torch.nn.Linear(num_heads * self.head_dim, hidden_size, **placed)
        self.rotary = None if rope_base is None else RotaryEmbedding(self.head_dim, rope_base)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """`mask` is boolean [batch, length], true for keys to attend to; `bias` is added to the scores; `positions` are
        those of `RotaryEmbedding`."""
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.rotary is not None:
            q, k = self.rotary(q, k, positions)
        attended = attention(
            q, k, v, causal=self.causal, bias=bias, mask=mask, window=self.window, softcap=self.softcap,
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        # The output lies in memory as q does, heads within positions: to put them side by side copies nothing.
        return self.o_proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # a module returns Any
