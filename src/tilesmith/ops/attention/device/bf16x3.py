"""Exact single precision on tensor cores: tiles as tuples of planes.

What the kernels multiply is a tuple of planes. Mostly there is one, the tile itself. Of single precision that must be
exact there are three of bf16 (`ops/device/bf16x3.py`), and PLANES says where they come from: "stored", split once
beforehand into a tensor of three times as many heads, the planes of each one after the other; or split "here", from
tiles that are visited so rarely that moving 10 bytes per element beforehand would not pay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tilesmith.ops.attention.device.tiles import load_tile, of_sequence, place_of, store_tile
from tilesmith.ops.attention.problem import Problem, TileConfig
from tilesmith.ops.device.bf16x3 import PARTS, bf16_parts, dot_bf16_parts
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit
def planes_of_sequence(
    source, strides, n_heads, first_row, n_rows,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """What `load_planes` loads the tiles of one sequence from."""
    if PLANES == "stored":
        source = of_sequence(
            source, strides, n_heads * PARTS, first_row, n_rows, BLOCK, BLOCK_HEAD, BLOCK_HEAD, WALK
        )  # fmt: skip
    else:
        source = of_sequence(source, strides, n_heads, first_row, n_rows, BLOCK, HEAD, BLOCK_HEAD, WALK)
    return source


@triton.jit
def load_planes(
    source, strides, place, head, first_row, start, n_rows, BLOCK: tl.constexpr, HEAD: tl.constexpr,
    BLOCK_HEAD: tl.constexpr, WALK: tl.constexpr, PLANES: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """The planes of a tile, which is as `load_tile` loads it."""
    if PLANES != "stored":
        tile = load_tile(
            source, strides, place, head, first_row, start, n_rows, BLOCK, HEAD, BLOCK_HEAD, WALK, CHECKED
        )  # fmt: skip
        planes = bf16_parts(tile) if PLANES == "here" else (tile,)
    else:  # with zeros beyond HEAD columns
        first = head * PARTS
        planes = (
            load_tile(
                source, strides, place, first, first_row, start, n_rows, BLOCK, BLOCK_HEAD, BLOCK_HEAD, WALK, CHECKED
            ),
            load_tile(
                source, strides, place, first + 1, first_row, start, n_rows,
                BLOCK, BLOCK_HEAD, BLOCK_HEAD, WALK, CHECKED,
            ),
            load_tile(
                source, strides, place, first + 2, first_row, start, n_rows,
                BLOCK, BLOCK_HEAD, BLOCK_HEAD, WALK, CHECKED,
            ),
        )  # fmt: skip
    return planes


@triton.jit
def planes_like(values, others):
    """Values that arose in registers, in the planes that they are to be multiplied with."""
    return bf16_parts(values) if len(others) == 3 else (values.to(others[0].dtype),)


@triton.jit
def whole(planes):
    """What they are planes of."""
    if len(planes) == 3:
        tile = planes[0].to(tl.float32) + (planes[1].to(tl.float32) + planes[2].to(tl.float32))
    else:
        tile = planes[0]
    return tile


@triton.jit
def turned(planes):
    if len(planes) == 3:
        planes = (tl.trans(planes[0]), tl.trans(planes[1]), tl.trans(planes[2]))
    else:
        planes = (tl.trans(planes[0]),)
    return planes


@triton.jit
def multiplied(a, b, total, COMPUTE: tl.constexpr, PRECISION: tl.constexpr):
    """a·b, on top of a total where there is one.

    Of planes, a total is added to outside the tensor cores, which would cut off what it cannot hold instead of rounding
    it.
    """
    if len(a) == 3:
        product = dot_bf16_parts(a, b)
        if total is not None:
            product += total
    else:
        product = tl.dot(a[0], b[0], total, input_precision=PRECISION, out_dtype=COMPUTE)
    return product


@triton.jit
def split_tile(
    source, target, source_strides, target_strides, program, n_heads, n_rows, per_member,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr,
):  # fmt: skip
    """The planes of BLOCK rows of a head. Rows of packed sequences are all those of one sequence here."""
    blocks = tl.cdiv(n_rows, BLOCK)
    start = program % blocks * BLOCK
    head = program // blocks % n_heads
    place = place_of(program // blocks // n_heads, per_member)
    tile = load_tile(source, source_strides, place, head, 0, start, n_rows, BLOCK, HEAD, BLOCK_HEAD, "far", True)
    planes = bf16_parts(tile)
    for part in tl.static_range(PARTS):
        store_tile(
            target, target_strides, place, head * PARTS + part, 0, start, n_rows, planes[part],
            BLOCK, BLOCK_HEAD, BLOCK_HEAD, "far",
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_heads", "key_heads", "query_rows", "key_rows", "per_member", "of_queries", "of_keys"])
def split_heads_kernel(
    q_ptr, k_ptr, v_ptr, doutput_ptr, q_planes_ptr, k_planes_ptr, v_planes_ptr, doutput_planes_ptr,
    q_strides, k_strides, v_strides, doutput_strides, query_planes_strides, key_planes_strides,
    n_heads, key_heads, query_rows, key_rows, per_member, of_queries, of_keys,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All tensors in one launch: k and v have so many programs each, q and doutput so many."""
    program = tl.program_id(0)
    if program < of_keys:
        split_tile(
            k_ptr, k_planes_ptr, k_strides, key_planes_strides, program, key_heads, key_rows, per_member,
            BLOCK, HEAD, BLOCK_HEAD,
        )  # fmt: skip
    elif program < 2 * of_keys:
        split_tile(
            v_ptr, v_planes_ptr, v_strides, key_planes_strides, program - of_keys, key_heads, key_rows, per_member,
            BLOCK, HEAD, BLOCK_HEAD,
        )  # fmt: skip
    elif program < 2 * of_keys + of_queries:
        split_tile(
            q_ptr, q_planes_ptr, q_strides, query_planes_strides, program - 2 * of_keys, n_heads, query_rows,
            per_member, BLOCK, HEAD, BLOCK_HEAD,
        )  # fmt: skip
    elif doutput_ptr is not None:
        split_tile(
            doutput_ptr, doutput_planes_ptr, doutput_strides, query_planes_strides,
            program - 2 * of_keys - of_queries, n_heads, query_rows, per_member, BLOCK, HEAD, BLOCK_HEAD,
        )  # fmt: skip


