# a flag that is released and acquired says that data are there
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, part_ptr, flag_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0) // 2
    half = tl.program_id(0) % 2
    cols = tl.arange(0, BLOCK)
    middle = n_cols // 2
    mask = (cols < n_cols) & ((cols >= middle) == (half == 1))
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    total = tl.sum(x, axis=0)
    if half == 0:
        tl.store(part_ptr + row, total)
        tl.atomic_xchg(flag_ptr + row, 1, sem="release")
    else:
        while tl.atomic_add(flag_ptr + row, 0, sem="acquire") == 0:
            pass
        tl.store(y_ptr + row, total + tl.load(part_ptr + row))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    part = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    flag = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    sum_kernel[(2 * x.shape[0],)](x, part, flag, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
