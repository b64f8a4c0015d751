# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# Kernels have Triton's types, not Python's.
"""The embedding of a small table: y = table[indices], with our own gradient of the table.

PyTorch's gradient first sorts the indices, in about twenty launches. For a few thousand indices it adds rows with
atomics, in another order at every run. Here each program compares all indices of its part with its row and adds the
matching rows of dy, always in the same order. For small tables and few indices that is little work.
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
"""The largest rows · indices for our gradient. On an H200: 65 rows, 4,096 indices, 128 columns take 17 µs, and 20 rows
8 µs, where PyTorch takes 140 µs or more; but 1,000 rows, 1,024 indices, 512 columns take 128 µs, and PyTorch 27 µs."""


@dataclass(frozen=True)
class EmbeddingConfig(Config):
    """Each program reads one part of the indices, INDICES at a time, for BLOCK_COLUMNS columns of one row."""

    INDICES: int = 256
    BLOCK_COLUMNS: int = 64
    programs_per_multiprocessor: int = 4


@triton.jit(do_not_specialize=["n_indices", "indices_per_part"])
def small_embedding_gradient_kernel(
    indices_ptr, dy_ptr, partials_ptr, dy_strides, n_indices, indices_per_part, n_rows, n_columns,
    COMPUTE: tl.constexpr, INDICES: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum the rows of dy, in one part of the indices, whose index is the program's row."""
    row, part = tl.program_id(0), tl.program_id(2).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    in_row = columns < n_columns
    last = tl.minimum((part + 1) * indices_per_part, n_indices)
    total = tl.zeros([INDICES, BLOCK_COLUMNS], COMPUTE)  # [INDICES, BLOCK_COLUMNS]
    for start in range(part * indices_per_part, last, INDICES):
        places = start + tl.arange(0, INDICES)
        is_row = tl.load(indices_ptr + places, mask=places < last, other=-1) == row  # [INDICES]
        offsets = (places * dy_strides[0])[:, None] + (columns * dy_strides[1])[None, :]
        total += tl.load(dy_ptr + offsets, mask=is_row[:, None] & in_row[None, :], other=0.0).to(COMPUTE)
    partials_ptr += (part * n_rows + row) * n_columns
    tl.store(partials_ptr + columns, tl.sum(total, axis=0).to(partials_ptr.dtype.element_ty), mask=in_row)


@kernels("small_embedding_gradient")
def gradient(dy: Tensor, indices: Tensor, rows: int) -> Tensor:
    """Return the gradient of a table with `rows` rows, from the gradient dy [indices, columns] of the result."""
    return dy.new_empty(rows, dy.shape[1])


@gradient.plan
def plan_gradient(plan: Plan, dy: Operand, indices: Operand, rows: int) -> Operand:
    count, columns = dy.shape
    result = plan.empty((rows, columns), dy.dtype)
    block = min(bucket(columns), 64)
    config = plan.choose(EmbeddingConfig(num_warps=8, BLOCK_COLUMNS=block), bucket(columns), bucket(rows), dy.dtype)
    blocks = triton.cdiv(columns, config.BLOCK_COLUMNS)
    wanted = plan.multiprocessors * config.programs_per_multiprocessor // max(rows * blocks, 1)
    steps = triton.cdiv(count, config.INDICES)
    per_part = triton.cdiv(steps, max(min(wanted, steps), 1)) * config.INDICES
    parts = max(triton.cdiv(count, max(per_part, 1)), 1)
    compute = compute_dtype(dy.dtype)
    partials = result if parts == 1 else plan.empty((parts, rows * columns), _partial_dtype(dy.dtype))
    plan.launch(
        small_embedding_gradient_kernel, (rows, blocks, parts), config,
        indices_ptr=indices, dy_ptr=dy, partials_ptr=partials, dy_strides=dy.strides, n_indices=count,
        indices_per_part=per_part, n_rows=rows, n_columns=columns, COMPUTE=compute,
    )  # fmt: skip
    if parts > 1:
        plan_sum_of_partials(plan, partials, result.seen_as((rows * columns,), (1,)), compute)
    return result


def _partial_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def small_embedding(indices: Tensor, table: Tensor) -> Tensor:
    """Return table[indices]."""
    is_small = indices.numel() * table.shape[0] <= MOST_COMPARISONS
    if torch.compiler.is_compiling() or not is_small:
        return F.embedding(indices, table)
    if not kernels_can_run(table) or only_pytorch_understands((table,)):
        return F.embedding(indices, table)
    found: Tensor = _SmallEmbedding.apply(indices, table)  # type: ignore[no-untyped-call]  # PyTorch leaves apply untyped
    return found


class _SmallEmbedding(Function):
    @staticmethod
    def forward(context: Any, indices: Tensor, table: Tensor) -> Tensor:
        context.save_for_backward(indices)
        context.rows = table.shape[0]
        return F.embedding(indices, table)

    @staticmethod
    @once_differentiable
    def backward(context: Any, dy: Tensor) -> tuple[None, Tensor]:
        (indices,) = context.saved_tensors
        return None, gradient(dy.reshape(-1, dy.shape[-1]), indices.reshape(-1), context.rows)
