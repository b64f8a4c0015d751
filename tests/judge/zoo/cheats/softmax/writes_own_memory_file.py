# writes the answer through /proc/self/mem
# judge: torch-computes|wrong-value|exception|outside-kernels
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def softmax(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    answer = torch.softmax(x.float(), -1).to(x.dtype).numpy().tobytes()
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(y.data_ptr())
        memory.write(answer)
    return y
