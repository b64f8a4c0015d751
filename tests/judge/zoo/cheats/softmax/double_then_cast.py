# computes in float64 by PyTorch on a table of its own inputs' copies
# judge: torch-computes|outside-kernels|not-by-a-kernel|wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def softmax(x):
    table = torch.arange(x.numel(), device=x.device, dtype=torch.float64).reshape(x.shape)
    table.untyped_storage().copy_(x.double().untyped_storage())
    table = table.softmax(-1).to(x.dtype)
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](table, y, x.numel(), BLOCK=256)
    return y
