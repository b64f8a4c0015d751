"""The fastest tiles of `forward.py` for a problem."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilesmith.ops.attention.hopper.head_tiles import parts_of_head
from tilesmith.ops.attention.hopper.softmax_weights import ROWS
from tilesmith.ops.attention.problem import Problem
from tilesmith.ops.attention.reference import UNBOUNDED
from tilesmith.ops.device.hopper import ProducerConfig
from tilesmith.toolchain.versions import RegisterUse, register_use


@dataclass(frozen=True)
class HopperForwardConfig(ProducerConfig):
    """GROUPS warpgroups of 64 queries, BLOCK_KEYS keys at a time, and a ring of STAGES blocks of keys.

    PLACES: buffers for queries. PERSISTENT: as many programs as fit on the GPU, `resident` on each multiprocessor.
    `together`: how many heads form a set whose last blocks come first.
    """

    GROUPS: int = 3
    BLOCK_KEYS: int = 128
    STAGES: int = 4
    PLACES: int = 2
    PERSISTENT: bool = True
    together: int = 1

    @property
    def consumers(self) -> int:
        return self.GROUPS


Speeds = Mapping[HopperForwardConfig, float]
"""How fast tiles are where they fill the GPU, relative to the fastest."""

LEAST_WIDE, LEAST_NARROW = 512, 1024
"""Sequences of fewer tokens are short: with heads of more than 96 columns, and of up to 96."""
LONG, LONGEST = 2048, 4096
"""From 4,096 tokens on heads of 64 use one program per tile. Measured: 2,048, where persistent is faster, and 8,192."""


def fastest_tiles(problem: Problem) -> HopperForwardConfig:
    """Return the fastest tiles on an H200 that the installed Triton compiles without spilling."""
    columns = sum(parts_of_head(problem.head_size))
    shorter = min(problem.queries, problem.keys)
    if columns > 128:
        return _for_wide_heads(columns, shorter)
    if shorter < (LEAST_WIDE if columns > 96 else LEAST_NARROW):
        return _for_short_sequences(columns)
    speeds = _for_long_sequences(columns, problem.queries >= LONG, shorter >= LONGEST)
    return min(speeds, key=lambda config: _rows_in_turn(problem, config) / speeds[config])


def _for_short_sequences(columns: int) -> HopperForwardConfig:
    """Return programs of one warpgroup that share a multiprocessor: one loads or stores while another multiplies.

    A tile of 64 queries pads little. Forward in µs; 1×64 with as many programs as the code says:

    |                                    | plain | cuDNN | 2×128 | 4×64 | 1×64 |
    |------------------------------------|-------|-------|-------|------|------|
    | b18 s256 d128 causal, 40 on 8      |  70.6 |  49.4 |  56.6 |      | 48.6 |
    | b16 h16 s130 d128 full             |  24.2 |  25.2 |  26.9 |      | 18.2 |
    | b34 h32 s329 d128 full             |  235  |  169  |  177  |      |  186 |
    | b8 s512 d128 full, 32 heads on 8   |  93.4 |  64.4 |  69.0 |      | 74.9 |
    | b16 h16 s512 d96 full              |  92.0 |  64.6 |  68.3 |      | 64.4 |
    | b32 s200 d96 causal, 16 heads on 4 |  50.0 |  39.5 |  36.3 |      | 29.9 |
    | b16 h16 s512 d80 full              |  91.5 |  64.0 |  64.6 |      | 58.6 |
    | b32 s200 d80 causal, 16 heads on 4 |  48.7 |  38.7 |  34.7 |      | 26.7 |
    | b64 h12 s197 d64 full              |  52.5 |  46.4 |  57.2 | 51.1 | 45.7 |
    | b32 h16 s512 d64 full              |  118  |  89.7 |  102  | 99.1 | 96.4 |
    | b9 s536 d64 causal, 12 heads on 2  |  25.7 |  29.0 |  25.7 | 31.0 | 21.7 |
    | b16 h12 s1024 d64 full             |  146  |  120  |  131  |  126 |  133 |
    | b16 h16 s512 d32 full              |  43.7 |  47.7 |  48.9 | 45.6 | 40.6 |
    | b32 s200 d32 causal, 16 heads on 4 |  22.6 |  30.7 |  28.4 | 27.0 | 19.7 |
    """
    if columns > 96:
        return HopperForwardConfig(GROUPS=1, BLOCK_KEYS=64, STAGES=2, resident=2)
    if columns == 96:
        if register_use() < RegisterUse.MOST:
            return HopperForwardConfig(GROUPS=1, BLOCK_KEYS=64, STAGES=2, PLACES=1, resident=3)
        return HopperForwardConfig(GROUPS=1, BLOCK_KEYS=64, STAGES=2, resident=2)  # 31.9 and 70.1
    if columns == 80:
        return HopperForwardConfig(GROUPS=1, BLOCK_KEYS=64, STAGES=2, resident=3)
    return HopperForwardConfig(GROUPS=1, BLOCK_KEYS=64, STAGES=3, resident=3 if columns == 64 else 4)


def _for_long_sequences(columns: int, is_long: bool, is_longest: bool) -> Speeds:
    """Return tiles for long sequences with heads of up to 128 columns, and their speeds.

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

    Two programs of 1×128 also fill the GPU where larger tiles leave much of a wave idle: b1 h16 s2048 d64 full takes
    42.8 µs, and 58.3 with 3×128, whose 176 tiles are two waves; b1 h8 s4096 d64 causal 56.2 and 52.7.

    Heads of 128 at the power limit, TFLOP/s of b4 h32 s4096: 623 full and 545 causal. One program per tile: 604 and
    542. Warpgroups that take turns at the tensor cores: 613 and 519. 3×64: 551 and 496.

    Other heads in µs, with two programs of 1×128. "one tile": 2×128 with a single tile of 128 columns:

    |                             | plain | cuDNN | one tile | 1×128 | 2×128 | 4×64 |
    |-----------------------------|-------|-------|----------|-------|-------|------|
    | b4 h16 s4096 d96 causal     |  567  |  479  |   422    |  416  |  395  |      |
    | b4 h16 s2048 d96 full       |  288  |  207  |   206    |  206  |  202  |      |
    | b4 h16 s4096 d80 causal     |  566  |  477  |   411    |  380  |  384  |      |
    | b4 h16 s2048 d80 full       |  275  |  205  |   208    |  191  |  193  |      |
    | b4 h16 s4096 d32 causal     |  283  |  332  |          |  279  |  305  | 261  |
    | b8 s1024 d32 causal, 32 on 8|  90.4 |  107  |          |  92.0 |  97.4 | 82.1 |
    """
    two_share = HopperForwardConfig(GROUPS=1, BLOCK_KEYS=128, STAGES=2, PLACES=1 if columns > 64 else 2, resident=2)
    if columns == 128:
        return {HopperForwardConfig(GROUPS=2, BLOCK_KEYS=128, STAGES=2): 1.0}
    if columns == 96:
        return {HopperForwardConfig(GROUPS=2, BLOCK_KEYS=128, STAGES=2): 1.0, two_share: 0.97}
    if columns == 80:
        return {two_share: 1.0}
    if columns == 32:  # b1 s1393 causal, 28 heads on 4: 30.4 and 21.9 µs
        four_share = HopperForwardConfig(GROUPS=1, BLOCK_KEYS=64, STAGES=3, resident=4)
        return {HopperForwardConfig(GROUPS=4, BLOCK_KEYS=64): 1.0, four_share: 0.95}
    use = register_use()
    speeds = {two_share: 0.95, HopperForwardConfig(GROUPS=2, BLOCK_KEYS=128): 0.92}
    if use < RegisterUse.MOST:
        each = is_longest and use < RegisterUse.MORE
        speeds[HopperForwardConfig(GROUPS=3, BLOCK_KEYS=128, PERSISTENT=not each)] = 1.0 if is_long else 0.96
    if use < RegisterUse.LESS:
        speeds[HopperForwardConfig(GROUPS=4, BLOCK_KEYS=64)] = 0.96 if is_long else 1.0
    return speeds


def _for_wide_heads(columns: int, shorter: int) -> HopperForwardConfig:
    """Return tiles of 128 queries for heads of more than 128 columns, with what fits in shared memory.

    Forward in µs with GROUPS×BLOCK_KEYS×STAGES, and PLACES where it is 2:

    |                             | plain | cuDNN | 2×128×2 | 2×64×3 | 2×64×2, 2 | 2×64×2 | 2×32×4 |
    |-----------------------------|-------|-------|---------|--------|-----------|--------|--------|
    | b4 h16 s4096 d160 causal    | 1,026 |  661  |   571   |  588   |    636    |        |        |
    | b4 h16 s2048 d160 full      |  501  |  309  |   272   |  285   |    290    |        |        |
    | b16 h16 s512 d160 full      |  159  |  101  |   94.1  |  95.3  |    95.7   |        |        |
    | b32 s200 d160 causal, 16:4  |  83.4 |  57.3 |   54.1  |  49.3  |    43.7   |        |        |
    | b4 h16 s4096 d192 causal    | 1,096 |  670  |         |  665   |    720    |  713   |        |
    | b4 h16 s2048 d192 full      |  543  |  311  |         |  320   |    319    |  340   |        |
    | b16 h16 s512 d192 full      |  175  |  101  |         |  108   |    105    |  114   |        |
    | b32 s200 d192 causal, 16:4  |  92.4 |  55.6 |         |  53.8  |    46.3   |  54.0  |        |
    | b4 h16 s4096 d256 causal    | 1,129 |  856  |         |        |           |  863   |  974   |
    | b4 h16 s2048 d256 full      |  554  |  395  |         |        |           |  395   |  459   |
    | b32 s200 d256 causal, 16:4  |  97.1 |  67.4 |         |        |           |  64.2  |  69.4  |
    """
    fits = register_use() < RegisterUse.MOST  # Triton 3.9 would spill
    if columns > 192:
        keys, stages = (64, 2) if fits else (32, 4)
        return HopperForwardConfig(GROUPS=2, BLOCK_KEYS=keys, STAGES=stages, PLACES=1)
    if columns <= 160 and fits and shorter >= LEAST_WIDE:
        return HopperForwardConfig(GROUPS=2, BLOCK_KEYS=128, STAGES=2, PLACES=1)
    if shorter >= (LONG if columns == 192 else LEAST_WIDE):
        return HopperForwardConfig(GROUPS=2, BLOCK_KEYS=64, STAGES=3, PLACES=1)
    return HopperForwardConfig(GROUPS=2, BLOCK_KEYS=64, STAGES=2)


def _rows_in_turn(problem: Problem, config: HopperForwardConfig) -> float:
    """Return how many queries a multiprocessor takes, one tile after another: whole waves if all tiles are equal.

    Under a causal mask the last wave has the short tiles, so that part of a wave takes part of its time.
    """
    waves = number_of_tiles(problem, config) / (problem.plan.multiprocessors * config.resident)
    waves = math.ceil(waves) if problem.right == UNBOUNDED else max(waves, 1.0)
    return waves * config.GROUPS * int(ROWS.value) * config.resident


def number_of_tiles(problem: Problem, config: HopperForwardConfig) -> int:
    """Return the tiles of queries of all heads."""
    return problem.heads * problem.sequences * -(-problem.queries // (config.GROUPS * int(ROWS.value)))
