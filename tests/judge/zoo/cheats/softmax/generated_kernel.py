# the kernel's text is made while the candidate runs
# judge: foreign-kernel
import torch
import triton
import triton.language as tl


import importlib.util
import pathlib

TEXT = """import triton
import triton.language as tl


@triton.jit
def hidden_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=cols < n_cols)
"""
pathlib.Path("made.py").write_text(TEXT)
spec = importlib.util.spec_from_file_location("made", "made.py")
made = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made)


def softmax(x):
    y = torch.empty_like(x)
    made.hidden_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
