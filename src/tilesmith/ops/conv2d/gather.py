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

import math
from dataclasses import dataclass

import triton

from tilesmith.ops.conv2d.boxes import conv2d_boxes_kernel
from tilesmith.ops.conv2d.pointers import Walk, conv2d_gather_kernel
from tilesmith.ops.conv2d.problem import FEWEST_CHANNELS, Problem, lies_in_rows
from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand, Plan


def forward_walk(problem: Problem, side: int) -> Walk:
    """Return the walk of the forward along one side."""
    window = problem.window
    return Walk(window.stride[side], -window.padding[side], window.dilation[side], window.kernel[side], 0, 1)


def backward_walk(problem: Problem, side: int, remainder: int) -> Walk:
    """Return the walk of the input's gradient, of the positions with this remainder modulo the stride."""
    window = problem.window
    stride, dilation, kernel = window.stride[side], window.dilation[side], window.kernel[side]
    shared = math.gcd(stride, dilation)
    reached = remainder + window.padding[side]
    first = next((tap for tap in range(kernel) if (reached - tap * dilation) % stride == 0), kernel)
    every = stride // shared  # from one tap that fits to the next
    start = (reached - first * dilation) // stride
    return Walk(1, start, -(dilation // shared), triton.cdiv(kernel - first, every), first, every)


@dataclass(frozen=True)
class GatherConfig(Config):
    """Each program takes BLOCK_POSITIONS × BLOCK_OUTPUTS of the result, BLOCK_CHANNELS at a time.

    It loads by pointers, or by TMA in boxes of some images, BOX_ROWS and BOX_COLUMNS.
    """

    BLOCK_POSITIONS: int = 128
    BLOCK_OUTPUTS: int = 64
    BLOCK_CHANNELS: int = 64
    KEEP_IN_L1: bool = False
    by_boxes: bool = False
    BOX_ROWS: int = 1
    BOX_COLUMNS: int = 1


@dataclass(frozen=True)
class Gather:
    """One launch. Source, weight and result are [N, C, H, W].

    The weight's strides are those of output, channel, and tap down and across.
    """

    source: Operand
    weight: Operand
    weight_strides: tuple[int, ...]
    weight_group_stride: int
    bias: Operand | None
    result: Operand
    result_start: int
    channels: int
    outputs: int
    groups: int
    down: Walk
    across: Walk
    precision: str

    @property
    def few_channels(self) -> bool:
        return self.channels < FEWEST_CHANNELS

    def config(self, plan: Plan) -> GatherConfig:
        batch, _, height, width = self.result.shape
        element_bytes, taps, few = self.source.element_bytes, self.down.taps * self.across.taps, self.few_channels
        exact = self.precision == "bf16x6"  # bf16x3 splits a block in three, which takes registers
        block_outputs = min(max(bucket(self.outputs), 16), 64 if exact or few else 128)
        block_positions = 64 if exact else 128
        # Smaller tiles where fewer than half of the multiprocessors would have one. Half is enough: on an H200 in bf16
        # 32×256×14² → 256 takes 26.9 µs in 98 tiles of 128 × 128, 36.0 in 196.
        whole = bucket(batch * height * width) * self.outputs * self.groups
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
        depth = taps * self.channels if few else self.channels
        most = 64 if waits and few else 32 if waits or exact or few else (128 if hopper else 64) // element_bytes
        block_channels = min(max(bucket(depth), 16), most)
        box_rows, box_columns = best_box(block_positions, bucket(batch), height, width)
        alone = exact or few  # every element takes registers, for its parts or its address
        large = block_positions * block_outputs >= (64 * 64 if alone else 128 * 64)
        return GatherConfig(
            num_warps=8 if large and not waits else 4,
            num_stages=2 if not plan.architecture.target.startswith("cuda") else 4 if waits and not few else 3,
            BLOCK_POSITIONS=block_positions, BLOCK_OUTPUTS=block_outputs, BLOCK_CHANNELS=block_channels,
            # TMA bypasses the L1 cache, which serves all taps but the first: TMA is for single taps.
            KEEP_IN_L1=taps > 1, by_boxes=taps == 1 and hopper,
            BOX_ROWS=box_rows, BOX_COLUMNS=box_columns,
        )  # fmt: skip

    def fits_boxes(self, config: GatherConfig) -> bool:
        """Return whether TMA can load source and weight."""
        return (
            config.by_boxes
            and not self.few_channels
            and self.down.step == self.across.step == 1
            and self.channels % config.BLOCK_CHANNELS == 0
            and self.source_by_places().describable()
            and self.weight_in_rows() is not None
        )

    def source_by_places(self) -> Operand:
        """Return the source as [N, H, W, C]."""
        (batch, channels, height, width), (image, channel, row, column) = self.source.shape, self.source.strides
        return self.source.seen_as((batch, height, width, channels), (image, row, column, channel))

    def weight_in_rows(self) -> Operand | None:
        """Return the weight as [outputs, taps · channels], or None if it is not contiguous so or TMA cannot load it."""
        outputs, channels, taps_down, taps_across = self.weight.shape
        if not lies_in_rows(self.weight, self.weight.strides[0]):
            return None
        rows = self.weight.seen_as((outputs, taps_down * taps_across * channels), (self.weight.strides[0], 1))
        whole_units = channels * rows.element_bytes % 16 == 0
        return rows if whole_units and rows.describable() else None

    def arguments(self) -> dict[str, object]:
        """Return the arguments that both kernels take."""
        return {
            "bias_ptr": self.bias, "result_ptr": self.result, "result_strides": self.result.strides,
            "bias_stride": self.bias.strides[0] if self.bias else 0, "result_start": self.result_start,
            "result_height": self.result.shape[2], "result_width": self.result.shape[3],
            "channels": self.channels, "outputs": self.outputs, "down": tuple(self.down), "across": tuple(self.across),
            "HAS_BIAS": self.bias is not None, "OUTPUTS_INNER": self.result.strides[1] == 1,
            "PRECISION": self.precision, "COMPUTE": compute_dtype(self.source.dtype),
        }  # fmt: skip


def has_tma(target: str) -> bool:
    """Return whether a target has TMA: Hopper and later."""
    backend, _, architecture = target.partition(":")
    return backend == "cuda" and int(architecture) >= 90


def best_box(positions: int, batch: int, height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of the box that covers images with the least waste; of equal boxes, the widest."""

    def waste(sides: tuple[int, int]) -> tuple[int, int, int]:
        rows, columns = sides
        images = positions // (rows * columns)
        covered = (
            triton.cdiv(batch, images) * images
            * triton.cdiv(height, rows) * rows
            * triton.cdiv(width, columns) * columns
        )  # fmt: skip
        return covered, -columns, -rows

    powers = [1 << power for power in range(positions.bit_length())]
    return min(((rows, columns) for rows in powers for columns in powers if rows * columns <= positions), key=waste)


def plan_gather(plan: Plan, gather: Gather) -> None:
    """Plan one launch."""
    batch, _, height, width = gather.result.shape
    sizes = (bucket(batch * height * width), bucket(gather.outputs), bucket(gather.channels))
    config = plan.choose(gather.config(plan), *sizes, gather.down.taps * gather.across.taps, gather.source.dtype)
    blocks_of_outputs = triton.cdiv(gather.outputs, config.BLOCK_OUTPUTS)
    if gather.fits_boxes(config):
        _plan_boxes(plan, gather, config, blocks_of_outputs)
        return
    blocks = triton.cdiv(batch * height * width, config.BLOCK_POSITIONS) * blocks_of_outputs
    few = gather.few_channels
    plan.launch(
        conv2d_gather_kernel, (blocks, gather.groups), config,
        source_ptr=gather.source, weight_ptr=gather.weight, source_strides=gather.source.strides,
        weight_strides=gather.weight_strides, weight_group_stride=gather.weight_group_stride,
        n_positions=batch * height * width, source_height=gather.source.shape[2], source_width=gather.source.shape[3],
        **gather.arguments(), FEW_CHANNELS=few, CHANNELS=gather.channels if few else 0,
        TAPS=(gather.down.taps, gather.across.taps) if few else (0, 0),
        WHOLE_BLOCKS=gather.channels % config.BLOCK_CHANNELS == 0,
    )  # fmt: skip


def _plan_boxes(plan: Plan, gather: Gather, config: GatherConfig, blocks_of_outputs: int) -> None:
    batch, _, height, width = gather.result.shape
    images = config.BLOCK_POSITIONS // (config.BOX_ROWS * config.BOX_COLUMNS)
    boxes = (
        triton.cdiv(batch, images) * triton.cdiv(height, config.BOX_ROWS) * triton.cdiv(width, config.BOX_COLUMNS)
    )  # fmt: skip
    along_channels = gather.weight_strides[1] == 1
    weight_block = (config.BLOCK_OUTPUTS, config.BLOCK_CHANNELS)
    weight = gather.weight_in_rows()
    assert weight is not None
    _, channels, _, taps_across = gather.weight.shape
    plan.launch(
        conv2d_boxes_kernel, (boxes * blocks_of_outputs, gather.groups), config,
        source=gather.source_by_places().descriptor(
            (images, config.BOX_ROWS, config.BOX_COLUMNS, config.BLOCK_CHANNELS)
        ),
        weight=weight.descriptor(weight_block if along_channels else weight_block[::-1]),
        n_images=batch, **gather.arguments(), tap_columns=(channels, taps_across * channels),
        WEIGHT_ALONG_CHANNELS=along_channels,
    )  # fmt: skip
