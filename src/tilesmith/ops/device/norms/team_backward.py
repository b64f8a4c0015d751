"""The backward of norms of wide rows: each row is split over a team of persistent programs.

A program holds its part of the columns: of the row, of the weight, and of the parameters' gradients. It computes two
sums of its part, leaves them in memory for the team, and loads its part of the next row. Only then does it wait for the
others' sums and write dx. So a row is read once, whatever its width, and the wait hides behind loads.

`teams.py` says why the wait ends. The interpreter has no teams.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import triton
import triton.language as tl

from tilesmith.ops.device.norms.any_width import can_hold_rows, parts_and_chunks, rows_alike
from tilesmith.ops.device.norms.any_width_kernels import (
    chunks_plus_one,
    parameter_at,
    part_sums,
    store_edge_gradient,
    store_gradient,
    store_partials,
)
from tilesmith.ops.device.norms.backward import BackwardConfig, GradientProblem, pointers_to
from tilesmith.ops.device.norms.rows import load_statistics, plus_one
from tilesmith.ops.device.row_chunks import (
    can_pack,
    chunk_size,
    chunks_of,
    cut_row,
    edge_lanes,
    has_edge_lanes,
    load_chunks,
    load_parameter,
    two_sums,
)
from tilesmith.ops.device.teams import can_share, hear_team, lanes_for, plan_words, tell_team
from tilesmith.ops.runtime.plan import Operand


@triton.jit(do_not_specialize=["n_rows", "n_parts"])
def norm_team_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, weight_ptr, dsum_ptr, statistics_ptr, weight_partials_ptr, bias_partials_ptr,
    words_ptr,
    dy_strides, x_strides, dx_strides, weight_stride, dsum_strides, n_rows, n_parts, sizes, eps,
    HAS_WEIGHT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BIAS_GRADIENT: tl.constexpr, RELU: tl.constexpr,
    CENTRE: tl.constexpr, EDGES: tl.constexpr, TOLD: tl.constexpr, COMPUTE: tl.constexpr, VECTOR: tl.constexpr,
    PARTS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_SIZE: tl.constexpr, PIPELINE: tl.constexpr,
):  # fmt: skip
    """Team t takes the rows t, t + teams, …; each turn ends the row before. The first part has the edges.

    A turn starts with all its loads, also those for after the wait. On an H200: add_rms_norm in fp16 9363×13824 290 µs,
    381 with dsum loaded after the wait; rms_norm in bf16 7000×46531 608 µs, 692 with edges loaded for the same turn.
    """
    n_columns = sizes[0]
    part, team = tl.program_id(0) % n_parts, (tl.program_id(0) // n_parts).to(tl.int64)
    teams = tl.num_programs(0) // n_parts
    lead, length = cut_row(dx_ptr + team * dx_strides[0], n_columns, VECTOR, EDGES, TOLD)
    edges, is_edge = edge_lanes(lead, length, n_columns, VECTOR, BLOCK_SIZE)
    is_edge &= part == 0
    start = part * (CHUNKS * BLOCK_SIZE)
    first, in_part = lead + start, length - start
    weight = (tl.full([BLOCK_SIZE], 1.0, COMPUTE),) * CHUNKS
    weight_edges = tl.full([BLOCK_SIZE // VECTOR], 1.0, COMPUTE)
    if HAS_WEIGHT:
        weight = load_parameter(weight_ptr + first * weight_stride, weight_stride, in_part, BLOCK_SIZE, CHUNKS)
        weight = chunks_plus_one(weight, HAS_WEIGHT, COMPUTE)
        if EDGES:
            weight_edges = plus_one(parameter_at(weight_ptr, weight_stride, edges, is_edge, COMPUTE), HAS_WEIGHT)
    weight_gradient = (tl.zeros([BLOCK_SIZE], COMPUTE),) * CHUNKS
    bias_gradient = (tl.zeros([BLOCK_SIZE], COMPUTE),) * CHUNKS
    weight_gradient_edges, bias_gradient_edges = tl.zeros_like(weight_edges), tl.zeros_like(weight_edges)
    x_before = (tl.zeros([BLOCK_SIZE], x_ptr.dtype.element_ty),) * CHUNKS
    dy_before = (tl.zeros([BLOCK_SIZE], dy_ptr.dtype.element_ty),) * CHUNKS
    x_edges_before, dy_edges_before = tl.zeros_like(weight_edges), tl.zeros_like(weight_edges)
    mean_before, factor_before = tl.zeros([1], COMPUTE), tl.zeros([1], COMPUTE)
    x_edges, dy_edges = tl.zeros_like(weight_edges), tl.zeros_like(weight_edges)
    if EDGES:
        goes_on = is_edge & (team < n_rows)
        next_x = tl.load(x_ptr + team * x_strides[0] + edges, mask=goes_on, other=0.0)
        next_dy = tl.load(dy_ptr + team * dy_strides[0] + edges, mask=goes_on, other=0.0)
    for row in tl.range(team, n_rows + teams, teams, num_stages=PIPELINE):
        exists = row < n_rows
        x_row, dy_row = x_ptr + row * x_strides[0], dy_ptr + row * dy_strides[0]
        loaded = tl.where(exists, in_part, 0)
        x = load_chunks(x_row + first, loaded, 0.0, BLOCK_SIZE, CHUNKS)
        dy = load_chunks(dy_row + first, loaded, 0.0, BLOCK_SIZE, CHUNKS)
        before = row - teams
        dsum, dsum_edges = (), ()
        if dsum_ptr is not None:
            dsum_row = dsum_ptr + before * dsum_strides[0]
            dsum = load_chunks(dsum_row + first, tl.where(before >= 0, in_part, 0), 0.0, BLOCK_SIZE, CHUNKS)
            if EDGES:
                dsum_edges = (tl.load(dsum_row + edges, mask=is_edge & (before >= 0), other=0.0),)  # type: ignore[assignment]  # Triton unrolls
        if EDGES:
            x_edges, dy_edges = next_x.to(COMPUTE), next_dy.to(COMPUTE)  # [BLOCK_SIZE // VECTOR]
            goes_on = is_edge & (row + teams < n_rows)
            next_x = tl.load(x_row + teams * x_strides[0] + edges, mask=goes_on, other=0.0)
            next_dy = tl.load(dy_row + teams * dy_strides[0] + edges, mask=goes_on, other=0.0)
            if RELU:
                dy_edges = tl.where(x_edges * weight_edges <= 0, 0.0, dy_edges)
        mean, factor = tl.zeros([1], COMPUTE), tl.zeros([1], COMPUTE)
        if CENTRE:
            mean, factor = load_statistics(statistics_ptr, row + tl.arange(0, 1), exists)  # tensors are pipelined
        if before >= 0:
            words = words_ptr + before * (2 * n_parts)
            statistics = _team_statistics(words, n_parts, mean_before, factor_before, n_columns, eps, CENTRE, PARTS)
            dx_row = dx_ptr + before * dx_strides[0]
            weight_gradient, bias_gradient = store_gradient(
                dx_row + first, (x_before, dy_before, weight, dsum), statistics, in_part,
                (weight_gradient, bias_gradient), RELU, WEIGHT_GRADIENT, BIAS_GRADIENT, COMPUTE,
            )  # fmt: skip
            if EDGES:
                of_edges = x_edges_before, dy_edges_before * weight_edges, is_edge
                normed = store_edge_gradient(dx_row + edges, dsum_edges, of_edges, statistics)
                weight_gradient_edges += dy_edges_before * normed
                bias_gradient_edges += dy_edges_before
        if exists:
            words = words_ptr + row * (2 * n_parts) + part
            of_edges = x_edges, dy_edges * weight_edges, is_edge
            first_total, product = part_sums(x, dy, weight, mean, of_edges, RELU, CENTRE, EDGES, VECTOR)
            tell_team(words, first_total)
            tell_team(words + n_parts, product)
        x_before, dy_before, x_edges_before, dy_edges_before = x, dy, x_edges, dy_edges
        mean_before, factor_before = mean, factor
    if WEIGHT_GRADIENT:
        partials = weight_partials_ptr + team * n_columns
        store_partials(partials, weight_gradient, weight_gradient_edges, first, in_part, edges, is_edge, EDGES)
    if BIAS_GRADIENT:
        partials = bias_partials_ptr + team * n_columns
        store_partials(partials, bias_gradient, bias_gradient_edges, first, in_part, edges, is_edge, EDGES)


@triton.jit
def _team_statistics(words, n_parts, mean, factor, n_columns, eps, CENTRE: tl.constexpr, PARTS: tl.constexpr):
    """Return mean, r = 1/√(variance + eps), mean(g), and r · mean(g · (x − mean)) of a row, from the sums of its parts.

    With CENTRE mean and r are given.
    """
    sums, products = hear_team(words, n_parts, 2, PARTS)  # [PARTS] each
    first_total, product = two_sums(sums, products)
    scaled_mean = tl.zeros_like(first_total)
    if CENTRE:
        scaled_mean = first_total / n_columns
    else:
        factor = tl.rsqrt(first_total / n_columns + eps)
    return mean, factor, scaled_mean, factor * (product / n_columns)


class _Team(NamedTuple):
    """The configuration of a team of programs."""

    chunks: int  # a program holds of a row, at most: vectors of 16 bytes for each thread
    programs: int  # per multiprocessor
    stages: int


WARPS = 4
# Shares of the copy limit on an H200, before and with teams: rms_norm in bf16 3278×25369 0.34 and 0.60, 8000×46531 0.36
# and 0.64, 4096×32768 0.67 and 0.82, in fp32 8000×19331 0.43 and 0.77; layer_norm in bf16 3192×18439 0.28 and 0.58,
# 20000×24576 0.52 and 0.77, in fp32 9000×24581 0.35 and 0.76, 9000×20480 0.56 and 0.87.
TEAM, TEAM_SINGLE = _Team(3, 3, 2), _Team(4, 3, 1)
CENTRED, CENTRED_SINGLE = _Team(2, 4, 2), _Team(3, 3, 2)
# Of odd rows: layer_norm in fp16 9000×28691 599 µs; 858 where the compiler takes 145 registers, so that only three of
# the four programs run at once; 642 with one stage. With dsum 128 registers spill.
REGISTERS_ODD, CENTRED_ODD_WITH_DSUM = 128, _Team(2, 3, 2)


@dataclass(frozen=True)
class TeamBackward:
    """Wide rows over teams of persistent programs."""

    centre: bool

    def default(self, problem: GradientProblem) -> BackwardConfig | None:
        element_bytes = problem.x.element_bytes
        half, single, registers = TEAM, TEAM_SINGLE, 0
        if self.centre:
            half, single = CENTRED, TEAM_SINGLE if problem.has_edges else CENTRED_SINGLE
            if problem.has_edges and problem.reads_dsum:
                half = CENTRED_ODD_WITH_DSUM
            elif problem.has_edges and can_pack(problem.plan, element_bytes):
                registers = REGISTERS_ODD
        team = single if element_bytes > 2 else half
        config = BackwardConfig(
            num_warps=WARPS, BLOCK_SIZE=chunk_size(WARPS, element_bytes), PIPELINE=team.stages,
            programs_per_multiprocessor=team.programs, most_chunks=team.chunks, form="team",
            registers=registers,
        )  # fmt: skip
        return config if self.takes(replace(problem, config=config)) else None

    def takes(self, problem: GradientProblem) -> bool:
        element_bytes = problem.x.element_bytes
        if problem.config.ROWS != 1 or not can_hold_rows(problem):
            return False
        if not has_edge_lanes(problem.config.BLOCK_SIZE, element_bytes):
            return False
        parts, _ = parts_and_chunks(problem.walk.columns, element_bytes, problem.config)
        return can_share(problem.plan, parts)

    def suits(self, problem: GradientProblem) -> bool:
        return problem.config.form == "team"

    def plan(self, problem: GradientProblem) -> dict[str, Operand]:
        walk = problem.walk
        parts, chunks = parts_and_chunks(walk.columns, problem.x.element_bytes, problem.config)
        alike = rows_alike(walk, problem.vector)
        teams = min(chunks_of(walk.rows, alike), max(problem.most_programs // parts // alike, 1)) * alike
        partials = problem.plan_partial_sums(teams)
        problem.launch(
            norm_team_backward_kernel, teams * parts, VECTOR=problem.vector, CENTRE=self.centre,
            EDGES=problem.has_edges, TOLD=problem.must_be_told, CHUNKS=chunks, PARTS=lanes_for(problem.plan, parts),
            n_parts=parts, RELU=problem.arguments.get("RELU", False),
            words_ptr=plan_words(problem.plan, walk.rows, 2, parts), **pointers_to(partials),
        )  # fmt: skip
        return partials
