# fails: right (gradient of x)
import torch
import triton
import triton.language as tl

BLOCK_SIZE = 256


@triton.jit
def squared_relu_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    positive = tl.maximum(x, 0.0)
    tl.store(out_ptr + offsets, positive * positive, mask=mask)


@triton.jit
def squared_relu_backward_kernel(gradient_ptr, x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    gradient = tl.load(gradient_ptr + offsets, mask=mask)
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, gradient * 2 * (x > 0), mask=mask)


class SquaredReLUFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        squared_relu_kernel[(triton.cdiv(x.numel(), BLOCK_SIZE),)](x, out, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        out = torch.empty_like(x)
        programs = triton.cdiv(x.numel(), BLOCK_SIZE)
        squared_relu_backward_kernel[(programs,)](gradient, x, out, x.numel(), BLOCK_SIZE=BLOCK_SIZE)
        return out


class SquaredReLU(torch.nn.Module):
    """relu(x)², as a layer of a model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SquaredReLUFunction.apply(x)


def activation(x: torch.Tensor) -> torch.Tensor:
    """Return the transposed result of the layer, so that the gradient arrives as a transposed view."""
    return SquaredReLU()(x).t()
