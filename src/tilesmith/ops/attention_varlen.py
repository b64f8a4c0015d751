"""Attention over sequences of different lengths, packed one after another: no padding is stored, read or computed.

Each sequence attends to itself alone, with the flops and bytes of one call of `attention`. The kernels are attention's
own: `attention/forms.py` lists them, says when each runs, and is the place for a new one. A program finds the sequence
of its block by a search in `cu_seqlens`, which stays on the GPU, so the host does not wait.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tilesmith.ops.attention.forms import plan_backward, plan_forward
from tilesmith.ops.attention.operator import ATTENTION, Numbers, require_heads, require_options
from tilesmith.ops.attention.problem import Problem, lse_shape
from tilesmith.ops.attention.reference import (
    MOST_SCORES,
    UNBOUNDED,
    AttentionOptions,
    Window,
    bounds,
    default_scale,
    in_one_piece,
    kept_by_dropout,
    products,
    seed_tensor,
    softmax,
)  # fmt: skip
from tilesmith.ops.attention.spec import seen_pairs
from tilesmith.ops.runtime.arguments import require_same_device
from tilesmith.ops.runtime.kernels import kernels, must_be_dispatched
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import LAYOUTS, Case, Cost, Inputs, Layout, Spec, Work


def reference(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, cu_seqlens_k: Tensor | None = None, causal: bool = False,
    scale: float | None = None, window: Window | None = None, softcap: float = 0.0, dropout: float = 0.0,
    seed: int | Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the output of one sequence after another; all at once where a tracer or transform hides the lengths."""
    key_starts = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    options = AttentionOptions(scale, window, softcap, dropout, seed)
    if must_be_dispatched() or q.device.type == "meta":
        return _in_one_matrix(q, k, v, cu_seqlens, key_starts, causal, options)
    check_values(q, k, v, cu_seqlens, cu_seqlens_k)
    return _one_by_one(q, k, v, cu_seqlens.tolist(), key_starts.tolist(), causal, options)


def _in_one_matrix(
    q: Tensor, k: Tensor, v: Tensor, query_starts: Tensor, key_starts: Tensor, causal: bool, options: AttentionOptions
) -> Tensor:  # fmt: skip
    """Compute one matrix of scores for all sequences, in which they do not see each other.

    Products over all sequences see zeros for NaN and infinities, since zero times NaN is NaN, here and in the gradient.
    The sequence that holds such an element gets NaN afterwards.
    """
    scale, window, softcap, dropout, seed = options
    group = q.shape[1] // max(k.shape[1], 1)
    sequence, place, length = _places(query_starts, q.shape[0])
    of_key, key, key_length = _places(key_starts, k.shape[0])
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    (q, q_is_bad), (k, k_is_bad), (v, v_is_bad) = (_finite_part(one) for one in (q, k, v))
    scores = products(q, k) * default_scale(q.shape[-1], scale)
    is_bad = q_is_bad.any(-1)[..., :, None] | k_is_bad.any(-1)[..., None, :]
    scores = scores.masked_fill(is_bad, torch.nan)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    left, right = bounds(causal, window)
    at = (place + key_length[sequence] - length[sequence])[:, None]
    seen = sequence[:, None] == of_key
    if left != UNBOUNDED:
        seen = seen & (key >= at - left)
    if right != UNBOUNDED:
        seen = seen & (key <= at + right)
    kept = None
    if dropout:
        head = sequence[:, None] * q.shape[0] + torch.arange(q.shape[0], device=q.device)[:, None, None]
        kept = kept_by_dropout(seed_tensor(seed, q.device), head, place[:, None], key, dropout)
    weights = softmax(scores.masked_fill(~seen, -torch.inf)).masked_fill(~seen, 0.0).to(v.dtype)
    if kept is not None:
        weights = torch.where(kept, weights / (1 - dropout), 0.0)
    sees_bad = (seen.to(v.dtype) @ v_is_bad.to(v.dtype)) > 0
    return (weights @ v).masked_fill(sees_bad, torch.nan).transpose(0, 1)


