# programmatic dependent launches that wait before they read
import torch
import triton
import triton.language as tl


@triton.jit
def exps(x_ptr, e_ptr, s_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(e_ptr + row * n_cols + cols, e, mask=mask)
    tl.store(s_ptr + row, tl.sum(e, axis=0))
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def divides(e_ptr, s_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    tl.extra.cuda.gdc_wait()
    e = tl.load(e_ptr + row * n_cols + cols, mask=mask)
    tl.store(y_ptr + row * n_cols + cols, e / tl.load(s_ptr + row), mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    e = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    s = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    exps[(x.shape[0],)](x, e, s, x.shape[1], BLOCK=block, launch_pdl=True)
    divides[(x.shape[0],)](e, s, y, x.shape[1], BLOCK=block, launch_pdl=True)
    return y
