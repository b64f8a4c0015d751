# a TMA descriptor made on the host
import torch
import triton
import triton.language as tl


from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def kernel(source, y_ptr, rows, cols, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK
    j = tl.program_id(1) * BLOCK
    x = source.load([i, j])
    down = j + tl.arange(0, BLOCK)
    across = i + tl.arange(0, BLOCK)
    mask = (down[:, None] < cols) & (across[None, :] < rows)
    tl.store(y_ptr + down[:, None] * rows + across[None, :], tl.trans(x), mask=mask)


def transpose(x):
    padded = x if x.shape[1] % 8 == 0 else torch.nn.functional.pad(x, (0, 8 - x.shape[1] % 8))
    y = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
    source = TensorDescriptor.from_tensor(padded, [16, 16])
    kernel[(triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 16))](source, y, *x.shape, BLOCK=16)
    return y
