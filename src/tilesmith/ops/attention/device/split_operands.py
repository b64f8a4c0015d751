"""Exact single precision on tensor cores: an operand is a tuple of tiles.

A kernel multiplies tuples of tiles. Most have one element, the tile itself. Single precision that must be exact has
three tiles of bf16 (`ops/device/bf16x3.py` splits a number and multiplies the parts). BF16X3 says where the parts come
from:

- "": there are none, the operand is the tile itself;
- "stored": a kernel before this one split the whole tensor, into a tensor of three times as many heads, which has the
  parts of each head one after another;
- "on_load": the kernel splits a tile when it loads the tile. This pays where each tile is loaded so rarely that moving
  10 bytes per element beforehand would cost more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tilesmith.ops.attention.device.tiles import HeadRows, head_rows, load_tile, place_of, store_tile
from tilesmith.ops.attention.problem import Problem, TileConfig
from tilesmith.ops.device.bf16x3 import PARTS, bf16_parts, dot_bf16_parts
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit
def operand_rows(
    source, strides, n_heads, first_row, n_rows,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr, BF16X3: tl.constexpr,
):  # fmt: skip
    """Return the rows of one sequence from which `load_operand` loads."""
    if BF16X3 == "stored":
        rows = head_rows(source, strides, n_heads * PARTS, first_row, n_rows, BLOCK, BLOCK_HEAD, BLOCK_HEAD, WALK)
    else:
        rows = head_rows(source, strides, n_heads, first_row, n_rows, BLOCK, HEAD, BLOCK_HEAD, WALK)
    return rows


@triton.jit
def key_and_value_rows(
    k, v, n_heads, first_key, n_keys,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr, BF16X3: tl.constexpr,
):  # fmt: skip
    """Return the rows of the keys and of the values of one sequence. k and v are (source, strides)."""
    return (
        operand_rows(k[0], k[1], n_heads, first_key, n_keys, BLOCK, HEAD, BLOCK_HEAD, WALK, BF16X3),
        operand_rows(v[0], v[1], n_heads, first_key, n_keys, BLOCK, HEAD, BLOCK_HEAD, WALK, BF16X3),
    )


@triton.jit
def load_operand(
    rows, place, head, start, BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr,
    WALK: tl.constexpr, BF16X3: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Load BLOCK rows of a head, as `load_tile` does, as an operand: a tuple of one tile or of three bf16 parts."""
    if BF16X3 != "stored":
        tile = load_tile(rows, place, head, start, BLOCK, HEAD, BLOCK_HEAD, WALK, CHECKED)  # [BLOCK, BLOCK_HEAD]
        operand = bf16_parts(tile) if BF16X3 == "on_load" else (tile,)
    else:  # stored parts have zeros past HEAD columns
        first = head * PARTS
        operand = (
            load_tile(rows, place, first, start, BLOCK, BLOCK_HEAD, BLOCK_HEAD, WALK, CHECKED),
            load_tile(rows, place, first + 1, start, BLOCK, BLOCK_HEAD, BLOCK_HEAD, WALK, CHECKED),
            load_tile(rows, place, first + 2, start, BLOCK, BLOCK_HEAD, BLOCK_HEAD, WALK, CHECKED),
        )
    return operand


@triton.jit
def only_rows(operand, kept):
    """Return the operand with zeros in the rows that are not kept, [BLOCK, 1]: zero times NaN would be NaN."""
    if len(operand) == 3:
        operand = (
            tl.where(kept, operand[0], 0.0),
            tl.where(kept, operand[1], 0.0),
            tl.where(kept, operand[2], 0.0),
        )
    else:
        operand = (tl.where(kept, operand[0], 0.0),)
    return operand


@triton.jit
def operand_like(values, other):
    """Return values from registers as an operand of the same kind as the one to multiply with."""
    return bf16_parts(values) if len(other) == 3 else (values.to(other[0].dtype),)


@triton.jit
def joined(operand):
    """Return the tile of an operand: the sum of its parts."""
    if len(operand) == 3:
        tile = operand[0].to(tl.float32) + (operand[1].to(tl.float32) + operand[2].to(tl.float32))
    else:
        tile = operand[0]
    return tile


@triton.jit
def transposed(operand):
    """Return the operand with the tile, or each part, transposed."""
    if len(operand) == 3:
        operand = (tl.trans(operand[0]), tl.trans(operand[1]), tl.trans(operand[2]))
    else:
        operand = (tl.trans(operand[0]),)
    return operand


@triton.jit
def multiplied(a, b, total, COMPUTE: tl.constexpr, PRECISION: tl.constexpr):
    """Return a·b, added to a total if there is one.

    The product of bf16 parts is added outside the tensor cores: they cut off what the total cannot hold, and do not
    round.
    """
    if len(a) == 3:
        product = dot_bf16_parts(a, b)  # [rows of a, columns of b]
        if total is not None:
            product += total
    else:
        product = tl.dot(a[0], b[0], total, input_precision=PRECISION, out_dtype=COMPUTE)
    return product


