"""The meaning of attention in plain PyTorch, with an S×T matrix of scores.

scores[s, t] = softcap(scale · q[s]·k[t]) + bias[s, t],    weights = softmax over the keys t that s may see,
o = weights · v.

Dropout is part of the meaning: the seed and the position alone decide which weights are dropped. So the backward drops
the same weights, and the forward need not keep them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tilesmith.ops.attention.masks import with_simple_mask

UNBOUNDED = -1
Window = tuple[int, int]


def bounds(causal: bool, window: Window | None) -> Window:
    """Return how many keys a query sees to the left and right of its position; UNBOUNDED means no limit."""
    left, right = (UNBOUNDED, UNBOUNDED) if window is None else window
    return left, 0 if causal else right


class AttentionOptions(NamedTuple):
    """The options that attention and attention_varlen share, in the order of their signatures."""

    scale: float | None = None
    window: Window | None = None
    softcap: float = 0.0
    dropout: float = 0.0
    seed: int | Tensor | None = None


def reference(
    q: Tensor, k: Tensor, v: Tensor,
    causal: bool = False, bias: Tensor | None = None, mask: Tensor | None = None, scale: float | None = None,
    window: Window | None = None, softcap: float = 0.0, dropout: float = 0.0, seed: int | Tensor | None = None,
) -> Tensor:  # fmt: skip
    bias, mask = with_simple_mask(q, k, bias, mask)
    if q.shape[:3].numel() * k.shape[2] > MOST_SCORES and not dropout:
        return _in_pieces(q, k, v, bias, mask, causal, AttentionOptions(scale, window, softcap))
    return in_one_piece(q, k, v, bias, mask, causal, AttentionOptions(scale, window, softcap, dropout, seed))


MOST_SCORES = 2**28  # in one piece: 2 GiB in double precision, of which autograd keeps several


def _in_pieces(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, causal: bool, options: AttentionOptions
) -> Tensor:  # fmt: skip
    """Compute as many sequences at a time as MOST_SCORES allow, or one head; the gradient computes each piece again.

    Pieces that share a bias all get the bias itself, so its gradient is no larger than the bias.
    """
    sequences, heads, n_queries, _ = q.shape
    group = heads // k.shape[1]
    whole_sequences = MOST_SCORES // (heads * n_queries * k.shape[2])
    if whole_sequences:
        of_queries = of_keys = [slice(None)]
    else:
        of_queries = [slice(head, head + 1) for head in range(heads)]
        of_keys = [slice(head // group, head // group + 1) for head in range(heads)]
    together = max(whole_sequences, 1)
    if bias is not None:
        bias = bias[(None,) * (4 - bias.ndim)]
    made = []
    for start in range(0, sequences, together):
        some = slice(start, start + together)
        its_mask = None if mask is None else mask[some]
        pieces = []
        for its_heads, its_keys in zip(of_queries, of_keys, strict=True):
            its_bias = None if bias is None else _where_it_differs(bias, some, its_heads)
            tensors = q[some, its_heads], k[some, its_keys], v[some, its_keys]
            pieces.append(checkpoint(in_one_piece, *tensors, its_bias, its_mask, causal, options, use_reentrant=False))
        made.append(torch.cat(pieces, dim=1))
    return torch.cat(made)


def _where_it_differs(bias: Tensor, sequences: slice, heads: slice) -> Tensor:
    """Return the part of a bias for these sequences and heads; dimensions of one stay as they are."""
    places = [slice(None) if size == 1 else piece for size, piece in zip(bias.shape, (sequences, heads), strict=False)]
    return bias[tuple(places)]


def in_one_piece(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, causal: bool, options: AttentionOptions,
    first_head: int = 0,
) -> Tensor:  # fmt: skip
    """Return the output from one matrix of scores. Dropout counts heads of all sequences from `first_head` on."""
    scale, window, softcap, dropout, seed = options
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    if mask is not None:  # zeros instead of what a masked key holds: zero times NaN is NaN, here and in the gradient
        k, v = (one.masked_fill(~mask[:, None, :, None], 0.0) for one in (k, v))
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = products(q, k) * default_scale(q.shape[-1], scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    hidden = ~visible(q.shape[2], k.shape[2], *bounds(causal, window), device=q.device)
    if mask is not None:
        hidden = hidden | ~mask[:, None, None, :]
    kept = None
    if dropout:
        batch, heads, n_queries, n_keys = scores.shape
        head = first_head + torch.arange(batch * heads, device=q.device).view(batch, heads, 1, 1)
        query, key = torch.arange(n_queries, device=q.device)[:, None], torch.arange(n_keys, device=q.device)
        kept = kept_by_dropout(seed_tensor(seed, q.device), head, query, key, dropout)
    return weighted(scores.masked_fill(hidden, -torch.inf), v, kept, dropout)


def products(q: Tensor, k: Tensor) -> Tensor:
    """Return q·kᵀ; of float16 in single precision, since float16 ends at 65,504."""
    if q.dtype == torch.float16:
        q, k = q.float(), k.float()
    return q @ k.transpose(-1, -2)


def weighted(scores: Tensor, v: Tensor, kept: Tensor | None, dropout: float) -> Tensor:
    """Return the sum of v weighted by the softmax of the scores; weights that are not kept are zero."""
    weights = softmax(scores).to(v.dtype)
    if kept is not None:
        weights = torch.where(kept, weights / (1 - dropout), 0.0)
    return weights @ v


def default_scale(head_size: int, scale: float | None) -> float:
    """Return the scale, by default 1/√D: scores of random vectors then have a variance of one."""
    return scale if scale is not None else float(max(head_size, 1) ** -0.5)


def visible(n_queries: int, n_keys: int, left: int, right: int, device: torch.device) -> Tensor:
    """Return which keys each query sees. The last query has the position of the last key, as with a cache."""
    place = torch.arange(n_queries, device=device)[:, None] + (n_keys - n_queries)
    key = torch.arange(n_keys, device=device)[None, :]
    seen = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    if left != UNBOUNDED:
        seen = seen & (key >= place - left)
    if right != UNBOUNDED:
        seen = seen & (key <= place + right)
    return seen


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension, in single precision or better; zeros where a query sees no key."""
    sees_nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores.masked_fill(sees_nothing, 0.0), dim=-1, dtype=dtype).masked_fill(sees_nothing, 0.0)


