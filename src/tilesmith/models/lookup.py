# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# Kernels have Triton's types, not Python's.
"""Rows of a table by their numbers, as PyTorch's embedding, with a gradient of its own for tables of a few rows.

PyTorch sorts the numbers first, in some twenty launches, and of a few thousand numbers adds rows up by atomics, in
another order at every run. Here the gradient of each row goes through all numbers and adds up where its own comes up,
always in the same order: of few rows and numbers that is next to no work.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.partial_sums import plan_sum_of_partials
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.dispatch import kernels_can_run
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import only_pytorch_understands
from tilesmith.ops.runtime.plan import Operand, Plan

MOST_COMPARISONS = 1 << 19
"""Rows times numbers. On an H200 65 rows and 4,096 numbers of 128 columns take 17 µs, and 20 rows 8, where PyTorch's
gradient takes 140 and more; but 1,000 rows and 1,024 numbers of 512 columns take 128, and PyTorch's 27."""


@dataclass(frozen=True)
class LookupConfig(Config):
    """Each program goes through a share of the numbers, NUMBERS at a time, for BLOCK_COLUMNS columns of one row."""

    NUMBERS: int = 256
    BLOCK_COLUMNS: int = 64
    programs_per_multiprocessor: int = 4


@triton.jit(do_not_specialize=["n_numbers", "numbers_per_share"])
def lookup_gradient_kernel(
    numbers_ptr, dy_ptr, partials_ptr, dy_strides, n_numbers, numbers_per_share, n_rows, n_columns,
    COMPUTE: tl.constexpr, NUMBERS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sum of those rows of dy, of one share of the numbers, whose number is the program's row."""
    row, share = tl.program_id(0), tl.program_id(2).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    in_row = columns < n_columns
    last = tl.minimum((share + 1) * numbers_per_share, n_numbers)
    total = tl.zeros([NUMBERS, BLOCK_COLUMNS], COMPUTE)
    for start in range(share * numbers_per_share, last, NUMBERS):
        places = start + tl.arange(0, NUMBERS)
        is_row = tl.load(numbers_ptr + places, mask=places < last, other=-1) == row
        offsets = (places * dy_strides[0])[:, None] + (columns * dy_strides[1])[None, :]
        total += tl.load(dy_ptr + offsets, mask=is_row[:, None] & in_row[None, :], other=0.0).to(COMPUTE)
    partials_ptr += (share * n_rows + row) * n_columns
    tl.store(partials_ptr + columns, tl.sum(total, axis=0).to(partials_ptr.dtype.element_ty), mask=in_row)


@kernels("lookup_gradient")
def gradient(dy: Tensor, numbers: Tensor, rows: int) -> Tensor:
    """Of a table with so many rows, from that of what was looked up, [numbers, columns]."""
    return dy.new_empty(rows, dy.shape[1])


@gradient.plan
def plan_gradient(plan: Plan, dy: Operand, numbers: Operand, rows: int) -> Operand:
    count, columns = dy.shape
    result = plan.empty((rows, columns), dy.dtype)
    block = min(bucket(columns), 64)
    config = plan.choose(LookupConfig(num_warps=8, BLOCK_COLUMNS=block), bucket(columns), bucket(rows), dy.dtype)
    blocks = triton.cdiv(columns, config.BLOCK_COLUMNS)
    wanted = plan.multiprocessors * config.programs_per_multiprocessor // max(rows * blocks, 1)
    steps = triton.cdiv(count, config.NUMBERS)
    per_share = triton.cdiv(steps, max(min(wanted, steps), 1)) * config.NUMBERS
    shares = max(triton.cdiv(count, max(per_share, 1)), 1)
    compute = compute_dtype(dy.dtype)
    partials = result if shares == 1 else plan.empty((shares, rows * columns), _partial_dtype(dy.dtype))
    plan.launch(
        lookup_gradient_kernel, (rows, blocks, shares), config,
        numbers_ptr=numbers, dy_ptr=dy, partials_ptr=partials, dy_strides=dy.strides, n_numbers=count,
        numbers_per_share=per_share, n_rows=rows, n_columns=columns, COMPUTE=compute,
    )  # fmt: skip
    if shares > 1:
        plan_sum_of_partials(plan, partials, result.seen_as((rows * columns,), (1,)), compute)
    return result


def _partial_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def lookup(numbers: Tensor, table: Tensor) -> Tensor:
    """table[number] for each number."""
    few = numbers.numel() * table.shape[0] <= MOST_COMPARISONS
    if torch.compiler.is_compiling() or not few or not kernels_can_run(table) or only_pytorch_understands((table,)):
        return F.embedding(numbers, table)
    found: Tensor = _Lookup.apply(numbers, table)  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    return found


class _Lookup(Function):
    @staticmethod
    def forward(context: Any, numbers: Tensor, table: Tensor) -> Tensor:
        context.save_for_backward(numbers)
        context.rows = table.shape[0]
        return F.embedding(numbers, table)

    @staticmethod
    @once_differentiable
    def backward(context: Any, dy: Tensor) -> tuple[None, Tensor]:
        (numbers,) = context.saved_tensors
        return None, gradient(dy.reshape(-1, dy.shape[-1]), numbers.reshape(-1), context.rows)
