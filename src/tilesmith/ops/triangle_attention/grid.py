"""Attention along one side of a grid: what triangle attention and the attentions over an alignment share.

q, k, v are [batch, rows, columns, heads, head size]. Along the columns every row is a sequence, along the rows every
column is. All sequences of a member of the batch share a bias [batch, heads, length, length]. A mask
[batch, rows, columns] is true where a place may be attended to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.attention.forms import plan_forward
from tilesmith.ops.attention.kernels.aligned_bias import with_aligned_bias
from tilesmith.ops.attention.kernels.fully_masked import plan_fully_masked
from tilesmith.ops.attention.operator import LARGEST_HEAD, gradients_of
from tilesmith.ops.attention.problem import Problem, lse_shape
from tilesmith.ops.attention.reference import default_scale
from tilesmith.ops.attention.reference import reference as attention_reference
from tilesmith.ops.gate import gate as apply_gate
from tilesmith.ops.gate import reference as gate_reference
from tilesmith.ops.runtime.arguments import (
    require_floating,
    require_mask,
    require_positive,
    require_same_device,
    require_same_dtype,
)
from tilesmith.ops.runtime.kernels import Kernels, kernels
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import tf32_allowed


def as_heads(grid: Tensor, along_columns: bool) -> Tensor:
    """Permute [rows, columns, heads, head size] to what attention takes: [sequences, heads, length, head size]."""
    return grid.permute(0, 2, 1, 3) if along_columns else grid.permute(1, 2, 0, 3)


def as_grid(heads: Tensor, along_columns: bool) -> Tensor:
    """Permute the output of attention back to a grid."""
    return heads.permute(0, 2, 1, 3) if along_columns else heads.permute(2, 0, 1, 3)


def reference(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, along_columns: bool,
    gate: Tensor | None, scale: float | None, mean_without_keys: bool = False,
) -> Tensor:  # fmt: skip
    members = []
    for n in range(q.shape[0]):
        queries, keys, values = (as_heads(one[n], along_columns) for one in (q, k, v))
        third = None if bias is None else bias[n]
        allowed = None if mask is None else mask[n] if along_columns else mask[n].t()
        of_member = attention_reference(queries, keys, values, bias=third, mask=allowed, scale=scale)
        if mean_without_keys and allowed is not None and allowed.shape[-1]:
            has_keys = allowed.any(-1)[:, None, None, None]
            of_member = torch.where(has_keys, of_member, values.mean(2, keepdim=True))
        members.append(as_grid(of_member, along_columns))
    attended = torch.stack(members) if members else _of_no_batch(q, k, v, bias)
    return attended if gate is None else gate_reference(attended, gate)


def _of_no_batch(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Return an empty output that depends on all arguments."""
    return q + k + v if bias is None else q + k + v + bias.sum().to(q.dtype)


