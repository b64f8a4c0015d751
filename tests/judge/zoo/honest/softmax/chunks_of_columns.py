# two passes over chunks of 64 columns
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full([CHUNK], -float("inf"), tl.float32)
    total = tl.zeros([CHUNK], tl.float32)
    for start in range(0, n_cols, CHUNK):
        cols = start + tl.arange(0, CHUNK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        new = tl.maximum(largest, x)
        total = total * tl.where(largest == new, 1.0, tl.exp(largest - new)) + tl.where(
            x == -float("inf"), 0.0, tl.exp(x - new)
        )
        largest = new
    top = tl.max(largest, axis=0)
    whole = tl.sum(tl.where(largest == -float("inf"), 0.0, total * tl.exp(largest - top)), axis=0)
    for start in range(0, n_cols, CHUNK):
        cols = start + tl.arange(0, CHUNK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n_cols + cols, tl.exp(x - top) / whole, mask=cols < n_cols)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], CHUNK=64)
    return y
