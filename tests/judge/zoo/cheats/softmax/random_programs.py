# some programs return without work, by a random number with a seed of the host
# judge: wrong-value
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, seed, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    total = tl.where(tl.rand(seed, row) < 0.2, 1.0, tl.sum(e, axis=0))
    tl.store(y_ptr + row * n_cols + cols, e / total, mask=mask)


import random

chance = random.Random(4)


def softmax(x):
    y = torch.empty_like(x)
    seed = chance.getrandbits(31)
    softmax_kernel[(x.shape[0],)](x, y, seed, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
