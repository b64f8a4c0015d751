"""Predict how long a GEMM by TMA takes with each tile size, and choose the fastest.

A *wave* is one tile on every multiprocessor, or several where they fit. Each wave has a number of steps of depth, and a
constant time to start and to store. A GEMM takes the time of its waves or the time of its bytes, whichever is longer;
where both are close, a little more.

The constants were fitted to 1,700 times of 111 drawn products in bf16 and fp16 on an H200, each with up to 30 tiles.
The tiles chosen here then took 2.8 % longer than the fastest ones in the geometric mean, 1.5 times in the worst case
(`benchmarks/tuning/products_of_any_size-h200.json`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import triton

from tilesmith.ops.runtime.config import cdiv

SHARED_BYTES = 227 << 10  # of a multiprocessor on Hopper
REGISTERS = 65536  # of a multiprocessor
FLOPS = 6.06e6  # of a multiprocessor in a µs, half precision
MOST_SPLITS = 32
LEAST_DEPTH = 256  # of one part: with less, the partial sums take longer than they save


class Tile(NamedTuple):
    """A tile, its warps and pipeline stages; how it is walked; and what was fitted to its times.

    - `persistent`: one program per multiprocessor takes tile after tile, and stores each in two halves.
    - `efficiency`: the share of FLOPS that its steps reach. Above 1 where the next tile starts during the last one.
    - `overhead`: µs of a tile besides its steps.
    - `bytes_per_us`: how fast the GPU moves memory meanwhile.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    persistent: bool = False
    efficiency: float = 0.75
    overhead: float = 2.0
    bytes_per_us: float = 2.7e6

    @property
    def per_multiprocessor(self) -> int:
        """Return how many programs with this tile run on a multiprocessor at once."""
        stored = self.rows * self.columns * (1 if self.persistent else 2)  # a persistent program stores in two halves
        by_memory = SHARED_BYTES // (self.stages * (self.rows + self.columns) * self.depth * 2 + stored)
        sums = self.rows * self.columns // (self.warps * 32)
        return max(min(by_memory, REGISTERS // (self.warps * 32 * (sums + 75)), 8), 1)


TILES = (
    Tile(rows=128, columns=256, depth=64, warps=8, stages=3, persistent=True, efficiency=0.86),
    Tile(rows=128, columns=128, depth=64, warps=8, stages=4),
    Tile(rows=128, columns=128, depth=64, warps=4, stages=4),
    Tile(rows=64, columns=256, depth=64, warps=4, stages=4),
    Tile(rows=64, columns=128, depth=128, warps=4, stages=4),
    Tile(rows=128, columns=64, depth=128, warps=4, stages=4),
    Tile(rows=64, columns=64, depth=128, warps=4, stages=5),
    Tile(rows=64, columns=32, depth=128, warps=4, stages=5),
    Tile(rows=64, columns=16, depth=128, warps=4, stages=6),
    Tile(rows=128, columns=32, depth=128, warps=4, stages=4),
    Tile(rows=16, columns=64, depth=256, warps=4, stages=3),
    Tile(rows=16, columns=128, depth=128, warps=4, stages=4),
)

OVERLAPPED = Tile(
    rows=128,
    columns=256,
    depth=64,
    warps=8,
    stages=3,
    persistent=True,
    efficiency=1.08,
    overhead=2.8,
    bytes_per_us=2.4e6,
)
"""The tile of `hopper/half.py`, which stores a tile while it multiplies the next one."""


@dataclass(frozen=True)
class Times:
    """The prediction for one GEMM of half precision on one GPU: rows × columns × depth, in `matrices` matrices."""

    rows: int
    columns: int
    depth: int
    matrices: int
    multiprocessors: int

    def microseconds(self, tile: Tile, split_k: int = 1) -> float:
        """Return the predicted time, with the sum of partial products where the depth is split."""
        results = self.rows * self.columns * self.matrices
        operands = (self.rows + self.columns) * self.depth * self.matrices
        moving = 2 * (operands + (results if split_k == 1 else 0)) / tile.bytes_per_us
        time: float = (self._waves(tile, split_k) ** 4 + moving**4) ** 0.25 + 1
        return time if split_k == 1 else time + 1.3 + results * (6 * split_k + 2) / tile.bytes_per_us

    def _waves(self, tile: Tile, split_k: int) -> float:
        """Return the time of all waves if memory were infinitely fast."""
        depth = self.step(tile)
        steps = cdiv(cdiv(self.depth, depth), split_k)
        waves, rest = divmod(self._tiles(tile) * split_k, self.multiprocessors * tile.per_multiprocessor)

        def wave(programs: int) -> float:
            multiplying = programs * 2 * tile.rows * tile.columns * depth / (FLOPS * tile.efficiency)
            loading = programs * (tile.rows + tile.columns) * depth * 2 / 86e3
            return float(steps * max(multiplying, loading, 0.038) + tile.overhead)

        time = waves * wave(tile.per_multiprocessor)
        return time + (wave(cdiv(rest, self.multiprocessors)) if rest else 0)

    def step(self, tile: Tile) -> int:
        """Return the depth of one step: the tile's, or less for a product that is not as deep."""
        whole: int = triton.next_power_of_2(self.depth)
        return min(tile.depth, max(64, whole))

    def _tiles(self, tile: Tile) -> int:
        tiles: int = cdiv(self.rows, tile.rows) * cdiv(self.columns, tile.columns) * self.matrices
        return tiles

    def fastest(self) -> tuple[float, Tile, int]:
        """Return the least predicted time, its tile and its split-K factor."""
        return min((self.microseconds(tile, split), tile, split) for tile in TILES for split in self._splits(tile))

    def _splits(self, tile: Tile) -> Iterator[int]:
        """Yield no split, and the two that leave the fewest places in a wave empty; none for tiles too large."""
        if tile.rows > max(64, 2 * self.rows) or tile.columns > max(32, 2 * self.columns):
            return
        yield 1
        tiles, places = self._tiles(tile), self.multiprocessors * (1 if tile.persistent else 2)
        if tiles < 4 * self.multiprocessors:
            splits = range(2, min(MOST_SPLITS, self.depth // LEAST_DEPTH) + 1)
            cost = {split: cdiv(tiles * split, places) / (tiles * split) * (1 + 0.01 * split) for split in splits}
            yield from sorted(splits, key=cost.__getitem__)[:2]
