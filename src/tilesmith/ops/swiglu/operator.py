"""SwiGLU: y = silu(gate) · up, of two tensors or of the two halves of one.

Forward moves three elements per output (read gate and up, write y) and does about six flops on each; backward moves
five (read dy, gate and up, write both gradients) and does about twelve. Memory-bound on every GPU.

- A fused projection leaves gate and up side by side in one tensor. The kernels read its halves in place and write its
  gradient in the same layout, so nothing is split or concatenated.
- The backward computes σ(gate) again instead of keeping it.
- The backward can also write y again, for one more element moved. A layer that multiplies y by a weight then need not
  keep y for the weight's gradient.
- The same kernels compute GeGLU, and without `up` a plain activation: see `ops/geglu.py` and `ops/gelu.py`.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.activations import activation_and_slope
from tilesmith.ops.device.elementwise import compute_dtype, tile_config, tile_grid, tile_is_whole, tile_of_program
from tilesmith.ops.runtime.arguments import require_dimensions, require_floating, require_same_device
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.layout import as_elements, tile_offsets
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(gate: Tensor, up: Tensor | None = None) -> Tensor:
    if up is None:
        gate, up = gate.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


@triton.jit(do_not_specialize=["n_rows"])
def swiglu_forward_kernel(
    gate_ptr, up_ptr, y_ptr, gate_strides, up_strides, y_strides, up_start, n_rows, sizes,
    ACTIVATION: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One tile of ACTIVATION(gate) · up; up starts up_start elements after up_ptr. Without up_ptr up is one."""
    SHORT: tl.constexpr = y_ptr.dtype.element_ty.primitive_bitwidth <= 16
    rows, columns, mask = tile_of_program(n_rows, sizes[0], ROWS, BLOCK_SIZE)  # mask is [ROWS, BLOCK_SIZE]
    is_whole = tile_is_whole(n_rows, sizes[0], ROWS, BLOCK_SIZE)
    for MASKED in tl.static_range(2):
        if is_whole == (MASKED == 0):
            exists = mask if MASKED else None
            gate_pointers = gate_ptr + tile_offsets(rows, columns, sizes, gate_strides, NESTED)
            gate = tl.load(gate_pointers, mask=exists).to(COMPUTE)
            y, _slope = activation_and_slope(gate, ACTIVATION, SHORT)
            if up_ptr is not None:
                up_pointers = up_ptr + up_start + tile_offsets(rows, columns, sizes, up_strides, NESTED)
                y = y * tl.load(up_pointers, mask=exists).to(COMPUTE)
            y_pointers = y_ptr + tile_offsets(rows, columns, sizes, y_strides, NESTED)
            tl.store(y_pointers, y.to(y_ptr.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["n_rows"])
def swiglu_backward_kernel(
    dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, y_ptr,
    dy_strides, gate_strides, up_strides, dgate_strides, dup_strides, y_strides, up_start, dup_start, n_rows, sizes,
    ACTIVATION: tl.constexpr, OUTPUT: tl.constexpr, NESTED: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One tile of both gradients and, with OUTPUT, of y. Without up_ptr up is one and has no gradient."""
    SHORT: tl.constexpr = dy_ptr.dtype.element_ty.primitive_bitwidth <= 16  # then gate and up are too
    rows, columns, mask = tile_of_program(n_rows, sizes[0], ROWS, BLOCK_SIZE)  # mask is [ROWS, BLOCK_SIZE]
    is_whole = tile_is_whole(n_rows, sizes[0], ROWS, BLOCK_SIZE)
    for MASKED in tl.static_range(2):
        if is_whole == (MASKED == 0):
            exists = mask if MASKED else None
            dy_pointers = dy_ptr + tile_offsets(rows, columns, sizes, dy_strides, NESTED)
            gate_pointers = gate_ptr + tile_offsets(rows, columns, sizes, gate_strides, NESTED)
            dy = tl.load(dy_pointers, mask=exists).to(COMPUTE)
            gate = tl.load(gate_pointers, mask=exists).to(COMPUTE)
            y, slope = activation_and_slope(gate, ACTIVATION, SHORT)
            if up_ptr is not None:
                up_pointers = up_ptr + up_start + tile_offsets(rows, columns, sizes, up_strides, NESTED)
                up = tl.load(up_pointers, mask=exists).to(COMPUTE)
                dup_pointers = dup_ptr + dup_start + tile_offsets(rows, columns, sizes, dup_strides, NESTED)
                tl.store(dup_pointers, (dy * y).to(dup_ptr.dtype.element_ty), mask=exists)
                dy, y = dy * up, y * up
            dgate_pointers = dgate_ptr + tile_offsets(rows, columns, sizes, dgate_strides, NESTED)
            tl.store(dgate_pointers, (dy * slope).to(dgate_ptr.dtype.element_ty), mask=exists)
            if OUTPUT:
                y_pointers = y_ptr + tile_offsets(rows, columns, sizes, y_strides, NESTED)
                tl.store(y_pointers, y.to(y_ptr.dtype.element_ty), mask=exists)


@kernels("swiglu_forward")
def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """Return y in the layout of gate, or of its first half where gate holds both."""
    return empty_product(gate, up)


def empty_product(gate: Tensor, up: Tensor | None) -> Tensor:
    if up is None:
        return torch.empty_like(gate[..., : gate.shape[-1] // 2])
    return torch.empty_like(gate, dtype=torch.promote_types(gate.dtype, up.dtype))


@forward.plan
def plan_forward(plan: Plan, gate: Operand, up: Operand | None) -> Operand:
    return plan_gated(plan, gate, up, "silu")


def plan_gated(plan: Plan, gate: Operand, up: Operand | None, activation: str) -> Operand:
    """Put the kernel of activation(gate) · up on the plan; return the product."""
    gate, up, up_start = _halves(gate, up)
    dtype = torch.promote_types(gate.dtype, up.dtype)
    y = plan.empty_like(gate, dtype)
    walk = as_elements(y.shape, y.strides, gate.strides, up.strides)
    config = plan.choose(tile_config(walk, 2 * gate.element_bytes), "columns", walk.columns_bucket, dtype)
    plan.launch(
        swiglu_forward_kernel, tile_grid(walk, config), config,
        gate_ptr=gate, up_ptr=up, y_ptr=y, up_start=up_start, **walk.arguments("y", "gate", "up"),
        ACTIVATION=activation, COMPUTE=compute_dtype(gate.dtype, up.dtype),
    )  # fmt: skip
    return y


def _halves(gate: Operand, up: Operand | None) -> tuple[Operand, Operand, int]:
    """Return gate, up, and how many elements after the start of its memory up begins."""
    if up is not None:
        return gate, up, 0
    half = (*gate.shape[:-1], gate.shape[-1] // 2)
    return replace(gate, shape=half), replace(gate, shape=half), half[-1] * gate.strides[-1]


@kernels("swiglu_backward")
def backward(dy: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up; an empty tensor as the second where gate holds both."""
    return empty_gradients(gate, up)


def empty_gradients(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate), gate.new_empty(0) if up is None else torch.empty_like(up)


@backward.plan
def plan_backward(plan: Plan, dy: Operand, gate: Operand, up: Operand | None) -> tuple[Operand, Operand]:
    return plan_gated_gradients(plan, dy, gate, up, None, "silu")


@kernels("swiglu_backward_with_output")
def backward_with_output(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gate and up, and swiglu(gate, up)."""
    return torch.empty_like(gate), torch.empty_like(up), torch.empty_like(dy)


@backward_with_output.plan
def plan_backward_with_output(plan: Plan, dy: Operand, gate: Operand, up: Operand) -> tuple[Operand, ...]:
    y = plan.empty_like(dy)
    return *plan_gated_gradients(plan, dy, gate, up, y, "silu"), y


def plan_gated_gradients(
    plan: Plan, dy: Operand, gate: Operand, up: Operand | None, y: Operand | None, activation: str
) -> tuple[Operand, Operand]:
    """Put the kernel of the gradients of gate and up on the plan, which writes into y too; return both gradients."""
    gradients = plan.empty_like(gate), plan.empty((0,), gate.dtype) if up is None else plan.empty_like(up)
    gate, up_, up_start = _halves(gate, up)
    dgate, dup, dup_start = _halves(gradients[0], None if up is None else gradients[1])
    walked = {"dgate": dgate, "dup": dup, "gate": gate, "up": up_, "dy": dy, **({} if y is None else {"y": y})}
    walk = as_elements(dy.shape, *(operand.strides for operand in walked.values()))
    config = plan.choose(tile_config(walk, 2 * gate.element_bytes), "columns", walk.columns_bucket, dy.dtype)
    plan.launch(
        swiglu_backward_kernel, tile_grid(walk, config), config,
        dy_ptr=dy, gate_ptr=gate, up_ptr=up_, dgate_ptr=dgate, dup_ptr=dup, y_ptr=y,
        up_start=up_start, dup_start=dup_start, ACTIVATION=activation, OUTPUT=y is not None,
        COMPUTE=compute_dtype(gate.dtype, up_.dtype),
        **{"y_strides": None, **walk.arguments(*walked)},
    )  # fmt: skip
    return gradients


def native(gate: Tensor, up: Tensor | None = None) -> Tensor:
    if up is None:
        gate, up = gate.chunk(2, dim=-1)
    return F.silu(gate) * up


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    context.save_for_backward(*inputs)


def gradient(context: Any, dy: Tensor) -> tuple[Tensor, Tensor | None]:
    gate, up = context.saved_tensors
    dgate, dup = backward(dy, gate, up)
    return dgate, None if up is None else dup


@operator("swiglu", reference=reference, native=native, forward=forward, save=save, gradient=gradient)
def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """Return silu(gate) · up, element by element, computed in single precision or better.

    Without up, gate holds both, as a fused projection computes them: the first half of its last dimension is the gate,
    the second half is up. Its gradient has the same layout. The result has the dtype of PyTorch's product.
    """
    return require_gate_and_up("swiglu", gate, up)


def require_gate_and_up(op: str, gate: Tensor, up: Tensor | None) -> Tensor:
    """Raise an error that names the operator where gate and up do not fit together; return gate."""
    require_floating(op, gate=gate)
    if up is None:
        require_dimensions(op, "gate", gate, at_least=1)
        if gate.shape[-1] % 2:
            raise ValueError(
                f"{op}: gate has {gate.shape[-1]} columns, but must have an even number: without up it holds both"
            )
        return gate
    require_floating(op, up=up)
    require_same_device(op, gate=gate, up=up)
    if up.shape != gate.shape:
        raise ValueError(f"{op}: up has shape {tuple(up.shape)}, but gate has {tuple(gate.shape)}; they must agree")
    return gate


def liger(gate: Tensor, up: Tensor | None = None) -> Tensor:
    from liger_kernel.ops.swiglu import LigerFusedGateUpSiLUMulFunction, LigerSiLUMulFunction

    if up is None:
        return LigerFusedGateUpSiLUMulFunction.apply(gate)  # type: ignore[no-any-return]  # untyped
    return LigerSiLUMulFunction.apply(gate, up)  # type: ignore[no-any-return]  # untyped


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    """Cases with halves have both in one tensor, with twice the columns."""
    if "halves" in case.sizes:
        return {"gate": layout(torch.randn(case.rows, 2 * case.halves, dtype=dtype, device=device))}
    shape = (case.rows, case.cols)
    return {
        "gate": layout(torch.randn(shape, dtype=dtype, device=device)),
        "up": layout(torch.randn(shape, dtype=dtype, device=device)),
    }


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * (case.halves if "halves" in case.sizes else case.cols)
    return Cost(
        forward=Work(bytes=3 * elements * dtype.itemsize, flops=6 * elements),
        backward=Work(bytes=5 * elements * dtype.itemsize, flops=12 * elements),
    )


SPEC = Spec(
    name="swiglu",
    op=swiglu,
    reference=reference,
    formula="y = gate · σ(gate) · up",
    cases=[
        Case("one", rows=1, cols=1),
        Case("odd", rows=7, cols=33),
        Case("packed-odd", rows=5, halves=61),
        Case("past-a-block", rows=3, cols=4097),
        Case("packed", rows=16384, halves=11008),
        Case("large", rows=16384, cols=11008),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": native, "liger": liger},
)
