"""What both kernels for a gate share besides `hopper_ring`: the gate itself, and which calls they are for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tilesmith.ops.device.constants import LOG2_E
from tilesmith.ops.device.hopper import runs_on_hopper
from tilesmith.ops.matmul.hopper.ring import RingConfig, tiles
from tilesmith.ops.runtime.plan import Operand, Plan


@gluon.jit
def of_pair(pair, DTYPE: gl.constexpr):
    """Both columns in single precision."""
    if gl.bfloat16 == DTYPE:
        even = (pair << 16).to(gl.float32, bitcast=True)
        odd = (pair & -65536).to(gl.float32, bitcast=True)
    else:
        even = pair.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
        odd = (pair >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return even, odd


@gluon.jit
def opened(x):
    """σ(x) with the fast reciprocal: results are rounded to half precision, and a division takes many more
    instructions."""
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1 + gl.exp2(x * -LOG2_E)], dtype=gl.float32, is_pure=True, pack=1
    )


@dataclass(frozen=True)
class GatedConfig(RingConfig):
    """Of the backward: with 8192 rows and columns and 2048 of depth in bf16, 533 µs on an H200, where product and
    gradients apart take 624 and the product alone 419."""

    TOGETHER: int = 8


LEAST_DEPTH = 1024
"""A tile is finished at the first 16 steps of 64 of the next one."""

LEAST_ROUNDS = 2
"""With fewer tiles for each multiprocessor, too many of these idle at the end: cuBLAS has smaller tiles."""


def suits_hopper(plan: Plan, x: Operand, n_columns: int, n_weights: int, *others: Operand) -> bool:
    """Whether these kernels can multiply x by so many weights for n_columns each, and are the ones to. All operands are
    matrices of one dtype."""
    rows, depth = x.shape
    half = x.dtype in (torch.bfloat16, torch.float16)
    return (
        runs_on_hopper(plan)
        and half
        and depth >= LEAST_DEPTH
        and tiles(rows, n_weights * n_columns) >= LEAST_ROUNDS * plan.multiprocessors
        and n_columns * x.element_bytes % 16 == 0
        and all(one.describable() for one in (x, *others))
    )
