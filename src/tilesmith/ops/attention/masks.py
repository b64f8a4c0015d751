"""The masks that callers have, as the two forms that kernels take: keys per sequence, and a bias.

A boolean mask without queries and heads becomes [batch, keys]. Every other mask becomes part of the bias, −∞ where a
query must not see a key, and a boolean mask also hides [batch, keys] that no query of any head sees. The bias keeps the
mask's own size: no dimension that the mask broadcasts along is expanded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.ops.runtime.arguments import dtype_name

FORMS = (
    "boolean [batch, keys], or broadcast to [batch, heads, queries, keys] as in scaled_dot_product_attention, "
    "boolean or added to the scores"
)


def with_simple_mask(q: Tensor, k: Tensor, bias: Tensor | None, mask: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return bias and mask, the mask boolean [batch, keys] or None. Masks and biases that do not fit stay.

    A boolean mask of two dimensions is [batch, keys] where it has that shape, else [queries, keys].
    """
    is_boolean = mask is not None and mask.dtype == torch.bool
    if mask is None or not (is_boolean or mask.is_floating_point()):
        return bias, mask
    scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if is_boolean and tuple(mask.shape) == (scores[0], scores[3]):
        return bias, mask
    bias_fits = bias is None or (fits(bias, scores) and bias.shape[-1:] == k.shape[2:3])
    if not bias_fits or not fits(mask, scores) or mask.device != q.device:
        return bias, mask
    mask = mask[(None,) * (4 - mask.ndim)]
    if mask.shape[3] != scores[3]:
        mask = mask.expand(-1, -1, -1, scores[3])
    if not is_boolean:
        return (mask if bias is None else bias + mask), None
    if mask.shape[1] == mask.shape[2] == 1:
        return bias, mask[:, 0, 0].expand(scores[0], -1)
    # Kernels select what a mask of keys hides; a weight of zero times NaN would be NaN.
    seen = mask.any(dim=(1, 2)).expand(scores[0], -1)
    if bias is None:
        return torch.zeros(mask.shape, dtype=q.dtype, device=mask.device).masked_fill_(~mask, -torch.inf), seen
    return torch.where(mask, bias, -torch.inf), seen


def fits(one: Tensor, scores: tuple[int, int, int, int]) -> bool:
    """Return whether a mask or a bias broadcasts to [batch, heads, queries, keys]."""
    shape = (*(1,) * (4 - one.ndim), *one.shape)
    return len(shape) == 4 and all(size in (1, wanted) for size, wanted in zip(shape, scores, strict=True))


def require_mask(mask: object, q: Tensor, k: Tensor) -> None:
    """Check a mask that `with_simple_mask` returned."""
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        raise TypeError(f"attention: mask is a {type(mask).__name__}, but must be a tensor")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"attention: mask has dtype {dtype_name(mask)}, but must be bool, true where a key is attended to, or a "
            "floating-point dtype, added to the scores"
        )
    if mask.device != q.device:
        raise ValueError(f"attention: mask is on {mask.device}, but q is on {q.device}")
    if mask.dtype != torch.bool or tuple(mask.shape) != (q.shape[0], k.shape[2]):
        scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        raise ValueError(f"attention: mask has shape {tuple(mask.shape)}, but must be {FORMS}, here {scores}")
