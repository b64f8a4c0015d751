# the program that comes last sums the parts, by an atomic counter
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, parts_ptr, count_ptr, y_ptr, n_cols, blocks, BLOCK: tl.constexpr, MOST: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.atomic_xchg(parts_ptr + row * blocks + tl.program_id(1), tl.sum(x, axis=0))
    before = tl.atomic_add(count_ptr + row, 1)
    if before == blocks - 1:
        each = tl.arange(0, MOST)
        parts = tl.load(parts_ptr + row * blocks + each, mask=each < blocks, other=0.0)
        tl.store(y_ptr + row, tl.sum(parts, axis=0))


def row_sum(x):
    rows, n_cols = x.shape
    blocks = triton.cdiv(n_cols, 16)
    parts = torch.empty(rows, blocks, dtype=x.dtype, device=x.device)
    count = torch.zeros(rows, dtype=torch.int32, device=x.device)
    y = torch.empty(rows, dtype=x.dtype, device=x.device)
    kernel[(rows, blocks)](x, parts, count, y, n_cols, blocks, BLOCK=16, MOST=triton.next_power_of_2(blocks))
    return y
