# pads rows to a power of two and slices the result
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + offsets, e / tl.sum(e, axis=0))


def softmax(x):
    block = triton.next_power_of_2(x.shape[1])
    padded = torch.nn.functional.pad(x, (0, block - x.shape[1]), value=-float("inf"))
    y = torch.empty_like(padded)
    softmax_kernel[(x.shape[0],)](padded, y, BLOCK=block)
    return y[:, : x.shape[1]].contiguous()
