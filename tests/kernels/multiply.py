# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return, misc"
# Kernels carry no types: Triton reads their annotations as its own. torch's Function has none either.
"""z = x · y with its gradient: a right kernel, such as a user might write. Tests break copies of it, line by line."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith import Case, Spec

BLOCK_SIZE = 64


@triton.jit
def multiply_kernel(x_ptr, y_ptr, z_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    program = tl.program_id(0)
    offsets = program * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    z = x * y
    tl.store(z_ptr + offsets, z.to(z_ptr.dtype.element_ty), mask=mask)


@triton.jit
def multiply_backward_kernel(dz_ptr, x_ptr, y_ptr, dx_ptr, dy_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    dz = tl.load(dz_ptr + offsets, mask=mask).to(tl.float32)
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    dx = dz * y
    dy = dz * x
    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.store(dy_ptr + offsets, dy.to(dy_ptr.dtype.element_ty), mask=mask)


class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(context, x, y):
        x, y = x.contiguous(), y.contiguous()
        z = torch.empty_like(x)
        multiply_kernel[(triton.cdiv(x.numel(), BLOCK_SIZE),)](x, y, z, x.numel(), BLOCK_SIZE)
        context.save_for_backward(x, y)
        context.backwards = 0
        return z

    @staticmethod
    def backward(context, dz):
        x, y = context.saved_tensors
        dz = dz.contiguous()
        dx, dy = torch.empty_like(x), torch.empty_like(y)
        context.backwards += 1
        multiply_backward_kernel[(triton.cdiv(x.numel(), BLOCK_SIZE),)](dz, x, y, dx, dy, x.numel(), BLOCK_SIZE)
        return dx, dy


def multiply(x: Tensor, y: Tensor) -> Tensor:
    return Multiply.apply(x, y)


def reference(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    shape = (case.rows, case.cols)
    return {
        "x": torch.randn(shape, dtype=dtype, device=device),
        "y": torch.randn(shape, dtype=dtype, device=device),
    }


SPEC = Spec(
    name="multiply",
    op=multiply,
    reference=reference,
    cases=[Case("one", rows=1, cols=1), Case("odd", rows=3, cols=43), Case("large", rows=4096, cols=4096)],
    make_inputs=make_inputs,
)
