"""Rotary positions, and self-attention with its projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilesmith.nn.arguments import checked, require_input, require_input_of
from tilesmith.ops.attention import attention
from tilesmith.ops.rope import rope
from tilesmith.ops.runtime.arguments import require_dimensions

__all__ = ["Attention", "RotaryEmbedding"]


@checked
class RotaryEmbedding(torch.nn.Module):
    """Rotates q and k by their positions: pair i of `rotary_dim` elements by position · base^(−2i / rotary_dim).

    `interleaved` says which elements form a pair, as in `ops.rope`; elements of a head beyond rotary_dim stay
    unchanged. The module keeps cosines and sines in float32 for as many positions as were needed so far, also after
    `to(dtype)`. They are not in the state dict, because the constructor's arguments determine them.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, rotary_dim: int, base: float = 10000.0, interleaved: bool = False) -> None:
        super().__init__()
        self.rotary_dim = rotary_dim
        self.base = base
        self.interleaved = interleaved
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(0, rotary_dim // 2), persistent=False)

    def forward(self, q: Tensor, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the rotated q and k, [batch, heads, length, head_dim].

        `positions` is [length] or [batch, length]; the default is 0, 1, 2…
        """
        require_input("RotaryEmbedding", "q", q)
        require_dimensions("RotaryEmbedding", "q", q, 2)
        length = q.shape[-2]
        if positions is None:
            cos, sin = self._default_tables(length, q.device)
        elif not isinstance(positions, Tensor) or positions.is_nested or positions.layout is not torch.strided:
            raise TypeError(f"RotaryEmbedding: positions is a {type(positions).__name__}, but must be a dense tensor")
        elif positions.ndim not in (1, 2) or positions.shape[-1] != length:
            raise ValueError(
                f"RotaryEmbedding: positions has shape {tuple(positions.shape)}, "
                f"but must be [length] or [batch, length] with q's length {length}"
            )
        else:
            cos, sin = self._tables(positions)
        return rope(q, k, cos, sin, self.interleaved, self.rotary_dim)

    def _default_tables(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the tables of the first `length` positions."""
        fits = self.cos.shape[0] >= length and self.cos.device == device and self.cos.dtype == torch.float32
        if not fits:
            # Twice the length, so that a growing sequence seldom needs new tables. Not as inference tensors, which a
            # later training step could not use.
            with torch.inference_mode(False):
                self.cos, self.sin = self._tables(torch.arange(2 * length, device=device))
        return self.cos[:length], self.sin[:length]

    @torch.no_grad()
    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tables of any positions. Angles are in float64: float32 has too few digits for large positions."""
        exponents = torch.arange(0, self.rotary_dim, 2, device=positions.device, dtype=torch.float64) / self.rotary_dim
        angles = positions[..., None].double() * self.base**-exponents
        return angles.cos().float(), angles.sin().float()


@checked
class Attention(torch.nn.Module):
    """Self-attention: projections to q, k and v, rotary positions, `ops.attention`, and the output projection.

    x is [batch, length, hidden_size]. With fewer `num_kv_heads` than `num_heads`, neighbouring heads share keys and
    values. Parameters have the names of Hugging Face's Llama: q_proj, k_proj, v_proj, o_proj. `rope_base=None` omits
    the rotation. `causal`, `window`, `softcap` and `dropout` are those of `ops.attention`; dropout applies in training
    only.
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
            raise ValueError(f"Attention: hidden_size is {hidden_size}, which is not divisible by {num_heads} heads")
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
        """Return the attention of x with itself, [batch, length, hidden_size].

        `mask` is boolean [batch, length], True for keys to attend to; `bias` is added to the scores; `positions` are
        those of `RotaryEmbedding`.
        """
        require_input_of(self.q_proj, "Attention", "x", x)
        if x.ndim != 3:
            raise ValueError(f"Attention: x has shape {tuple(x.shape)}, but must be [batch, length, hidden_size]")
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
        # attention returns q's strides, with heads inside positions, so flatten copies nothing.
        return self.o_proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # a module returns Any
