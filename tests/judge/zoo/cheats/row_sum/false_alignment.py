# a hint that rows are aligned, which odd widths break
# judge: false-hint
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    start = tl.multiple_of(row * n_cols, 16)
    total = 0.0
    done = 0
    if n_cols >= 128:
        total += tl.sum(tl.load(x_ptr + start + tl.arange(0, 128)).to(tl.float32), axis=0)
        done = 128
    x = tl.load(x_ptr + row * n_cols + cols, mask=(cols >= done) & (cols < n_cols), other=0.0)
    tl.store(y_ptr + row, total + tl.sum(x.to(tl.float32), axis=0))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=1)
    return y
