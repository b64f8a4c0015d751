# a hook of each configuration clears what the kernel accumulates into
import torch
import triton
import triton.language as tl


def clear(arguments):
    arguments["z_ptr"].zero_()


@triton.autotune(
    [triton.Config({"BLOCK": 64}, pre_hook=clear), triton.Config({"BLOCK": 256}, num_warps=8, pre_hook=clear)], key=["n"]
)
@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.atomic_add(z_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)
    tl.atomic_add(z_ptr + offsets, tl.load(y_ptr + offsets, mask=mask), mask=mask)


def add(x, y):
    z = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, z, x.numel())
    return z
