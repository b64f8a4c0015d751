"""The sizes and options that attention is tried on, what it must cost, and what else a user could call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from tilesmith.ops.attention.operator import attention
from tilesmith.ops.attention.reference import bounds, reference, visible
from tilesmith.spec import Case, Cost, Inputs, Layout, Spec, Work


def case(name: str, batch: int, key_heads: int, group: int, queries: int, keys: int, head: int) -> Case:
    return Case(name, batch=batch, key_heads=key_heads, group=group, queries=queries, keys=keys, head=head)


# The options of a case, by its name, where they differ from the operator's defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "odd": {"causal": True},
    "everything": {
        "bias": ("heads", "queries"), "mask": True, "window": (12, 2), "softcap": 3.0, "dropout": 0.25, "seed": 7,
    },
    "cached": {"causal": True},
    "past-a-block": {"causal": True},
    "small": {"causal": True},
    "causal-64": {"causal": True},
    "causal-128": {"causal": True},
    "long": {"causal": True},
}  # fmt: skip


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> Inputs:
    options = OPTIONS.get(case.name, {})
    heads = case.key_heads * case.group

    def made(*shape: int) -> Tensor:
        return layout(torch.randn(shape, dtype=dtype, device=device))

    bias, mask = None, None
    if "bias" in options:
        sizes = {"batch": case.batch, "heads": heads, "queries": case.queries}
        bias = made(*(size if name in options["bias"] else 1 for name, size in sizes.items()), case.keys)
    if "mask" in options:
        mask = torch.arange(case.keys, device=device) % 3 != torch.arange(case.batch, device=device)[:, None] % 3
    return {
        "q": made(case.batch, heads, case.queries, case.head),
        "k": made(case.batch, case.key_heads, case.keys, case.head),
        "v": made(case.batch, case.key_heads, case.keys, case.head),
        "causal": options.get("causal", False),
        "bias": bias,
        "mask": mask,
        "scale": None,
        "window": options.get("window"),
        "softcap": options.get("softcap", 0.0),
        "dropout": options.get("dropout", 0.0),
        "seed": options.get("seed"),
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    """Return the cost: each tensor moves once; a product counts where the query sees the key."""
    options = OPTIONS.get(case.name, {})
    heads = case.batch * case.key_heads * case.group
    q_bytes = heads * case.queries * case.head * dtype.itemsize
    k_bytes = case.batch * case.key_heads * case.keys * case.head * dtype.itemsize
    lse_bytes = heads * case.queries * 4
    seen = heads * seen_pairs(case.queries, case.keys, *bounds(options.get("causal", False), options.get("window")))
    return Cost(
        forward=Work(bytes=2 * q_bytes + 2 * k_bytes + lse_bytes, flops=4 * seen * case.head),
        backward=Work(bytes=4 * q_bytes + 4 * k_bytes + lse_bytes, flops=10 * seen * case.head),
    )


def seen_pairs(n_queries: int, n_keys: int, left: int, right: int) -> int:
    """Return the number of pairs of a query and a key that the query sees."""
    place = torch.arange(n_queries) + (n_keys - n_queries)
    first = (place - left).clamp(min=0) if left >= 0 else torch.zeros_like(place)
    beyond = (place + right + 1).clamp(max=n_keys) if right >= 0 else torch.full_like(place, n_keys)
    return int((beyond - first).clamp(min=0).sum())


def sdpa(*backends: SDPBackend) -> Callable[..., Tensor]:
    """Return PyTorch's attention with these back ends, or with PyTorch's own choice if none is given."""

    def rival(
        q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, mask: Tensor | None, scale: float | None,
        window: Any, softcap: float, dropout: float, seed: Any,
    ) -> Tensor:  # fmt: skip
        if window is not None or softcap or dropout:
            raise NotImplementedError("PyTorch's fused attention has no window, soft cap or seeded dropout")
        allowed = mask[:, None, None, :] if mask is not None else None
        if causal and (q.shape[2] != k.shape[2] or allowed is not None or bias is not None):
            seen = visible(q.shape[2], k.shape[2], *bounds(causal, None), device=q.device)
            allowed, causal = seen if allowed is None else seen & allowed, False
        if bias is not None:
            allowed = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
        options: dict[str, Any] = {"attn_mask": allowed, "is_causal": causal, "scale": scale}
        options["enable_gqa"] = q.shape[1] != k.shape[1]
        if not backends:
            return F.scaled_dot_product_attention(q, k, v, **options)
        with sdpa_kernel(list(backends)):
            return F.scaled_dot_product_attention(q, k, v, **options)

    return rival


def flex(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, mask: Tensor | None, scale: float | None,
    window: Any, softcap: float, dropout: float, seed: Any,
) -> Tensor:  # fmt: skip
    """Call PyTorch's compiled flex attention. The block mask is built once for each pair of lengths."""
    if bias is not None or mask is not None or window is not None or softcap or dropout:
        raise NotImplementedError("only plain and causal attention is compared with flex attention")
    block_mask = _causal_block_mask(q.shape[2], k.shape[2], q.device) if causal else None
    options = {"block_mask": block_mask, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    return _compiled_flex()(q, k, v, **options)  # type: ignore[no-any-return]  # untyped


@cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


@cache
def _causal_block_mask(n_queries: int, n_keys: int, device: torch.device) -> BlockMask:
    def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query + (n_keys - n_queries)

    return create_block_mask(is_seen, None, None, n_queries, n_keys, device=device)


def flash_attn(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, mask: Tensor | None, scale: float | None,
    window: tuple[int, int] | None, softcap: float, dropout: float, seed: Any,
) -> Tensor:  # fmt: skip
    from flash_attn import flash_attn_func  # type: ignore[import-not-found]  # may be absent

    _require_plain(bias, mask, dropout)
    made = flash_attn_func(
        *_positions_first(q, k, v), softmax_scale=scale, causal=causal, window_size=window or (-1, -1), softcap=softcap
    )
    return made.transpose(1, 2)  # type: ignore[no-any-return]  # untyped


def flash_attn_4(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, mask: Tensor | None, scale: float | None,
    window: tuple[int, int] | None, softcap: float, dropout: float, seed: Any,
) -> Tensor:  # fmt: skip
    from flash_attn.cute import flash_attn_func  # type: ignore[import-not-found]  # may be absent

    _require_plain(bias, mask, dropout)
    sides = tuple(None if side < 0 else side for side in window) if window else (None, None)
    made = flash_attn_func(
        *_positions_first(q, k, v), softmax_scale=scale, causal=causal, window_size=sides, softcap=softcap
    )
    return (made[0] if isinstance(made, tuple) else made).transpose(1, 2)  # type: ignore[no-any-return]  # untyped


def _require_plain(bias: Tensor | None, mask: Tensor | None, dropout: float) -> None:
    if bias is not None or mask is not None or dropout:
        raise NotImplementedError("FlashAttention has no bias, key mask or seeded dropout")


def _positions_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.transpose(1, 2) for tensor in tensors)


