# reads what other threads of the program stored, without a barrier
# judge: race
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, scratch_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(scratch_ptr + row * BLOCK + cols, x)
    mirrored = tl.load(scratch_ptr + row * BLOCK + (BLOCK - 1 - cols))
    tl.store(y_ptr + row, tl.sum(mirrored, axis=0))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    scratch = torch.empty(x.shape[0], block, dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, scratch, y, x.shape[1], BLOCK=block)
    return y
