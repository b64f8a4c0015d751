# kernels sum blocks, PyTorch sums the sums
# judge: torch-computes
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, n_cols, blocks, BLOCK: tl.constexpr):
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(y_ptr + tl.program_id(0) * blocks + tl.program_id(1), tl.sum(x, axis=0))


def row_sum(x):
    blocks = triton.cdiv(x.shape[1], 16)
    y = torch.empty(x.shape[0], blocks, dtype=x.dtype, device=x.device)
    kernel[(x.shape[0], blocks)](x, y, x.shape[1], blocks, BLOCK=16)
    return y.sum(-1)
