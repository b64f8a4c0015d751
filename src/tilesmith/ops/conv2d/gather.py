"""The implicit GEMM of forward and input gradient: one launch serves both.

Each position of the result gathers: it sums taps × channels of the source, each times its weight. That is a GEMM of
positions × outputs over taps × channels. Its first matrix is never written to memory: a block of it is loaded from the
source, the padding as zeros.

- Forward: position p reads the source's rows p·stride − padding + r·dilation, with tap r of the weight.
- Input gradient: position h reads all rows p of the output's gradient with h = p·stride − padding + r·dilation. With a
  stride above one, only some taps r have such a p, and h modulo the stride decides which. So positions of equal
  remainder form a class with a launch of its own, and no launch tries a tap in vain.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton

from tilesmith.ops.conv2d.pointers import conv2d_gather_kernel
from tilesmith.ops.conv2d.problem import Gather
from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Plan


@dataclass(frozen=True)
class GatherConfig(Config):
    """Each program takes BLOCK_POSITIONS × BLOCK_OUTPUTS of the result, BLOCK_CHANNELS at a time."""

    BLOCK_POSITIONS: int = 128
    BLOCK_OUTPUTS: int = 64
    BLOCK_CHANNELS: int = 64
    KEEP_IN_L1: bool = False


def gather_config(gather: Gather, plan: Plan) -> GatherConfig:
    batch, _, height, width = gather.result.shape
    element_bytes, taps, few = gather.source.element_bytes, gather.down.taps * gather.across.taps, gather.few_channels
    exact = gather.precision == "bf16x6"  # bf16x3 splits a block in three, which takes registers
    block_outputs = min(max(bucket(gather.outputs), 16), 64 if exact or few else 128)
    block_positions = 64 if exact else 128
    # Smaller tiles where fewer than half of the multiprocessors would have one. Half is enough: on an H200 in bf16
    # 32×256×14² → 256 takes 26.9 µs in 98 tiles of 128 × 128, 36.0 in 196.
    whole = bucket(batch * height * width) * gather.outputs * gather.groups
    while block_positions > 32 and 2 * whole < block_positions * block_outputs * plan.multiprocessors:
        block_positions //= 2
    # 128 bytes of channels are a cache line. Before Hopper, tensor cores read operands from registers, which hold
    # half as many.
    hopper = has_tma(plan.architecture.target)
    # With few outputs the kernel is bound by the latency of loads. Fewer warps and smaller blocks have more loads
    # in flight: 32×64×56² → 64 takes 34.1 µs with four warps, 32 channels and four stages, 37.8 with eight, 64 and
    # three. Few channels are scalar loads without a pipeline and need large blocks: 32×3×224² → 64 takes 206 µs
    # with eight warps and blocks of 128 × 32, 117 with four and 256 × 64, which spill; 128 × 64 do not.
    waits = hopper and element_bytes == 2 and block_outputs == 64 and taps > 1
    depth = taps * gather.channels if few else gather.channels
    most = 64 if waits and few else 32 if waits or exact or few else (128 if hopper else 64) // element_bytes
    block_channels = min(max(bucket(depth), 16), most)
    alone = exact or few  # every element takes registers, for its parts or its address
    large = block_positions * block_outputs >= (64 * 64 if alone else 128 * 64)
    return GatherConfig(
        num_warps=8 if large and not waits else 4,
        num_stages=2 if not plan.architecture.target.startswith("cuda") else 4 if waits and not few else 3,
        BLOCK_POSITIONS=block_positions, BLOCK_OUTPUTS=block_outputs, BLOCK_CHANNELS=block_channels,
        KEEP_IN_L1=taps > 1,  # the L1 cache serves all taps but the first
    )  # fmt: skip


def has_tma(target: str) -> bool:
    """Return whether a target has TMA: Hopper and later."""
    backend, _, architecture = target.partition(":")
    return backend == "cuda" and int(architecture) >= 90


def plan_gather(plan: Plan, gather: Gather) -> None:
    """Plan one launch."""
    batch, _, height, width = gather.result.shape
    sizes = (bucket(batch * height * width), bucket(gather.outputs), bucket(gather.channels))
    config = plan.choose(
        gather_config(gather, plan), *sizes, gather.down.taps * gather.across.taps, gather.source.dtype
    )
    blocks_of_outputs = triton.cdiv(gather.outputs, config.BLOCK_OUTPUTS)
    blocks = triton.cdiv(batch * height * width, config.BLOCK_POSITIONS) * blocks_of_outputs
    few = gather.few_channels
    plan.launch(
        conv2d_gather_kernel, (blocks, gather.groups), config,
        source_ptr=gather.source, weight_ptr=gather.weight, source_strides=gather.source.strides,
        weight_strides=gather.weight_strides, weight_group_stride=gather.weight_group_stride,
        n_positions=batch * height * width, source_height=gather.source.shape[2], source_width=gather.source.shape[3],
        bias_ptr=gather.bias, result_ptr=gather.result, result_strides=gather.result.strides,
        bias_stride=gather.bias.strides[0] if gather.bias else 0, result_start=gather.result_start,
        result_height=height, result_width=width, channels=gather.channels, outputs=gather.outputs,
        down=tuple(gather.down), across=tuple(gather.across), HAS_BIAS=gather.bias is not None,
        OUTPUTS_INNER=gather.result.strides[1] == 1, PRECISION=gather.precision,
        COMPUTE=compute_dtype(gather.source.dtype), FEW_CHANNELS=few, CHANNELS=gather.channels if few else 0,
        TAPS=(gather.down.taps, gather.across.taps) if few else (0, 0),
        WHOLE_BLOCKS=gather.channels % config.BLOCK_CHANNELS == 0,
    )  # fmt: skip
