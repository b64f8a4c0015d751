"""The model. A version chooses how each part is computed; this file defines what is computed.

Projections of the same input are one parameter: the rows of query, key and value, and the rows of gate and up. A
version multiplies by the whole parameter or by its parts; the state dict is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tilesmith.models.llama.parts import V1, LayerWeights, Parts

INITIAL_STD = 0.02


@dataclass(frozen=True)
class Config:
    """The sizes of the model. `ffn_dim` and `num_kv_heads` have defaults that depend on the other sizes."""

    vocab_size: int = 1000
    hidden_dim: int = 512
    num_layers: int = 8
    num_heads: int = 8
    num_kv_heads: int = 0
    ffn_dim: int = 0
    seq_len: int = 128
    rope_base: float = 10000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_dim", "num_layers", "num_heads", "seq_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.hidden_dim % self.num_heads:
            raise ValueError(
                f"hidden_dim is {self.hidden_dim}, which num_heads {self.num_heads} does not divide; "
                "every head has the same number of columns"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"hidden_dim {self.hidden_dim} over num_heads {self.num_heads} is {self.head_dim} columns per head, "
                "but must be even: the rotation works on pairs of columns"
            )
        if not self.num_kv_heads:
            object.__setattr__(self, "num_kv_heads", _half(self.num_heads))
        if not self.ffn_dim:
            object.__setattr__(self, "ffn_dim", 4 * self.hidden_dim)
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads is {self.num_kv_heads}, which does not divide num_heads {self.num_heads}; "
                "every key head serves the same number of query heads"
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_dim // self.num_heads

    @property
    def qkv_dims(self) -> tuple[int, int, int]:
        """The numbers of columns of query, key and value."""
        keys = self.num_kv_heads * self.head_dim
        return self.hidden_dim, keys, keys


def _half(num_heads: int) -> int:
    """Return the largest divisor of num_heads that is at most its half, or 1."""
    return next(count for count in range(max(1, num_heads // 2), 0, -1) if num_heads % count == 0)


class Llama(nn.Module):
    """`model(tokens)` returns logits, `model(tokens, targets)` the mean cross-entropy; both take integers [B, S]."""

    def __init__(self, config: Config, parts: Parts = V1.parts, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.parts = parts
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_dim))
        self.layers = nn.ModuleList(Layer(config, parts) for _ in range(config.num_layers))
        self.norm = nn.Parameter(torch.empty(config.hidden_dim))
        cos, sin = rotary_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.reset_parameters(seed)

    def reset_parameters(self, seed: int) -> None:
        """Draw matrices from N(0, 0.02) and set norms to one; the same for every version and device."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=INITIAL_STD, generator=generator)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]  # type: ignore[index]  # buffers are tensors
        stream, branch = self.parts.embedding(tokens, self.embedding), None
        for layer in self.layers:
            stream, branch = layer(stream, branch, cos, sin)
        x, _ = self.parts.add_norm(stream, branch, self.norm, self.config.norm_eps)
        if targets is None:
            return self.parts.linear(x, self.embedding)
        return self.parts.loss(x, self.embedding, targets)


class Layer(nn.Module):
    """Attention, then the feed-forward block.

    A block's result is added to the residual stream only where the next norm reads it, so a version can fuse addition
    and norm. Between layers the result of the last block is passed separately as `branch`.
    """

    def __init__(self, config: Config, parts: Parts) -> None:
        super().__init__()
        self.config = config
        self.parts = parts
        hidden = config.hidden_dim
        self.attention_norm = nn.Parameter(torch.empty(hidden))
        self.qkv = nn.Parameter(torch.empty(sum(config.qkv_dims), hidden))
        self.output = nn.Parameter(torch.empty(hidden, hidden))
        self.feed_forward_norm = nn.Parameter(torch.empty(hidden))
        self.gate_up = nn.Parameter(torch.empty(2 * config.ffn_dim, hidden))
        self.down = nn.Parameter(torch.empty(hidden, config.ffn_dim))

    def forward(self, stream: Tensor, branch: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        weights = LayerWeights(
            self.attention_norm, self.qkv, self.output, self.feed_forward_norm, self.gate_up, self.down
        )  # fmt: skip
        if self.parts.layer is None:
            return self.composed(stream, branch, cos, sin, weights)
        config = self.config
        return self.parts.layer(
            self.composed, stream, branch, cos, sin, weights, config.head_dim, config.norm_eps
        )  # fmt: skip

    def composed(
        self, stream: Tensor, branch: Tensor | None, cos: Tensor, sin: Tensor, weights: LayerWeights
    ) -> tuple[Tensor, Tensor]:
        """Compute a layer part by part."""
        parts, eps = self.parts, self.config.norm_eps
        x, stream = parts.add_norm(stream, branch, weights.attention_norm, eps)
        q, k, v = (self.heads(one) for one in parts.projections(x, weights.qkv, self.config.qkv_dims))
        q, k = parts.rotary(q, k, cos, sin)
        attended = parts.attention(q, k, v).transpose(1, 2).flatten(2)  # [B, S, heads · D]
        branch = parts.linear(attended, weights.output)
        x, stream = parts.add_norm(stream, branch, weights.feed_forward_norm, eps)
        return stream, parts.linear(parts.gated(x, weights.gate_up), weights.down)

    def heads(self, x: Tensor) -> Tensor:
        """Return [B, S, heads · D] as [B, heads, S, D], without a copy."""
        return x.view(*x.shape[:-1], -1, self.config.head_dim).transpose(1, 2)


def rotary_tables(config: Config) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [S, D/2] of the rotation angle of each pair of columns at each position."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(config.seq_len, dtype=torch.float64), config.rope_base**-pairs)
    return angles.cos().float(), angles.sin().float()
