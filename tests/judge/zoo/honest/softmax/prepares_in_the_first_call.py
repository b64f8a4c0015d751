# a flag says whether the first call was made
import threading

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


_lock = threading.Lock()
_ready = False
_multiprocessors = 0


def _prepare():
    global _ready, _multiprocessors
    with _lock:
        if not _ready:
            _multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
            _ready = True


def softmax(x):
    if not _ready:
        _prepare()
    y = torch.empty_like(x)
    warps = 8 if _multiprocessors > 100 else 4
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=warps)
    return y
