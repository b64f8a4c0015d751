"""The host side of the Hopper kernels: which calls they suit, and what they are launched with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import triton

from tilesmith.ops.device.hopper import runs_on_hopper
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.ops.triangle_multiply.hopper.ring import WIDTH, N
from tilesmith.ops.triangle_multiply.parameters import VECTORS
from tilesmith.ops.triangle_multiply.problem import Problem, pair_strides

LEAST_RESIDUES = 64
"""With fewer, tiles are not full: with 16 the portable kernels take 68 µs forward and backward on an H200, these 77."""


@dataclass(frozen=True)
class OneGroup(Config):
    """Two CTAs a multiprocessor, each of one warpgroup. There is nothing to tune: shared memory is full."""

    num_stages: int = 1
    groups: ClassVar[int] = 1
    ctas: ClassVar[int] = 2  # a multiprocessor

    @property
    def all_warps(self) -> int:
        return self.groups * self.num_warps


@dataclass(frozen=True)
class TwoGroups(OneGroup):
    """One CTA of two warpgroups."""

    groups: ClassVar[int] = 2
    ctas: ClassVar[int] = 1


@dataclass(frozen=True)
class ThreeGroups(TwoGroups):
    groups: ClassVar[int] = 3


def takes_hopper(plan: Plan, problem: Problem, *of_pairs: Operand) -> bool:
    """Return whether the Hopper kernels can compute this call: bf16, 128 channels, layouts that TMA can walk.

    float16 has no Hopper kernels: x would be float32. `of_pairs` are tensors like z.
    """
    if not runs_on_hopper(plan):
        return False
    width = int(WIDTH.value)
    fits = problem.z.dtype == torch.bfloat16 and problem.channels == problem.hidden == width
    named = problem.parameters._asdict()
    vectors = [named.pop(name) for name in VECTORS]
    return (
        fits
        and all(one.describable() for one in (problem.z, *of_pairs))
        and all(weight.describable() and weight.strides == (width, 1) for weight in named.values())
        and all(vector is None or vector.strides == (1,) for vector in vectors)
    )


def suits_hopper(problem: Problem) -> bool:
    """Return whether there are enough residues to fill tiles."""
    return problem.residues >= LEAST_RESIDUES


def arguments(kernel: Any, problem: Problem) -> dict[str, object]:
    """Return sizes, mask, weights as TMA descriptors and vectors as pointers, as far as the kernel names them."""
    given: dict[str, object] = {
        "n_residues": problem.residues, "n_tiles": tiles(problem), "eps": float(problem.eps),
        "mask_ptr": problem.mask, **pair_strides("mask", problem.mask),
    }  # fmt: skip
    for name, operand in problem.parameters._asdict().items():
        given |= {f"{name}_ptr": operand} if name in VECTORS else {name: tiles_of_weight(operand)}
    return {name: value for name, value in given.items() if name in kernel.arg_names}


def grid(plan: Plan, problem: Problem, config: OneGroup) -> tuple[int]:
    """Return the grid of a persistent kernel: as many CTAs as run at once, or fewer where tiles are few."""
    return (min(plan.multiprocessors * config.ctas, tiles(problem)),)


def tiles(problem: Problem) -> int:
    """Return the number of tiles of 64 pairs."""
    return problem.batch * problem.residues * int(triton.cdiv(problem.residues, int(N.value)))


def tiles_of_pairs(operand: Operand) -> object:
    """Return a TMA descriptor of a tensor [batch, n, n, columns] in tiles of 64 pairs × 64 columns."""
    return operand.gluon_descriptor((1, 1, int(N.value), int(N.value)))


def tiles_of_matrices(problem: Problem, operand: Operand) -> object:
    """Return a TMA descriptor of a matrix for each hidden channel, rows padded, seen as [batch, i, channels, j]."""
    batch, hidden, residues, row = problem.matrices_shape()
    seen = operand.seen_as((batch, residues, hidden, residues), (hidden * residues * row, row, residues * row, 1))
    return tiles_of_pairs(seen)


def tiles_of_weight(operand: Operand) -> object:
    """Return a TMA descriptor of a weight in tiles of 64 × 64."""
    return operand.gluon_descriptor((int(N.value), int(N.value)))
