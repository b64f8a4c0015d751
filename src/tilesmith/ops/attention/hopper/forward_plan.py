"""The launch of `forward.py`: which problems it takes, and the order of its tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilesmith.ops.attention.hopper.forward import attention_hopper_forward_kernel
from tilesmith.ops.attention.hopper.forward_tiles import (
    HopperForwardConfig,
    fastest_tiles,
    number_of_tiles,
)
from tilesmith.ops.attention.hopper.head_tiles import described_heads, parts_of_head
from tilesmith.ops.attention.hopper.problems import takes_plain_problem
from tilesmith.ops.attention.hopper.softmax_weights import ROWS
from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.runtime.plan import Operand

LEAST_LENGTH = 16
"""The fewest queries and keys, a quarter of a tile."""


def default_config(problem: Problem, multiprocessors: int) -> HopperForwardConfig:
    tiles = fastest_tiles(problem)
    return replace(tiles, together=_heads_together(problem, tiles, multiprocessors * tiles.resident))


KEPT_BYTES = 25 << 20
"""How many bytes of keys and values are in use at the same time, so that the L2 cache keeps them: half of an H200's."""
MOST_TOGETHER = 64


def _heads_together(problem: Problem, config: HopperForwardConfig, multiprocessors: int) -> int:
    """Return how many heads form a set, so that all persistent programs have about the same work.

    The choice counts blocks: the smallest set whose busiest program is within 1 % of the best, of sets whose keys and
    values fit in the L2 cache. b8 h32 s1024 d128 causal on an H200 took 173 µs with 4 heads, and 221 with 16, where the
    busiest program has 1.4 times the mean.
    """
    if problem.right == UNBOUNDED:  # all blocks have the same work
        return 1
    heads = problem.heads * problem.sequences
    if not config.PERSISTENT:  # a program starts when another ends, so it is enough that the longest come first
        return heads
    bytes_of_head = 2 * problem.keys * sum(parts_of_head(problem.head_size)) * problem.k.element_bytes / problem.group
    most = max(min(heads, MOST_TOGETHER, int(KEPT_BYTES / bytes_of_head)), 1)
    busiest = [_busiest(problem, config, together, multiprocessors) for together in range(1, most + 1)]
    return next(place for place, blocks in enumerate(busiest, 1) if blocks <= 1.01 * min(busiest))


def _busiest(problem: Problem, config: HopperForwardConfig, together: int, programs: int) -> int:
    """Return how many blocks of keys the busiest program has. Prologue and epilogue of a tile count as one block."""
    rows = config.GROUPS * int(ROWS.value)
    starts = np.arange(-(-problem.queries // rows))[::-1] * rows  # of a head's tiles, in the order of `place_of_tile`
    last = np.minimum(starts + rows, problem.queries) - 1
    seen = np.clip(last + problem.keys - problem.queries + problem.right + 1, 0, problem.keys)
    blocks = -(-seen // config.BLOCK_KEYS) + 1
    sets, rest = divmod(problem.heads * problem.sequences, together)
    of_set, of_rest = np.repeat(blocks, together), np.repeat(blocks, rest)
    # Each set starts at another program, so the sum over sets is a circular convolution.
    first_programs = _by_program(np.arange(sets) * len(of_set), np.ones(sets), programs)
    work_of_set = _by_program(np.arange(len(of_set)), of_set, programs)
    work = np.fft.irfft(np.fft.rfft(first_programs) * np.fft.rfft(work_of_set), programs)
    work += _by_program(sets * len(of_set) + np.arange(len(of_rest)), of_rest, programs)
    return round(float(work.max()))


def _by_program(tiles: np.ndarray, work: np.ndarray, programs: int) -> np.ndarray:
    return np.bincount(tiles % programs, work, minlength=programs)


def plan_hopper_forward(problem: Problem) -> tuple[Operand, Operand]:
    """Plan the output, and log₂ Σ 2^score of each query."""
    plan = problem.plan
    output = plan.empty_like(problem.q)
    lse = plan.empty(problem.lse_shape, problem.statistics_dtype)
    order = "full" if problem.right == UNBOUNDED else "causal"
    parts = parts_of_head(problem.head_size)
    config = plan.choose(default_config(problem, plan.multiprocessors), "hopper", order, sum(parts), *problem.sizes)
    n_tiles = number_of_tiles(problem, config)
    known = problem.arguments()
    plan.launch(
        attention_hopper_forward_kernel,
        (min(n_tiles, config.resident * plan.multiprocessors) if config.PERSISTENT else n_tiles,), config,
        **described_heads(parts, int(ROWS.value), q=problem.q, output=output),
        **described_heads(parts, config.BLOCK_KEYS, k=problem.k, v=problem.v),
        lse_ptr=lse, n_tiles=n_tiles, together=config.together,
        FIRST=parts[0], REST=parts[1], REGISTERS=config.consumer_registers,
        **{name: known[name] for name in ("n_heads", "group", "query_rows", "key_rows", "right", "scale")},
    )  # fmt: skip
    return output, lse


class HopperForward:
    """Hopper, half precision."""

    def takes(self, problem: Problem) -> bool:
        """Return whether the kernel can compute the problem: q, k and v must be readable by TMA."""
        return takes_plain_problem(problem, narrowest=32, widest=256) and problem.describable()

    def suits(self, problem: Problem) -> bool:
        """Return whether sequences are long enough."""
        return min(problem.queries, problem.keys) >= LEAST_LENGTH

    def plan(self, problem: Problem) -> tuple[Operand, ...]:
        return plan_hopper_forward(problem)
