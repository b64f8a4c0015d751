"""The operator: its checks, its gradient, its spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.matmul.backward import backward
from tilesmith.ops.matmul.forward import forward, forward_keeping_z
from tilesmith.ops.matmul.reference import ACTIVATIONS, FLOAT8, native, reference, result_dtype
from tilesmith.ops.runtime.arguments import (
    dtype_name,
    require_dimensions,
    require_floating,
    require_same_device,
    require_same_dtype,
    require_vector,
)
from tilesmith.ops.runtime.composing.side_stream import SideStream
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Alternative, Options
from tilesmith.ops.runtime.precision import tf32_allowed
from tilesmith.spec import Case, Cost, Layout, Spec, Work

MOST_BATCH_DIMENSIONS = 3  # batch dimensions that a kernel indexes separately
NEEDS_Z = ("silu", "gelu")  # activations whose slope needs z, not their result


def prepare(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, scale_a: Tensor | None,
    scale_b: Tensor | None, out_dtype: torch.dtype | None,
) -> tuple[Any, ...]:  # fmt: skip
    tf32 = a.dtype == torch.float32 and tf32_allowed()
    return (
        a, b, bias, activation or "", scale_a if scale_a is None else scale_a.flatten(),
        scale_b if scale_b is None else scale_b.flatten(), result_dtype(a, out_dtype), tf32,
    )  # fmt: skip


def takes(a: Tensor, b: Tensor, *others: Any) -> bool:
    """Return whether our kernels take the call: no float64 on a GPU, float8 where the GPU has it, walkable batches."""
    if a.dtype == torch.float64 and a.device.type != "cpu":
        return False
    if a.dtype == FLOAT8 and a.is_cuda and (torch.version.hip or torch.cuda.get_device_capability(a.device) < (8, 9)):
        return False
    return b.ndim <= 2 or max(a.ndim, b.ndim) - 2 <= MOST_BATCH_DIMENSIONS or a.shape[:-2] == b.shape[:-2]


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _save(context, inputs, output if inputs[3] == "relu" else None)


def save_with_z(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    context.mark_non_differentiable(output[1])
    context.set_materialize_grads(False)
    _save(context, inputs, output[1])


def _save(context: Any, inputs: tuple[Any, ...], kept: Tensor | None) -> None:
    a, b, bias, context.activation, _, _, _, context.tf32 = inputs
    context.save_for_backward(a, b, bias, kept)


def gradient(context: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:  # y has no gradient
        return (None,) * 8
    a, b, bias, kept = context.saved_tensors
    if kept is None and context.activation:  # called as the bare torch operator, which keeps nothing
        kept = forward(a, b, bias, "", None, None, a.dtype, context.tf32)
    wants_a, wants_b, wants_bias = context.needs_input_grad[:3]
    with SideStream(dy) as side_stream:
        db = None
        if wants_a and wants_b and not context.activation and side_stream.is_separate:
            db, wants_b = side_stream(_gradient_of_right, dy, a, b, context.tf32), False
        da, of_right, dbias = backward(
            dy, a, b, bias, kept, context.activation, context.tf32, wants_a, wants_b, wants_bias
        )
        db = of_right if wants_b else db
    return da if wants_a else None, db, dbias if wants_bias else None, None, None, None, None, None


def _gradient_of_right(dy: Tensor, a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """Return db alone, without an activation."""
    db: Tensor = backward(dy, a, b, None, None, "", tf32, False, True, False)[1]
    return db


def needs_z(a: object, b: object, bias: object, activation: object, *_: object) -> bool:
    """Whether a gradient will need z: kernels that keep z then compute the call."""
    if activation not in NEEDS_Z or not torch.is_grad_enabled():
        return False
    return any(isinstance(one, Tensor) and one.requires_grad for one in (a, b, bias))


COMMON = Options(takes=takes, switches=tf32_allowed, autocasts=True)
KEEPING_Z = Alternative(
    when=needs_z, forward=forward_keeping_z, save=save_with_z, gradient=gradient, prepare=prepare,
    options=replace(COMMON, returns="first"),
)  # fmt: skip


@operator(
    "matmul", reference=reference, native=native, forward=forward, save=save, gradient=gradient, prepare=prepare,
    options=replace(COMMON, alternatives=(KEEPING_Z,)),
)  # fmt: skip
def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """act(a·b · scales + bias): torch.matmul with scales, bias and activation in the epilogue of one kernel.

    - a and b are matrices, vectors, or batches of matrices that broadcast, as for torch.matmul.
    - `bias`: a vector with one element for each column of the result.
    - `activation`: "relu", "silu" or "gelu" (the exact one).
    - `scale_a`, `scale_b`: for float8_e4m3fn operands, float32: one number, or one for each row of a and column of b.
    - `out_dtype`: float32 instead of the operands' own; for float8 operands also float16, and bfloat16 by default.

    Sums are in float32 or better. float32 operands are multiplied exactly unless PyTorch allows tf32
    (torch.backends.cuda.matmul.allow_tf32, torch.set_float32_matmul_precision). PyTorch computes float64 on a GPU.
    Products of float8 have no gradient.

    Our kernels round once, after the activation. PyTorch rounds products first, so that float16 products beyond 65,504
    are infinite there. The gradient of "relu" is zero where the result is stored as zero.
    """
    _require_operands(a, b)
    _require_shapes(a, b)
    _require_finish(a, b, bias, activation, out_dtype)
    _require_scale("scale_a", scale_a, a, a.shape[0])
    _require_scale("scale_b", scale_b, b, b.shape[-1])
    require_same_device("matmul", a=a, b=b, bias=bias, scale_a=scale_a, scale_b=scale_b)
    return a


def _require_operands(a: Tensor, b: Tensor) -> None:
    float8 = [isinstance(one, Tensor) and one.dtype == FLOAT8 for one in (a, b)]
    if not all(float8):  # a single float8 operand is refused by name, as any dtype without kernels
        require_floating("matmul", a=a, b=b)
    require_same_dtype("matmul", "b", b, "a", a)
    if all(float8):
        for name, operand in (("a", a), ("b", b)):
            if operand.ndim != 2:
                raise ValueError(
                    f"matmul: {name} has shape {tuple(operand.shape)}, but must be a matrix, as it is float8_e4m3fn"
                )
            if operand.requires_grad and torch.is_grad_enabled():
                raise ValueError(f"matmul: {name} requires a gradient, but products of float8_e4m3fn have none")


def _require_shapes(a: Tensor, b: Tensor) -> None:
    require_dimensions("matmul", "a", a, at_least=1)
    require_dimensions("matmul", "b", b, at_least=1)
    depth = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != depth:
        raise ValueError(
            f"matmul: a has {a.shape[-1]} columns (shape {tuple(a.shape)}), "
            f"but b has {depth} rows (shape {tuple(b.shape)})"
        )
    try:
        torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"matmul: b has shape {tuple(b.shape)}, whose batch does not broadcast with a of shape {tuple(a.shape)}"
        ) from None


def _require_finish(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, out_dtype: torch.dtype | None
) -> None:
    if bias is not None:
        require_floating("matmul", bias=bias)
        require_dimensions("matmul", "b", b, at_least=2)
        require_vector("matmul", "bias", bias, b.shape[-1], of="b")
        if a.dtype == FLOAT8 and bias.requires_grad and torch.is_grad_enabled():
            raise ValueError("matmul: bias requires a gradient, but products of float8_e4m3fn have none")
    if activation is not None and activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"matmul: activation is {activation!r}, but must be None or one of {known}")
    allowed = [torch.bfloat16, torch.float16, torch.float32] if a.dtype == FLOAT8 else [a.dtype]
    if a.dtype in (torch.bfloat16, torch.float16):
        allowed.append(torch.float32)
    if out_dtype is not None and out_dtype not in allowed:
        names = ", ".join(dtype_name(dtype) for dtype in allowed)
        raise TypeError(
            f"matmul: out_dtype is {dtype_name(out_dtype)}, but must be one of {names} for {dtype_name(a.dtype)}"
        )


def _require_scale(name: str, scale: Tensor | None, operand: Tensor, length: int) -> None:
    if scale is None:
        return
    require_floating("matmul", **{name: scale})
    if operand.dtype != FLOAT8:
        raise ValueError(f"matmul: {name} is given, but operands of {dtype_name(operand.dtype)} have no scales")
    if scale.numel() not in (1, length):
        raise ValueError(f"matmul: {name} has {scale.numel()} elements, but must have 1 or {length}")
    if scale.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"matmul: {name} requires a gradient, but products of float8_e4m3fn have none")


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    batch = [case.batch] if "batch" in case.sizes else []

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    if dtype == FLOAT8:  # contiguous depth on both sides, as float8 tensor cores need it
        scales = {name: torch.full((), 0.5, device=device) for name in ("scale_a", "scale_b")}
        return {
            "a": random(case.m, case.k),
            "b": random(case.n, case.k).t(),
            "bias": None,
            "activation": None,
            **scales,
        }
    inputs: dict[str, Any] = {"a": layout(random(*batch, case.m, case.k)), "b": layout(random(*batch, case.k, case.n))}
    if case.name.startswith("layer"):
        inputs |= {"bias": layout(random(case.n)), "activation": case.name.partition("-")[2] or None}
    return inputs


def cost(case: Case, dtype: torch.dtype) -> Cost:
    matrices = case.sizes.get("batch", 1)
    operands = matrices * (case.m * case.k + case.k * case.n) * dtype.itemsize
    result = matrices * case.m * case.n * max(dtype.itemsize, 2)
    flops = 2 * matrices * case.m * case.n * case.k
    return Cost(
        forward=Work(bytes=operands + result, flops=flops),
        backward=Work(bytes=2 * operands + result, flops=2 * flops),
    )


SPEC = Spec(
    name="matmul",
    op=matmul,
    reference=reference,
    formula="y = act(a·b + bias)",
    cases=[
        Case("one", m=1, n=1, k=1),
        Case("odd", batch=2, m=7, n=13, k=9),
        Case("aligned", m=24, n=48, k=80),
        Case("layer-gelu", m=25, n=20, k=8),
        Case("1024", m=1024, n=1024, k=1024),
        Case("2048", m=2048, n=2048, k=2048),
        Case("4096", m=4096, n=4096, k=4096),
        Case("8192", m=8192, n=8192, k=8192),
        Case("heads", m=8192, n=512, k=512),
        Case("token", m=16, n=8192, k=8192),
        Case("feed-forward", m=8192, n=11008, k=4096),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": native},
)
