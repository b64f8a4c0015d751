"""What the kernels for Hopper share: where the portable ones, which read first, take the same steps with any GPU.

There a program takes one tile of pairs, and loads, norms, multiplies and stores one after the other, with weights
loaded anew. Here there is a program for each multiprocessor. It holds all weights in shared memory, and two or three
warpgroups, which share them, each walk over tiles of 64 pairs of their own. A warpgroup fetches what it needs itself,
through a ring of places of its own that the copy engine fills ahead of time, and waits for no other: while one is at
its arithmetic, another's products are made. Everything is in tiles of 64 × 64, so rows of 128 channels are in halves.

Device code, and which calls these kernels are for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

from tilesmith.ops.device.constants import LOG2_E
from tilesmith.ops.device.hopper import GROUP_WARPS, runs_on_hopper
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.problem import Problem
from tilesmith.toolchain.gluon import fetch

N = gl.constexpr(64)  # rows and columns of a tile
WIDTH = gl.constexpr(128)  # channels, and hidden ones
TILE_BYTES = gl.constexpr(64 * 64 * 2)
NOT_SPECIALISED = ["n_residues", "n_tiles", "mask_batch_stride", "mask_i_stride", "mask_j_stride"]


@gluon.jit
def place_of(tile, n_residues):
    """Member of the batch, i, and the first of 64 j."""
    blocks = (n_residues + N - 1) // N
    line = tile // blocks
    return line // n_residues, line % n_residues, tile % blocks * N


@gluon.jit
def make_ready(COUNT: gl.constexpr):
    """A barrier for each place of the rings: it has been filled."""
    ready = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(ready.index(i), count=1)
    fence_async_shared()
    return ready


@gluon.jit
def ask(descriptor, corner, ring, ready, number, is_one, FIRST: gl.constexpr, SLOTS: gl.constexpr):
    """Begin to fetch the tile of this number, if there is one, into the ring of SLOTS places from FIRST on."""
    slot = FIRST + number % SLOTS
    mbarrier.expect(ready.index(slot), TILE_BYTES, pred=is_one)
    fetch(descriptor, corner, ready.index(slot), ring.index(slot), pred=is_one)


@gluon.jit
def ask_rows(descriptor, place, half, ring, ready, number, is_one, FIRST: gl.constexpr, SLOTS: gl.constexpr):
    """The same for half the channels of a tile of pairs."""
    batch, i, j = place
    ask(descriptor, [batch, i, j, half * N], ring, ready, number, is_one, FIRST, SLOTS)


@gluon.jit
def ask_matrices(descriptor, place, half, ring, ready, number, is_one, FIRST: gl.constexpr, SLOTS: gl.constexpr):
    """The same where there is a matrix for each channel: channels × pairs."""
    batch, i, j = place
    ask(descriptor, [batch, i, half * N, j], ring, ready, number, is_one, FIRST, SLOTS)


@gluon.jit
def await_tile(ring, ready, number, FIRST: gl.constexpr, SLOTS: gl.constexpr):
    slot = FIRST + number % SLOTS
    mbarrier.wait(ready.index(slot), number // SLOTS % 2)
    return ring.index(slot).reshape([N, N])


@gluon.jit
def stage(value, place):
    """Into shared memory, of which one store begun before may still be reading another place."""
    tma.store_wait(1)
    place.reshape([N, N]).store(value)
    fence_async_shared()


@gluon.jit
def stage_turned(value, place):
    tma.store_wait(1)
    place.reshape([N, N]).permute([1, 0]).store(value)
    fence_async_shared()


@gluon.jit
def make_vectors(COUNT: gl.constexpr, DTYPE: gl.constexpr):
    """Room for halves of vectors of 128."""
    return gl.allocate_shared_memory(DTYPE, [COUNT, N], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def keep_vector(vectors, pointer, FIRST: gl.constexpr, COUNT: gl.constexpr):
    """In shared memory, zeros where there is none: in registers, or loaded anew by every tile, they cost too much."""
    columns = gl.arange(0, N, gl.BlockedLayout([1], [32], [GROUP_WARPS], [0]))
    for part in gl.static_range(COUNT):
        if pointer is None:
            value = gl.zeros([N], vectors.dtype, columns.type.layout)
        else:
            value = gl.load(pointer + part * N + columns).to(vectors.dtype)
        vectors.index(FIRST + part).store(value)


@gluon.jit
def vector(vectors, place, LAYOUT: gl.constexpr):
    return vectors.index(place).load(gl.SliceLayout(0, LAYOUT)).to(gl.float32)[None, :]


@gluon.jit
def load_weights(first_weight, second_weight, weights, BLOCKS: gl.constexpr):
    """Tiles of both, [outputs, inputs]: of each block of outputs that for the first inputs, then that for others."""
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    fence_async_shared()
    mbarrier.expect(loaded, 2 * BLOCKS * 2 * TILE_BYTES)
    for block in gl.static_range(BLOCKS):
        for half in gl.static_range(2):
            fetch(first_weight, [block * N, half * N], loaded, weights.index(2 * block + half))
            fetch(second_weight, [block * N, half * N], loaded, weights.index(2 * BLOCKS + 2 * block + half))
    mbarrier.wait(loaded, 0)


@gluon.jit
def times(left, right, weights, first, biases, bias, ACC: gl.constexpr, BIASED: gl.constexpr):
    """[left, right] · Wᵀ + bias for 64 outputs, begun; the weight's tiles are at `first` and behind it."""
    total = gl.zeros([N, N], gl.float32, ACC)
    if BIASED:
        total += vector(biases, bias, ACC)
    total = warpgroup_mma(left, weights.index(first).permute([1, 0]), total, use_acc=BIASED, is_async=True)
    return warpgroup_mma(right, weights.index(first + 1).permute([1, 0]), total, is_async=True)


