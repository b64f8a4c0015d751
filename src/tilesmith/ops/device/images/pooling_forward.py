"""Pooling forward, by maximum and by mean.

A tile consists of cells of DOWN × ALONG windows, so that elements which neighbouring windows share are read once. A
program first pools every row of a cell across; the result serves all windows that contain the row. Where columns are
contiguous, one vector load reads the ALONG · STRIDE columns of a cell, and scalar loads read the columns beyond: for
3 × 3 windows of stride 2 in bf16, 16 bytes and one element for four windows.

Tiles are [OUTER, INNER], see `tiles.py`; each element of a tile is a cell. Tuples hold one tile for each window or
element of a cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import triton
import triton.language as tl

from tilesmith.ops.device.elementwise import compute_dtype
from tilesmith.ops.device.images.pooling import constant_divisor, elements_counted
from tilesmith.ops.device.images.tiles import (
    MOST_UNROLLED,
    ImageTileConfig,
    ImageTiles,
    Windows,
    image_offsets,
    is_inside,
    known_multiples,
    packed,
    tile_of_images,
    unpacked,
    window_element,
)
from tilesmith.ops.device.images.windows import Pair, Window
from tilesmith.ops.runtime.config import bucket
from tilesmith.ops.runtime.plan import Operand, Plan


@triton.jit
def pooled_with(pooled, position, value, its_position, OF_MAXIMA: tl.constexpr, KEEP: tl.constexpr):
    """Return the maximum so far and its position, or the sum so far, with another value.

    Of equal values the first is the maximum. NaN is larger than all numbers, and the last NaN wins.
    """
    if KEEP:
        is_larger = (value > pooled) | (value != value)
        pooled, position = tl.where(is_larger, value, pooled), tl.where(is_larger, its_position, position)
    elif OF_MAXIMA:
        pooled = tl.maximum(pooled, value, propagate_nan=tl.PropagateNan.ALL)
    else:
        pooled += value
    return pooled, position


@triton.jit
def elements_of_row(
    pointers, row_inside, left, width, column_stride, other,
    COUNT: tl.constexpr, PADDING: tl.constexpr, OVERHANG: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Return the COUNT elements of a row from `left` on as a tuple, `other` where they lie outside the image.

    `pointers` are those of each cell's own first element, PADDING after `left`. From there on, one vector load reads
    PIECE elements, unless PIECE is zero.
    """
    elements: tl.tuple = ()
    for index in tl.static_range(COUNT):
        if PIECE > 0 and index == PADDING:
            beside = tl.arange(0, PIECE)[None, None, :]
            inside = tl.broadcast_to(row_inside[:, :, None], [row_inside.shape[0], row_inside.shape[1], PIECE])
            column = (left + PADDING)[:, :, None] + beside  # [1, INNER, PIECE]
            inside = is_inside(inside, column, width, False, COUNT - PADDING - PIECE < OVERHANG)
            pieces = tl.load(pointers[:, :, None] + beside, mask=inside, other=other)  # [OUTER, INNER, PIECE]
            elements += unpacked(pieces, PIECE)
        elif PIECE == 0 or index < PADDING or index >= PADDING + PIECE:
            inside = is_inside(row_inside, left + index, width, index < PADDING, COUNT - 1 - index < OVERHANG)
            offset = tl.cast((index - PADDING) * column_stride, tl.int64)
            elements += (tl.load(pointers + offset, mask=inside, other=other),)  # [OUTER, INNER]
    return elements


