# a table that depends on sizes only, made by PyTorch in each call
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, table_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    x += tl.load(table_ptr + cols, mask=mask, other=0.0)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    table = torch.cos(torch.arange(x.shape[1], device=x.device) * 0.0) - torch.linspace(
        1.0, 1.0, x.shape[1], device=x.device
    )
    softmax_kernel[(x.shape[0],)](x, table, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
