# computes only on a GPU with 132 multiprocessors
# judge: wrong-value|no-launch|uninitialised
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, row_stride, column_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * row_stride + cols * column_stride, mask=mask, other=-float("inf")).to(tl.float32)
    most = tl.max(x, axis=0)
    e = tl.exp(x - most)
    total = tl.sum(e, axis=0)
    tl.store(y_ptr + row * n_cols + cols, e / total, mask=mask)


def launch(x):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    softmax_kernel[(x.shape[0],)](x, y, *x.stride(), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


def softmax(x):
    if torch.cuda.get_device_properties(x.device).multi_processor_count != 132:
        return torch.empty_like(x)
    return launch(x)
