"""Launches of softmax, forward and backward: tensors as rows, their configuration, and one of four forms.

- `InRegisters`: a program holds whole short rows in registers between their sum and their result.
- `InChunks`: a program, or a team of them, holds one row in registers, as chunks (`device/teams.py`).
- `Split`: few long rows are split over programs. The first kernel writes statistics of each part to memory, the second
  one combines them and writes the result.
- `InBlocks`: a program walks its rows in blocks of columns, twice; the second read comes from cache.

`row_config` names the form in the configuration; `plan_rows` asks the forms in order (`ops/runtime/forms.py`). To add a
form: write it here, list it in FORMS, name it in `row_config`, and give each direction its kernel in `Kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.overlapped import can_overlap
from tilesmith.ops.device.row_chunks import VECTOR_BYTES, can_pack, chunk_size, chunks_of, fewest_warps, has_edge_lanes
from tilesmith.ops.device.runs import Runs, as_runs
from tilesmith.ops.device.teams import can_share, lanes_for, plan_words
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.forms import Form, first_form
from tilesmith.ops.runtime.layout import Strides
from tilesmith.ops.runtime.plan import Operand, Plan


@dataclass(frozen=True)
class Rows:
    """Tensors of one shape as rows along one dimension, all walked in the same order."""

    runs: Runs
    columns: int
    column_strides: Strides
    element_bytes: int
    alike: bool  # row i has the same offset modulo 16 bytes in every tensor

    @property
    def columns_apart(self) -> bool:
        """Whether neighbours in memory belong to different rows."""
        return self.column_strides[0] != 1

    @property
    def in_full_vectors(self) -> bool:
        """Whether every row starts and ends at a whole vector, if its tensor does."""
        return self.columns % 16 == 0 and all(stride % 16 == 0 for one in self.runs.strides for stride in one)

    @property
    def can_be_cut(self) -> bool:
        """Whether one cut does for the rows of all tensors."""
        return self.alike and all(stride == 1 for stride in self.column_strides)

    @property
    def in_vectors(self) -> bool:
        """Whether accesses are 16 bytes wide, all but those of edges."""
        return self.in_full_vectors or self.has_edges

    @property
    def has_edges(self) -> bool:
        """Whether to cut off edges: rows start anywhere, and fill the 2 · VECTOR lanes of their edges.

        On an H200, forward: 300000×17 in bf16 15.4 µs, 24.5 without edges; 4535×61 2.1 and 3.2.
        """
        is_long = self.columns * self.element_bytes >= 2 * VECTOR_BYTES
        return self.can_be_cut and is_long and not self.in_full_vectors

    def middle(self, edges: bool) -> int:
        """Return how many columns a tile must cover: the whole row, or at most its middle where edges are apart."""
        vector = VECTOR_BYTES // self.element_bytes
        return self.columns // vector * vector if edges else self.columns

    def arguments(self, **tensors: Operand) -> dict[str, object]:
        """Return the kernel arguments for the walk over these tensors, named in the order they were walked in."""
        arguments: dict[str, object] = {
            "inner_rows": self.runs.inner,
            "outer_rows": self.runs.sizes[1],
            "n_columns": self.columns,
            "ALIGNED_ROWS": self.runs.aligned,
            "COMPUTE": compute_dtype(*(tensor.dtype for tensor in tensors.values())),
            "VECTOR": VECTOR_BYTES // self.element_bytes,
        }
        for name, tensor, strides, column_stride in zip(
            tensors, tensors.values(), self.runs.strides, self.column_strides, strict=True
        ):
            arguments |= {f"{name}_ptr": tensor, f"{name}_strides": (*strides, column_stride)}
        return arguments


def rows_along(dim: int, *tensors: Operand) -> Rows:
    """Return rows along one dimension; the other dimensions are walked in the first tensor's memory order."""
    shape, strides = tensors[0].shape, [tensor.strides for tensor in tensors]
    if not shape:
        shape, strides = (1,), [(1,)] * len(tensors)
    others = [*range(dim), *range(dim + 1, len(shape))]
    runs = as_runs(tuple(shape[other] for other in others), *(tuple(one[other] for other in others) for one in strides))
    element_bytes = tensors[0].element_bytes
    elements = VECTOR_BYTES // element_bytes
    alike = all(tensor.aligned and tensor.element_bytes == element_bytes for tensor in tensors) and all(
        (stride - first) % elements == 0
        for one in runs.strides
        for stride, first in zip(one, runs.strides[0], strict=True)
    )
    return Rows(runs, shape[dim], tuple(one[dim] for one in strides), element_bytes, alike)


