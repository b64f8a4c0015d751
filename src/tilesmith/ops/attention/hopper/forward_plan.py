"""The launch of `forward.py`: which problems it takes, its tiles, and the order of its tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilesmith.ops.attention.hopper.forward import FETCHING_REGISTERS, attention_hopper_forward_kernel
from tilesmith.ops.attention.hopper.problems import takes_plain_problem
from tilesmith.ops.attention.hopper.softmax_weights import ROWS
from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.device.hopper import GROUP_WARPS
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.plan import Operand
from tilesmith.toolchain.versions import RegisterUse, register_use

REGISTERS_OF_A_MULTIPROCESSOR = 65536


def _registers(groups: int) -> int:
    """Return the registers per consumer thread: all that the producer's warpgroup leaves, in units of eight."""
    at_launch = REGISTERS_OF_A_MULTIPROCESSOR // (128 * (groups + 1)) // 8 * 8
    return (at_launch * (groups + 1) - int(FETCHING_REGISTERS.value)) // groups // 8 * 8


@dataclass(frozen=True)
class HopperForwardConfig(Config):
    """GROUPS warpgroups of 64 queries, BLOCK_KEYS keys at a time, and a ring of STAGES blocks of keys.

    PERSISTENT: as many programs as multiprocessors. `together`: how many heads form a set whose last blocks come first.
    """

    GROUPS: int = 3
    BLOCK_KEYS: int = 128
    STAGES: int = 4
    PERSISTENT: bool = True
    together: int = 1

    @property
    def all_warps(self) -> int:
        """Return all warps of a program: the producer takes a warpgroup, though three of its warps exit at once."""
        return (self.GROUPS + 1) * int(GROUP_WARPS.value)


LEAST_LENGTH = 512
"""The fewest queries and keys. b16 h32 s512 causal takes 105 µs with heads of 128 and 70 with heads of 64, the portable
kernel 139 and 83. Shorter sequences have not been measured."""
LONG = 4096
"""From this length on, narrow heads use one program per tile. Measured: 2048, where persistent is faster, and 8192."""


def default_config(problem: Problem, multiprocessors: int) -> HopperForwardConfig:
    tiles = fastest_tiles(problem)
    return replace(tiles, together=_heads_together(problem, tiles, multiprocessors))


def fastest_tiles(problem: Problem) -> HopperForwardConfig:
    """Return the fastest tiles on an H200 that the installed Triton compiles without spilling.

    TFLOP/s of heads of 64 with GROUPS×BLOCK_KEYS, measured with Triton 3.6. "each": one program per tile. Two figures
    are of two runs:

    |                                | plain | cuDNN | 2×128 | 4×64 |  3×128   | 3×128 each |
    |--------------------------------|-------|-------|-------|------|----------|------------|
    | b8 h32 s1024 causal            |  279  |  321  |  290  | 310  | 272, 273 |    237     |
    | b8 h32 s2048 full              |  418  |  468  |  427  | 441  | 454, 464 |    445     |
    | b8 h32 s2048 causal            |  355  |  399  |  367  | 389  | 368, 382 |    344     |
    | b4 s2048 causal, 32 heads on 8 |  337  |  377  |  380  | 390  | 399, 400 |    359     |
    | b4 h16 s8192 full              |  424  |  490  |  444  | 464  | 485, 488 |    521     |
    | b4 h16 s8192 causal            |  396  |  458  |  426  | 424  | 437, 463 |    484     |

    In these runs the last blocks of all heads came first, if causal. With today's `together` b8 h32 s2048 causal
    reaches 419, not 382, and s1024 335, not 313. Later releases need more registers: 4×64 spills from Triton 3.7 on,
    3×128 each from 3.8, 3×128 from 3.9. 2 or 3 stages were slower than 4.

    Heads of 128 at the power limit, TFLOP/s of b4 h32 s4096: 623 full and 545 causal. One program per tile: 604 and
    542. Warpgroups that take turns at the tensor cores: 613 and 519. 3×64: 551 and 496.
    """
    use = register_use()
    causal = problem.right != UNBOUNDED
    wide = problem.head_block > 64
    if wide:
        groups, block_keys, stages = 2, 128, 2
    elif causal and problem.queries < 2048:
        groups, block_keys, stages = *((4, 64) if use < RegisterUse.LESS else (2, 128)), 4
    else:
        groups, block_keys, stages = *((3, 128) if use < RegisterUse.MOST else (2, 128)), 4
    one_each = not wide and min(problem.queries, problem.keys) >= LONG and use < RegisterUse.MORE
    return HopperForwardConfig(GROUPS=groups, BLOCK_KEYS=block_keys, STAGES=stages, PERSISTENT=not one_each)


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
    bytes_of_head = 2 * problem.keys * problem.head_block * problem.k.element_bytes / problem.group
    most = max(min(heads, MOST_TOGETHER, int(KEPT_BYTES / bytes_of_head)), 1)
    busiest = [_busiest(problem, config, together, multiprocessors) for together in range(1, most + 1)]
    return next(place for place, blocks in enumerate(busiest, 1) if blocks <= 1.01 * min(busiest))


