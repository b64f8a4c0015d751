"""QK-norm and rotary positions in one kernel: each head of q and k is normed (RMS), scaled and rotated.

Forward moves two elements per element of q and k (read, write). Norm and rotation apart move four. Backward moves three
(read dy and x, write dx); apart, five. Memory-bound on every GPU.

- One launch takes q and k. A row is one head at one position; rows of one position follow each other, so caches hold
  the tables.
- The backward computes the norm again. Each of its programs walks several tiles of rows and adds up its part of the
  weight's gradient; a second kernel adds the parts.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.rms_norm.operator import reference as norm_reference
from tilesmith.ops.rope.operator import reference as rope_reference
from tilesmith.ops.rope.operator import rope
from tilesmith.ops.runtime.arguments import require_floating, require_number, require_same_device, require_vector
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    return rope_reference(norm_reference(q, q_weight, eps), norm_reference(k, k_weight, eps), cos, sin)


@triton.jit
def row_offsets(rows, strides, n_heads, n_positions):
    """Return where rows of [batch, heads, positions, elements] start; neighbouring rows are heads of a position."""
    heads, positions = rows % n_heads, rows // n_heads % n_positions
    return rows // (n_heads * n_positions) * strides[0] + heads * strides[1] + positions * strides[2]  # [ROWS]


@triton.jit
def table_offsets(rows, strides, n_heads, n_positions):
    """Return where the rows of cos or sin start that belong to these rows."""
    return rows // (n_heads * n_positions) * strides[0] + rows // n_heads % n_positions * strides[1]  # [ROWS]


@triton.jit
def load_halves(pointers, stride, n_pairs, in_rows, COMPUTE: tl.constexpr, PAIRS: tl.constexpr):
    """Return both halves of some rows; `pointers` are their starts."""
    pairs = tl.arange(0, PAIRS).to(tl.int64)
    mask = in_rows[:, None] & (pairs < n_pairs)[None, :]
    first = tl.load(pointers[:, None] + (pairs * stride)[None, :], mask=mask, other=0.0)
    second = tl.load(pointers[:, None] + ((pairs + n_pairs) * stride)[None, :], mask=mask, other=0.0)
    return first.to(COMPUTE), second.to(COMPUTE)  # [ROWS, PAIRS] each


@triton.jit
def store_halves(pointers, stride, n_pairs, in_rows, first, second, PAIRS: tl.constexpr):
    pairs = tl.arange(0, PAIRS).to(tl.int64)
    mask = in_rows[:, None] & (pairs < n_pairs)[None, :]
    tl.store(pointers[:, None] + (pairs * stride)[None, :], first.to(pointers.dtype.element_ty), mask=mask)
    second_pointers = pointers[:, None] + ((pairs + n_pairs) * stride)[None, :]
    tl.store(second_pointers, second.to(pointers.dtype.element_ty), mask=mask)


@triton.jit
def load_weight_halves(weight_ptr, stride, n_pairs, COMPUTE: tl.constexpr, PAIRS: tl.constexpr):
    pairs = tl.arange(0, PAIRS).to(tl.int64)
    in_row = pairs < n_pairs
    first = tl.load(weight_ptr + pairs * stride, mask=in_row, other=0.0).to(COMPUTE)
    second = tl.load(weight_ptr + (pairs + n_pairs) * stride, mask=in_row, other=0.0).to(COMPUTE)
    return first[None, :], second[None, :]  # [1, PAIRS] each


@triton.jit
def normed_and_rotated(
    pointers, strides, rows, sizes, eps, COMPUTE: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Norm, scale and rotate some rows of q or k; pointers and strides are of x, y, weight, cos and sin."""
    x_ptr, y_ptr, weight_ptr, cos_ptr, sin_ptr = pointers
    x_strides, y_strides, weight_stride, cos_strides, sin_strides = strides
    n_rows, n_heads, n_positions, n_pairs = sizes
    in_rows = rows < n_rows
    x_rows = x_ptr + row_offsets(rows, x_strides, n_heads, n_positions)
    first, second = load_halves(x_rows, x_strides[3], n_pairs, in_rows, COMPUTE, PAIRS)
    cos_rows = cos_ptr + table_offsets(rows, cos_strides, n_heads, n_positions)
    sin_rows = sin_ptr + table_offsets(rows, sin_strides, n_heads, n_positions)
    first_cos, second_cos = load_halves(cos_rows, cos_strides[2], n_pairs, in_rows, COMPUTE, PAIRS)
    first_sin, second_sin = load_halves(sin_rows, sin_strides[2], n_pairs, in_rows, COMPUTE, PAIRS)
    first_weight, second_weight = load_weight_halves(weight_ptr, weight_stride, n_pairs, COMPUTE, PAIRS)
    squares = tl.sum(first * first + second * second, axis=1)
    inverse_rms = tl.rsqrt(squares / (2 * n_pairs) + eps)[:, None]  # [ROWS, 1]
    first, second = first * inverse_rms * first_weight, second * inverse_rms * second_weight
    y_rows = y_ptr + row_offsets(rows, y_strides, n_heads, n_positions)
    rotated = first * first_cos - second * first_sin
    store_halves(
        y_rows, y_strides[3], n_pairs, in_rows, rotated, second * second_cos + first * second_sin, PAIRS
    )  # fmt: skip


