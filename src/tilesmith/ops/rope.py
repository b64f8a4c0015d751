"""Rotary position embedding: pairs of elements of q and k turned by the angle of their position,

y₁ = x₁ · cos − x₂ · sin,    y₂ = x₂ · cos + x₁ · sin.

Moves two elements per element of q and k and does three flops on each: memory-bound on every GPU. q and k are turned in
one launch, in place of their two; a program holds the tables of some positions in registers and takes several heads
through them, so that the tables are read once for all of those. Nothing waits but for memory, so a program asks for all
that it will turn before it turns any of it. The gradient is a rotation back by the same kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.runtime.arguments import require_floating, require_same_device
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, rotary_dim: int | None = None
) -> tuple[Tensor, Tensor]:
    if rotary_dim is not None and rotary_dim != cos.shape[-1]:  # one column for each pair: now one for each element
        cos, sin = (
            table.repeat_interleave(2, -1) if interleaved else torch.cat((table, table), -1) for table in (cos, sin)
        )
    if cos.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]  # the same for every head

    def turned(x: Tensor) -> Tensor:
        pairs, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
        return torch.cat((pairs * cos + partners(pairs, interleaved) * sin, rest), -1).to(x.dtype)

    return turned(q), turned(k)


def partners(pairs: Tensor, interleaved: bool) -> Tensor:
    """For each element the other one of its pair, which counts negatively for the first of the two."""
    if interleaved:
        return torch.stack((-pairs[..., 1::2], pairs[..., 0::2]), -1).flatten(-2)
    first, second = pairs.chunk(2, -1)
    return torch.cat((-second, first), -1)


@triton.jit
def load_pairs(
    rows, stride, n_pairs, in_rows, INTERLEAVED: tl.constexpr, POSITIONS: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """First and second elements of all pairs of some rows, given by pointers to where those begin."""
    if INTERLEAVED:
        elements = tl.arange(0, 2 * PAIRS).to(tl.int64)
        mask = in_rows[:, None] & (elements < 2 * n_pairs)[None, :]
        both = tl.load(rows[:, None] + (elements * stride)[None, :], mask=mask, other=0.0)
        first, second = tl.split(tl.reshape(both, [POSITIONS, PAIRS, 2]))
    else:
        pairs = tl.arange(0, PAIRS).to(tl.int64)
        mask = in_rows[:, None] & (pairs < n_pairs)[None, :]
        first = tl.load(rows[:, None] + (pairs * stride)[None, :], mask=mask, other=0.0)
        second = tl.load(rows[:, None] + ((pairs + n_pairs) * stride)[None, :], mask=mask, other=0.0)
    return first, second


@triton.jit
def store_pairs(rows, stride, n_pairs, in_rows, first, second, INTERLEAVED: tl.constexpr, PAIRS: tl.constexpr):
    first, second = first.to(rows.dtype.element_ty), second.to(rows.dtype.element_ty)
    if INTERLEAVED:
        elements = tl.arange(0, 2 * PAIRS).to(tl.int64)
        mask = in_rows[:, None] & (elements < 2 * n_pairs)[None, :]
        tl.store(rows[:, None] + (elements * stride)[None, :], tl.interleave(first, second), mask=mask)
    else:
        pairs = tl.arange(0, PAIRS).to(tl.int64)
        mask = in_rows[:, None] & (pairs < n_pairs)[None, :]
        tl.store(rows[:, None] + (pairs * stride)[None, :], first, mask=mask)
        tl.store(rows[:, None] + ((pairs + n_pairs) * stride)[None, :], second, mask=mask)


@triton.jit
def load_table(
    rows, stride, n_pairs, in_rows,
    COMPACT: tl.constexpr, INTERLEAVED: tl.constexpr, COMPUTE: tl.constexpr,
    POSITIONS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """What the first and the second elements of pairs are multiplied with; a compact table has one number for both."""
    if COMPACT:
        pairs = tl.arange(0, PAIRS).to(tl.int64)
        mask = in_rows[:, None] & (pairs < n_pairs)[None, :]
        first = tl.load(rows[:, None] + (pairs * stride)[None, :], mask=mask, other=0.0)
        second = first
    else:
        first, second = load_pairs(rows, stride, n_pairs, in_rows, INTERLEAVED, POSITIONS, PAIRS)
    return first.to(COMPUTE), second.to(COMPUTE)


@triton.jit
def load_rest(rows, stride, n_pairs, n_rest, in_rows, REST: tl.constexpr):
    """The elements of some rows that are not turned."""
    elements = tl.arange(0, REST).to(tl.int64)
    mask = in_rows[:, None] & (elements < n_rest)[None, :]
    return tl.load(rows[:, None] + ((elements + 2 * n_pairs) * stride)[None, :], mask=mask)


@triton.jit
def store_rest(rows, stride, n_pairs, n_rest, in_rows, rest, REST: tl.constexpr):
    elements = tl.arange(0, REST).to(tl.int64)
    mask = in_rows[:, None] & (elements < n_rest)[None, :]
    tl.store(rows[:, None] + ((elements + 2 * n_pairs) * stride)[None, :], rest, mask=mask)


@triton.jit
def turn_heads(
    x_ptr, y_ptr, cos_rows, sin_rows, x_strides, y_strides, cos_strides, sin_strides,
    batch, heads, positions, in_rows, n_heads, n_pairs, n_rest, inverse,
    COMPACT: tl.constexpr, INTERLEAVED: tl.constexpr, COMPUTE: tl.constexpr,
    HEADS: tl.constexpr, TURNS: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Rows, each of a head and a position of one sequence, and as many of each of the next HEADS heads in turn; the
    elements of a head that are not turned are copied."""
    x_rows = x_ptr + batch * x_strides[0] + heads * x_strides[1] + positions * x_strides[2]
    y_rows = y_ptr + batch * y_strides[0] + heads * y_strides[1] + positions * y_strides[2]
    loaded, rests = (), ()
    for turn in tl.static_range(TURNS):
        there = in_rows & (heads + turn * HEADS < n_heads)
        x_head = x_rows + tl.full([], turn * HEADS, tl.int64) * x_strides[1]
        first, second = load_pairs(x_head, x_strides[3], n_pairs, there, INTERLEAVED, ROWS, PAIRS)
        loaded += ((first, second),)  # type: ignore[assignment]  # traced: each turn sees the tuple that it is by then
        if REST > 0:
            rests += (load_rest(x_head, x_strides[3], n_pairs, n_rest, there, REST),)  # type: ignore[assignment]  # so too
    # Only now, and in this branch: a program that waited for the tables would ask for the heads that much later.
    cos = load_table(cos_rows, cos_strides[2], n_pairs, in_rows, COMPACT, INTERLEAVED, COMPUTE, ROWS, PAIRS)
    sin = load_table(sin_rows, sin_strides[2], n_pairs, in_rows, COMPACT, INTERLEAVED, COMPUTE, ROWS, PAIRS)
    # The transpose of the matrix that turns a pair: one compiled kernel does for both ways.
    sin = tl.where(inverse != 0, -sin[1], sin[0]), tl.where(inverse != 0, -sin[0], sin[1])
    for turn in tl.static_range(TURNS):
        there = in_rows & (heads + turn * HEADS < n_heads)
        y_head = y_rows + tl.full([], turn * HEADS, tl.int64) * y_strides[1]
        first, second = loaded[turn][0].to(COMPUTE), loaded[turn][1].to(COMPUTE)
        turned_first = first * cos[0] - second * sin[0]  # type: ignore[unreachable]  # so too
        turned_second = second * cos[1] + first * sin[1]
        store_pairs(y_head, y_strides[3], n_pairs, there, turned_first, turned_second, INTERLEAVED, PAIRS)
        if REST > 0:
            store_rest(y_head, y_strides[3], n_pairs, n_rest, there, rests[turn], REST)


