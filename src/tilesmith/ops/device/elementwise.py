"""Elementwise kernels on tensors of any strides: their tiles, grids and configurations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.layout import Rows
from tilesmith.spec import Case

CASES = (
    Case("one", rows=1, cols=1),
    Case("odd", rows=7, cols=33),
    Case("past-a-block", rows=3, cols=4097),
    Case("seed", rows=1024, cols=512),
    Case("large", rows=16384, cols=8192),
)
"""The cases of an elementwise operator's spec."""


@dataclass(frozen=True)
class TileConfig(Config):
    """Each program computes a tile of ROWS × BLOCK_SIZE elements."""

    ROWS: int = 1
    BLOCK_SIZE: int = 1024


def tile_config(walk: Rows, bytes_read: int) -> TileConfig:
    """Return the tile: 2048 elements a program, 32 bytes read by each thread, several rows where they are short.

    `bytes_read` counts one element of every input. On an H200 at 16384×8192 in bf16: silu 4.21 TB/s (4.11 with 8192
    elements and sixteen warps), its gradient 4.38 TB/s, add 4.36 TB/s.
    """
    block_size = min(bucket(walk.columns), 2048)
    rows = min(bucket(walk.rows), 2048 // block_size)
    warps = min(max(rows * block_size * bytes_read // 1024, 1), 8)
    return TileConfig(num_warps=warps, ROWS=rows, BLOCK_SIZE=block_size)


def few_tiles_config(walk: Rows, multiprocessors: int) -> TileConfig | None:
    """Return the tile for calls of so few elements that `tile_config` would leave multiprocessors idle, else None.

    silu in bf16 on an H200, in µs (with 2048 elements; PyTorch): 991×328 2.0 (2.8; 2.3), with 1024 elements 2.1;
    300×4099, 4.5 tiles per multiprocessor, 2.8 (3.2; 3.4), with 512 elements 3.0.
    """
    tiles = walk.rows * walk.columns / 2048 / multiprocessors
    if tiles > 5:
        return None
    elements = 512 if tiles < 4 else 1024
    block_size = min(bucket(walk.columns), elements)
    return TileConfig(num_warps=4, ROWS=min(bucket(walk.rows), elements // block_size), BLOCK_SIZE=block_size)


def tile_grid(walk: Rows, config: TileConfig) -> tuple[int]:
    """Return the grid: one program for each tile."""
    return (triton.cdiv(walk.rows, config.ROWS) * triton.cdiv(walk.columns, config.BLOCK_SIZE),)


def compute_dtype(*dtypes: torch.dtype) -> tl.dtype:
    """Return the dtype that a kernel computes in: double where an input is double, else single precision."""
    return tl.float64 if torch.float64 in dtypes else tl.float32


@triton.jit
def tile_place(n_columns, BLOCK_SIZE: tl.constexpr, FLAT: tl.constexpr):
    """Return the place of this program's tile, down and across. FLAT, there is one row of tiles."""
    program = tl.program_id(0).to(tl.int64)
    if FLAT:  # without a division: 0.2 µs less on an H200
        down, across = program * 0, program
    else:
        blocks_per_row = tl.cdiv(n_columns, BLOCK_SIZE)
        down, across = program // blocks_per_row, program % blocks_per_row
    return down, across


@triton.jit
def tile_of_program(n_rows, n_columns, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, FLAT: tl.constexpr = False):
    """Return rows, columns and mask of this program's tile. Neighbouring programs are neighbours along a row."""
    down, across = tile_place(n_columns, BLOCK_SIZE, FLAT)
    rows = down * ROWS + tl.arange(0, ROWS)  # [ROWS]
    columns = across * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)  # [BLOCK_SIZE]
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]  # [ROWS, BLOCK_SIZE]
    return rows, columns, mask


@triton.jit
def tile_is_whole(n_rows, n_columns, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, FLAT: tl.constexpr = False):
    """Return whether every element of this program's tile exists.

    Kernels then access it without a mask, 16 bytes at a time. A mask that ends at an odd column allows one element at
    a time, in every tile.
    """
    down, across = tile_place(n_columns, BLOCK_SIZE, FLAT)
    has_rows = (down + 1) * ROWS <= n_rows
    return has_rows & ((across + 1) * BLOCK_SIZE <= n_columns)