def _finite_part(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x with zeros for NaN and infinities, and where these are."""
    is_bad = ~x.isfinite()
    return x.masked_fill(is_bad, 0.0), is_bad


def _one_by_one(
    q: Tensor, k: Tensor, v: Tensor, query_starts: list[int], key_starts: list[int], causal: bool,
    options: AttentionOptions,
) -> Tensor:  # fmt: skip
    """Compute one sequence after another. The gradient computes each again where all scores would not fit."""
    heads = q.shape[1]
    of_queries, of_keys = list(pairwise(query_starts)), list(pairwise(key_starts))
    scores = heads * sum(
        (end - first) * (end_key - first_key)
        for (first, end), (first_key, end_key) in zip(of_queries, of_keys, strict=True)
    )
    outputs = []
    for number, ((first, end), (first_key, end_key)) in enumerate(zip(of_queries, of_keys, strict=True)):
        rows, keys = slice(first, end), slice(first_key, end_key)
        sides = (q[rows].transpose(0, 1)[None], k[keys].transpose(0, 1)[None], v[keys].transpose(0, 1)[None])
        arguments = (*sides, None, None, causal, options, number * heads)
        if scores > MOST_SCORES:
            made = checkpoint(in_one_piece, *arguments, use_reentrant=False)
        else:
            made = in_one_piece(*arguments)
        outputs.append(made[0].transpose(0, 1))
    return torch.cat(outputs)


def _places(starts: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sequence of each row, its position in that sequence, and the length of each sequence."""
    row = torch.arange(rows, device=starts.device)
    sequence = torch.searchsorted(starts[1:].long(), row, right=True)
    return sequence, row - starts.long()[sequence], starts.diff().long()


@kernels("attention_varlen_forward")
def forward(
    q: Tensor, k: Tensor, v: Tensor, query_starts: Tensor, key_starts: Tensor, seed: Tensor | None,
    left: int, right: int, scale: float | None, softcap: float, dropout: float, tf32: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output, and log₂ Σ 2^score of each query."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    return torch.empty_like(q), torch.empty(lse_shape(q.shape), dtype=dtype, device=q.device)


@forward.plan
def plan_output(plan: Plan, *arguments: Any) -> tuple[Operand, ...]:
    return plan_forward(packed_problem(plan, *arguments))


def packed_problem(
    plan: Plan, q: Operand, k: Operand, v: Operand, query_starts: Operand, key_starts: Operand, seed: Operand | None,
    *numbers: Any,
) -> Problem:  # fmt: skip
    """Return the problem of a call. The numbers are those of `Numbers`."""
    options = Numbers(*numbers).for_head(q.shape[-1])
    return Problem(plan, q, k, v, seed=seed, query_starts=query_starts, key_starts=key_starts, **options)


@kernels("attention_varlen_backward")
def backward(
    doutput: Tensor, output: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor,
    query_starts: Tensor, key_starts: Tensor, seed: Tensor | None,
    left: int, right: int, scale: float | None, softcap: float, dropout: float, tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk and dv."""
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@backward.plan
def plan_gradients(
    plan: Plan, doutput: Operand, output: Operand, lse: Operand, *arguments: Any
) -> tuple[Operand, ...]:  # fmt: skip
    return plan_backward(packed_problem(plan, *arguments), doutput, output, lse)


def prepare(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, cu_seqlens_k: Tensor | None, causal: bool, *options: Any
) -> tuple[Any, ...]:  # fmt: skip
    """Return the arguments as the kernels take them. The options are those of `AttentionOptions`."""
    given = AttentionOptions(*options)
    key_starts = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    return q, k, v, cu_seqlens, key_starts, given.seed if given.dropout else None, *Numbers.of(q, causal, given)


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, context.numbers = inputs[:6], inputs[6:]
    context.mark_non_differentiable(output[1])
    context.set_materialize_grads(False)
    context.save_for_backward(*output, *tensors)


def gradient(context: Any, doutput: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if doutput is None:  # the loss does not depend on the output
        return (None,) * 12
    output, lse, *tensors = context.saved_tensors
    return *backward(doutput, output, lse, *tensors, *context.numbers), *(None,) * 9


def check_values(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, cu_seqlens_k: Tensor | None, *_: object
) -> None:  # fmt: skip
    """Check that sequences start at zero, follow one another and end with the tensor. Waits for the GPU."""
    of_keys = ("cu_seqlens_k" if cu_seqlens_k is not None else "cu_seqlens", cu_seqlens_k, k)
    for name, starts, rows in (("cu_seqlens", cu_seqlens, q), of_keys):
        places = (cu_seqlens if starts is None else starts).tolist()
        if places[0] != 0 or places[-1] != rows.shape[0] or sorted(places) != places:
            raise ValueError(
                f"attention_varlen: {name} is {places}, but must go up from 0 to the {rows.shape[0]} rows there are"
            )


@operator(
    "attention_varlen", reference=reference, forward=forward, prepare=prepare, save=save, gradient=gradient,
    options=replace(ATTENTION, check_values=check_values),
)  # fmt: skip
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
) -> Tensor:
    """Return `attention` of every sequence with itself. Sequences are packed along the first dimension.

    q is [rows of all sequences, heads, head size], k and v likewise with their own heads. `cu_seqlens` holds the first
    row of each sequence, and then the end of the last: int32 or int64 on the device of q, from 0 to the number of rows.
    Where keys have other lengths than queries, `cu_seqlens_k` holds theirs. The other options are attention's own.
    """
    require_heads("attention_varlen", q, k, v, dimensions=3)
    require_options("attention_varlen", scale, window, softcap, dropout, seed)
    require_starts("cu_seqlens", cu_seqlens)
    if cu_seqlens_k is not None:
        require_starts("cu_seqlens_k", cu_seqlens_k)
        if cu_seqlens_k.shape != cu_seqlens.shape:
            raise ValueError(
                f"attention_varlen: cu_seqlens_k has {cu_seqlens_k.shape[0]} elements, but cu_seqlens has "
                f"{cu_seqlens.shape[0]}; they must be as many"
            )
    elif k.shape[0] != q.shape[0]:
        raise ValueError(
            f"attention_varlen: k has {k.shape[0]} rows, but q has {q.shape[0]}; give cu_seqlens_k where they differ"
        )
    require_same_device("attention_varlen", q=q, k=k, v=v, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k)
    return q


def require_starts(name: str, starts: Tensor) -> None:
    if not isinstance(starts, Tensor):
        raise TypeError(f"attention_varlen: {name} is a {type(starts).__name__}, but must be a tensor")
    if starts.dtype not in (torch.int32, torch.int64):
        short = str(starts.dtype).removeprefix("torch.")
        raise TypeError(f"attention_varlen: {name} has dtype {short}, but must be int32 or int64")
    if starts.ndim != 1 or starts.shape[0] < 2 or not starts.is_contiguous():
        raise ValueError(
            f"attention_varlen: {name} has shape {tuple(starts.shape)}, but must be a contiguous vector of at least 2"
        )


def lengths(case: Case) -> list[int]:
    """Return the lengths of all sequences: from 1 up to twice the average."""
    rising = [1 + 2 * n * (case.average - 1) // max(case.sequences - 1, 1) for n in range(case.sequences)]
    return rising if case.sequences > 1 else [case.average]


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> Inputs:
    starts = [0]
    for length in lengths(case):
        starts.append(starts[-1] + length)
    heads = case.key_heads * case.group

    def made(heads: int) -> Tensor:
        return layout(torch.randn(starts[-1], heads, case.head, dtype=dtype, device=device))

    return {
        "q": made(heads),
        "k": made(case.key_heads),
        "v": made(case.key_heads),
        "cu_seqlens": torch.tensor(starts, dtype=torch.int32, device=device),
        "cu_seqlens_k": None,
        "causal": True,
        "scale": None,
        "window": None,
        "softcap": 0.0,
        "dropout": 0.0,
        "seed": None,
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    rows, heads = sum(lengths(case)), case.key_heads * case.group
    q_bytes, k_bytes = (rows * count * case.head * dtype.itemsize for count in (heads, case.key_heads))
    seen = heads * sum(seen_pairs(length, length, UNBOUNDED, 0) for length in lengths(case))
    return Cost(
        forward=Work(bytes=2 * q_bytes + 2 * k_bytes + 4 * rows * heads, flops=4 * seen * case.head),
        backward=Work(bytes=4 * q_bytes + 4 * k_bytes + 4 * rows * heads, flops=10 * seen * case.head),
    )


def flash_attn(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, cu_seqlens_k: Tensor | None, causal: bool,
    scale: float | None, window: Any, softcap: float, dropout: float, seed: Any,
) -> Tensor:  # fmt: skip
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]  # may be absent

    longest = q.shape[0]  # an upper bound is enough, and the exact length would need a wait for the GPU
    return flash_attn_varlen_func(  # type: ignore[no-any-return]  # untyped
        q, k, v, cu_seqlens, cu_seqlens, longest, longest, softmax_scale=scale, causal=causal
    )


SPEC = Spec(
    name="attention_varlen",
    op=attention_varlen,
    reference=reference,
    roundings=6,  # scores, weights, their sum, output; of gradients that of the weights and what is left of it
    formula="o = softmax(scale · q·kᵀ) · v within each sequence",
    cases=[
        Case("one", sequences=1, average=5, key_heads=1, group=1, head=16),
        Case("odd", sequences=4, average=7, key_heads=2, group=2, head=16),
        Case("past-a-block", sequences=3, average=50, key_heads=1, group=1, head=64),
        Case("batch", sequences=64, average=1024, key_heads=8, group=4, head=128),
        Case("one-head", sequences=64, average=1024, key_heads=1, group=1, head=128),
    ],
    make_inputs=make_inputs,
    layouts=[one for one in LAYOUTS if one.name != "expanded"],  # of equal rows the gradient is nothing but rounding
    cost=cost,
    rivals={"flash_attn": flash_attn},
)
