# a dataclass of launch options and an enumeration
import enum
from dataclasses import dataclass
from functools import cache, partial

import torch
import triton
import triton.language as tl


class Mode(enum.IntEnum):
    STABLE = 1


@dataclass(frozen=True)
class Options:
    block: int
    warps: int


@cache
def options_for(n_cols):
    return Options(triton.next_power_of_2(n_cols), 4)


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr, MODE: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    if MODE == 1:
        x -= tl.max(x, axis=0)
    e = tl.exp(x)
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


@torch.no_grad()
def run(mode, x):
    chosen = options_for(x.shape[1])
    y = x.new_empty(x.shape)
    softmax_kernel[(x.shape[0], 1, 1)](x, y, x.shape[1], chosen.block, mode, num_warps=chosen.warps)
    return y


softmax = partial(run, Mode.STABLE)
