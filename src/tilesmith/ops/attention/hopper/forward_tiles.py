"""The fastest tiles of `forward.py` for a problem."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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
"""Sequences of fewer tokens are short: with heads of more than 128 columns, and of 80, 96 and 32."""
LONG, LONGEST = 2048, 4096
"""From 4,096 tokens on heads of 64 use one program per tile. Measured: 2,048, where persistent is faster, and 8,192."""


def fastest_tiles(problem: Problem) -> HopperForwardConfig:
    """Return the fastest tiles on an H200 that the installed Triton compiles without spilling."""
    columns = sum(parts_of_head(problem.head_size))
    shorter = min(problem.queries, problem.keys)
    if columns > 128:
        return _for_wide_heads(columns, shorter)
    if problem.head_size % 16 and columns > 32:
        speeds = _for_odd_rows(columns, shorter)
    elif columns == 128:
        speeds = {
            HopperForwardConfig(GROUPS=2, BLOCK_KEYS=128, STAGES=2): 1.0, _for_short_sequences(columns): 0.85
        }  # fmt: skip
    elif columns == 64:
        speeds = _for_heads_of_64(shorter)
    elif shorter < LEAST_NARROW:
        return _for_short_sequences(columns)
    else:
        speeds = _for_long_sequences(columns)
    return min(speeds, key=lambda config: _time(problem, config) / speeds[config])


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


def _for_heads_of_64(shorter: int) -> Speeds:
    """Return tiles for heads of 64 columns, and their speeds.

    TFLOP/s with GROUPS×BLOCK_KEYS, measured with Triton 3.6. "each": one program per tile. Two figures are of two runs:

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

    In µs, with two programs of 1×128 and three of 1×64 that share a multiprocessor:

    |                                 | cuDNN | 4×64  | 3×128 | 2×128 | 1×128 | 1×64  |
    |---------------------------------|-------|-------|-------|-------|-------|-------|
    | b44 s1230 causal, 48 heads on 8 | 1,241 | 1,337 | 1,362 | 1,244 | 1,249 | 1,195 |
    | b2 s1024 causal, 16 heads on 4  |  22.9 |  23.9 |  22.4 |  21.8 |  18.5 |  19.6 |
    | b1 s1024 full, 24 heads on 8    |  23.9 |  25.2 |  33.0 |  26.8 |  24.3 |  19.9 |
    | b4 s1024 causal, 32 heads on 8  |  58.7 |  51.9 |  59.9 |  57.7 |  56.4 |  57.2 |
    | b14 h12 s1536 causal            |  145  |  146  |  140  |  149  |  147  |  148  |
    | b16 h12 s1024 full              |  120  |  126  |       |  131  |  131  |  133  |
    | b42 h12 s512 full               |  90.7 |  99.1 |  118  |  104  |  98.5 |  95.4 |
    | b54 h12 s400 causal             |  89.2 |  72.2 |  107  |  84.7 |  74.7 |  64.1 |
    """
    use = register_use()
    speeds = {
        HopperForwardConfig(GROUPS=1, BLOCK_KEYS=128, STAGES=2, resident=2): 0.9,
        _for_short_sequences(64): 0.8,
    }
    if use < RegisterUse.MOST:
        each = shorter >= LONGEST and use < RegisterUse.MORE
        speeds[HopperForwardConfig(GROUPS=3, BLOCK_KEYS=128, PERSISTENT=not each)] = 1.0
    if use < RegisterUse.LESS and shorter >= LEAST_NARROW:
        speeds[HopperForwardConfig(GROUPS=4, BLOCK_KEYS=64)] = 0.86
    return speeds


def _for_odd_rows(columns: int, shorter: int) -> Speeds:
    """Return tiles for heads whose rows are no multiple of 32 bytes, and their speeds.

    TMA is slow on such rows, so large tiles, which load keys and values less often, are faster than with other heads.
    Forward in µs. "one tile": heads of 72 in a single tile of 128 columns, in 2×128, or 1×64 for fewer than 512 tokens:

    |                          | cuDNN | one tile | 1×64  | 2×64  | 3×64  | 2×128 |
    |--------------------------|-------|----------|-------|-------|-------|-------|
    | b16 h20 s372 d72 full    |  58.5 |   74.4   |  58.9 |  55.8 |  48.9 |  55.2 |
    | b51 h20 s256 d72 full    |  77.3 |    111   |  90.6 |  83.2 |  126  |  83.5 |
    | b12 h20 s1024 d72 causal |  149  |    148   |  159  |  135  |  132  |  134  |
    | b6 h20 s2048 d72 full    |  415  |    434   |  496  |  418  |  362  |  391  |
    | b34 h20 s384 d104 full   |  117  |          |  186  |  133  |       |  140  |
    | b102 h20 s128 d104 full  |  64.9 |          |  87.7 |  72.6 |       |  69.9 |
    | b12 h20 s1024 d104 causal|  154  |          |  403  |  154  |       |  160  |
    | b6 h20 s2048 d104 full   |  443  |          |  762  |  506  |       |  483  |
    | b51 h20 s250 d40 causal  |  54.1 |          |  60.3 |  55.2 |  61.7 |  59.9 |
    | b51 h20 s256 d56 full    |  54.8 |          |  69.2 |  71.3 |  95.9 |  74.0 |
    | b20 h20 s768 d56 causal  |  101  |          |  118  |  119  |  104  |  111  |

    With 3×128 the last takes 109 µs, and b20 h20 s768 d40 full 149 (160 with 3×64).
    """
    if shorter <= int(ROWS.value):
        return {_for_short_sequences(columns): 1.0}
    stages = 4 if columns == 64 else 3
    two = HopperForwardConfig(GROUPS=2, BLOCK_KEYS=64, STAGES=stages)
    three = HopperForwardConfig(GROUPS=3, BLOCK_KEYS=64, STAGES=stages)
    if columns == 128:
        return {HopperForwardConfig(GROUPS=2, BLOCK_KEYS=128, STAGES=2): 1.0, two: 0.9}
    if columns > 64:
        return {three: 1.0, two: 0.75}
    speeds = {three: 0.87, two: 0.8}
    if register_use() < RegisterUse.MOST:
        speeds[HopperForwardConfig(GROUPS=3, BLOCK_KEYS=128)] = 1.0
    return speeds


def _for_long_sequences(columns: int) -> Speeds:
    """Return tiles for long sequences with heads of 32, 80 and 96 columns, and their speeds.

    In µs, with two programs of 1×128. "one tile": 2×128 with a single tile of 128 columns:

    |                             | plain | cuDNN | one tile | 1×128 | 2×128 | 4×64 |
    |-----------------------------|-------|-------|----------|-------|-------|------|
    | b4 h16 s4096 d96 causal     |  567  |  479  |   422    |  416  |  395  |      |
    | b4 h16 s2048 d96 full       |  288  |  207  |   206    |  206  |  202  |      |
    | b4 h16 s4096 d80 causal     |  566  |  477  |   411    |  380  |  384  |      |
    | b4 h16 s2048 d80 full       |  275  |  205  |   208    |  191  |  193  |      |
    | b4 h16 s4096 d32 causal     |  283  |  332  |          |  279  |  305  | 261  |
    | b8 s1024 d32 causal, 32 on 8|  90.4 |  107  |          |  92.0 |  97.4 | 82.1 |
    | b8 h16 s2048 d96 causal     |       |  261  |          |  251  |  222  |      |
    """
    two_share = HopperForwardConfig(GROUPS=1, BLOCK_KEYS=128, STAGES=2, PLACES=1, resident=2)
    if columns == 96:
        return {HopperForwardConfig(GROUPS=2, BLOCK_KEYS=128, STAGES=2): 1.0, two_share: 0.85}
    if columns == 80:
        return {two_share: 1.0}
    # b1 s1393 causal, 28 heads on 4: 30.4 and 21.9 µs
    return {HopperForwardConfig(GROUPS=4, BLOCK_KEYS=64): 1.0, _for_short_sequences(32): 0.8}


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


def _time(problem: Problem, config: HopperForwardConfig) -> float:
    """Return the pairs of queries and keys that a multiprocessor computes, one tile after another.

    Prologue and epilogue of a tile count as one block of keys. Without a mask all tiles are equal and take whole waves.
    Under a causal mask the last ones are short, but the longest takes its time.
    """
    rows, multiprocessors = config.GROUPS * int(ROWS.value), problem.plan.multiprocessors
    if problem.right == UNBOUNDED:
        tiles = number_of_tiles(problem, config)
        share = min(config.resident, -(-tiles // multiprocessors))  # programs that run on a multiprocessor
        in_turn = math.ceil(tiles / (multiprocessors * share)) * share * (-(-problem.keys // config.BLOCK_KEYS) + 1)
        return float(in_turn * config.BLOCK_KEYS * rows)
    ends = np.minimum(np.arange(1, -(-problem.queries // rows) + 1) * rows, problem.queries)  # of a head's tiles
    seen = np.clip(ends + problem.keys - problem.queries + problem.right, 0, problem.keys)
    blocks = -(-seen // config.BLOCK_KEYS) + 1
    blocks_in_turn = max(problem.heads * problem.sequences * blocks.sum() / multiprocessors, blocks.max())
    return float(blocks_in_turn * config.BLOCK_KEYS * rows)


def number_of_tiles(problem: Problem, config: HopperForwardConfig) -> int:
    """Return the tiles of queries of all heads."""
    return problem.heads * problem.sequences * -(-problem.queries // (config.GROUPS * int(ROWS.value)))