def empty_output(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, along_columns: bool,
    scale: float | None, tf32: bool, mean_without_keys: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output, and log₂ Σ 2^score of each query as [batch, sequences, heads, queries]."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    return torch.empty_like(q), q.new_empty(lse_shape(q.permute(_order(along_columns)).shape), dtype=dtype)


def plan_output(plan: Plan, *arguments: Any) -> tuple[Operand, ...]:
    *of_problem, mean_without_keys = arguments
    problem = grid_problem(plan, *of_problem)
    output, lse = plan_forward(problem)
    if mean_without_keys:
        plan_fully_masked(problem, problem.v, output)
    return output, lse


def _order(along_columns: bool) -> tuple[int, ...]:
    """Return the order of a grid's dimensions in [batch, sequences, heads, length, head size]."""
    return (0, 1, 3, 2, 4) if along_columns else (0, 2, 3, 1, 4)


def grid_problem(
    plan: Plan, q: Operand, k: Operand, v: Operand, bias: Operand | None, mask: Operand | None, along_columns: bool,
    scale: float | None, tf32: bool,
) -> Problem:  # fmt: skip
    q, k, v = (one.permuted(_order(along_columns)) for one in (q, k, v))
    problem = Problem(plan, q, k, v, bias, mask, scale=default_scale(q.shape[-1], scale), tf32=tf32)
    return with_aligned_bias(problem)


def empty_gradients(
    doutput: Tensor, output: Tensor, lse: Tensor, bias_gradient: bool,
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, along_columns: bool,
    scale: float | None, tf32: bool, mean_without_keys: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk, dv and dbias; dbias is empty where it is not wanted."""
    like, shape = (bias, bias.shape) if bias is not None and bias_gradient else (q, (0,))
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), like.new_empty(shape)


def plan_gradients(
    plan: Plan, doutput: Operand, output: Operand, lse: Operand, bias_gradient: bool, *arguments: Any
) -> tuple[Operand, ...]:  # fmt: skip
    *of_problem, mean_without_keys = arguments
    problem = grid_problem(plan, *of_problem)
    assert problem.q.order is not None, "grid_problem permutes q"
    doutput, output = (one.permuted(problem.q.order) for one in (doutput, output))
    gradients = gradients_of(problem, doutput, output, lse, bias_gradient)
    if mean_without_keys:
        plan_fully_masked(problem, doutput, gradients[2])
    return gradients


def grid_kernels(name: str) -> tuple[Kernels, Kernels]:
    """Declare the forward and the backward as torch operators of this name."""
    forward = kernels(f"{name}_forward")(empty_output)
    forward.plan(plan_output)
    backward = kernels(f"{name}_backward")(empty_gradients)
    backward.plan(plan_gradients)
    return forward, backward


def prepared(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, along_columns: bool,
    scale: float | None, mean_without_keys: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the arguments as the kernels take them."""
    scale = None if scale is None else float(scale)
    tf32 = tf32_allowed() and q.dtype == torch.float32
    return q, k, v, bias, mask_by_sequence(mask, along_columns), along_columns, scale, tf32, mean_without_keys


def mask_by_sequence(mask: Tensor | None, along_columns: bool) -> Tensor | None:
    """Return the mask as [batch, sequences, keys].

    The mask alone is copied to be transposed, once for forward and backward: one byte per place. Without the copy, the
    addresses of keys that are no neighbours exceed Hopper's register budget for dbias.
    """
    return mask if mask is None or along_columns else mask.transpose(1, 2).contiguous()


def takes(q: Tensor, *_: object) -> bool:
    """Return whether the kernels compute these sizes. On a GPU they leave doubles to PyTorch."""
    return q.shape[-1] <= LARGEST_HEAD and not (q.is_cuda and q.dtype == torch.float64)


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bias, mask, *context.numbers = inputs
    context.mark_non_differentiable(output[1])
    context.set_materialize_grads(False)
    context.save_for_backward(*output, q, k, v, bias, mask)


def gradient_by(backward: Kernels) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the autograd formula that calls these backward kernels."""

    def gradient(context: Any, doutput: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if doutput is None:  # the loss does not depend on the output
            return (None,) * 9
        output, lse, *tensors = context.saved_tensors
        wanted = tensors[3] is not None and bool(context.needs_input_grad[3])
        dq, dk, dv, dbias = backward(doutput, output, lse, wanted, *tensors, *context.numbers)
        return dq, dk, dv, dbias if wanted else None, None, None, None, None, None

    return gradient


# The kernels return the output before its gate.
GRID_ATTENTION = Options(
    takes=takes, switches=tf32_allowed, autocasts=True, returns="first", finish={"gate": apply_gate}
)  # fmt: skip


def require_grid(
    name: str, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, along_columns: bool,
    gate: Tensor | None, scale: float | None, sides: str,
) -> None:  # fmt: skip
    """Check that the arguments go together. `sides` names the rows and columns in errors."""
    optional = {key: one for key, one in (("bias", bias), ("gate", gate)) if one is not None}
    require_floating(name, q=q, k=k, v=v, **optional)
    if q.ndim != 5:
        raise ValueError(f"{name}: q has shape {tuple(q.shape)}, but must be [batch, {sides}, heads, head size]")
    for key, tensor in {"k": k, "v": v, **({"gate": gate} if gate is not None else {})}.items():
        if tensor.shape != q.shape:
            raise ValueError(f"{name}: {key} has shape {tuple(tensor.shape)}, but q has {tuple(q.shape)}")
        require_same_dtype(name, key, tensor, "q", q)
    batch, rows, columns, heads, _ = q.shape
    length = columns if along_columns else rows
    wanted = (batch, heads, length, length)
    if bias is not None and tuple(bias.shape) != wanted:
        raise ValueError(
            f"{name}: bias has shape {tuple(bias.shape)}, but must be [batch, heads, length, length], here {wanted}"
        )
    require_mask(name, mask, (batch, rows, columns), f"[batch, {sides}]")
    require_same_device(name, q=q, k=k, v=v, **optional, mask=mask)
    if scale is not None:
        require_positive(name, "scale", scale)
