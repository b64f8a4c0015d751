# logs, warns, times itself and opens a file of its own
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


import logging
import tempfile
import time
import warnings


def softmax(x):
    started = time.perf_counter()
    warnings.warn("untuned")
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    logging.getLogger(__name__).info("took %f", time.perf_counter() - started)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("done")
    return y
