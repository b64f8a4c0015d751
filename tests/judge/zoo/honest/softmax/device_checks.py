# asks the GPU for its properties
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
    assert x.is_cuda
    assert x.device.type == "cuda"
    assert torch.cuda.is_available()
    count = torch.cuda.get_device_properties(x.device).multi_processor_count
    assert count > 0
    assert torch.cuda.get_device_capability(x.device) >= (8, 0)
    assert x.get_device() == torch.cuda.current_device()
    with torch.cuda.device(x.device):
        y = torch.empty(x.shape, dtype=x.dtype, device="cuda")
        softmax_kernel[(x.shape[0],)](
            x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=4, num_stages=2
        )
    torch.cuda.synchronize()
    return y
