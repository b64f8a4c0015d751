"""Operators written anew in float64, for the property suite: they share no code with the operators' own references."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / ((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * weight


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    apart = x - x.sum(-1, keepdim=True) / x.shape[-1]
    return apart / ((apart * apart).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * weight + bias


def _softmax(x: Tensor, dim: int) -> Tensor:
    powers = torch.exp(x - x.amax(dim, keepdim=True).detach()) if x.shape[dim] else torch.exp(x)
    return powers / powers.sum(dim, keepdim=True)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return _rms_norm(total, weight, eps), total


def _cross_entropy(logits: Tensor, target: Tensor, label_smoothing: float, reduction: str) -> Tensor:
    losses, counted = [], 0
    for row, wanted in zip(logits, target.tolist(), strict=True):
        if wanted == -100:
            losses.append(row.new_zeros(()))
            continue
        counted += 1
        logarithms = row - torch.logsumexp(row, 0)
        losses.append(-(1 - label_smoothing) * logarithms[wanted] - label_smoothing * logarithms.sum() / len(row))
    each = torch.stack(losses) if losses else logits.sum(-1) * 0
    if reduction == "none":
        return each
    return each.sum() / counted if reduction == "mean" else each.sum()


def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, bias: Tensor | None, scale: float
) -> Tensor:
    """Compute one query after another, from the keys that it sees."""
    group = q.shape[1] // max(k.shape[1], 1)
    rows = []
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys, values = k[batch, head // group], v[batch, head // group]
            for query in range(q.shape[2]):
                seen = torch.ones(len(keys), dtype=torch.bool) if mask is None else mask[batch].clone()
                if causal:
                    seen[max(query + 1 + len(keys) - q.shape[2], 0) :] = False
                scores = keys[seen] @ q[batch, head, query] * scale
                if bias is not None:
                    scores = scores + bias[head, query][seen]
                rows.append(_softmax(scores, 0) @ values[seen] if seen.any() else q[batch, head, query] * 0)
    return torch.stack(rows).view(q.shape) if rows else q * 1


def _outer_product_mean(a: Tensor, b: Tensor, mask: Tensor, eps: float) -> Tensor:
    a, b = (torch.where(mask[..., None], one, torch.zeros_like(one)) for one in (a, b))
    count = (mask[:, :, :, None] & mask[:, :, None, :]).sum(1)
    outer = (a[:, :, :, None, :, None] * b[:, :, None, :, None, :]).sum(1)
    return outer / (eps + count.double())[..., None, None]


def _gelu(x: Tensor, approximate: str) -> Tensor:
    """x times the normal distribution's Φ(x); its approximation is a sigmoid of a cubic polynomial."""
    if approximate == "tanh":
        return x * _sigmoid((8 / math.pi) ** 0.5 * (x + 0.044715 * x * x * x))
    gelu: Tensor = x * torch.special.ndtr(x)
    return gelu


REFERENCES: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "silu": lambda x: x * _sigmoid(x),
    "gate": lambda x, gate: x * _sigmoid(gate),
    "gelu": lambda x, approximate: _gelu(x, approximate),
    "geglu": lambda gate, up, approximate: _gelu(gate, approximate) * up,
    "swiglu": lambda gate, up: gate * _sigmoid(gate) * up,
    "rms_norm": _rms_norm,
    "rms_norm_relu": lambda x, weight, eps: _rms_norm(x, weight, eps).clamp(min=0),
    "add_rms_norm": _add_rms_norm,
    "layer_norm": _layer_norm,
    "softmax": _softmax,
    "sum": lambda x, dim: x.sum(dim) if dim is not None else x.sum(),
    "transpose": lambda x: x.transpose(-1, -2),
    "cross_entropy": _cross_entropy,
    "matmul": lambda a, b: (a[..., :, :, None] * b[..., None, :, :]).sum(-2),
    "attention": _attention,
    "outer_product_mean": _outer_product_mean,
}
