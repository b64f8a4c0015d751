"""What both gated kernels share besides `ring.py`: the opening of a gate, and which problems they suit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tilesmith.ops.device.activations import CUBIC, LINEAR
from tilesmith.ops.device.constants import LOG2_E
from tilesmith.ops.device.hopper import runs_on_hopper
from tilesmith.ops.matmul.hopper.ring import RingConfig, tiles
from tilesmith.ops.runtime.plan import Operand, Plan


@gluon.jit
def of_pair(pair, DTYPE: gl.constexpr):
    """Return both columns of each pair in float32, each in the shape of `pair`."""
    if gl.bfloat16 == DTYPE:
        even = (pair << 16).to(gl.float32, bitcast=True)
        odd = (pair & -65536).to(gl.float32, bitcast=True)
    else:
        even = pair.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
        odd = (pair >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return even, odd


@gluon.jit
def argument(x, ACTIVATION: gl.constexpr):
    """Return p with activation(x) = x · σ(p): x itself for "silu", a cubic polynomial of x for "gelu_tanh"."""
    if ACTIVATION == "gelu_tanh":
        x = x * (LINEAR + CUBIC * x * x)
    return x


@gluon.jit
def opened(p):
    """Return σ(p) by the fast reciprocal: results are rounded to half precision, and a division is far slower."""
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1 + gl.exp2(p * -LOG2_E)], dtype=gl.float32, is_pure=True, pack=1
    )


@dataclass(frozen=True)
class GatedConfig(RingConfig):
    """The backward's config. 8192×8192×2048 in bf16 takes 533 µs on an H200; GEMM and gradients in separate kernels
    take 624, the GEMM alone 419."""

    TOGETHER: int = 8


LEAST_DEPTH = 1024
"""The first 16 steps of 64 run the epilogue of the tile before."""

LEAST_WAVES = 2
"""Tiles for each multiprocessor: with fewer, the tail idles too many, and cuBLAS has smaller tiles."""


def suits_hopper(plan: Plan, x: Operand, n_columns: int, n_weights: int, *others: Operand) -> bool:
    """Return whether these kernels can multiply x by n_weights weights of n_columns each, and are the fastest choice.

    All operands are matrices of one dtype.
    """
    rows, depth = x.shape
    half = x.dtype in (torch.bfloat16, torch.float16)
    return (
        runs_on_hopper(plan)
        and half
        and depth >= LEAST_DEPTH
        and tiles(rows, n_weights * n_columns) >= LEAST_WAVES * plan.multiprocessors
        and n_columns * x.element_bytes % 16 == 0
        and all(one.describable() for one in (x, *others))
    )
