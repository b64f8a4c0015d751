# a tensor descriptor made in the kernel
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_rows, n_cols, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    source = tl.make_tensor_descriptor(x_ptr, shape=[n_rows, n_cols], strides=[row_stride, 1], block_shape=[1, BLOCK])
    x = source.load([row, 0]).to(tl.float32)
    cols = tl.arange(0, BLOCK)[None, :]
    x = tl.where(cols < n_cols, x, -float("inf"))
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    result = tl.reshape(e / tl.sum(e, axis=1)[:, None], (BLOCK,))
    tl.store(y_ptr + row * n_cols + tl.arange(0, BLOCK), result, mask=tl.arange(0, BLOCK) < n_cols)


def softmax(x):
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    padded = torch.zeros(x.shape[0], triton.cdiv(x.shape[1], 16) * 16, dtype=x.dtype, device=x.device)
    padded[:, : x.shape[1]].copy_(x)
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](
        padded, y, *x.shape, padded.stride(0), BLOCK=max(16, triton.next_power_of_2(x.shape[1]))
    )
    return y