@gluon.jit
def times_back(left, right, weights, first, ACC: gl.constexpr):
    """[left, right] · W for 64 inputs, begun."""
    zeros = gl.zeros([N, N], gl.float32, ACC)
    total = warpgroup_mma(left, weights.index(first), zeros, use_acc=False, is_async=True)
    return warpgroup_mma(right, weights.index(first + 2), total, is_async=True)


@gluon.jit
def opened(x):
    """σ(x), as a square of 1 / √(1 + e⁻ˣ): a division takes many more instructions."""
    root = gl.rsqrt(1 + gl.exp2(x * -LOG2_E))
    return root * root


@gluon.jit
def kept_bits(mask, batch, i, j, n_residues, MASKED: gl.constexpr):
    """All bits for pairs that are not masked, none for others: as a column."""
    kept = gl.full([N], -1, gl.int32, j.type.layout)
    if MASKED:
        mask_ptr, batch_stride, i_stride, j_stride = mask
        mask_ptr = mask_ptr.to(gl.pointer_type(gl.int8), bitcast=True)  # of truth values it would select again
        start = gl.cast(batch, gl.int64) * batch_stride + gl.cast(i, gl.int64) * i_stride
        kept = -gl.load(mask_ptr + start + j * j_stride, mask=j < n_residues, other=0).to(gl.int32)
    return kept[:, None]


@gluon.jit
def masked(x, kept, MASKED: gl.constexpr):
    """Zero even where x is no number. Of a selection the compiler makes one for each half of a register."""
    if MASKED:
        x = (x.to(gl.int32, bitcast=True) & kept).to(gl.float32, bitcast=True)
    return x


@gluon.jit
def standard(x0, x1, eps):
    """Rows with mean zero and variance one, in halves, and 1 / their deviation."""
    x0, x1 = x0.to(gl.float32), x1.to(gl.float32)
    mean = ((gl.sum(x0, 1) + gl.sum(x1, 1)) / WIDTH)[:, None]
    x0, x1 = x0 - mean, x1 - mean
    inverse = gl.rsqrt((gl.sum(x0 * x0, 1) + gl.sum(x1 * x1, 1)) / WIDTH + eps)
    return x0 * inverse[:, None], x1 * inverse[:, None], inverse


@gluon.jit
def normed(x, vectors, place, DTYPE: gl.constexpr, ACC: gl.constexpr):
    """With weight and bias of a norm, which are at `place` and two behind it, as the left side of a product."""
    value = (x.to(gl.float32) * vector(vectors, place, ACC) + vector(vectors, place + 2, ACC)).to(DTYPE)
    return gl.convert_layout(value, gl.DotOperandLayout(0, ACC, 2))


@dataclass(frozen=True)
class TwoGroups(Config):
    """Two warpgroups: nothing in it may be chosen, since places and registers are all taken."""

    num_stages: int = 1
    groups: ClassVar[int] = 2

    @property
    def all_warps(self) -> int:
        return self.groups * self.num_warps


@dataclass(frozen=True)
class ThreeGroups(TwoGroups):
    groups: ClassVar[int] = 3


LEAST_RESIDUES = 64
"""With fewer, a tile is not full; of 16 the portable form takes 68 µs forward and backward on an H200, and this 77."""


def suits_hopper(plan: Plan, problem: Problem, *others: Operand) -> bool:
    """Whether these kernels can compute it, and are the ones to: the interpreter does not know Gluon, and in half
    precision the product is held in single, for which they have no form. `others` are of pairs, like z."""
    if not runs_on_hopper(plan):
        return False
    width = int(WIDTH.value)
    fits = problem.z.dtype == torch.bfloat16 and problem.channels == problem.hidden == width
    return (
        fits
        and problem.residues >= LEAST_RESIDUES
        and all(one.describable() for one in (problem.z, *others))
        and all(one.describable() and one.strides == (width, 1) for one in problem.weights)
        and all(one is None or one.strides == (1,) for one in problem.vectors)
    )


def tiles_of_pairs(operand: Operand) -> object:
    """A tensor [batch, n, n, columns] as these kernels walk it."""
    return operand.gluon_descriptor((1, 1, int(N.value), int(N.value)))


def tiles_of_matrices(problem: Problem, operand: Operand) -> object:
    """A matrix for each hidden channel, rows padded, as these kernels walk it: [batch, i, channels, j]."""
    batch, hidden, residues, row = problem.matrices_shape()
    seen = operand.seen_as((batch, residues, hidden, residues), (hidden * residues * row, row, residues * row, 1))
    return tiles_of_pairs(seen)


def tiles_of_weight(operand: Operand) -> object:
    return operand.gluon_descriptor((int(N.value), int(N.value)))


def programs(plan: Plan, problem: Problem, config: TwoGroups) -> tuple[int]:
    """One for each multiprocessor, where there is work for all."""
    return (min(plan.multiprocessors, triton.cdiv(tiles(problem), config.groups)),)


def tiles(problem: Problem) -> int:
    return problem.batch * problem.residues * int(triton.cdiv(problem.residues, int(N.value)))


def mask_arguments(problem: Problem) -> dict[str, object]:
    batch, i, j = problem.mask.strides if problem.mask else (0, 0, 0)
    return {"mask_ptr": problem.mask, "mask_batch_stride": batch, "mask_i_stride": i, "mask_j_stride": j}
