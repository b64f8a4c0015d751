"""The published algorithms in plain PyTorch, and the comparison with them by the rule of correctness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.lab.comparison import compare, root_mean_square

ROUNDINGS = 12  # norms, projections, scores, weights, sums, gates, outputs


def triangle_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Algorithm 13 of AlphaFold 2 from the projections on: [B, N, H, Q, D]; masked keys have a score of −10⁹."""
    scores = torch.einsum("bnhqd,bnhkd->bnhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    if mask is not None:
        scores = scores.masked_fill(mask == 0, max(-1e9, torch.finfo(scores.dtype).min))
    return torch.einsum("bnhqk,bnhkd->bnhqd", torch.softmax(scores, dim=-1), v)


def triangle_multiplication(x: Tensor, direction: str, mask: Tensor | None, eps: float, **given: Any) -> Tensor:
    """Algorithms 11 and 12 of AlphaFold 2."""

    def layer(name: str, values: Tensor) -> Tensor:
        return F.linear(values, given[f"{name}_weight"], given.get(f"{name}_bias"))

    xn = F.layer_norm(x, x.shape[-1:], given["norm_in_weight"], given["norm_in_bias"], eps)
    gated = torch.sigmoid(layer("g_in", xn)) * layer("p_in", xn)
    if mask is not None:
        gated = gated * mask[..., None].to(gated.dtype)
    a, b = gated.chunk(2, dim=-1)
    product = torch.einsum("...ikc,...jkc->...ijc" if direction == "outgoing" else "...kic,...kjc->...ijc", a, b)
    normed = F.layer_norm(product, product.shape[-1:], given["norm_out_weight"], given["norm_out_bias"], eps)
    return torch.sigmoid(layer("g_out", xn)) * layer("p_out", normed)


def attention_pair_bias(
    single: Tensor, pair: Tensor, mask: Tensor | None, heads: int, given: dict[str, Any], eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Algorithm 24 of AlphaFold 3 without conditioning; returns the output and the bias of the pairs."""

    def normed(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], given.get(f"w_ln_{name}"), given.get(f"b_ln_{name}"), eps)

    def projected(x: Tensor, name: str) -> Tensor:
        return F.linear(x, given[f"w_proj_{name}"], given.get(f"b_proj_{name}"))

    a = normed(single, "a")
    q, k, v = (projected(a, name) for name in "qkv")
    if "w_ln_q" in given:
        q, k = normed(q, "q"), normed(k, "k")
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (q, k, v))  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    bias = projected(normed(pair, "z"), "z").permute(0, 3, 1, 2)
    copies = single.shape[0] // pair.shape[0]
    scores = q @ k.mT * q.shape[-1] ** -0.5 + bias.repeat_interleave(copies, dim=0)
    if mask is not None:
        mask = mask.repeat_interleave(single.shape[0] // mask.shape[0], dim=0)
        scores = scores + (mask[:, None, None, :].to(scores.dtype) - 1) * 1e6
    attended = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2)
    return projected(torch.sigmoid(projected(a, "g")) * attended, "o"), bias


def results(function: Callable[..., Tensor], leaves: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the output, and the gradient of every leaf for a fixed cotangent, computed in a dtype."""
    given = {name: one.detach().to(dtype).requires_grad_() for name, one in leaves.items()}
    output = function(**given)
    cotangent = torch.arange(output.numel(), dtype=torch.float64).mul(1.7).sin().view(output.shape)
    gradients = torch.autograd.grad(output, list(given.values()), cotangent.to(output))
    return {"output": output.detach(), **dict(zip(given, gradients, strict=True))}


def assert_as_published(
    ours: Callable[..., Tensor], published: Callable[..., Tensor], leaves: dict[str, Tensor], dtype: torch.dtype
) -> None:
    """Assert by the rule of correctness: no output or gradient has twice the error of plain PyTorch in this dtype."""
    rounded = {name: one.to(dtype) for name, one in leaves.items()}
    found = results(ours, rounded, dtype)
    exact = results(published, rounded, torch.float64)
    plain = results(published, rounded, dtype)
    for name, one in found.items():
        assert one.dtype == plain[name].dtype
        typical = 0.0 if name == "output" else float(root_mean_square(exact["output"].sin()))
        made = compare(one, exact[name], [plain[name]], ROUNDINGS, typical)
        assert made.passed, f"{name}: error {made.error:.2e}, allowed {made.allowed:.2e}, {made.wrong_elements} wrong"