@dataclass(frozen=True)
class SplitConfig(Config):
    """Each program splits BLOCK rows of a head."""

    BLOCK: int = 32


class Planes:
    """The planes of what one call multiplies: q, k, v, and doutput in the backward. Split when first asked for."""

    def __init__(self, plan: Plan, problem: Problem, doutput: Operand | None = None) -> None:
        self._plan, self._problem, self._doutput = plan, problem, doutput
        self._stored: dict[str, Operand] = {}

    def where(self, config: TileConfig) -> str:
        """PLANES: where a kernel of this configuration has them from."""
        return config.planes if self._problem.is_exact else ""

    def stored_for(self, config: TileConfig) -> dict[str, Operand]:
        """What takes the place of the tensors of the same names; nothing where planes are not stored."""
        if self.where(config) != "stored":
            return {}
        if not self._stored:
            self._split()
        return self._stored

    def _split(self) -> None:
        plan, problem = self._plan, self._problem
        tensors = {"q": problem.q, "k": problem.k, "v": problem.v}
        if self._doutput is not None:
            tensors["doutput"] = self._doutput
        self._stored = {name: self._room_for(tensor) for name, tensor in tensors.items()}
        config = plan.choose(SplitConfig(), "planes", problem.head_block)
        sequences = 1 if problem.packed else problem.sequences
        of_keys = sequences * problem.key_heads * triton.cdiv(problem.keys, config.BLOCK)
        of_queries = sequences * problem.heads * triton.cdiv(problem.queries, config.BLOCK)
        arguments: dict[str, object] = {"doutput_ptr": None, "doutput_planes_ptr": None, "doutput_strides": ()}
        for name, tensor in tensors.items():
            arguments[f"{name}_ptr"], arguments[f"{name}_planes_ptr"] = tensor, self._stored[name]
            arguments[f"{name}_strides"] = problem.strides(tensor)
        plan.launch(
            split_heads_kernel, (2 * of_keys + (len(tensors) - 2) * of_queries,), config, **arguments,
            query_planes_strides=problem.strides(self._stored["q"]),
            key_planes_strides=problem.strides(self._stored["k"]),
            n_heads=problem.heads, key_heads=problem.key_heads, query_rows=problem.queries, key_rows=problem.keys,
            per_member=problem.per_member, of_queries=of_queries, of_keys=of_keys,
            HEAD=problem.head_size, BLOCK_HEAD=problem.head_block,
        )  # fmt: skip

    def _room_for(self, tensor: Operand) -> Operand:
        """Contiguous, with three times the heads, and head sizes filled up to whole blocks."""
        heads = 1 if self._problem.packed else len(tensor.shape) - 3
        shape = [*tensor.shape[:-1], self._problem.head_block]
        shape[heads] *= PARTS.value
        return self._plan.empty(tuple(shape), torch.bfloat16)