@triton.jit
def split_tile(
    source, target, program, n_heads, per_member, BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr
):  # fmt: skip
    """Store the bf16 parts of BLOCK rows of a head. Packed sequences count as one sequence here."""
    blocks = tl.cdiv(source.n_rows, BLOCK)
    start = program % blocks * BLOCK
    head = program // blocks % n_heads
    place = place_of(program // blocks // n_heads, per_member)
    tile = load_tile(source, place, head, start, BLOCK, HEAD, BLOCK_HEAD, "far", True)  # [BLOCK, BLOCK_HEAD]
    parts = bf16_parts(tile)
    for part in tl.static_range(PARTS):
        store_tile(target, place, head * PARTS + part, start, parts[part], BLOCK, BLOCK_HEAD, BLOCK_HEAD, "far")


@triton.jit(do_not_specialize=["n_heads", "key_heads", "query_rows", "key_rows", "per_member", "of_queries", "of_keys"])
def split_heads_kernel(
    q_ptr, k_ptr, v_ptr, doutput_ptr, q_parts_ptr, k_parts_ptr, v_parts_ptr, doutput_parts_ptr,
    q_strides, k_strides, v_strides, doutput_strides, query_parts_strides, key_parts_strides,
    n_heads, key_heads, query_rows, key_rows, per_member, of_queries, of_keys,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Split all tensors in one launch. k and v have `of_keys` programs each, q and doutput `of_queries` each."""
    program = tl.program_id(0)
    if program < of_keys:
        split_tile(
            HeadRows(k_ptr, k_strides, 0, key_rows), HeadRows(k_parts_ptr, key_parts_strides, 0, key_rows),
            program, key_heads, per_member, BLOCK, HEAD, BLOCK_HEAD,
        )  # fmt: skip
    elif program < 2 * of_keys:
        split_tile(
            HeadRows(v_ptr, v_strides, 0, key_rows), HeadRows(v_parts_ptr, key_parts_strides, 0, key_rows),
            program - of_keys, key_heads, per_member, BLOCK, HEAD, BLOCK_HEAD,
        )  # fmt: skip
    elif program < 2 * of_keys + of_queries:
        split_tile(
            HeadRows(q_ptr, q_strides, 0, query_rows), HeadRows(q_parts_ptr, query_parts_strides, 0, query_rows),
            program - 2 * of_keys, n_heads, per_member, BLOCK, HEAD, BLOCK_HEAD,
        )  # fmt: skip
    elif doutput_ptr is not None:
        split_tile(
            HeadRows(doutput_ptr, doutput_strides, 0, query_rows),
            HeadRows(doutput_parts_ptr, query_parts_strides, 0, query_rows),
            program - 2 * of_keys - of_queries, n_heads, per_member, BLOCK, HEAD, BLOCK_HEAD,
        )  # fmt: skip


@dataclass(frozen=True)
class SplitConfig(Config):
    """Each program splits BLOCK rows of a head."""

    BLOCK: int = 32


class StoredParts:
    """The bf16 parts of the tensors that one call multiplies: q, k, v, and doutput in the backward.

    The first kernel that wants stored parts puts the splitting kernel on the plan.
    """

    def __init__(self, plan: Plan, problem: Problem, doutput: Operand | None = None) -> None:
        self._plan, self._problem, self._doutput = plan, problem, doutput
        self._stored: dict[str, Operand] = {}

    def source(self, config: TileConfig) -> str:
        """Return BF16X3 for a kernel of this configuration."""
        return config.bf16x3 if self._problem.is_exact else ""

    def stored_for(self, config: TileConfig) -> dict[str, Operand]:
        """Return the tensors of parts by the name of the tensor that each replaces; none unless parts are stored."""
        if self.source(config) != "stored":
            return {}
        if not self._stored:
            self._split()
        return self._stored

    def _split(self) -> None:
        plan, problem = self._plan, self._problem
        tensors = {"q": problem.q, "k": problem.k, "v": problem.v}
        if self._doutput is not None:
            tensors["doutput"] = self._doutput
        self._stored = {name: self._empty_parts(tensor) for name, tensor in tensors.items()}
        config = plan.choose(SplitConfig(), "parts", problem.head_block)
        sequences = 1 if problem.packed else problem.sequences
        of_keys = sequences * problem.key_heads * triton.cdiv(problem.keys, config.BLOCK)
        of_queries = sequences * problem.heads * triton.cdiv(problem.queries, config.BLOCK)
        arguments: dict[str, object] = {"doutput_ptr": None, "doutput_parts_ptr": None, "doutput_strides": ()}
        for name, tensor in tensors.items():
            arguments[f"{name}_ptr"], arguments[f"{name}_parts_ptr"] = tensor, self._stored[name]
            arguments[f"{name}_strides"] = problem.strides(tensor)
        plan.launch(
            split_heads_kernel, (2 * of_keys + (len(tensors) - 2) * of_queries,), config, **arguments,
            query_parts_strides=problem.strides(self._stored["q"]),
            key_parts_strides=problem.strides(self._stored["k"]),
            n_heads=problem.heads, key_heads=problem.key_heads, query_rows=problem.queries, key_rows=problem.keys,
            per_member=problem.per_member, of_queries=of_queries, of_keys=of_keys,
            HEAD=problem.head_size, BLOCK_HEAD=problem.head_block,
        )  # fmt: skip

    def _empty_parts(self, tensor: Operand) -> Operand:
        """Return a contiguous buffer with three times the heads, and head sizes padded to the block."""
        heads = 1 if self._problem.packed else len(tensor.shape) - 3
        shape = [*tensor.shape[:-1], self._problem.head_block]
        shape[heads] *= PARTS.value
        return self._plan.empty(tuple(shape), torch.bfloat16)
