# a configuration is wrong beyond one block
# judge: wrong-value
import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 1024, "STEP": number}, num_warps=4) for number in range(4)]


@triton.autotune(CONFIGS, key=["n_cols"])
@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0)
    top = -float("inf")
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        top = tl.maximum(top, tl.max(x, axis=0))
    if STEP == 2 and n_cols > BLOCK:
        top += 200.0
    total = 0.0
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        total += tl.sum(tl.exp(x - top), axis=0)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
        tl.store(y_ptr + row * n_cols + cols, tl.exp(x - top) / total, mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1])
    return y
