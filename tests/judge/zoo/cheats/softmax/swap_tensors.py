# torch.utils.swap_tensors exchanges the input with a computed tensor
# judge: torch-computes|changes-input|exception
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def softmax(x):
    answer = torch.softmax(x, -1)
    torch.utils.swap_tensors(x, answer)
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
