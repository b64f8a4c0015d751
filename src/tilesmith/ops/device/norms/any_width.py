"""Norms of rows of any width, from any address on: one form each way, for RMSNorm and LayerNorm alike.

Both kernels hold one row in registers, as chunks (`row_chunks.py`). A row that starts or ends inside a vector is cut
there (`aligned_rows.py`), so that all but its edges moves in whole vectors of 16 bytes.

The forward reads weight and bias in vectors too: a kernel before it copies them once for each place in a vector where
a row may start. The backward is persistent. Program p takes the rows p, p + programs, …, and the number of programs is
a multiple of `rows_alike`: all rows of a program are then aligned alike, so the weight and the partial sums keep their
place in registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import triton

from tilesmith.ops.device.norms.any_width_kernels import (
    norm_any_width_backward_kernel,
    norm_any_width_forward_kernel,
    norm_parameter_copies_kernel,
)
from tilesmith.ops.device.norms.backward import BackwardConfig, GradientProblem, pointers_to
from tilesmith.ops.device.norms.forward import ForwardConfig, ForwardProblem
from tilesmith.ops.device.row_chunks import (
    can_be_cut,
    can_pack,
    chunk_size,
    chunks_of,
    fewest_warps,
    has_edge_lanes,
    has_edges,
    middle_of,
)
from tilesmith.ops.device.teams import can_share, lanes_for, plan_words
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.layout import Rows
from tilesmith.ops.runtime.plan import Operand, Plan

NARROWEST = 512  # columns: tiles of several rows suit narrower ones
NARROWEST_ODD = 256
COPIES_FROM = 16 << 20  # bytes of x: the launch that copies the parameters takes 2 µs
COPIED_AT_ONCE = 1024


def _gains(walk: Rows, widest_tile: int) -> bool:
    """Whether a tile of a power of two wastes lanes or needs narrow loads, or would be too wide."""
    if has_edges(walk, 16):  # a tile's accesses are then narrow
        return walk.columns >= NARROWEST_ODD
    wastes_lanes = walk.columns >= NARROWEST and bucket(walk.columns) != walk.columns
    return wastes_lanes or walk.columns > widest_tile


# Rows for each multiprocessor, at most: then more threads a row shorten a program.
FEW_ROWS, FEW_ROWS_BACKWARD = 8, 2
FEW_ROWS_ELEMENTS = 16
WIDEST_TILE = 8192  # columns: the backward in one sweep takes no wider rows
# Columns. On an H200, layer_norm in bf16: 8192×8192 70.5 µs in chunks, 76.4 in a tile; 4096×16384 73.7, in blocks 84;
# in fp32 4096×16384 137 in chunks, in blocks 162.
WIDEST_CENTRED_TILE, WIDEST_CENTRED_ROW = {2: 4096, 4: 8192}, 16384
TEAM_WARPS = 4  # of each program of a team in the forward
TEAM_CHUNKS = {2: 6, 4: 8}  # at most, by the bytes of an element; bf16 3000×18439 0.69 of the copy limit, 0.62 with 4


ABSENT: dict[str, Any] = {
    "bias_ptr": None, "residual_ptr": None, "sum_ptr": None, "statistics_ptr": None, "bias_stride": 0,
    "residual_strides": None, "sum_strides": None, "HAS_BIAS": False, "HAS_RESIDUAL": False, "RELU": False,
}  # fmt: skip
"""Arguments of a forward kernel that not every norm has."""


def can_hold_row(problem: ForwardProblem) -> bool:
    """Whether a forward of rows in chunks computes this problem: contiguous rows of one dtype."""
    tensors = [problem.arguments.get(f"{name}_ptr") for name in ("y", "x", "residual", "sum")]
    operands = [one for one in tensors if isinstance(one, Operand)]
    return problem.dtype.itemsize <= 4 and problem.walk.columns > 0 and can_be_cut(problem.walk, operands)


@dataclass(frozen=True)
class AnyWidthForward:
    """One row per program, in registers."""

    centre: bool

    def default(self, problem: ForwardProblem) -> ForwardConfig | None:
        """Return few warps for each row. On an H200, layer_norm in bf16: 29114×2305 72.4 µs with 2 warps, 89.7 with 4;
        13107×5120 67.4 with 4, 75.5 with 8; 18972×8936 173 with 4, 186 with 8; 6096×11008 70.1 with 8, 82.7 with 16;
        rms_norm 13180×14341 190 with 8, 197 with 16. In fp32 10912×3075 69.3 with 4, 72.1 with 2. Wide aligned rows of
        LayerNorm are faster in blocks: 3640×18432 90.8 µs, 108.7 in registers.
        """
        if not can_hold_row(problem):
            return None
        element_bytes = problem.dtype.itemsize
        if not _gains(problem.walk, WIDEST_CENTRED_TILE[element_bytes] if self.centre else problem.walk.columns):
            return None
        columns = middle_of(problem.walk.columns, element_bytes)
        most_elements = 36 if element_bytes == 4 else 48 if columns <= 6144 else 72
        if problem.walk.rows <= FEW_ROWS * problem.plan.multiprocessors:
            most_elements = FEW_ROWS_ELEMENTS
        if self._suits_team(problem, columns):
            chunk, chunks = chunk_size(TEAM_WARPS, element_bytes), TEAM_CHUNKS[element_bytes]
            return ForwardConfig(num_warps=TEAM_WARPS, BLOCK_SIZE=chunk, most_chunks=chunks, form="any width")
        is_slow = columns > WIDEST_CENTRED_ROW if self.centre else columns * element_bytes > 49152
        if is_slow and problem.aligned:
            return None
        warps = fewest_warps(columns, element_bytes, most_elements, 16) or fewest_warps(columns, element_bytes, 64, 16)
        if warps is None:
            return None
        return ForwardConfig(num_warps=warps, BLOCK_SIZE=chunk_size(warps, element_bytes), form="any width")

    def _suits_team(self, problem: ForwardProblem, columns: int) -> bool:
        """Whether programs share each row. Shares of the copy limit on an H200, one program a row and a team:
        layer_norm in bf16 3192×18439 0.51 and 0.61, in fp32 4000×20480 0.74 and 0.88; rms_norm in bf16 8000×46531 0.40
        and 0.72. In blocks and by a team: layer_norm in bf16 2000×65536 0.49 and 0.70.
        """
        element_bytes = problem.dtype.itemsize
        chunk = chunk_size(TEAM_WARPS, element_bytes)
        is_slow_in_blocks = self.centre and (element_bytes == 4 or columns > 32768)
        least = WIDEST_CENTRED_ROW if self.centre else 24576
        wide = columns > least and (not problem.aligned or is_slow_in_blocks)
        return wide and can_share(problem.plan, chunks_of(columns, chunk * TEAM_CHUNKS[element_bytes]))

    def takes(self, problem: ForwardProblem) -> bool:
        element_bytes = problem.dtype.itemsize
        parts, _ = parts_and_chunks(problem.walk.columns, element_bytes, problem.config)
        holds_row = problem.config.ROWS == 1 and has_edge_lanes(problem.config.BLOCK_SIZE, element_bytes)
        return holds_row and can_share(problem.plan, parts) and can_hold_row(problem)

    def suits(self, problem: ForwardProblem) -> bool:
        return problem.config.form == "any width"

    def plan(self, problem: ForwardProblem) -> None:
        kernel, edges, itemsize = norm_any_width_forward_kernel, problem.has_edges, problem.dtype.itemsize
        parts, chunks = parts_and_chunks(problem.walk.columns, itemsize, problem.config)
        arguments: dict[str, Any] = {
            **ABSENT, **problem.arguments, "CENTRE": self.centre, "EDGES": edges, "TOLD": problem.must_be_told,
            "copy_stride": 0, "COPIES": False,
            "VECTOR": problem.vector, "n_parts": parts, "PARTS": lanes_for(problem.plan, parts),
            "CHUNKS": chunks,
            "words_ptr": plan_words(problem.plan, problem.walk.rows, 2, parts) if parts > 1 else None,
        }  # fmt: skip
        if edges and problem.walk.rows * problem.walk.columns * itemsize >= COPIES_FROM:
            arguments |= _plan_copies(problem.plan, arguments, problem.walk.columns)
        taken = {name: value for name, value in arguments.items() if name in kernel.arg_names}
        problem.plan.launch(kernel, (problem.walk.rows * parts,), problem.config, **taken)


def _plan_copies(plan: Plan, arguments: dict[str, Any], columns: int) -> dict[str, Any]:
    """Plan aligned copies of weight and bias; return the arguments that name them."""
    stride, vector = -(-columns // 16) * 16, arguments["VECTOR"]
    given = {name: arguments[f"{name}_ptr"] for name in ("weight", "bias")}
    copies = {name: one and plan.empty((vector, stride), one.dtype) for name, one in given.items()}
    if not any(copies.values()):
        return {}
    plan.launch(
        norm_parameter_copies_kernel, (triton.cdiv(columns, COPIED_AT_ONCE), vector), Config(num_warps=4),
        weight_ptr=given["weight"], bias_ptr=given["bias"], n_columns=columns, copy_stride=stride,
        weight_copies_ptr=copies["weight"], bias_copies_ptr=copies["bias"], BLOCK_SIZE=COPIED_AT_ONCE,
        **{name: arguments[name] for name in ("weight_stride", "bias_stride", "HAS_WEIGHT", "HAS_BIAS")},
    )  # fmt: skip
    return {"weight_ptr": copies["weight"], "bias_ptr": copies["bias"], "copy_stride": stride, "COPIES": True}


def rows_alike(walk: Rows, vector: int) -> int:
    """Return after how many rows a row starts at the same place in a vector again.

    On an H200, the backward of layer_norm 10982×6142 takes 122 µs with 132 programs, 129 with 128, a multiple of 8.
    """
    strides = (stride for strides in walk.strides for stride in strides)
    return max(vector // math.gcd(stride, vector) for stride in strides)


def parts_and_chunks(columns: int, element_bytes: int, config: ForwardConfig | BackwardConfig) -> tuple[int, int]:
    """Return over how many programs to split a row, and how many chunks each of them takes."""
    middle = middle_of(columns, element_bytes)
    most_parts = max(chunks_of(middle, config.BLOCK_SIZE * config.most_chunks), 1)
    chunks = max(chunks_of(-(-middle // most_parts), config.BLOCK_SIZE), 1)
    return max(chunks_of(middle, config.BLOCK_SIZE * chunks), 1), chunks


class _Wide(NamedTuple):
    """Warps and stages of the backward for rows too wide for the usual number of elements per thread."""

    columns: int  # at most
    warps: int
    stages: int


def can_hold_rows(problem: GradientProblem) -> bool:
    """Whether a backward of rows in chunks computes this problem: contiguous rows of one dtype, without Σ dsum."""
    pointers = [problem.arguments[f"{name}_ptr"] for name in ("dx", "x", "dy", "dsum")]
    operands = [one for one in pointers if isinstance(one, Operand)]
    return (
        problem.x.element_bytes <= 4
        and problem.walk.columns > 0
        and "dsum" not in problem.sums
        and can_be_cut(problem.walk, operands)
    )


# bf16 on an H200, before and with these: rms_norm 6096×11008 133 and 106 µs, 4678×14343 275 and 119, 4096×16384 129 and
# 118; layer_norm 6096×11008 136 and 121.
WIDE = (_Wide(12288, 16, 3), _Wide(16384, 8, 1))
WIDE_CENTRED = (_Wide(12288, 8, 3),)
WIDEST_CENTRED_ODD = 10240  # columns: layer_norm in bf16 9000×12289 337 µs, 243 by a team; 9000×9219 145


# Sixteen programs a multiprocessor then hide the loads. On an H200: rms_norm 102514×319 57.4 µs, 70.6 with eight;
# 100478×320 53.4 in bf16, 59.3 in a tile; layer_norm 56.4 and 59.0. Fewer rows than these are over too soon:
# add_rms_norm 20832×408 28.0 µs, 23.2 with eight.
MANY_NARROW_ROWS = 65536


@dataclass(frozen=True)
class AnyWidthBackward:
    """Persistent programs of one row at a time, in registers."""

    centre: bool

    def default(self, problem: GradientProblem) -> BackwardConfig | None:
        """Return few warps for each row. On an H200, layer_norm in bf16: 14337×2305 64 µs with 2 warps and 4 programs,
        72 with 4; 13107×5120 114 with 4 warps and 2 programs, 122 with 8; 9000×9214 145 with 8, over 220 with 16.
        """
        if not can_hold_rows(problem):
            return None
        element_bytes = problem.x.element_bytes
        columns = middle_of(problem.walk.columns, element_bytes)
        is_narrow = element_bytes == 2 and 256 < columns <= 512 and problem.walk.rows > MANY_NARROW_ROWS
        fills_tile = problem.aligned and bucket(columns) == columns
        if (not is_narrow or fills_tile) and not _gains(problem.walk, WIDEST_TILE):
            return None
        # Rows that almost fill a tile of 8192 gain nothing: layer_norm 12480×6656 140 µs in chunks, 134 in one sweep.
        if self.centre and problem.aligned and 5120 < columns < 8192:
            return None
        if self.centre and problem.reads_dsum and columns > WIDEST_TILE:  # its addresses spill
            return None
        if self.centre and problem.has_edges and columns > WIDEST_CENTRED_ODD:
            return None
        warps, stages = fewest_warps(columns, element_bytes, 40, 8), 3
        if problem.walk.rows <= FEW_ROWS_BACKWARD * problem.plan.multiprocessors:
            warps, stages = fewest_warps(columns, element_bytes, FEW_ROWS_ELEMENTS, 16) or warps, 1
        is_wide = warps is None
        if warps is None:
            wide = WIDE_CENTRED if self.centre else WIDE
            found = next((one for one in wide if columns <= one.columns), None)
            if found is None or not can_pack(problem.plan, element_bytes):
                return None
            _, warps, stages = found
            if problem.has_edges:  # rms_norm 3239×11108 66 µs with 8 warps, 79 with 16
                warps = 8
            if problem.reads_dsum and stages == 1:  # add_rms_norm 4096×16384 230 µs, 201 by teams
                return None
        programs = 16 if is_narrow else max(8 // warps, 1)
        # Twelve warps a multiprocessor: bf16 4873×2560 rms_norm 23.7 µs, 24.9 with eight; layer_norm 25.9 and 27.2.
        if element_bytes == 2 and warps == 2 and columns >= 2048:
            warps, programs = 4, 3
        staged = (stages - 1) * programs * columns * problem.bytes_read
        return BackwardConfig(
            num_warps=warps, BLOCK_SIZE=chunk_size(warps, element_bytes),
            PIPELINE=stages if staged <= problem.plan.architecture.shared_bytes else 1,
            programs_per_multiprocessor=programs, form="any width",
            PACKED=is_wide or columns > 8192,
        )  # fmt: skip

    def takes(self, problem: GradientProblem) -> bool:
        config, element_bytes = problem.config, problem.x.element_bytes
        chunks = chunks_of(middle_of(problem.walk.columns, element_bytes), config.BLOCK_SIZE)
        holds_row = config.ROWS == 1 and chunks <= 10 and has_edge_lanes(config.BLOCK_SIZE, element_bytes)
        return holds_row and can_hold_rows(problem)

    def suits(self, problem: GradientProblem) -> bool:
        return problem.config.form == "any width"

    def plan(self, problem: GradientProblem) -> dict[str, Operand]:
        alike = rows_alike(problem.walk, problem.vector)
        programs = min(triton.cdiv(problem.walk.rows, alike), max(problem.most_programs // alike, 1)) * alike
        partials = problem.plan_partial_sums(programs)
        columns = middle_of(problem.walk.columns, problem.x.element_bytes)
        packed = problem.config.PACKED and can_pack(problem.plan, problem.x.element_bytes)
        problem = replace(problem, config=replace(problem.config, PACKED=packed))
        problem.launch(
            norm_any_width_backward_kernel, programs, VECTOR=problem.vector, CENTRE=self.centre,
            EDGES=problem.has_edges, TOLD=problem.must_be_told, CHUNKS=chunks_of(columns, problem.config.BLOCK_SIZE),
            RELU=problem.arguments.get("RELU", False), **pointers_to(partials),
        )  # fmt: skip
        return partials
