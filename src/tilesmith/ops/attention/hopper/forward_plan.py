"""The launch of `forward.py`: which problems it takes, its tiles, and the order of its tiles."""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class HopperForwardConfig(Config):
    """GROUPS warpgroups of 64 queries, BLOCK_KEYS keys at a time, and a ring of STAGES blocks of keys.

    PERSISTENT: as many programs as fit on the GPU, `resident` on each multiprocessor. `together`: how many heads form a
    set whose last blocks come first.
    """

    GROUPS: int = 3
    BLOCK_KEYS: int = 128
    STAGES: int = 4
    PERSISTENT: bool = True
    together: int = 1
    resident: int = 1

    @property
    def all_warps(self) -> int:
        """Return all warps of a program: the producer takes a warpgroup, though three of its warps exit at once."""
        return (self.GROUPS + 1) * int(GROUP_WARPS.value)

    @property
    def registers_at_launch(self) -> int | None:
        """Return the registers of a thread at launch. By default one program may fill a multiprocessor."""
        return None if self.resident == 1 else self._equal_share

    @property
    def consumer_registers(self) -> int:
        """Return the registers per consumer thread: all that the producer's warpgroup leaves, in units of eight."""
        all_registers = self._equal_share * (self.GROUPS + 1)
        return (all_registers - int(FETCHING_REGISTERS.value)) // self.GROUPS // 8 * 8

    @property
    def _equal_share(self) -> int:
        return REGISTERS_OF_A_MULTIPROCESSOR // (32 * self.all_warps * self.resident) // 8 * 8


LEAST_LENGTH = 16
"""The fewest queries and keys, a quarter of a tile."""
SHORT = {64: 1024, 128: 512}
"""For heads of this block, sequences of fewer queries are short: see `fastest_tiles`."""
LONG = 4096
"""From this length on, narrow heads use one program per tile. Measured: 2048, where persistent is faster, and 8192."""


def default_config(problem: Problem, multiprocessors: int) -> HopperForwardConfig:
    tiles = fastest_tiles(problem)
    return replace(tiles, together=_heads_together(problem, tiles, multiprocessors * tiles.resident))


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

    Short sequences: programs of one warpgroup share a multiprocessor, and one loads or stores while another multiplies.
    A tile of 64 queries pads little. In µs, `resident` programs of 1×64, two with heads of 128 and three with 64:

    |                                    | plain | cuDNN | 2×128 | 4×64 | 1×64 |
    |------------------------------------|-------|-------|-------|------|------|
    | b18 s256 d128 causal, 40 on 8      |  70.6 |  49.4 |  56.6 |      | 48.6 |
    | b16 h16 s130 d128 full             |  24.2 |  25.2 |  26.9 |      | 18.2 |
    | b34 h32 s329 d128 full             |  235  |  169  |  177  |      |  186 |
    | b32 h16 s257 d80 full              |  87.0 |  81.4 |  88.2 |      | 70.2 |
    | b8 s512 d128 full, 32 heads on 8   |  93.4 |  64.4 |  69.0 |      | 74.9 |
    | b64 h12 s197 d64 full              |  52.5 |  46.4 |  57.2 | 51.1 | 45.7 |
    | b32 h16 s512 d64 full              |  118  |  89.7 |  102  | 99.1 | 96.4 |
    | b9 s536 d64 causal, 12 heads on 2  |  25.7 |  29.0 |  25.7 | 31.0 | 21.7 |
    | b16 h12 s1024 d64 full             |  146  |  120  |  131  |  126 |  133 |

    Two programs of 1×128 also fill the GPU where larger tiles leave much of a wave idle: b1 h16 s2048 d64 full takes
    42.8 µs, and 58.3 with 3×128, whose 176 tiles are two waves; b1 h8 s4096 d64 causal 56.2 and 52.7.
    """
    use = register_use()
    wide = problem.head_block > 64
    if min(problem.queries, problem.keys) < SHORT[problem.head_block]:
        return HopperForwardConfig(GROUPS=1, BLOCK_KEYS=64, STAGES=2 if wide else 3, resident=2 if wide else 3)
    if wide:
        return HopperForwardConfig(GROUPS=2, BLOCK_KEYS=128, STAGES=2)
    is_long = problem.queries >= 2048
    one_each = min(problem.queries, problem.keys) >= LONG and use < RegisterUse.MORE
    fastest = {  # and how fast each is where it fills the GPU
        HopperForwardConfig(GROUPS=1, BLOCK_KEYS=128, STAGES=2, resident=2): 0.95,
        HopperForwardConfig(GROUPS=2, BLOCK_KEYS=128): 0.92,
    }
    if use < RegisterUse.MOST:
        fastest[HopperForwardConfig(GROUPS=3, BLOCK_KEYS=128, PERSISTENT=not one_each)] = 1.0 if is_long else 0.96
    if use < RegisterUse.LESS:
        fastest[HopperForwardConfig(GROUPS=4, BLOCK_KEYS=64)] = 0.96 if is_long else 1.0
    return min(fastest, key=lambda config: _rows_in_turn(problem, config) / fastest[config])


def _rows_in_turn(problem: Problem, config: HopperForwardConfig) -> float:
    """Return how many queries a multiprocessor takes, one tile after another: whole waves if all tiles are equal.

    Under a causal mask the last wave has the short tiles, so that part of a wave takes part of its time.
    """
    waves = _tiles(problem, config.GROUPS) / (problem.plan.multiprocessors * config.resident)
    waves = math.ceil(waves) if problem.right == UNBOUNDED else max(waves, 1.0)
    return waves * config.GROUPS * int(ROWS.value) * config.resident


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
        (min(n_tiles, config.resident * plan.multiprocessors) if config.PERSISTENT else n_tiles,), config,
        q=problem.q.gluon_descriptor((1, 1, rows, head)), output=output.gluon_descriptor((1, 1, rows, head)),
        k=problem.k.gluon_descriptor((1, 1, config.BLOCK_KEYS, head)),
        v=problem.v.gluon_descriptor((1, 1, config.BLOCK_KEYS, head)),
        lse_ptr=lse, n_tiles=n_tiles, together=config.together, HEAD=head, REGISTERS=config.consumer_registers,
        **{name: known[name] for name in ("n_heads", "group", "query_rows", "key_rows", "right", "scale")},
    )  # fmt: skip
    return output, lse


class HopperForward:
    """Hopper, half precision."""

    def takes(self, problem: Problem) -> bool:
        """Return whether the kernel can compute the problem: q, k and v must be readable by TMA."""
        return takes_plain_problem(problem) and problem.describable()

    def suits(self, problem: Problem) -> bool:
        """Return whether sequences are long enough."""
        return min(problem.queries, problem.keys) >= LEAST_LENGTH

    def plan(self, problem: Problem) -> tuple[Operand, ...]:
        return plan_hopper_forward(problem)