@triton.jit(do_not_specialize=["n_positions", "q_rows", "k_rows"])
def rms_norm_rope_forward_kernel(
    q_ptr, k_ptr, rotated_q_ptr, rotated_k_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr,
    q_strides, k_strides, rotated_q_strides, rotated_k_strides, q_weight_stride, k_weight_stride, cos_strides,
    sin_strides, n_positions, q_heads, k_heads, q_rows, k_rows, n_pairs, eps,
    COMPUTE: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """ROWS rows of q, or of k."""
    q_blocks = tl.cdiv(q_rows, ROWS)
    block = tl.program_id(0).to(tl.int64)
    if block < q_blocks:
        rows = block * ROWS + tl.arange(0, ROWS)
        normed_and_rotated(
            (q_ptr, rotated_q_ptr, q_weight_ptr, cos_ptr, sin_ptr),
            (q_strides, rotated_q_strides, q_weight_stride, cos_strides, sin_strides),
            rows, (q_rows, q_heads, n_positions, n_pairs), eps, COMPUTE, PAIRS,
        )  # fmt: skip
    else:
        rows = (block - q_blocks) * ROWS + tl.arange(0, ROWS)
        normed_and_rotated(
            (k_ptr, rotated_k_ptr, k_weight_ptr, cos_ptr, sin_ptr),
            (k_strides, rotated_k_strides, k_weight_stride, cos_strides, sin_strides),
            rows, (k_rows, k_heads, n_positions, n_pairs), eps, COMPUTE, PAIRS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_positions", "n_rows", "rows_per_program"])
def rms_norm_rope_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, partials_ptr, cos_ptr, sin_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, cos_strides, sin_strides,
    n_positions, n_heads, n_rows, rows_per_program, n_pairs, eps,
    COMPUTE: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """The gradient of rows_per_program rows of q or of k, and their part of the weight's gradient."""
    program = tl.program_id(0).to(tl.int64)
    first_weight, second_weight = load_weight_halves(weight_ptr, weight_stride, n_pairs, COMPUTE, PAIRS)
    first_total = tl.zeros([ROWS, PAIRS], COMPUTE)
    second_total = tl.zeros([ROWS, PAIRS], COMPUTE)
    for start in range(0, rows_per_program, ROWS):
        rows = program * rows_per_program + start + tl.arange(0, ROWS)
        in_rows = rows < n_rows
        dy_rows = dy_ptr + row_offsets(rows, dy_strides, n_heads, n_positions)
        x_rows = x_ptr + row_offsets(rows, x_strides, n_heads, n_positions)
        cos_rows = cos_ptr + table_offsets(rows, cos_strides, n_heads, n_positions)
        sin_rows = sin_ptr + table_offsets(rows, sin_strides, n_heads, n_positions)
        first_dy, second_dy = load_halves(dy_rows, dy_strides[3], n_pairs, in_rows, COMPUTE, PAIRS)
        first, second = load_halves(x_rows, x_strides[3], n_pairs, in_rows, COMPUTE, PAIRS)
        first_cos, second_cos = load_halves(cos_rows, cos_strides[2], n_pairs, in_rows, COMPUTE, PAIRS)
        first_sin, second_sin = load_halves(sin_rows, sin_strides[2], n_pairs, in_rows, COMPUTE, PAIRS)
        squares = tl.sum(first * first + second * second, axis=1)
        inverse_rms = tl.rsqrt(squares / (2 * n_pairs) + eps)[:, None]  # [ROWS, 1]
        first, second = first * inverse_rms, second * inverse_rms
        # The gradient of the scaled norm is dy rotated back.
        first_dn = first_dy * first_cos + second_dy * second_sin
        second_dn = second_dy * second_cos - first_dy * first_sin
        first_total += tl.where(in_rows[:, None], first_dn * first, 0.0)
        second_total += tl.where(in_rows[:, None], second_dn * second, 0.0)
        first_dn, second_dn = first_dn * first_weight, second_dn * second_weight
        mean = (tl.sum(first_dn * first + second_dn * second, axis=1) / (2 * n_pairs))[:, None]
        dx_rows = dx_ptr + row_offsets(rows, dx_strides, n_heads, n_positions)
        store_halves(
            dx_rows, dx_strides[3], n_pairs, in_rows, (first_dn - first * mean) * inverse_rms,
            (second_dn - second * mean) * inverse_rms, PAIRS,
        )  # fmt: skip
    pairs = tl.arange(0, PAIRS)
    partials = partials_ptr + program * 2 * n_pairs + pairs
    tl.store(partials, tl.sum(first_total, axis=0), mask=pairs < n_pairs)
    tl.store(partials + n_pairs, tl.sum(second_total, axis=0), mask=pairs < n_pairs)


@dataclass(frozen=True)
class NormRopeConfig(Config):
    """Each program takes ROWS rows at a time; a row is one head at one position."""

    ROWS: int = 16


def norm_rope_config(pairs: int, rows: int) -> NormRopeConfig:
    """Return about 2048 elements for four warps: 16 bytes of each half per thread and turn."""
    return NormRopeConfig(num_warps=4, ROWS=max(1, min(bucket(rows), 1024 // bucket(pairs), 64)))


@kernels("rms_norm_rope_forward")
def forward(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(q), torch.empty_like(k)


@forward.plan
def plan_forward(
    plan: Plan, q: Operand, k: Operand, q_weight: Operand, k_weight: Operand, cos: Operand, sin: Operand, eps: float
) -> tuple[Operand, Operand]:  # fmt: skip
    rotated_q, rotated_k = plan.empty_like(q), plan.empty_like(k)
    batch, q_heads, positions, head_dim = q.shape
    q_rows, k_rows = batch * q_heads * positions, batch * k.shape[1] * positions
    pairs = head_dim // 2
    default = norm_rope_config(max(pairs, 1), max(q_rows, k_rows))
    config = plan.choose(default, "pairs", bucket(max(pairs, 1)), q.dtype)
    blocks = triton.cdiv(q_rows, config.ROWS) + triton.cdiv(k_rows, config.ROWS)
    plan.launch(
        rms_norm_rope_forward_kernel, (blocks,), config,
        q_ptr=q, k_ptr=k, rotated_q_ptr=rotated_q, rotated_k_ptr=rotated_k, q_weight_ptr=q_weight,
        k_weight_ptr=k_weight, cos_ptr=cos, sin_ptr=sin, q_strides=q.strides, k_strides=k.strides,
        rotated_q_strides=rotated_q.strides, rotated_k_strides=rotated_k.strides,
        q_weight_stride=q_weight.strides[0], k_weight_stride=k_weight.strides[0],
        cos_strides=_table_strides(cos), sin_strides=_table_strides(sin), n_positions=positions, q_heads=q_heads,
        k_heads=k.shape[1], q_rows=q_rows, k_rows=k_rows, n_pairs=pairs, eps=float(eps),
        COMPUTE=compute_dtype(q.dtype, k.dtype, q_weight.dtype, cos.dtype), PAIRS=bucket(max(pairs, 1)),
    )  # fmt: skip
    return rotated_q, rotated_k


def _table_strides(table: Operand) -> tuple[int, ...]:
    """Return the strides of batch, position and column; zero for the batch where all sequences share one table."""
    if len(table.shape) == 2:
        return (0, *table.strides)
    return (0 if table.shape[0] == 1 else table.strides[0], *table.strides[1:])


@kernels("rms_norm_rope_backward")
def backward(
    dy: Tensor, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q and of its weight, or those of k; dy is the gradient of the rotated tensor."""
    return torch.empty_like(x), torch.empty_like(weight, memory_format=torch.contiguous_format)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, x: Operand, weight: Operand, cos: Operand, sin: Operand, eps: float
) -> tuple[Operand, Operand]:  # fmt: skip
    dx, dweight = plan.empty_like(x), plan.empty(weight.shape, weight.dtype)
    batch, heads, positions, head_dim = x.shape
    rows, pairs = batch * heads * positions, head_dim // 2
    config = plan.choose(norm_rope_config(max(pairs, 1), rows), "pairs", bucket(max(pairs, 1)), x.dtype)
    programs = max(1, min(triton.cdiv(rows, config.ROWS), 4 * plan.multiprocessors))
    rows_per_program = triton.cdiv(triton.cdiv(rows, programs), config.ROWS) * config.ROWS
    compute = compute_dtype(dy.dtype, x.dtype, weight.dtype, cos.dtype)
    partials = plan.empty((programs, head_dim), torch.float64 if compute == tl.float64 else torch.float32)
    plan.launch(
        rms_norm_rope_backward_kernel, (programs,), config,
        dy_ptr=dy, x_ptr=x, dx_ptr=dx, weight_ptr=weight, partials_ptr=partials, cos_ptr=cos, sin_ptr=sin,
        dy_strides=dy.strides, x_strides=x.strides, dx_strides=dx.strides, weight_stride=weight.strides[0],
        cos_strides=_table_strides(cos), sin_strides=_table_strides(sin), n_positions=positions, n_heads=heads,
        n_rows=rows, rows_per_program=rows_per_program, n_pairs=pairs, eps=float(eps),
        COMPUTE=compute, PAIRS=bucket(max(pairs, 1)),
    )  # fmt: skip
    plan_sum_of_partials(plan, partials, dweight, compute)
    return dx, dweight


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, context.eps = inputs
    context.save_for_backward(*tensors)


def gradient(context: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
    q, k, q_weight, k_weight, cos, sin = context.saved_tensors
    of_q, of_q_weight = backward(dq, q, q_weight, cos, sin, context.eps)
    of_k, of_k_weight = backward(dk, k, k_weight, cos, sin, context.eps)
    of_tables: tuple[Tensor | None, ...] = (None, None)
    if any(context.needs_input_grad[4:6]):  # rare; PyTorch computes them
        with torch.enable_grad():
            cos, sin = cos.detach().requires_grad_(), sin.detach().requires_grad_()
            rotated = reference(q.detach(), k.detach(), q_weight.detach(), k_weight.detach(), cos, sin, context.eps)
            of_tables = torch.autograd.grad(rotated, (cos, sin), (dq, dk))
    return of_q, of_k, of_q_weight, of_k_weight, *of_tables, None


@operator("rms_norm_rope", reference=reference, forward=forward, save=save, gradient=gradient)
def rms_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Return q and k with each head divided by its root mean square, scaled by its weight and rotated by position.

    q is [batch, heads, positions, head_dim]; k may have another number of heads. Strides may be any. The weights are
    [head_dim]. cos and sin are [positions, head_dim] or [batch, positions, head_dim]: a pair is elements i and
    i + head_dim/2, as in Qwen3 and Gemma 3. Results have the dtypes of q and k and are computed in single precision or
    better, without rounding between norm and rotation.
    """
    require_floating("rms_norm_rope", q=q, k=k, q_weight=q_weight, k_weight=k_weight, cos=cos, sin=sin)
    require_same_device("rms_norm_rope", q=q, k=k, q_weight=q_weight, k_weight=k_weight, cos=cos, sin=sin)
    for name, x in (("q", q), ("k", k)):
        if x.ndim != 4:
            raise ValueError(
                f"rms_norm_rope: {name} has {x.ndim} dimensions (shape {tuple(x.shape)}), "
                "but must have 4: [batch, heads, positions, head_dim]"
            )
    if (k.shape[0], *k.shape[2:]) != (q.shape[0], *q.shape[2:]):
        raise ValueError(
            f"rms_norm_rope: k has shape {tuple(k.shape)}, but must agree with q of shape {tuple(q.shape)} in all but "
            "the heads"
        )
    batch, _, positions, head_dim = q.shape
    if head_dim % 2:
        raise ValueError(f"rms_norm_rope: q has heads of {head_dim} elements, but their number must be even")
    require_vector("rms_norm_rope", "q_weight", q_weight, head_dim, of="q")
    require_vector("rms_norm_rope", "k_weight", k_weight, head_dim, of="k")
    require_number("rms_norm_rope", "eps", eps, at_least=0.0)
    for name, table in (("cos", cos), ("sin", sin)):
        if tuple(table.shape) not in ((positions, head_dim), (1, positions, head_dim), (batch, positions, head_dim)):
            raise ValueError(
                f"rms_norm_rope: {name} has shape {tuple(table.shape)}, but must be [positions, head_dim] or "
                f"[batch, positions, head_dim]: {positions} positions, heads of {head_dim}, a batch of {batch}"
            )
    if sin.shape != cos.shape:
        raise ValueError(
            f"rms_norm_rope: sin has shape {tuple(sin.shape)}, but cos has {tuple(cos.shape)}; they must agree"
        )
    return q, k


def apart(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Two norms and a rotation by our own operators."""
    from tilesmith.ops.rms_norm import rms_norm

    rotated: tuple[Tensor, Tensor] = rope(rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps), cos, sin)
    return rotated


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    """Return q and k as projections leave them, positions before heads."""
    head_dim = 2 * case.pairs
    angles = torch.arange(case.positions, dtype=torch.float64, device=device)[:, None]
    angles = angles * 10000.0 ** -(torch.arange(case.pairs, dtype=torch.float64, device=device) / max(case.pairs, 1))
    angles = torch.cat((angles, angles), -1)
    q, k = (
        layout(torch.randn(case.batch, case.positions, heads, head_dim, dtype=dtype, device=device))
        for heads in (case.q_heads, case.k_heads)
    )
    return {
        "q": q.transpose(1, 2),
        "k": k.transpose(1, 2),
        "q_weight": layout(torch.randn(head_dim, dtype=dtype, device=device)),
        "k_weight": layout(torch.randn(head_dim, dtype=dtype, device=device)),
        "cos": layout(angles.cos().to(dtype)),
        "sin": layout(angles.sin().to(dtype)),
        "eps": 1e-6,
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.batch * (case.q_heads + case.k_heads) * case.positions * 2 * case.pairs
    tables = 2 * case.positions * 2 * case.pairs
    return Cost(
        forward=Work(bytes=(2 * elements + tables) * dtype.itemsize, flops=7 * elements),
        backward=Work(bytes=(3 * elements + tables) * dtype.itemsize, flops=15 * elements),
    )


SPEC = Spec(
    name="rms_norm_rope",
    op=rms_norm_rope,
    reference=reference,
    formula="y = rope(x / √(mean(x²) + eps) · w)",
    cases=[
        Case("one", batch=1, positions=1, q_heads=1, k_heads=1, pairs=1),
        Case("odd", batch=2, positions=7, q_heads=3, k_heads=1, pairs=5),
        Case("past-a-block", batch=1, positions=33, q_heads=4, k_heads=2, pairs=36),
        Case("qwen3", batch=4, positions=2048, q_heads=16, k_heads=8, pairs=64),
        Case("gemma3", batch=4, positions=2048, q_heads=8, k_heads=4, pairs=128),
        Case("decode", batch=128, positions=1, q_heads=16, k_heads=8, pairs=64),
    ],
    make_inputs=make_inputs,
    cost=cost,
    fixed=("cos", "sin"),
    rivals={"torch": reference, "apart": apart},
)
