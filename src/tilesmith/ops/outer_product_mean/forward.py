"""The forward kernels and their tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.runtime.precision import product_precision

SMALLEST_BLOCK = 16  # tl.dot takes at least 16 along each side
BLOCK_SEQUENCES = 32  # laid-out operands are padded with zeros to whole blocks of 32 sequences


@triton.jit(do_not_specialize=["n_batches", "n_sequences", "padded_sequences"])
def outer_product_operand_kernel(
    x_ptr, mask_ptr, laid_out_ptr, x_strides, mask_strides, laid_out_strides,
    n_batches, n_sequences, padded_sequences, n_residues,
    CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, BLOCK_SEQUENCES: tl.constexpr,
):  # fmt: skip
    """Write [batch, sequences, residues, channels] with the sequences innermost, zeros where masked or beyond."""
    batch = (tl.program_id(0) // n_residues).to(tl.int64)
    residue = (tl.program_id(0) % n_residues).to(tl.int64)
    sequences = (tl.program_id(1) * BLOCK_SEQUENCES + tl.arange(0, BLOCK_SEQUENCES)).to(tl.int64)
    channels = tl.arange(0, BLOCK_CHANNELS)
    is_there = (sequences < n_sequences)[:, None]
    if mask_ptr is not None:
        mask_pointers = mask_ptr + batch * mask_strides[0] + sequences * mask_strides[1] + residue * mask_strides[2]
        is_there &= tl.load(mask_pointers, mask=sequences < n_sequences, other=0).to(tl.int1)[:, None]
    x_pointers = x_ptr + batch * x_strides[0] + sequences[:, None] * x_strides[1] + residue * x_strides[2]
    x = tl.load(
        x_pointers + channels[None, :] * x_strides[3], mask=is_there & (channels < CHANNELS)[None, :], other=0.0
    )  # [BLOCK_SEQUENCES, BLOCK_CHANNELS]
    place = batch * laid_out_strides[0] + residue * laid_out_strides[1]
    laid_out_pointers = laid_out_ptr + place + channels[:, None] * laid_out_strides[2] + sequences[None, :]
    tl.store(laid_out_pointers, tl.trans(x), mask=(sequences < padded_sequences)[None, :])


@triton.jit
def common_sequences(
    mask_ptr, mask_strides, batch, i, j, n_sequences, n_residues, BLOCK_SEQUENCES: tl.constexpr, COMPUTE: tl.constexpr
):  # fmt: skip
    """Return the number of sequences that have both residues of each pair, [PAIRS]."""
    count = tl.zeros([i.shape[0]], COMPUTE)  # [PAIRS]
    for start in range(0, n_sequences, BLOCK_SEQUENCES):
        sequences = (start + tl.arange(0, BLOCK_SEQUENCES)).to(tl.int64)
        rows = mask_ptr + batch * mask_strides[0] + (sequences * mask_strides[1])[None, :]
        is_sequence = (sequences < n_sequences)[None, :]
        has_i = tl.load(rows + i[:, None] * mask_strides[2], mask=is_sequence & (i < n_residues)[:, None], other=0)
        has_j = tl.load(rows + j[:, None] * mask_strides[2], mask=is_sequence & (j < n_residues)[:, None], other=0)
        count += tl.sum((has_i.to(tl.int1) & has_j.to(tl.int1)).to(COMPUTE), axis=1)
    return count


@triton.jit(do_not_specialize=["n_batches", "n_sequences", "padded_sequences"])
def outer_product_mean_forward_kernel(
    left_ptr, right_ptr, mask_ptr, weight_ptr, bias_ptr, z_ptr,
    left_strides, right_strides, mask_strides, weight_strides, bias_stride, z_strides,
    n_batches, n_sequences, padded_sequences, n_residues, n_outputs, eps,
    CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_SEQUENCES: tl.constexpr,
):  # fmt: skip
    """Write z of BLOCK_I × BLOCK_J pairs. Without a weight, z is the mean: [i, j, channel of a, channel of b]."""
    blocks_of_j = tl.cdiv(n_residues, BLOCK_J)
    first_i = tl.program_id(0) // blocks_of_j * BLOCK_I
    first_j = tl.program_id(0) % blocks_of_j * BLOCK_J
    batch = tl.program_id(2).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)

    # A tile of outer products, [BLOCK_I, BLOCK_J · BLOCK_CHANNELS], is reshaped to [PAIRS, BLOCK_CHANNELS].
    pairs = tl.arange(0, BLOCK_I * BLOCK_J)  # [PAIRS]
    pair_i, pair_j = (first_i + pairs // BLOCK_J).to(tl.int64), (first_j + pairs % BLOCK_J).to(tl.int64)
    is_pair = (pair_i < n_residues) & (pair_j < n_residues)
    count = tl.full([BLOCK_I * BLOCK_J], 0.0, COMPUTE) + n_sequences
    if mask_ptr is not None:
        count = common_sequences(
            mask_ptr, mask_strides, batch, pair_i, pair_j, n_sequences, n_residues, BLOCK_SEQUENCES, COMPUTE
        )
    is_present = count > 0.0
    factor = tl.where(is_present, 1.0 / (eps + count), 0.0)  # [PAIRS]

    sequences = tl.arange(0, BLOCK_SEQUENCES)
    rows = (first_i + tl.arange(0, BLOCK_I)).to(tl.int64)
    columns = first_j * BLOCK_CHANNELS + tl.arange(0, BLOCK_J * BLOCK_CHANNELS)
    in_rows, in_columns = (rows < n_residues)[:, None], (columns < n_residues * BLOCK_CHANNELS)[None, :]
    left_pointers = left_ptr + batch * left_strides[0] + rows[:, None] * left_strides[1] + sequences[None, :]
    right_pointers = right_ptr + batch * right_strides[0] + columns.to(tl.int64)[None, :] * right_strides[2]
    right_pointers += sequences[:, None]
    channels = tl.arange(0, BLOCK_CHANNELS)
    z_rows = z_ptr + batch * z_strides[0] + pair_i * z_strides[1] + pair_j * z_strides[2]
    projected = tl.zeros([BLOCK_I * BLOCK_J, BLOCK_OUTPUTS], COMPUTE)  # [PAIRS, BLOCK_OUTPUTS]
    for channel in range(CHANNELS):
        products = tl.zeros([BLOCK_I, BLOCK_J * BLOCK_CHANNELS], COMPUTE)
        for start in range(0, padded_sequences, BLOCK_SEQUENCES):
            left = tl.load(left_pointers + start, mask=in_rows, other=0.0)  # [BLOCK_I, SEQUENCES]
            right = tl.load(right_pointers + start, mask=in_columns, other=0.0)  # [SEQUENCES, BLOCK_J · CHANNELS]
            products = tl.dot(left, right, products, input_precision=PRECISION, out_dtype=COMPUTE)
        left_pointers += left_strides[2]
        mean = tl.reshape(products, [BLOCK_I * BLOCK_J, BLOCK_CHANNELS]) * factor[:, None]
        # Beyond the last channel, zero times infinity is NaN.
        mean = tl.where((channels < CHANNELS)[None, :], mean, 0.0)
        if weight_ptr is None:
            mean = tl.where(is_present[:, None], mean, 0.0)
            z_pointers = z_rows[:, None] + channel * z_strides[3] + channels[None, :] * z_strides[4]
            is_stored = is_pair[:, None] & (channels < CHANNELS)[None, :]
            tl.store(z_pointers, mean.to(z_ptr.dtype.element_ty), mask=is_stored)
        else:
            weight_pointers = weight_ptr + outputs[None, :].to(tl.int64) * weight_strides[0]
            weight_pointers += (channel * CHANNELS + channels)[:, None] * weight_strides[1]
            in_weight = (channels < CHANNELS)[:, None] & (outputs < n_outputs)[None, :]
            weight = tl.load(weight_pointers, mask=in_weight, other=0.0)  # [BLOCK_CHANNELS, BLOCK_OUTPUTS]
            projected = tl.dot(mean.to(weight.dtype), weight, projected, input_precision=PRECISION, out_dtype=COMPUTE)
    if weight_ptr is not None:
        if bias_ptr is not None:
            bias = tl.load(bias_ptr + outputs * bias_stride, mask=outputs < n_outputs, other=0.0).to(COMPUTE)
            projected += factor[:, None] * bias[None, :]
        projected = tl.where(is_present[:, None], projected, 0.0)
        is_stored = is_pair[:, None] & (outputs < n_outputs)[None, :]
        z_pointers = z_rows[:, None] + outputs[None, :] * z_strides[3]
        tl.store(z_pointers, projected.to(z_ptr.dtype.element_ty), mask=is_stored)


@dataclass(frozen=True)
class ForwardConfig(Config):
    """Each program takes BLOCK_I × BLOCK_J pairs and BLOCK_OUTPUTS of their channels."""

    BLOCK_I: int = 64
    BLOCK_J: int = 2
    BLOCK_OUTPUTS: int = 128


def forward_config(residues: int, block_channels: int, outputs: int, element_bytes: int) -> ForwardConfig:
    """Return the largest tile that keeps the sums of both products in registers: 128 × 128 for eight warps, or 64 × 64
    in single precision, whose products take several steps."""
    side = 128 if element_bytes == 2 else 64
    block_j = max(side // 2 // block_channels, 1)
    block_i = min(side // block_j, max(bucket(residues), SMALLEST_BLOCK))
    block_outputs = min(max(bucket(outputs), SMALLEST_BLOCK), side)
    return ForwardConfig(
        # With such small tiles the compiler pipelines many, and Triton 3.6 spills registers.
        num_warps=8 if element_bytes == 2 else 4, num_stages=1 if block_i == SMALLEST_BLOCK else 2,
        BLOCK_I=block_i, BLOCK_J=block_j, BLOCK_OUTPUTS=block_outputs,
    )  # fmt: skip


@kernels("outer_product_mean_forward")
def forward(
    a: Tensor, b: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None, chunk: int | None,
    eps: float, tf32: bool,
) -> Tensor:  # fmt: skip
    return a.new_empty(result_shape(a.shape, None if weight is None else weight.shape[0]))


def result_shape(shape: tuple[int, ...] | torch.Size, outputs: int | None) -> tuple[int, ...]:
    batch, _, residues, channels = shape
    return (batch, residues, residues, *((channels, channels) if outputs is None else (outputs,)))


@forward.plan
def plan_forward(
    plan: Plan, a: Operand, b: Operand, mask: Operand | None, weight: Operand | None, bias: Operand | None,
    chunk: int | None, eps: float, tf32: bool,
) -> Operand:  # fmt: skip
    batch, sequences, residues, channels = a.shape
    z = plan.empty(result_shape(a.shape, None if weight is None else weight.shape[0]), a.dtype)
    block_channels = max(bucket(channels), SMALLEST_BLOCK)
    padded = triton.cdiv(sequences, BLOCK_SEQUENCES) * BLOCK_SEQUENCES
    sizes = {
        "n_batches": batch, "n_sequences": sequences, "padded_sequences": padded, "n_residues": residues,
        "mask_ptr": mask, "mask_strides": mask.strides if mask else (0, 0, 0),
        "CHANNELS": channels, "BLOCK_CHANNELS": block_channels, "BLOCK_SEQUENCES": BLOCK_SEQUENCES,
    }  # fmt: skip
    operands: dict[str, object] = {}
    for name, x, shape in (
        ("left", a, (batch, block_channels, residues, padded)),
        ("right", b, (batch, residues, block_channels, padded)),
    ):
        laid_out = plan.empty(shape, x.dtype)
        of_batch, outer, inner, _ = laid_out.strides
        strides = (of_batch, inner, outer) if name == "left" else (of_batch, outer, inner)
        operands |= {f"{name}_ptr": laid_out, f"{name}_strides": strides}
        plan.launch(
            outer_product_operand_kernel, (batch * residues, padded // BLOCK_SEQUENCES), Config(num_warps=4),
            x_ptr=x, laid_out_ptr=laid_out, x_strides=x.strides, laid_out_strides=strides, **sizes,
        )  # fmt: skip
    outputs = weight.shape[0] if weight else SMALLEST_BLOCK
    default = forward_config(residues, block_channels, outputs, min(a.element_bytes, 4))
    config = plan.choose(default, bucket(residues), block_channels, bucket(outputs), a.dtype)
    tiles = triton.cdiv(residues, config.BLOCK_I) * triton.cdiv(residues, config.BLOCK_J)
    plan.launch(
        outer_product_mean_forward_kernel, (tiles, triton.cdiv(outputs, config.BLOCK_OUTPUTS), batch), config,
        **operands, **sizes, weight_ptr=weight, bias_ptr=bias, z_ptr=z,
        weight_strides=weight.strides if weight else (0, 0), bias_stride=bias.strides[0] if bias else 0,
        z_strides=z.strides, n_outputs=outputs, eps=float(eps), COMPUTE=compute_dtype(a.dtype),
        PRECISION=product_precision(plan, a.dtype, tf32),
    )  # fmt: skip
    return z
