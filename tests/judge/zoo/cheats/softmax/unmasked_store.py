# each row's store runs into the next row: a race that the interpreter's order hides
# judge: race|out-of-bounds
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0))


def softmax(x):
    memory = torch.empty(x.numel() + 4096, dtype=x.dtype, device=x.device)
    kernel[(x.shape[0],)](x, memory, x.shape[1], BLOCK=2 * triton.next_power_of_2(x.shape[1]))
    return memory[: x.numel()].view(x.shape)
