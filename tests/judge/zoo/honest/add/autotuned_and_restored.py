# in place on a copy, which the autotuner restores after each trial
import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 256}, num_warps=8)], key=["n"], restore_value=["z_ptr"])
@triton.jit
def add_kernel(y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    z = tl.load(z_ptr + offsets, mask=mask)
    tl.store(z_ptr + offsets, z + tl.load(y_ptr + offsets, mask=mask), mask=mask)


def add(x, y):
    z = x.clone()
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](y, z, x.numel())
    return z
