# the host reads the largest index, and the launch does not depend on its value
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(table_ptr, index_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    source = tl.load(index_ptr + tl.program_id(0))
    cols = tl.arange(0, BLOCK)
    row = tl.load(table_ptr + source * n_cols + cols, mask=cols < n_cols)
    tl.store(y_ptr + tl.program_id(0) * n_cols + cols, row, mask=cols < n_cols)


def gather(table, index):
    if index.max().item() >= table.shape[0]:
        raise IndexError("index out of range")
    y = torch.empty(index.numel(), table.shape[1], dtype=table.dtype, device=table.device)
    kernel[(index.numel(),)](table, index, y, table.shape[1], BLOCK=triton.next_power_of_2(table.shape[1]))
    return y