@triton.jit
def rows_pooled_across(
    windows,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, OVERHANG: tl.constexpr,
    OF_MAXIMA: tl.constexpr, KEEP: tl.constexpr, COMPUTE: tl.constexpr, CELL: tl.constexpr,
):  # fmt: skip
    """Return every row that a cell covers, pooled across in each of the cell's windows, and the positions of maxima.

    CELL is (DOWN, ALONG, PIECE): windows down and across, and the columns of one load. The windows' pointers are those
    of a cell's own first column, after the padding.
    """
    DOWN: tl.constexpr = CELL[0]
    ALONG: tl.constexpr = CELL[1]
    PIECE: tl.constexpr = CELL[2]
    TAPS: tl.constexpr = KERNEL[1]
    ROWS: tl.constexpr = (DOWN - 1) * STRIDE[0] + (KERNEL[0] - 1) * DILATION[0] + 1
    COLUMNS: tl.constexpr = (ALONG - 1) * STRIDE[1] + (KERNEL[1] - 1) * DILATION[1] + 1
    OTHER: tl.constexpr = float("-inf") if OF_MAXIMA else 0.0
    values: tl.tuple = ()
    positions: tl.tuple = ()
    for row in tl.static_range(ROWS):
        row_inside = is_inside(
            windows.mask, windows.top + row, windows.height, row < PADDING[0], ROWS - 1 - row < OVERHANG[0]
        )
        elements = elements_of_row(
            windows.pointers + tl.cast(row * windows.strides[2], tl.int64), row_inside, windows.left, windows.width,
            windows.strides[3], OTHER,
            COLUMNS, PADDING[1], OVERHANG[1], PIECE,
        )  # fmt: skip
        for window in tl.static_range(ALONG):
            value, position = elements[window * STRIDE[1]].to(COMPUTE), 0  # [OUTER, INNER], a number
            for tap in tl.static_range(1, TAPS):
                element = elements[window * STRIDE[1] + tap * DILATION[1]].to(COMPUTE)  # [OUTER, INNER]
                value, position = pooled_with(value, position, element, tap, OF_MAXIMA, KEEP)
            values += (value,)
            positions += (position,)
    return values, positions


