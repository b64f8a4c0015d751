"""The operator: its definition, its checks, its gradient and its spec."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.rope.plan import backward, forward
from tilesmith.ops.runtime.arguments import require_floating, require_same_device
from tilesmith.ops.runtime.operator import operator
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, rotary_dim: int | None = None
) -> tuple[Tensor, Tensor]:
    if rotary_dim is not None and rotary_dim != cos.shape[-1]:  # from one column per pair to one per element
        cos, sin = (
            table.repeat_interleave(2, -1) if interleaved else torch.cat((table, table), -1) for table in (cos, sin)
        )
    if cos.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]  # [batch, 1, positions, columns]: the same for every head

    def rotated(x: Tensor) -> Tensor:
        pairs, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
        return torch.cat((pairs * cos + partners(pairs, interleaved) * sin, rest), -1).to(x.dtype)

    return rotated(q), rotated(k)


def partners(pairs: Tensor, interleaved: bool) -> Tensor:
    """Return for each element the other one of its pair, with a minus sign for first elements."""
    if interleaved:
        return torch.stack((-pairs[..., 1::2], pairs[..., 0::2]), -1).flatten(-2)
    first, second = pairs.chunk(2, -1)
    return torch.cat((-second, first), -1)


def prepare(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, bool, int]:  # fmt: skip
    return q, k, cos, sin, interleaved, cos.shape[-1] if rotary_dim is None else rotary_dim


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep q and k only if cos or sin needs a gradient, which is rare."""
    q, k, cos, sin, context.interleaved, context.rotary_dim = inputs
    context.save_for_backward(cos, sin, *((q, k) if any(context.needs_input_grad[2:4]) else ()))


