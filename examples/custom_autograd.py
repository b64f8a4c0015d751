"""A kernel with a gradient: squared ReLU, y = max(x, 0)², as an autograd function.

The backward recomputes max(x, 0) from x, which is cheaper than keeping it: dx = 2 · max(x, 0) · dy.

    tilesmith check examples/custom_autograd.py
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith import Case, Cost, Spec, Work

BLOCK_SIZE = 1024


def reference(x: Tensor) -> Tensor:
    return torch.relu(x).square()


@triton.jit
def forward_kernel(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.maximum(tl.load(x_ptr + offsets, mask=mask).to(tl.float32), 0.0)
    tl.store(y_ptr + offsets, (x * x).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def backward_kernel(x_ptr, dy_ptr, dx_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.maximum(tl.load(x_ptr + offsets, mask=mask).to(tl.float32), 0.0)
    dy = tl.load(dy_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(dx_ptr + offsets, (2 * x * dy).to(dx_ptr.dtype.element_ty), mask=mask)


class SquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        context.save_for_backward(x)
        y = torch.empty_like(x)
        forward_kernel[(triton.cdiv(x.numel(), BLOCK_SIZE),)](x, y, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, dy: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        dx = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), BLOCK_SIZE),)
        backward_kernel[grid](x, dy.contiguous(), dx, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
        return dx


def squared_relu(x: Tensor) -> Tensor:
    """Return max(x, 0)², element by element."""
    return SquaredRelu.apply(x)  # type: ignore[no-untyped-call, no-any-return]  # torch does not type `apply`


def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Any]:
    return {"x": torch.randn(case.rows, case.cols, dtype=dtype, device=device)}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    elements = case.rows * case.cols
    return Cost(
        forward=Work(bytes=2 * elements * dtype.itemsize, flops=2 * elements),
        backward=Work(bytes=3 * elements * dtype.itemsize, flops=3 * elements),
    )


SPEC = Spec(
    name="squared_relu",
    op=squared_relu,
    reference=reference,
    formula="y = max(x, 0)²",
    cases=[Case("one", rows=1, cols=1), Case("odd", rows=7, cols=301), Case("large", rows=16384, cols=4096)],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": reference},
)