SPEC = Spec(
    name="attention",
    op=attention,
    reference=reference,
    roundings=6,  # scores, weights, their sum, output; of gradients that of the weights and what is left of it
    formula="o = softmax(scale · q·kᵀ + bias) · v",
    cases=[
        case("one", batch=1, key_heads=1, group=1, queries=1, keys=5, head=16),
        case("odd", batch=2, key_heads=2, group=2, queries=9, keys=13, head=16),
        case("everything", batch=2, key_heads=1, group=2, queries=18, keys=19, head=16),
        case("cached", batch=1, key_heads=2, group=2, queries=2, keys=260, head=128),
        case("past-a-block", batch=1, key_heads=1, group=2, queries=131, keys=140, head=64),
        case("small", batch=8, key_heads=8, group=1, queries=128, keys=128, head=64),
        case("causal-64", batch=8, key_heads=32, group=1, queries=2048, keys=2048, head=64),
        case("full-64", batch=8, key_heads=32, group=1, queries=2048, keys=2048, head=64),
        case("causal-128", batch=4, key_heads=32, group=1, queries=4096, keys=4096, head=128),
        case("full-128", batch=4, key_heads=32, group=1, queries=4096, keys=4096, head=128),
        case("long", batch=1, key_heads=8, group=4, queries=16384, keys=16384, head=128),
        case("decode", batch=64, key_heads=1, group=8, queries=1, keys=8192, head=128),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={
        "torch": sdpa(),
        "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION),
        "sdpa_cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
        "sdpa_efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
        "flex": flex,
        "flash_attn": flash_attn,
        "flash_attn_4": flash_attn_4,
    },
)