def _busiest(problem: Problem, config: HopperForwardConfig, together: int, multiprocessors: int) -> int:
    """Return how many blocks of keys the busiest program has. Prologue and epilogue of a tile count as one block."""
    rows = config.GROUPS * int(ROWS.value)
    n_blocks, heads = -(-problem.queries // rows), problem.heads * problem.sequences
    tiles = np.arange(n_blocks * heads)  # in the order of `place_of_tile`
    first_head = tiles // (together * n_blocks) * together
    within = tiles % (together * n_blocks)
    start = (n_blocks - 1 - within // np.minimum(together, heads - first_head)) * rows
    last = np.minimum(start + rows, problem.queries) - 1
    seen = np.clip(last + problem.keys - problem.queries + problem.right + 1, 0, problem.keys)
    blocks = -(-seen // config.BLOCK_KEYS) + 1
    return int(np.bincount(tiles % multiprocessors, blocks).max())


def _tiles(problem: Problem, groups: int) -> int:
    return problem.heads * problem.sequences * -(-problem.queries // (groups * int(ROWS.value)))


def plan_hopper_forward(problem: Problem) -> tuple[Operand, Operand]:
    """Plan the output, and log₂ Σ 2^score of each query."""
    plan = problem.plan
    output = plan.empty_like(problem.q)
    lse = plan.empty(problem.lse_shape, problem.statistics_dtype)
    order = "full" if problem.right == UNBOUNDED else "causal"
    config = plan.choose(default_config(problem, plan.multiprocessors), "hopper", order, *problem.sizes)
    rows, head = int(ROWS.value), problem.head_block
    n_tiles = _tiles(problem, config.GROUPS)
    known = problem.arguments()
    plan.launch(
        attention_hopper_forward_kernel,
        (min(n_tiles, plan.multiprocessors) if config.PERSISTENT else n_tiles,), config,
        q=problem.q.gluon_descriptor((1, 1, rows, head)), output=output.gluon_descriptor((1, 1, rows, head)),
        k=problem.k.gluon_descriptor((1, 1, config.BLOCK_KEYS, head)),
        v=problem.v.gluon_descriptor((1, 1, config.BLOCK_KEYS, head)),
        lse_ptr=lse, n_tiles=n_tiles, together=config.together, HEAD=head, REGISTERS=_registers(config.GROUPS),
        **{name: known[name] for name in ("n_heads", "group", "query_rows", "key_rows", "right", "scale")},
    )  # fmt: skip
    return output, lse


class HopperForward:
    """Hopper, half precision, long sequences."""

    def takes(self, problem: Problem) -> bool:
        """Return whether the kernel can compute the problem: q, k and v must be readable by TMA."""
        return takes_plain_problem(problem) and problem.describable()

    def suits(self, problem: Problem) -> bool:
        """Return whether sequences are long enough and, for narrow heads, whether the tiles fill the GPU."""
        if min(problem.queries, problem.keys) < LEAST_LENGTH:
            return False
        tiles = _tiles(problem, fastest_tiles(problem).GROUPS)
        return problem.head_block == 128 or tiles >= problem.plan.multiprocessors

    def plan(self, problem: Problem) -> tuple[Operand, ...]:
        return plan_hopper_forward(problem)