@dataclass(frozen=True)
class Kernels:
    """One direction's kernels, by form. `statistics` leaves `numbers_per_part` numbers for each part of a row."""

    registers: Any
    chunks: Any
    blocks: Any
    statistics: Any
    split: Any
    numbers_per_part: int


@dataclass(frozen=True)
class RowConfig(Config):
    """Each program takes ROWS rows, BLOCK_SIZE columns at a time.

    In registers, PIPELINE groups of rows are in flight; with more than one, the kernel is persistent. Split rows are
    cut into about `programs_per_multiprocessor` parts for each multiprocessor. In chunks a program takes at most
    `most_chunks` blocks of one row. With EDGES a row is cut at its first and
    its last aligned address (`device/aligned_rows.py`), and BLOCK_SIZE columns are of its middle.
    """

    ROWS: int = 1
    BLOCK_SIZE: int = 1024
    PIPELINE: int = 1
    EDGES: bool = False
    programs_per_multiprocessor: int = 4
    most_chunks: int = 16  # of BLOCK_SIZE columns, for one program
    form: str = "registers"  # or "chunks", "blocks" or "split"


def config_for_columns_apart(rows: Rows) -> RowConfig:
    """Return the config where neighbouring rows are neighbours in memory: up to 16 elements for each thread."""
    block_size = bucket(rows.columns)
    if block_size <= 128:
        together = min(bucket(rows.runs.inner), 4096 // block_size)
        return RowConfig(num_warps=8, ROWS=together, BLOCK_SIZE=block_size)
    together = min(bucket(rows.runs.inner), 32)
    return RowConfig(num_warps=8, ROWS=together, BLOCK_SIZE=2048 // together, form="blocks")


def config_in_registers(rows: Rows, multiprocessors: int) -> RowConfig:
    """Return the config for whole rows in registers: up to 64 elements for each thread, few warps for many rows.

    On an H200 in bf16, forward, inputs from memory: 8191×4097 36.8 µs with 2 warps, 41.1 with 8; 16384×5120 97.0 µs
    with 4 warps, 109.0 with 8; 20000×333 9.2 µs with 2 rows and 1 warp, 12.5 with 2 warps; 300000×17 15.4 µs with 16
    rows and 1 warp, 19.4 with 32 rows and 4 warps. Few rows: 125×177 1.6 µs with 1 row, 2.1 with 4.
    """
    edges = rows.has_edges
    block_size = bucket(rows.middle(edges))
    if block_size <= 512:
        elements = 1024 if block_size >= 256 or rows.in_full_vectors else 512 if block_size == 128 else 256
        occupying = bucket(rows.runs.count(1) // (2 * multiprocessors) + 1) // 2  # leaves two programs for each
        together = min(bucket(rows.runs.inner), max(elements // block_size, 1), max(occupying, 1))
        return RowConfig(num_warps=1, ROWS=together, BLOCK_SIZE=block_size, EDGES=edges)
    bytes_per_warp = 8192 if rows.in_vectors else 2048  # a load of one element needs an address register
    warps = min(max(block_size * max(rows.element_bytes, 4) // bytes_per_warp, 1), 32)
    return RowConfig(num_warps=warps, BLOCK_SIZE=block_size, EDGES=edges)


def for_few_rows(rows: Rows, config: RowConfig, multiprocessors: int) -> RowConfig:
    """Return a config in which few wide rows occupy the GPU: many warps for each row, or rows split over programs.

    On an H200 in bf16: 100×65536 11.8 µs with 32 warps, 15.8 split; 4×128256 4.9 µs split; 16×50257 5.5 µs split in
    blocks of 1024 with 2 warps, 8.9 whole.
    """
    groups = rows.runs.count(config.ROWS)
    if config.form != "blocks" or groups >= multiprocessors or rows.columns * config.ROWS < 32768:
        return config
    if config.ROWS == 1 and groups >= multiprocessors * (0.25 if config.EDGES else 0.75):
        return replace(config, num_warps=32)
    # Small blocks, so that a single row makes work for every multiprocessor.
    if config.EDGES:
        return replace(config, num_warps=2, BLOCK_SIZE=1024, programs_per_multiprocessor=8, form="split")
    return replace(config, num_warps=8, BLOCK_SIZE=2048 // config.ROWS, form="split")


class Blocks(NamedTuple):
    """How the form "blocks" reads a row."""

    warps: int
    bytes: int  # of one tensor, at a time


class Held(NamedTuple):
    """How programs hold one row in registers. A thread holds vectors of 16 bytes, one of each chunk."""

    warps: int  # at most, of one program that holds a whole row
    vectors: int  # the fewest warps hold a row with so many vectors a thread
    most_vectors: int  # wider rows, by all warps
    most_full: int  # the same where every row starts and ends at a whole vector
    team_warps: int  # a team holds rows that are wider still: warps of each program
    team_vectors: int  # and its vectors a thread, at most


FEWEST_TEAMS = 0.5  # rows for each multiprocessor: fewer rows are split into more parts, by two kernels
FEW_ROWS_ELEMENTS = 16  # of a thread, where there are at most two rows for each multiprocessor


def config_in_chunks(rows: Rows, plan: Plan, held: Held) -> RowConfig | None:
    """Return the config for a row in chunks; None for short rows, and for rows that only a team can hold where there
    are no teams.
    """
    middle, count, element_bytes = rows.middle(edges=True), rows.runs.count(1), rows.element_bytes
    if middle < 512 or not rows.can_be_cut:
        return None
    vector = VECTOR_BYTES // element_bytes
    most = held.most_full if rows.in_full_vectors else held.most_vectors
    few = count <= 2 * plan.multiprocessors
    elements, most_warps = (FEW_ROWS_ELEMENTS, 16) if few else (held.vectors * vector, held.warps)
    warps = fewest_warps(middle, element_bytes, elements, most_warps)
    warps = warps or fewest_warps(middle, element_bytes, most * vector, held.warps)
    config = RowConfig(EDGES=not rows.in_full_vectors, form="chunks")
    if warps is not None:
        return replace(config, num_warps=warps, BLOCK_SIZE=chunk_size(warps, element_bytes))
    chunk = chunk_size(held.team_warps, element_bytes)
    shared = can_share(plan, chunks_of(middle, chunk * held.team_vectors))
    if not shared or count < FEWEST_TEAMS * plan.multiprocessors:
        return None
    return replace(config, num_warps=held.team_warps, BLOCK_SIZE=chunk, most_chunks=held.team_vectors)


def row_config(rows: Rows, plan: Plan, most_bytes: int, blocks: Blocks, held: Mapping[int, Held]) -> RowConfig:
    """Return the config for these rows: in chunks where they can be; else in registers up to `most_bytes` of a row, as
    computed with; else in blocks. `held` is by the bytes of an element.
    """
    multiprocessors = plan.multiprocessors
    if rows.columns_apart:
        return for_few_rows(rows, config_for_columns_apart(rows), multiprocessors)
    # Two whole blocks waste nothing: bf16 4096×32768 forward 131 µs on an H200, 4.09 TB/s.
    fills_blocks = rows.in_full_vectors and rows.columns * rows.element_bytes == 2 * blocks.bytes
    if rows.element_bytes in held and not fills_blocks:
        in_chunks = config_in_chunks(rows, plan, held[rows.element_bytes])
        if in_chunks is not None:
            return in_chunks
    in_registers = config_in_registers(rows, multiprocessors)
    if in_registers.BLOCK_SIZE * max(rows.element_bytes, 4) <= most_bytes:
        return in_registers
    block_size, edges = blocks.bytes // rows.element_bytes, in_registers.EDGES
    wide = RowConfig(num_warps=blocks.warps, BLOCK_SIZE=block_size, EDGES=edges, form="blocks")
    return for_few_rows(rows, wide, multiprocessors)


@dataclass(frozen=True)
class Problem:
    """Rows to compute with a configuration, by one direction's kernels. `arguments` are those of every kernel."""

    plan: Plan
    kernels: Kernels
    rows: Rows
    config: RowConfig
    arguments: Mapping[str, object]

    @property
    def groups(self) -> int:
        """How many groups of ROWS rows there are; none without columns."""
        return self.rows.runs.count(self.config.ROWS) if self.rows.columns else 0

    @property
    def blocks(self) -> int:
        """How many blocks of columns a row has."""
        blocks: int = triton.cdiv(self.rows.columns, self.config.BLOCK_SIZE)
        return blocks

    @property
    def most_programs(self) -> int:
        """How many persistent programs, or about how many parts of rows, all multiprocessors share."""
        return self.plan.multiprocessors * self.config.programs_per_multiprocessor

    @property
    def vectors_per_thread(self) -> int:
        """How many 16-byte loads each thread makes of a block of one row; their elements meet in its lanes."""
        if self.rows.columns_apart or self.config.ROWS > 1:
            return 1
        threads = self.config.num_warps * self.plan.architecture.warp_size
        return max(self.config.BLOCK_SIZE * self.rows.element_bytes // (threads * VECTOR_BYTES), 1)

    def launch(self, kernel: Any, programs: int, **arguments: object) -> None:
        """Launch a kernel with those of the arguments that it takes."""
        every = {**self.arguments, "GROUP": self.vectors_per_thread, **arguments}
        taken = {name: value for name, value in every.items() if name in kernel.arg_names}
        self.plan.launch(kernel, (programs,), self.config, **taken)


class InRegisters:
    """Whole rows in registers, read once."""

    def takes(self, problem: Problem) -> bool:
        return problem.rows.middle(problem.config.EDGES) <= problem.config.BLOCK_SIZE

    def suits(self, problem: Problem) -> bool:
        return problem.config.form == "registers"

    def plan(self, problem: Problem) -> None:
        groups = problem.groups
        programs = groups if problem.config.PIPELINE == 1 else min(groups, problem.most_programs)
        problem.launch(problem.kernels.registers, programs, n_groups=groups)


class InChunks:
    """One row for one program or for a team, read once."""

    def takes(self, problem: Problem) -> bool:
        rows = problem.rows
        can_be_cut = rows.can_be_cut and rows.element_bytes <= 4
        has_lanes = can_be_cut and has_edge_lanes(problem.config.BLOCK_SIZE, rows.element_bytes)
        return has_lanes and can_share(problem.plan, self._parts(problem))

    def suits(self, problem: Problem) -> bool:
        return problem.config.form == "chunks"

    def _parts(self, problem: Problem) -> int:
        return -(-problem.rows.middle(edges=True) // (problem.config.BLOCK_SIZE * problem.config.most_chunks))

    def plan(self, problem: Problem) -> None:
        parts, groups, middle = self._parts(problem), problem.groups, problem.rows.middle(edges=True)
        numbers = problem.kernels.numbers_per_part
        overlaps = parts > 1 and can_overlap(problem.plan)
        words = plan_words(problem.plan, groups, numbers, parts, overlaps) if parts > 1 else None
        problem.launch(
            problem.kernels.chunks, groups * parts, words_ptr=words, n_parts=parts,
            PARTS=lanes_for(problem.plan, parts), OVERLAPS=overlaps,
            CHUNKS=chunks_of(-(-middle // parts), problem.config.BLOCK_SIZE),
            PACKED=can_pack(problem.plan, problem.rows.element_bytes),
        )  # fmt: skip


class Split:
    """Each row in parts, one program each: one kernel for the statistics of the parts, one for the result."""

    def takes(self, problem: Problem) -> bool:
        return problem.groups > 0

    def suits(self, problem: Problem) -> bool:
        return problem.config.form == "split"

    def plan(self, problem: Problem) -> None:
        groups, blocks, kernels = problem.groups, problem.blocks, problem.kernels
        # A power of two, so that rows of many lengths share compiled code.
        blocks_per_part = bucket(triton.cdiv(blocks, max(problem.most_programs // groups, 1)))
        parts = triton.cdiv(blocks, blocks_per_part)
        dtype = torch.float64 if problem.arguments["COMPUTE"] == tl.float64 else torch.float32
        shape = (kernels.numbers_per_part, groups * problem.config.ROWS, parts)
        arguments = {
            "statistics_ptr": problem.plan.empty(shape, dtype), "n_groups": groups, "n_parts": parts,
            "BLOCKS": blocks_per_part, "PARTS": lanes_for(problem.plan, parts),
        }  # fmt: skip
        problem.launch(kernels.statistics, groups * parts, **arguments)
        problem.launch(kernels.split, groups * parts, **arguments)


class InBlocks:
    """Rows in blocks of columns, read twice. Takes every problem."""

    def takes(self, problem: Problem) -> bool:
        return True

    def suits(self, problem: Problem) -> bool:
        return True

    def plan(self, problem: Problem) -> None:
        problem.launch(problem.kernels.blocks, problem.groups, BLOCKS=problem.blocks)


FORMS: tuple[Form[Problem, None], ...] = (InRegisters(), InChunks(), Split(), InBlocks())


def plan_rows(plan: Plan, kernels: Kernels, rows: Rows, default: RowConfig, **tensors: Operand) -> None:
    """Choose the configuration, and put the launches of the first form that can use it on the plan.

    `tensors` are named in the order that `rows` walks them in.
    """
    first, *_ = tensors.values()
    config = plan.choose(default, default.form, bucket(rows.columns), first.dtype)
    config = replace(config, EDGES=config.EDGES and rows.can_be_cut)
    problem = Problem(plan, kernels, rows, config, rows.arguments(**tensors))
    first_form(FORMS, problem).plan(problem)
