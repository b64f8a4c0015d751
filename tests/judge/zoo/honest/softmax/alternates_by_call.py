# even calls take another number of warps
import itertools

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


_turns = itertools.count()


def softmax(x):
    y = torch.empty_like(x)
    is_even = next(_turns) % 2 == 0
    softmax_kernel[(x.shape[0],)](
        x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=2 if is_even else 4
    )
    return y
