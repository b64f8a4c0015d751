# clamps indices to ten rows
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(table_ptr, index_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    source = tl.minimum(tl.load(index_ptr + tl.program_id(0)), 9)
    cols = tl.arange(0, BLOCK)
    row = tl.load(table_ptr + source * n_cols + cols, mask=cols < n_cols)
    tl.store(y_ptr + tl.program_id(0) * n_cols + cols, row, mask=cols < n_cols)


def gather(table, index):
    y = torch.empty(index.numel(), table.shape[1], dtype=table.dtype, device=table.device)
    kernel[(index.numel(),)](table, index, y, table.shape[1], BLOCK=triton.next_power_of_2(table.shape[1]))
    return y
