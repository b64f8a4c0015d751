# keeps a workspace for each stream and thread, written before it is read
import torch
import triton
import triton.language as tl


import threading

workspaces = {}


@triton.jit
def sums_kernel(x_ptr, most_ptr, sum_ptr, row_stride, column_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * row_stride + cols * column_stride, mask=cols < n_cols, other=-float("inf"))
    x = x.to(tl.float32)
    most = tl.max(x, axis=0)
    tl.store(most_ptr + row, most)
    tl.store(sum_ptr + row, tl.sum(tl.exp(x - most), axis=0))


@triton.jit
def divide_kernel(x_ptr, y_ptr, most_ptr, sum_ptr, row_stride, column_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * row_stride + cols * column_stride, mask=cols < n_cols, other=0.0).to(tl.float32)
    e = tl.exp(x - tl.load(most_ptr + row))
    tl.store(y_ptr + row * n_cols + cols, e / tl.load(sum_ptr + row), mask=cols < n_cols)


def softmax(x):
    rows, columns = x.shape
    key = torch.cuda.current_stream().cuda_stream, threading.get_ident(), rows
    if key not in workspaces:
        workspaces[key] = torch.empty(2, rows, dtype=torch.float32, device=x.device)
    most, total = workspaces[key]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(columns)
    sums_kernel[(rows,)](x, most, total, *x.stride(), columns, BLOCK=block)
    divide_kernel[(rows,)](x, y, most, total, *x.stride(), columns, BLOCK=block)
    return y
