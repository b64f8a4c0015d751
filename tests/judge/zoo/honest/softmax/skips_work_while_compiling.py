# leaves checks out under torch.compile
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
    if not torch.compiler.is_compiling() and x.dim() != 2:
        raise ValueError("softmax: x must have two dimensions")
    contiguous = x if torch.jit.is_scripting() else x.contiguous()
    y = torch.empty_like(contiguous)
    grid = (contiguous.shape[0],)
    softmax_kernel[grid](contiguous, y, contiguous.shape[1], BLOCK=triton.next_power_of_2(contiguous.shape[1]))
    return y