def seed_tensor(seed: int | Tensor | None, device: torch.device) -> Tensor:
    """Return the seed as a tensor on the device. None draws a seed from PyTorch's generator.

    A seed as a number would need a new plan at every step, and a captured CUDA graph would drop the same weights at
    every replay.
    """
    if isinstance(seed, Tensor):
        return seed
    if seed is None:
        return torch.randint(2**62, (1,), device=device)
    return torch.full((1,), seed, dtype=torch.int64, device=device)


def kept_by_dropout(seed: Tensor, head: Tensor, query: Tensor, key: Tensor, dropout: float) -> Tensor:
    """Return which weights stay, each with probability 1 − dropout.

    `head` counts over all sequences, `query` and `key` from the first of a sequence; the three broadcast.
    """
    low, high = seed & MASK_32, (seed >> 32) & MASK_32
    stream = scrambled(scrambled(low) ^ scrambled(high + head))
    row, column = scrambled(stream + query), scrambled(~stream - key)
    return (scrambled(row ^ column) >> 1) >= int(dropout * 2**31)


MASK_32 = 2**32 - 1


def scrambled(x: Tensor) -> Tensor:
    """Return a 32-bit hash of x, in an int64 tensor.

    The hash takes two multiplications. Philox takes twenty wide ones and passes every test of randomness. Dropout needs
    only independence from the data.
    """
    x = x & MASK_32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK_32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK_32
    return x ^ (x >> 16)
