"""triangle_attention as in cuEquivariance: q, k and v by rows and heads, a bias for all rows, a mask of keys."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from tilesmith.fold.arguments import checked
from tilesmith.ops.attention import attention
from tilesmith.ops.triangle_attention import triangle_attention as over_pairs

NAME = "triangle_attention"
MOST_SCORES = 2**26  # of the auxiliary results at a time: 256 MiB in single precision
MASKED = -1e9  # the score of a masked key


@checked(NAME)
def triangle_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None = None,
    scale: float | None = None,
    return_aux: bool = False,
    *,
    kv_lengths: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Return softmax(scale · q·kᵀ + bias) · v for each row of pairs; a masked key has a score of −10⁹.

    - q: [B, N, H, Q, D]; k and v: [B, N, H, K, D]. With four dimensions B is 1, and the output still has five.
    - `bias`: [B, 1, H, Q, K], of any floating-point dtype, or any shape that broadcasts to [B, N, H, Q, K]. It has a
      gradient. None adds nothing.
    - `mask`: [B, N, 1, 1, K], or any shape that broadcasts to it. A key is attended to where the mask is not zero. A
      row whose keys are all masked gets the mean of v.
    - `kv_lengths`: int32 [B, N, 1, 1, 1], in place of a mask: keys before this length are attended to. A row of length
      0 gets zeros.
    - `scale`: 1/√D unless given.
    - `return_aux=True`: also return the log-sum-exp and the maximum of the scores, [B, N, H, Q] in float32. They have
      no gradient.

    Any strides, lengths and head sizes. Under autocast q, k and v are cast, and the bias keeps its dtype.
    """
    shapes = {"q": tuple(q.shape), "k": tuple(k.shape), "v": tuple(v.shape)}
    q, k, v = (_five_dimensions(name, one) for name, one in (("q", q), ("k", k), ("v", v)))
    q, k, v = (_autocast(one) for one in (q, k, v))
    batch, rows, heads, queries, _ = q.shape
    keys = k.shape[3]
    wanted = (batch, rows, heads, queries, keys)
    for name, one in (("k", k), ("v", v)):
        if one.shape != (*q.shape[:3], keys, q.shape[-1]):
            raise ValueError(
                f"{NAME}: {name} has shape {shapes[name]}, but must be [B, N, H, K, D] as q has "
                f"{shapes['q']} and k has {keys} keys"
            )
    if bias is not None:
        wide = _five_dimensions("bias", bias)
        bias = _broadcast("bias", bias, (batch, rows if wide.shape[1] != 1 else 1, *wanted[2:]))
    if mask is not None and kv_lengths is not None:
        raise ValueError(f"{NAME}: mask and kv_lengths are given, but only one of them may be")
    seen = _seen_keys(mask, kv_lengths, wanted)  # [B, N, K]
    with torch.autocast(q.device.type, enabled=False) if _is_autocast(q) else nullcontext():
        output = _attended(q, k, v, bias, seen, scale, mean_without_keys=mask is not None)
        if not return_aux:
            return output
        return output, *_statistics(q, k, bias, seen, scale, zero_fully_masked=kv_lengths is not None)


@checked("mask_to_kv_lengths")
def mask_to_kv_lengths(mask: Tensor) -> Tensor:
    """Return the number of keys of each row, int32 [B, N, 1, 1, 1], from a mask [B, N, 1, 1, K].

    Each row of the mask must be true first and false after. Waits for the GPU to check this.
    """
    if mask.ndim > 5 or {*mask.shape[-3:-1]} - {1}:
        raise ValueError(f"mask_to_kv_lengths: mask has shape {tuple(mask.shape)}, but must be [B, N, 1, 1, K]")
    mask = mask[(None,) * (5 - mask.ndim)] != 0
    lengths = mask.sum(-1, keepdim=True, dtype=torch.int32)
    if not mask.is_meta and not torch.equal(mask, torch.arange(mask.shape[-1], device=mask.device) < lengths):
        raise ValueError("mask_to_kv_lengths: mask has a true element after a false one, so it is no padding")
    return lengths


