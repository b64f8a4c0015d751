# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# Kernels have Triton's types, not Python's.
"""Add the rows of an embedding's gradient to the rows of their tokens: total[token of row] += row, in place."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tilesmith.ops.device.elementwise import TileConfig, compute_dtype
from tilesmith.ops.runtime.composing.in_place import InPlace
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.kernels import LIBRARY, kernels
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit(do_not_specialize=["n_places", "padding"])
def add_rows_kernel(
    total_ptr, rows_ptr, tokens_ptr, order_ptr, total_strides, rows_strides, n_places, n_columns, padding,
    COMPUTE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """`tokens` is sorted, and `order` holds the row of each. The program at a token's first place adds all its rows."""
    blocks_per_row = tl.cdiv(n_columns, BLOCK_SIZE)
    place = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    columns = tl.program_id(0) % blocks_per_row * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)  # [BLOCK_SIZE]
    in_row = columns < n_columns
    token = tl.load(tokens_ptr + place)
    before = tl.load(tokens_ptr + place - 1, mask=place > 0, other=-1)
    if (token != before) & (token != padding):
        pointers = total_ptr + token.to(tl.int64) * total_strides[0] + columns * total_strides[1]
        total = tl.load(pointers, mask=in_row).to(COMPUTE)  # [BLOCK_SIZE]
        following = token
        while following == token:
            row = rows_ptr + tl.load(order_ptr + place) * rows_strides[0]
            total += tl.load(row + columns * rows_strides[1], mask=in_row).to(COMPUTE)  # [BLOCK_SIZE]
            place += 1
            following = tl.load(tokens_ptr + place, mask=place < n_places, other=-1)
        tl.store(pointers, total.to(total_ptr.dtype.element_ty), mask=in_row)


@kernels("embedding_rows_added")
def rows_added(total: Tensor, rows: Tensor, tokens: Tensor, order: Tensor, padding: int) -> Tensor:
    """Return total plus the rows of an embedding's gradient; `tokens` is sorted and `order` holds their rows."""
    return torch.empty_like(total)


@rows_added.composed
def compute_rows_added(total: Tensor, rows: Tensor, tokens: Tensor, order: Tensor, padding: int) -> Tensor:
    added: Tensor = torch.ops.aten.embedding_dense_backward(rows[order], tokens, len(total), padding, False)
    return total + added


def plan_rows_added(plan: Plan, total: Operand, rows: Operand, tokens: Operand, order: Operand, padding: int) -> None:
    places, columns = rows.shape
    default = TileConfig(BLOCK_SIZE=min(bucket(columns), 1024))
    config = plan.choose(default, "columns", bucket(columns), total.dtype)
    plan.launch(
        add_rows_kernel, (places * triton.cdiv(columns, config.BLOCK_SIZE),), config,
        total_ptr=total, rows_ptr=rows, tokens_ptr=tokens, order_ptr=order, total_strides=total.strides,
        rows_strides=rows.strides, n_places=places, n_columns=columns, padding=padding,
        COMPUTE=compute_dtype(total.dtype),
    )  # fmt: skip


add_rows_ = InPlace(rows_added, plan_rows_added, overwrites=0)


def add_rows(total: Tensor, rows: Tensor, tokens: Tensor, order: Tensor, padding: int) -> None:
    """As a torch operator that names what it overwrites: a compiled graph then copies no total that it made itself."""
    add_rows_(total, rows, tokens, order, padding)


LIBRARY.define("embedding_add_rows" + torch.library.infer_schema(add_rows, mutates_args=("total",)))
LIBRARY.impl("embedding_add_rows", add_rows, "CUDA")
LIBRARY.impl("embedding_add_rows", add_rows, "CPU")
torch.library.register_fake("tilesmith::embedding_add_rows", lambda *arguments: None, lib=LIBRARY)