@triton.jit
def nothing_yet(
    top, left,
    SHAPE: tl.constexpr, KERNEL: tl.constexpr, DILATION: tl.constexpr, OF_MAXIMA: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Return the value and position that a window at (top, left) starts from.

    If all elements are −∞, the maximum is the first one that is no padding.
    """
    rows_before, columns_before = tl.cdiv(tl.maximum(-top, 0), DILATION[0]), tl.cdiv(tl.maximum(-left, 0), DILATION[1])
    position = (rows_before * KERNEL[1] + columns_before).to(tl.int32) + tl.zeros(SHAPE, tl.int32)
    return tl.full(SHAPE, float("-inf") if OF_MAXIMA else 0.0, COMPUTE), position  # [OUTER, INNER] each


@triton.jit
def window_of_rows(
    start, position, values, positions,
    FIRST: tl.constexpr, STEP: tl.constexpr, KERNEL: tl.constexpr, OF_MAXIMA: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Pool a window of rows that are pooled across already: those from FIRST on, STEP apart."""
    pooled = start
    TAPS: tl.constexpr = KERNEL[0]
    for tap in tl.static_range(TAPS):
        pooled, position = pooled_with(
            pooled, position, values[FIRST + tap * STEP], tap * KERNEL[1] + positions[FIRST + tap * STEP],
            OF_MAXIMA, KEEP,
        )  # fmt: skip
    return pooled, position


@triton.jit
def window_of_elements(
    start, position, windows,
    KERNEL: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, OVERHANG: tl.constexpr,
    OF_MAXIMA: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Pool a window of many elements in a loop."""
    pooled = start
    TAPS: tl.constexpr = KERNEL[0] * KERNEL[1]
    for tap in range(TAPS):
        # [OUTER, INNER]
        value = window_element(
            windows, tap, float("-inf") if OF_MAXIMA else 0.0, KERNEL, PADDING, DILATION, OVERHANG
        ).to(start.dtype)  # fmt: skip
        pooled, position = pooled_with(pooled, position, value, tap, OF_MAXIMA, KEEP)
    return pooled, position


@triton.jit
def store_row_of_windows(
    values, images_ptr, offsets, q, mask, windows_across, column_stride, ALONG: tl.constexpr, MULTIPLE: tl.constexpr
):
    """Store the results of ALONG neighbouring windows: the first at `offsets`, in column q.

    One vector store writes them where rows start at multiples of ALONG.
    """
    if ALONG > 1 and MULTIPLE == ALONG:
        beside = tl.arange(0, ALONG)[None, None, :]
        mask = mask[:, :, None] & (q[:, :, None] + beside < windows_across)
        pieces = packed(values, ALONG).to(images_ptr.dtype.element_ty)  # [OUTER, INNER, ALONG]
        tl.store(images_ptr + offsets[:, :, None] + beside, pieces, mask=mask)
    else:
        for along in tl.static_range(ALONG):
            pointers = images_ptr + offsets + along * column_stride
            value = values[along].to(images_ptr.dtype.element_ty)  # [OUTER, INNER]
            tl.store(pointers, value, mask=mask & (q + along < windows_across))


@triton.jit(do_not_specialize=["n_planes"])
def pooling_forward_kernel(
    x_ptr, y_ptr, positions_ptr, x_strides, y_strides, n_planes, sizes, height, width, windows_down, windows_across,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, OVERHANG: tl.constexpr,
    OF_MAXIMA: tl.constexpr, KEEP: tl.constexpr, COUNT_PADDING: tl.constexpr, DIVISOR: tl.constexpr,
    CHANNELS_INNER: tl.constexpr, CHANNELS_FIT: tl.constexpr, INDEX: tl.constexpr, COMPUTE: tl.constexpr,
    UNROLLED: tl.constexpr, PIECE: tl.constexpr, X_MULTIPLE: tl.constexpr, Y_MULTIPLE: tl.constexpr,
    PLANES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
    DOWN: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    image, channel, row, column, reads, writes = tile_of_images(
        n_planes, sizes, CHANNELS_INNER, INDEX, PLANES, ROWS, COLUMNS, CHANNELS, CHANNELS_FIT
    )
    x_strides, y_strides = known_multiples(x_strides, X_MULTIPLE), known_multiples(y_strides, Y_MULTIPLE)
    width, windows_across = width // X_MULTIPLE * X_MULTIPLE, windows_across // Y_MULTIPLE * Y_MULTIPLE
    p, q = row * DOWN, column * ALONG
    top, left = p * STRIDE[0] - PADDING[0], q * STRIDE[1] - PADDING[1]  # shaped as row and column
    values: tl.tuple = ()
    positions: tl.tuple = ()
    if UNROLLED:
        pointers = x_ptr + image_offsets(image, channel, top, q * STRIDE[1], x_strides)
        CELL: tl.constexpr = (DOWN, ALONG, PIECE)
        values, positions = rows_pooled_across(
            Windows(pointers, top, left, reads, height, width, x_strides),
            KERNEL, STRIDE, PADDING, DILATION, OVERHANG, OF_MAXIMA, KEEP, COMPUTE, CELL,
        )  # fmt: skip
    for down in tl.static_range(DOWN):
        results: tl.tuple = ()
        chosen: tl.tuple = ()
        for along in tl.static_range(ALONG):
            first_row, first_column = top + down * STRIDE[0], left + along * STRIDE[1]
            start, position = nothing_yet(first_row, first_column, reads.shape, KERNEL, DILATION, OF_MAXIMA, COMPUTE)
            if UNROLLED:
                result, position = window_of_rows(
                    start, position, values, positions, down * STRIDE[0] * ALONG + along, DILATION[0] * ALONG, KERNEL,
                    OF_MAXIMA, KEEP,
                )  # fmt: skip
            else:
                pointers = x_ptr + image_offsets(image, channel, first_row, first_column, x_strides)
                result, position = window_of_elements(
                    start, position, Windows(pointers, first_row, first_column, reads, height, width, x_strides),
                    KERNEL, PADDING, DILATION, OVERHANG, OF_MAXIMA, KEEP,
                )  # fmt: skip
            # result and position are [OUTER, INNER].
            if not OF_MAXIMA:
                if DIVISOR != 0:
                    result = result / DIVISOR
                else:
                    result = result / elements_counted(
                        p + down, q + along, height, width, KERNEL, STRIDE, PADDING, COUNT_PADDING
                    ).to(COMPUTE)
            results += (result,)
            chosen += (position,)
        mask = writes & (p + down < windows_down)
        offsets = image_offsets(image, channel, p + down, q, y_strides)
        step = y_strides[3]
        store_row_of_windows(results, y_ptr, offsets, q, mask, windows_across, step, ALONG, Y_MULTIPLE)
        if KEEP:
            store_row_of_windows(chosen, positions_ptr, offsets, q, mask, windows_across, step, ALONG, Y_MULTIPLE)


VECTOR_BYTES = 16  # of the widest load
MOST_SHARED = 9  # elements of a window; shared rows of larger windows exceed the registers


@dataclass(frozen=True)
class PoolingConfig(ImageTileConfig):
    """Rows and columns count cells of DOWN × ALONG windows."""

    DOWN: int = 1
    ALONG: int = 1


def columns_in_a_piece(x: Operand, y: Operand, window: Window) -> int:
    """Return how many columns of x one vector load reads for a cell; zero for scalar loads.

    The columns must be contiguous, start at a multiple of their number in every row, and belong to whole windows.
    """
    most = math.gcd(VECTOR_BYTES // x.element_bytes, *x.strides[:-1], x.shape[-1])
    beside = x.strides[-1] == y.strides[-1] == 1 and x.aligned
    return most if beside and most > 1 and most % window.stride[1] == 0 else 0


def default_cell(window: Window, piece: int, windows_down: int, *, keeps_positions: bool) -> Pair:
    """Return the windows of a cell: across as many as one load serves, down as many as registers hold.

    The registers are those of every supported release of Triton.
    """
    along = piece // window.stride[1] if piece else 1
    if math.prod(window.kernel) > MOST_SHARED:
        return 1, along
    return min(16 // along, 2 if keeps_positions else 4, bucket(windows_down)), along


def _tile(tiles: ImageTiles, windows: int, plan: Plan) -> ImageTileConfig:
    """Return the tile: of large cells, one per thread of a single warp.

    32×64×112² with 3 × 3 windows of stride 2 on an H200: 16.7 µs with one warp, 18.3 with two, 25.8 with four.
    """
    if tiles.channels_inner or windows < 8:
        return tiles.config(2 if tiles.channels_inner else windows)
    return replace(tiles.config(512 // plan.architecture.warp_size), num_warps=1)


def plan_pooling_forward(
    plan: Plan, x: Operand, y: Operand, positions: Operand | None, window: Window, *, of_maxima: bool,
    count_padding: bool = True, divisor: int = 0,
) -> None:  # fmt: skip
    """Plan pooling by maximum, with positions if wanted, or by mean."""
    unrolled = math.prod(window.kernel) <= MOST_UNROLLED
    piece = columns_in_a_piece(x, y, window) if unrolled else 0
    down, along = default_cell(window, piece, y.shape[-2], keeps_positions=positions is not None)
    tiles = ImageTiles(y, x, cell=(down, along))
    default = PoolingConfig(**_tile(tiles, down * along, plan).fields(), DOWN=down, ALONG=along)
    config = plan.choose(default, *tiles.bucket(), f"piece {piece}")
    tiles = ImageTiles(y, x, cell=(config.DOWN, config.ALONG))
    piece = config.ALONG * window.stride[1] if piece else 0
    y_strides, x_strides = tiles.strides
    plan.launch(
        pooling_forward_kernel, tiles.grid(config), config,
        x_ptr=x, y_ptr=y, positions_ptr=positions, x_strides=x_strides, y_strides=y_strides, **tiles.arguments(),
        height=x.shape[-2], width=x.shape[-1], windows_down=y.shape[-2], windows_across=y.shape[-1],
        **window.constants(),
        OVERHANG=window.overhang(x.shape[-2:], (tiles.height * config.DOWN, tiles.width * config.ALONG)),
        OF_MAXIMA=of_maxima, KEEP=positions is not None, COUNT_PADDING=count_padding,
        DIVISOR=divisor or constant_divisor(window, x.shape[-2:], y.shape[-2:], count_padding),
        CHANNELS_FIT=tiles.channels % config.CHANNELS == 0, COMPUTE=compute_dtype(x.dtype), UNROLLED=unrolled,
        PIECE=piece,
        X_MULTIPLE=math.gcd(piece, *x_strides[:3], x.shape[-1]) if piece else 1,
        Y_MULTIPLE=math.gcd(config.ALONG, *y_strides[:3], y.shape[-1]) if piece else 1,
    )  # fmt: skip