def _attended(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, seen: Tensor | None, scale: float | None,
    mean_without_keys: bool,
) -> Tensor:  # fmt: skip
    """Return attention. Rows without keys get zeros, or the mean of v: equal scores have equal weights."""
    if q.shape == k.shape and (bias is None or bias.shape[1] == 1):
        q, k, v = (one.transpose(2, 3) for one in (q, k, v))  # [B, N, Q, H, D]
        shared = None if bias is None else bias[:, 0]
        return over_pairs(q, k, v, shared, seen, scale=scale, mean_without_keys=mean_without_keys).transpose(2, 3)
    biases, masks = ([None] * q.shape[0] if one is None else one.unbind() for one in (bias, seen))
    members = [
        attention(*heads, bias=its_bias, mask=its_mask, scale=scale)
        for *heads, its_bias, its_mask in zip(q, k, v, biases, masks, strict=True)
    ]
    # Without a batch the sums are zero; they give every argument its empty gradient.
    empty = (one.sum() for one in (k, v, bias) if one is not None)
    output = torch.stack(members) if members else sum(empty, start=q)
    if seen is None or not mean_without_keys or not k.shape[3]:
        return output
    return torch.where(seen.any(-1)[:, :, None, None, None], output, v.mean(3, keepdim=True))


@torch.no_grad()
def _statistics(
    q: Tensor, k: Tensor, bias: Tensor | None, seen: Tensor | None, scale: float | None, zero_fully_masked: bool
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return log-sum-exp and maximum of the scores, some rows at a time."""
    batch, rows, heads, queries, head = q.shape
    factor = head**-0.5 if scale is None else scale
    total, largest = (torch.zeros(q.shape[:4], dtype=torch.float32, device=q.device) for _ in range(2))
    if not k.shape[3]:
        return total, largest
    together = max(MOST_SCORES // max(heads * queries * k.shape[3], 1), 1)
    for n in range(batch):
        for start in range(0, rows, together):
            some = slice(start, start + together)
            scores = (q[n, some].float() @ k[n, some].float().mT) * factor
            if bias is not None:
                scores = scores + (bias[n] if bias.shape[1] == 1 else bias[n, some]).float()
            if seen is not None:
                scores = scores.masked_fill(~seen[n, some, None, None], MASKED)
            total[n, some], largest[n, some] = scores.logsumexp(-1), scores.amax(-1)
    if zero_fully_masked and seen is not None:
        is_fully_masked = ~seen.any(-1)[:, :, None, None]
        total, largest = total.masked_fill(is_fully_masked, 0.0), largest.masked_fill(is_fully_masked, 0.0)
    return total, largest


def _seen_keys(mask: Tensor | None, kv_lengths: Tensor | None, wanted: tuple[int, ...]) -> Tensor | None:
    """Return which keys each row sees, boolean [B, N, K]; None means all."""
    batch, rows, _, _, keys = wanted
    if kv_lengths is not None:
        if kv_lengths.dtype != torch.int32 or tuple(kv_lengths.shape) != (batch, rows, 1, 1, 1):
            raise ValueError(
                f"{NAME}: kv_lengths is {kv_lengths.dtype} of shape {tuple(kv_lengths.shape)}, but must be torch.int32 "
                f"of shape {(batch, rows, 1, 1, 1)}"
            )
        return torch.arange(keys, device=kv_lengths.device) < kv_lengths[:, :, 0, 0]
    if mask is None:
        return None
    mask = _broadcast("mask", mask, (batch, rows, 1, 1, keys))
    return (mask if mask.dtype == torch.bool else mask != 0)[:, :, 0, 0]


def _autocast(one: Tensor) -> Tensor:
    """Return a tensor in autocast's dtype, where autocast is on."""
    if one.dtype == torch.float64 or not _is_autocast(one):
        return one
    return one.to(torch.get_autocast_dtype(one.device.type))


def _is_autocast(one: Tensor) -> bool:
    return not one.is_meta and torch.is_autocast_enabled(one.device.type)


def _five_dimensions(name: str, one: Tensor) -> Tensor:
    if not 1 <= one.ndim <= 5:
        raise ValueError(f"{NAME}: {name} has shape {tuple(one.shape)}, but must have 4 or 5 dimensions")
    return one[(None,) * (5 - one.ndim)]


def _broadcast(name: str, one: Tensor, wanted: tuple[int, ...]) -> Tensor:
    wide = _five_dimensions(name, one)
    if any(size not in (1, other) for size, other in zip(wide.shape, wanted, strict=True)):
        raise ValueError(f"{NAME}: {name} has shape {tuple(one.shape)}, but must broadcast to {wanted}")
    return wide.expand(wanted)