@triton.jit(do_not_specialize=["n_positions", "inverse"])
def rope_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, turned_q_ptr, turned_k_ptr,
    q_strides, k_strides, cos_strides, sin_strides, turned_q_strides, turned_k_strides,
    n_positions, q_heads, k_heads, n_pairs, n_rest, inverse,
    COMPACT: tl.constexpr, INTERLEAVED: tl.constexpr, COMPUTE: tl.constexpr,
    HEADS: tl.constexpr, TURNS: tl.constexpr, POSITIONS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """TURNS times HEADS heads of q or of k at POSITIONS positions; programs of the same positions follow each other."""
    ROWS: tl.constexpr = HEADS * POSITIONS
    q_chunks = tl.cdiv(q_heads, TURNS * HEADS)
    chunks = q_chunks + tl.cdiv(k_heads, TURNS * HEADS)
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    block = tl.program_id(0) // chunks
    position_blocks = tl.cdiv(n_positions, POSITIONS)
    batch = (block // position_blocks).to(tl.int64)
    heads = tl.arange(0, ROWS) % HEADS
    positions = (block % position_blocks * POSITIONS + tl.arange(0, ROWS) // HEADS).to(tl.int64)
    in_rows = positions < n_positions
    cos_rows = cos_ptr + batch * cos_strides[0] + positions * cos_strides[1]
    sin_rows = sin_ptr + batch * sin_strides[0] + positions * sin_strides[1]
    if chunk < q_chunks:
        turn_heads(
            q_ptr, turned_q_ptr, cos_rows, sin_rows, q_strides, turned_q_strides, cos_strides, sin_strides,
            batch, chunk * TURNS * HEADS + heads, positions, in_rows, q_heads, n_pairs, n_rest, inverse,
            COMPACT, INTERLEAVED, COMPUTE, HEADS, TURNS, ROWS, PAIRS, REST
        )  # fmt: skip
    else:
        turn_heads(
            k_ptr, turned_k_ptr, cos_rows, sin_rows, k_strides, turned_k_strides, cos_strides, sin_strides,
            batch, (chunk - q_chunks) * TURNS * HEADS + heads, positions, in_rows, k_heads, n_pairs, n_rest, inverse,
            COMPACT, INTERLEAVED, COMPUTE, HEADS, TURNS, ROWS, PAIRS, REST
        )  # fmt: skip


@dataclass(frozen=True)
class RopeConfig(Config):
    """Each program takes HEADS heads at POSITIONS positions, and so many of the next heads, TURNS times in all."""

    HEADS: int = 8
    TURNS: int = 4
    POSITIONS: int = 4


def rope_config(pairs: int, heads: int, element_bytes: int) -> RopeConfig:
    """16 bytes of each half of a head for each thread and turn, which neighbouring threads have next to each other
    where positions come before heads. Of up to 32 heads, so that the tables, each as large as a head, add little to
    what is read through the caches.

    q of 32 heads and k of 8, 4 × 2048 positions of 64 elements in bf16 on an H200: 22.5 µs forward as well as backward
    with 8 HEADS, 4 TURNS and 4 POSITIONS, where a plain copy of both takes 23.9; (16, 2, 2) 25.4, (1, 4, 32) 23.4,
    (32, 1, 1) 29.5. Each head loaded only when the one before it was turned took 28.5 to 30.3; others from that to
    this: the same in fp32 47.4 → 43.7, and of the cases partial 60.8 → 45.3, interleaved 90.1 → 83.8, llama
    88.2 → 84.6, decode 4.0 → 2.3.
    """
    warps = 4
    threads = 32 * warps
    rows = min(max(threads * 16 // element_bytes // bucket(pairs), 1), threads)
    side_by_side = min(bucket(heads), 8, rows)
    turns = min(bucket(heads) // side_by_side, 4)
    return RopeConfig(num_warps=warps, HEADS=side_by_side, TURNS=turns, POSITIONS=rows // side_by_side)


@kernels("rope_forward")
def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(q), torch.empty_like(k)


@forward.plan
def plan_forward(
    plan: Plan, q: Operand, k: Operand, cos: Operand, sin: Operand, interleaved: bool, rotary_dim: int
) -> tuple[Operand, Operand]:  # fmt: skip
    return _plan_rotation(plan, q, k, cos, sin, interleaved, rotary_dim, inverse=False)


@kernels("rope_backward")
def backward(
    dq: Tensor, dk: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of q and k: turned back."""
    return torch.empty_like(dq), torch.empty_like(dk)


@backward.plan
def plan_backward(
    plan: Plan, dq: Operand, dk: Operand, cos: Operand, sin: Operand, interleaved: bool, rotary_dim: int
) -> tuple[Operand, Operand]:  # fmt: skip
    return _plan_rotation(plan, dq, dk, cos, sin, interleaved, rotary_dim, inverse=True)


def _plan_rotation(
    plan: Plan, q: Operand, k: Operand, cos: Operand, sin: Operand, interleaved: bool, rotary_dim: int, *, inverse: bool
) -> tuple[Operand, Operand]:  # fmt: skip
    turned_q, turned_k = plan.empty_like(q), plan.empty_like(k)
    batch, q_heads, positions, head_dim = q.shape
    pairs, k_heads = rotary_dim // 2, k.shape[1]
    default = rope_config(pairs, max(q_heads, k_heads), q.element_bytes)
    config = plan.choose(default, "pairs", bucket(pairs), q.dtype)
    heads = config.HEADS * config.TURNS
    chunks = triton.cdiv(q_heads, heads) + triton.cdiv(k_heads, heads)
    plan.launch(
        rope_kernel, (batch * triton.cdiv(positions, config.POSITIONS) * chunks if head_dim else 0,), config,
        q_ptr=q, k_ptr=k, cos_ptr=cos, sin_ptr=sin, turned_q_ptr=turned_q, turned_k_ptr=turned_k,
        q_strides=q.strides, k_strides=k.strides, cos_strides=_table_strides(cos), sin_strides=_table_strides(sin),
        turned_q_strides=turned_q.strides, turned_k_strides=turned_k.strides,
        n_positions=positions, q_heads=q_heads, k_heads=k_heads, n_pairs=pairs, n_rest=head_dim - rotary_dim,
        inverse=int(inverse),
        COMPACT=cos.shape[-1] != rotary_dim, INTERLEAVED=interleaved,
        COMPUTE=compute_dtype(q.dtype, k.dtype, cos.dtype, sin.dtype),
        PAIRS=bucket(pairs), REST=bucket(head_dim - rotary_dim) if head_dim > rotary_dim else 0,
    )  # fmt: skip
    return turned_q, turned_k


def _table_strides(table: Operand) -> tuple[int, ...]:
    """Of batch, position and column; the first is zero where all sequences have the same table."""
    if len(table.shape) == 2:
        return (0, *table.strides)
    return (0 if table.shape[0] == 1 else table.strides[0], *table.strides[1:])


def prepare(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, bool, int]:  # fmt: skip
    return q, k, cos, sin, interleaved, cos.shape[-1] if rotary_dim is None else rotary_dim


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """q and k are kept only for the gradients of cos and sin, which hardly anybody asks for."""
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
    turned_gradients: Sequence[Tensor], inputs: Sequence[Tensor], table: Tensor, interleaved: bool, rotary_dim: int
) -> tuple[Tensor, Tensor]:
    """Of cos and sin: sums over all heads that were turned by them, which are left to PyTorch."""
    dtype = torch.promote_types(torch.float32, table.dtype)
    of_cos, of_sin = [], []
    for dy, x in zip(turned_gradients, inputs, strict=True):
        dy, pairs = dy[..., :rotary_dim].to(dtype), x[..., :rotary_dim].to(dtype)
        of_cos.append((dy * pairs).sum(1))
        of_sin.append((dy * partners(pairs, interleaved)).sum(1))

    def in_the_form_of_the_table(total: Tensor) -> Tensor:
        if table.shape[-1] != rotary_dim:
            total = total.unflatten(-1, (-1, 2) if interleaved else (2, -1)).sum(-1 if interleaved else -2)
        return total.sum_to_size(table.shape).to(table.dtype)

    return in_the_form_of_the_table(of_cos[0] + of_cos[1]), in_the_form_of_the_table(of_sin[0] + of_sin[1])


@operator("rope", reference=reference, forward=forward, save=save, gradient=gradient, prepare=prepare)
def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, rotary_dim: int | None = None
) -> tuple[Tensor, Tensor]:
    """q and k with pairs of their elements turned by the angles that cos and sin are of.

    q is [batch, heads, positions, head_dim], k may have another number of heads; their strides may be any, so that
    [batch, positions, heads, head_dim] transposed is as good. A pair is elements i and i + rotary_dim/2 of a head, or
    with `interleaved` elements 2i and 2i + 1. Elements from rotary_dim on are passed through.

    cos and sin are [positions, columns] or [batch, positions, columns], in any floating dtype. Without `rotary_dim`
    there is one column for each element that is turned, as Hugging Face's models have it. With `rotary_dim` there may
    also be rotary_dim/2 columns, one for each pair.

    The results have the dtypes of q and k and are computed in single precision or better. Where cos and sin want a
    gradient, PyTorch computes it.
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
        raise NotImplementedError("Liger turns no interleaved pairs")
    return LigerRopeFunction.apply(q, k, cos, sin, None, 1, rotary_dim)  # type: ignore[no-any-return]  # untyped


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    """q and k as projections leave them, positions before heads. Cases with interleaved pairs have a table of one
    column per pair for each sequence; others have one of one column per element for all."""
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
