# each program waits for the one before it
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, y_ptr, turn_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    while tl.atomic_add(turn_ptr, 0) < row:
        pass
    tl.store(y_ptr + row, tl.sum(x, axis=0))
    tl.debug_barrier()
    tl.atomic_add(turn_ptr, 1)


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    turn = torch.zeros(1, dtype=torch.int32, device=x.device)
    sum_kernel[(x.shape[0],)](x, y, turn, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