def gradient(context: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
    cos, sin, *inputs = context.saved_tensors
    of_inputs: tuple[Tensor | None, ...] = (None, None)
    of_tables: tuple[Tensor | None, ...] = (None, None)
    if any(context.needs_input_grad[:2]):
        of_inputs = backward(dq, dk, cos, sin, context.interleaved, context.rotary_dim)
    if inputs:
        of_tables = _table_gradients((dq, dk), inputs, cos, context.interleaved, context.rotary_dim)
    return *of_inputs, *of_tables, None, None


def _table_gradients(
    gradients: Sequence[Tensor], inputs: Sequence[Tensor], table: Tensor, interleaved: bool, rotary_dim: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of cos and sin: sums over all heads, computed by PyTorch."""
    dtype = torch.promote_types(torch.float32, table.dtype)
    of_cos, of_sin = [], []
    for dy, x in zip(gradients, inputs, strict=True):
        dy, pairs = dy[..., :rotary_dim].to(dtype), x[..., :rotary_dim].to(dtype)
        of_cos.append((dy * pairs).sum(1))
        of_sin.append((dy * partners(pairs, interleaved)).sum(1))

    def as_table(total: Tensor) -> Tensor:
        if table.shape[-1] != rotary_dim:
            total = total.unflatten(-1, (-1, 2) if interleaved else (2, -1)).sum(-1 if interleaved else -2)
        return total.sum_to_size(table.shape).to(table.dtype)

    return as_table(of_cos[0] + of_cos[1]), as_table(of_sin[0] + of_sin[1])


@operator("rope", reference=reference, forward=forward, save=save, gradient=gradient, prepare=prepare)
def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, rotary_dim: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return q and k with pairs of their elements rotated by the angles of cos and sin.

    q is [batch, heads, positions, head_dim]; k may have another number of heads. Strides may be any, so a transposed
    [batch, positions, heads, head_dim] needs no copy. A pair is elements i and i + rotary_dim/2 of a head, or with
    `interleaved` elements 2i and 2i + 1. Elements from rotary_dim on are copied.

    cos and sin are [positions, columns] or [batch, positions, columns], in any floating dtype. Without `rotary_dim`
    they have one column per rotated element, as in Hugging Face's models. With `rotary_dim` they may also have
    rotary_dim/2 columns, one per pair.

    The results have the dtypes of q and k and are computed in single precision or better. PyTorch computes the
    gradients of cos and sin if they need one.
    """
    require_floating("rope", q=q, k=k, cos=cos, sin=sin)
    require_same_device("rope", q=q, k=k, cos=cos, sin=sin)
    for name, x in (("q", q), ("k", k)):
        if x.ndim != 4:
            raise ValueError(
                f"rope: {name} has {x.ndim} dimensions (shape {tuple(x.shape)}), "
                "but must have 4: [batch, heads, positions, head_dim]"
            )
    if (k.shape[0], *k.shape[2:]) != (q.shape[0], *q.shape[2:]):
        raise ValueError(
            f"rope: k has shape {tuple(k.shape)}, but must agree with q of shape {tuple(q.shape)} in all but the heads"
        )
    if not isinstance(interleaved, bool):
        raise TypeError(f"rope: interleaved is a {type(interleaved).__name__}, but must be a bool")
    _require_tables(q, cos, sin, rotary_dim)
    return q, k


def _require_tables(q: Tensor, cos: Tensor, sin: Tensor, rotary_dim: int | None) -> None:
    batch, _, positions, head_dim = q.shape
    if cos.ndim not in (2, 3) or cos.shape[-2] != positions or (cos.ndim == 3 and cos.shape[0] not in (1, batch)):
        raise ValueError(
            f"rope: cos has shape {tuple(cos.shape)}, but must be [positions, columns] or [batch, positions, columns], "
            f"with the {positions} positions and the batch of {batch} that q has"
        )
    if sin.shape != cos.shape:
        raise ValueError(f"rope: sin has shape {tuple(sin.shape)}, but cos has {tuple(cos.shape)}; they must agree")
    columns = cos.shape[-1]
    if rotary_dim is None:
        if columns % 2 or not 2 <= columns <= head_dim:
            raise ValueError(
                f"rope: cos has {columns} columns, but must have an even number, from 2 to the {head_dim} that q has"
            )
        return
    if isinstance(rotary_dim, bool) or not isinstance(rotary_dim, int):
        raise TypeError(f"rope: rotary_dim is a {type(rotary_dim).__name__}, but must be an int or None")
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ValueError(f"rope: rotary_dim is {rotary_dim}, but must be even, from 2 to the {head_dim} columns of q")
    if columns not in (rotary_dim, rotary_dim // 2):
        raise ValueError(
            f"rope: cos has {columns} columns, but must have rotary_dim, which is {rotary_dim}, or half as many"
        )


def liger(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, rotary_dim: int | None = None
) -> tuple[Tensor, Tensor]:
    from liger_kernel.ops.rope import LigerRopeFunction

    if interleaved:
        raise NotImplementedError("Liger rotates no interleaved pairs")
    return LigerRopeFunction.apply(q, k, cos, sin, None, 1, rotary_dim)  # type: ignore[no-any-return]  # untyped


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    """Return q and k as projections leave them, positions before heads.

    Cases with interleaved pairs have a table per sequence, with one column per pair. Others have one table, with one
    column per element.
    """
    interleaved = "interleaved_pairs" in case.sizes
    pairs = case.interleaved_pairs if interleaved else case.pairs
    angles = torch.arange(case.positions, dtype=torch.float64, device=device)[:, None]
    angles = angles * 10000.0 ** -(torch.arange(pairs, dtype=torch.float64, device=device) / max(pairs, 1))
    angles = angles.expand(case.batch, -1, -1) if interleaved else torch.cat((angles, angles), -1)
    q, k = (
        layout(torch.randn(case.batch, case.positions, heads, 2 * pairs + case.rest, dtype=dtype, device=device))
        for heads in (case.q_heads, case.k_heads)
    )
    return {
        "q": q.transpose(1, 2),
        "k": k.transpose(1, 2),
        "cos": layout(angles.cos().to(dtype)),
        "sin": layout(angles.sin().to(dtype)),
        "interleaved": interleaved,
        "rotary_dim": 2 * pairs,
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    pairs = case.interleaved_pairs if "interleaved_pairs" in case.sizes else case.pairs
    elements = case.batch * (case.q_heads + case.k_heads) * case.positions * (2 * pairs + case.rest)
    tables = 2 * case.positions * (case.batch * pairs if "interleaved_pairs" in case.sizes else 2 * pairs)
    work = Work(bytes=(2 * elements + tables) * dtype.itemsize, flops=3 * elements)
    return Cost(forward=work, backward=work)


SPEC = Spec(
    name="rope",
    op=rope,
    reference=reference,
    formula="y₁ = x₁ · cos − x₂ · sin,  y₂ = x₂ · cos + x₁ · sin",
    cases=[
        Case("one", batch=1, positions=1, q_heads=1, k_heads=1, pairs=1, rest=0),
        Case("odd", batch=2, positions=7, q_heads=2, k_heads=2, pairs=5, rest=3),
        Case("interleaved-odd", batch=2, positions=9, q_heads=2, k_heads=2, interleaved_pairs=12, rest=0),
        Case("interleaved", batch=4, positions=4096, q_heads=32, k_heads=8, interleaved_pairs=64, rest=0),
        Case("partial", batch=4, positions=2048, q_heads=32, k_heads=32, pairs=16, rest=48),
        Case("llama", batch=4, positions=4096, q_heads=32, k_heads=8, pairs=64, rest=0),
        Case("decode", batch=128, positions=1, q_heads=8, k_heads=1, pairs=128, rest=0),
    ],
    make_inputs=make_inputs,
    cost=cost,
    fixed=("cos", "sin"),
    rivals={"torch": reference, "liger": liger},
)
