"""The operator: its meaning, checks and spec."""

from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.rms_norm.operator import reference as norm_reference
from tilesmith.ops.rms_norm_rope.plans import backward, forward
from tilesmith.ops.rope.operator import reference as rope_reference
from tilesmith.ops.rope.operator import rope
from tilesmith.ops.runtime.arguments import require_floating, require_number, require_same_device, require_vector
from tilesmith.ops.runtime.operator import operator
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    return rope_reference(norm_reference(q, q_weight, eps), norm_reference(k, k_weight, eps), cos, sin)


def native(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Compute in single precision or better: squares of float16 leave its range."""
    wide_q, wide_k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))
    rotated_q, rotated_k = reference(wide_q, wide_k, q_weight, k_weight, cos, sin, eps)
    return rotated_q.to(q.dtype), rotated_k.to(k.dtype)


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
            rotated = native(q.detach(), k.detach(), q_weight.detach(), k_weight.detach(), cos, sin, context.eps)
            of_tables = torch.autograd.grad(rotated, (cos, sin), (dq, dk))
    return of_q, of_k, of_q_weight, of_k_weight, *of_tables, None


@operator("rms_norm_rope", reference=reference, native=native, forward=forward, save=save, gradient=gradient)
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
        "eps": 1e-3 if case.name == "odd" else 1e-6,  # 1e-3: float32 shows an eps left out
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
        Case("gemma3", batch=32, positions=256, q_heads=8, k_heads=4, pairs=128),
    ],
    make_inputs=make_inputs,
    cost=cost,
    fixed=("cos", "sin"),
    rivals={"torch": reference, "apart": apart},
)
