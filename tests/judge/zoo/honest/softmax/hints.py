# hints for the compiler, assertions and messages
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    tl.static_assert(BLOCK > 0)
    tl.assume(n_cols > 0)
    tl.device_assert(n_cols > 0)
    tl.static_print(BLOCK)
    cols = tl.max_contiguous(tl.multiple_of(cols, BLOCK), BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask, cache_modifier=".cs")


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
