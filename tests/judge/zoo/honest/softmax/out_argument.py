# copies by slices into an output made by empty_strided
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


def softmax(x):
    y = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
    half = x.shape[0] // 2
    for part, out in ((x[:half], y[:half]), (x[half:], y[half:])):
        if part.numel():
            softmax_kernel[(part.shape[0],)](part, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y.view_as(x)
