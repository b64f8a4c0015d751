"""Tiles of images, and device functions around an element's windows, for pooling and depthwise convolution.

A program's tile has two dimensions: pixels × channels if channels are last in memory, else rows × columns of one or
several planes. Neighbouring lanes take neighbours in memory.

Shapes below call the two dimensions [OUTER, INNER]: [ROWS · COLUMNS, CHANNELS] if channels are last, else
[PLANES · ROWS, COLUMNS]. What differs along one of them only is [OUTER, 1] or [1, INNER]; numbers of the whole program
have no shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import triton
import triton.language as tl

from tilesmith.ops.device.images.windows import as_images
from tilesmith.ops.runtime.config import Config, bucket
from tilesmith.ops.runtime.plan import Operand


class Windows(NamedTuple):
    """The windows of a tile in the images they read; (top, left) are the places of their first elements."""

    pointers: Any  # [OUTER, INNER], to the first elements
    top: Any  # [OUTER, 1]
    left: Any  # [OUTER, 1] or [1, INNER]
    mask: Any  # [OUTER, INNER]
    height: Any
    width: Any
    strides: Any


class Cells(NamedTuple):
    """The cells of a tile: rows and columns count cells, height and width are the images'."""

    image: Any  # one number, or [OUTER, 1] if a tile may have several planes
    channel: Any  # [1, INNER] if channels are last, else as the image
    row: Any  # [OUTER, 1]
    column: Any  # [OUTER, 1] if channels are last, else [1, INNER]
    mask: Any  # [OUTER, INNER]
    height: Any
    width: Any


@dataclass(frozen=True)
class ImageTileConfig(Config):
    """Each program takes so many planes, rows, columns and channels.

    A plane is an image, or one channel of it where channels are not last in memory.
    """

    PLANES: int = 1
    ROWS: int = 8
    COLUMNS: int = 64
    CHANNELS: int = 1


MOST_UNROLLED = 25  # taps of a window; a kernel loops over the taps of larger windows
MOST_HALVINGS = tl.constexpr(5)  # of a vector of columns
MOST_ON_AN_AXIS = 65535  # the size of a grid's second and third axes


class ImageTiles:
    """The tiles of images, and the strides of the same elements in other tensors.

    With `channels_alike` a kernel need not know its channel. A `cell` of rows and columns counts as one element.
    """

    def __init__(
        self, images: Operand, *others: Operand, channels_alike: bool = True, cell: tuple[int, int] = (1, 1)
    ) -> None:
        everyone = [as_images(one) for one in (images, *others)]
        channels = everyone[0].shape[1]
        self.channels_inner = everyone[0].strides[1] == 1 and channels > 1
        evenly = all(one.strides[0] == channels * one.strides[1] for one in everyone)
        if channels_alike and evenly and not self.channels_inner:
            # One stride from plane to plane: the kernel need not divide by the number of channels.
            everyone = [
                one.seen_as((one.shape[0] * channels, 1, *one.shape[2:]), (one.strides[1], 0, *one.strides[2:]))
                for one in everyone
            ]
        self.batch, self.channels, height, width = everyone[0].shape
        self.height, self.width = triton.cdiv(height, cell[0]), triton.cdiv(width, cell[1])
        self.planes = self.batch if self.channels_inner else self.batch * self.channels
        self.strides = [one.strides for one in everyone]
        self.reach = max(_reach(one) for one in everyone)
        self.element_bytes, self.dtype = images.element_bytes, images.dtype

    def config(self, outputs_per_cell: int = 1) -> ImageTileConfig:
        """Return the default: eight outputs per thread, along columns or channels as far as possible."""
        if self.channels_inner:
            channels = min(bucket(self.channels), 128)
            # Channels that fill no vector need an address each: fewer, to save registers.
            cells = (4096 // self.element_bytes if self.channels % 16 == 0 else 512) // outputs_per_cell
            columns = min(bucket(self.width), cells // channels)
            return ImageTileConfig(num_warps=4, ROWS=1, COLUMNS=columns, CHANNELS=channels)
        cells = 512 // outputs_per_cell
        columns = min(bucket(self.width), 128, cells)
        most = min(cells // columns, bucket(self.height))
        rows = min((1 << power for power in range(most.bit_length())), key=lambda rows: (-self.height % rows, -rows))
        return ImageTileConfig(num_warps=2, PLANES=cells // columns // rows, ROWS=rows, COLUMNS=columns)

    def filling(self, config: ImageTileConfig, multiprocessors: int) -> ImageTileConfig:
        """Return the configuration with fewer planes per program, 4 at least, until two programs or more fall to each
        multiprocessor.

        max_pool2d's backward in fp32 on an H200, in µs (before; PyTorch): 4×48×28×28, windows of 3 and stride 2, 2.5
        (5.7; 6.0), windows of 2 2.0 (3.1; 5.5); 2×96×14×14 2.1 (5.8; 4.6).
        """
        while config.PLANES > 4 and math.prod(self.grid(config)) < 2 * multiprocessors:
            config = replace(config, PLANES=config.PLANES // 2)
        return config

    def bucket(self) -> tuple[object, ...]:
        if self.channels_inner:
            return "channels", bucket(self.channels), self.dtype
        return "planes", bucket(self.height), bucket(self.width), self.dtype

    def grid(self, config: ImageTileConfig) -> tuple[int, int, int]:
        blocks = triton.cdiv(self.height, config.ROWS) * triton.cdiv(self.width, config.COLUMNS)
        if self.channels_inner:
            blocks *= triton.cdiv(self.channels, config.CHANNELS)
        planes = triton.cdiv(self.planes, config.PLANES)
        return blocks, min(planes, MOST_ON_AN_AXIS), triton.cdiv(planes, MOST_ON_AN_AXIS)

    def arguments(self) -> dict[str, object]:
        """Return the arguments for `tile_of_images` and `image_offsets`."""
        return {
            "n_planes": self.planes, "sizes": (self.channels, self.height, self.width),
            "CHANNELS_INNER": self.channels_inner,
            # Twice the reach: windows may start before an image and end after it.
            "INDEX": tl.int32 if 2 * self.reach < 2**31 else tl.int64,
        }  # fmt: skip


def _reach(images: Operand) -> int:
    """Return the distance from the first element of an image to its last."""
    return sum(step * size for step, size in zip(images.strides[1:], images.shape[1:], strict=True))


@triton.jit
def tile_of_images(
    n_planes, sizes,
    CHANNELS_INNER: tl.constexpr, INDEX: tl.constexpr,
    PLANES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
    CHANNELS_FIT: tl.constexpr = False,
):  # fmt: skip
    """Return image, channel, row and column of each element of this program's tile, and the masks to read and write.

    Beyond the edges, rows and columns repeat the last one, so that loads need no mask: a mask costs one or two
    instructions per element of a window. Channels are vector loads and do not repeat: they need a mask unless
    CHANNELS_FIT, that is, fill whole blocks.
    """
    channels, height, width = sizes[0], sizes[1], sizes[2]
    block = tl.program_id(0)
    first_plane = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * PLANES
    blocks_across = tl.cdiv(width, COLUMNS)
    if CHANNELS_INNER:
        blocks_of_channels = tl.cdiv(channels, CHANNELS)
        channel = (block % blocks_of_channels * CHANNELS + tl.arange(0, CHANNELS))[None, :]  # [1, CHANNELS]
        block = block // blocks_of_channels
        outer = tl.arange(0, ROWS * COLUMNS)[:, None]  # [ROWS · COLUMNS, 1], as row and column
        row = block // blocks_across * ROWS + outer // COLUMNS
        column = block % blocks_across * COLUMNS + outer % COLUMNS
        if CHANNELS_FIT:
            reads = tl.full([ROWS * COLUMNS, CHANNELS], True, tl.int1)
        else:
            reads = tl.broadcast_to(channel < channels, ROWS * COLUMNS, CHANNELS)
        writes = (row < height) & (column < width) & reads  # [ROWS · COLUMNS, CHANNELS], as reads
        image = first_plane
    else:
        outer = tl.arange(0, PLANES * ROWS)[:, None]  # [PLANES · ROWS, 1], as row
        row = block // blocks_across * ROWS + outer % ROWS
        column = (block % blocks_across * COLUMNS + tl.arange(0, COLUMNS))[None, :]  # [1, COLUMNS]
        plane = first_plane if PLANES == 1 else first_plane + outer // ROWS  # one number or [PLANES · ROWS, 1]
        reads = tl.full([PLANES * ROWS, COLUMNS], True, tl.int1)
        writes = (plane < n_planes) & (row < height) & (column < width)  # [PLANES · ROWS, COLUMNS], as reads
        plane = tl.minimum(plane, n_planes - 1)
        image, channel = plane // channels, plane % channels
    row, column = tl.minimum(row, height - 1).to(INDEX), tl.minimum(column, width - 1).to(INDEX)
    return image, channel, row, column, reads, writes


@triton.jit
def image_offsets(image, channel, row, column, strides):
    """Return the offsets of elements: of the image in 64 bits, inside an image in the dtype of row and column."""
    within = row * strides[2] + column * strides[3]
    return image.to(tl.int64) * strides[0] + (within + channel.to(within.dtype) * strides[1])  # [OUTER, INNER]


@triton.jit
def known_multiples(strides, OF: tl.constexpr):
    """Return the strides, all but the last marked as multiples of OF. The compiler detects only multiples of 16."""
    return strides[0] // OF * OF, strides[1] // OF * OF, strides[2] // OF * OF, strides[3]


@triton.jit
def unpacked(pieces, SIZE: tl.constexpr):
    """Return vectors [OUTER, INNER, SIZE] as SIZE tensors [OUTER, INNER].

    No data moves if each thread holds whole vectors.
    """
    OUTER: tl.constexpr = pieces.shape[0]
    INNER: tl.constexpr = pieces.shape[1]
    parts = (pieces,)
    for level in tl.static_range(MOST_HALVINGS):
        if SIZE >> level > 1:
            halves: tl.tuple = ()
            for index in tl.static_range(1 << level):
                part = tl.reshape(parts[index], [OUTER, INNER, 2, SIZE >> level + 1])
                halves += tl.split(tl.permute(part, [0, 1, 3, 2]))
            parts = halves
    elements: tl.tuple = ()
    for index in tl.static_range(SIZE):
        elements += (tl.reshape(parts[index], [OUTER, INNER]),)
    return elements


@triton.jit
def packed(elements, SIZE: tl.constexpr):
    """Return SIZE tensors [OUTER, INNER] as vectors [OUTER, INNER, SIZE]: the inverse of `unpacked`."""
    parts = elements
    for level in tl.static_range(MOST_HALVINGS):
        if SIZE >> level > 1:
            joined: tl.tuple = ()
            for index in tl.static_range(SIZE >> level + 1):
                joined += (tl.join(parts[index], parts[index + (SIZE >> level + 1)]),)
            parts = joined
    return tl.reshape(parts[0], [elements[0].shape[0], elements[0].shape[1], SIZE])


@triton.jit
def is_inside(also, place, size, maybe_before, maybe_after):
    """Return `also`, and whether a place is within the size. Only ends that the place may pass are checked."""
    inside = also
    if maybe_before:
        inside = inside & (place >= 0)
    if maybe_after:
        inside = inside & (place < size)
    return inside


@triton.jit
def window_element(
    windows, tap, other,
    KERNEL: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, OVERHANG: tl.constexpr,
):  # fmt: skip
    """Return element number `tap` of each window, counted along its rows; `other` where it lies outside the image.

    Only taps that can lie outside are checked: a window's first ones before the image, its last ones after the image.
    """
    down, across = tap // KERNEL[1] * DILATION[0], tap % KERNEL[1] * DILATION[1]
    below, beside = (KERNEL[0] - 1) * DILATION[0] - down, (KERNEL[1] - 1) * DILATION[1] - across
    inside = is_inside(windows.mask, windows.top + down, windows.height, down < PADDING[0], below < OVERHANG[0])
    inside = is_inside(inside, windows.left + across, windows.width, across < PADDING[1], beside < OVERHANG[1])
    # In 64 bits, so that all elements of a row but one are at a constant offset that the instruction holds.
    offset = tl.cast(down * windows.strides[2], tl.int64) + across * windows.strides[3]
    return tl.load(windows.pointers + offset, mask=inside, other=other)  # [OUTER, INNER]


@triton.jit
def window_around(
    row, column, number, windows_down, windows_across,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """Return the `number`-th window that may contain an element: its place (p, q), the tap, and whether it does.

    ACROSS successive numbers differ only in q.
    """
    p = (row + PADDING[0]) // STRIDE[0] - number // ACROSS
    q = (column + PADDING[1]) // STRIDE[1] - number % ACROSS
    down, across = row + PADDING[0] - p * STRIDE[0], column + PADDING[1] - q * STRIDE[1]
    r, s = down // DILATION[0], across // DILATION[1]
    rows_agree = (p >= 0) & (p < windows_down) & (r < KERNEL[0]) & (down % DILATION[0] == 0)
    columns_agree = (q >= 0) & (q < windows_across) & (s < KERNEL[1]) & (across % DILATION[1] == 0)
    # p like row, q like column; the tap and whether the window contains the element broadcast both.
    return p, q, r * KERNEL[1] + s, rows_agree & columns_agree


@triton.jit
def store_cells(
    first, second, images_ptr, strides, cells,
    BELOW: tl.constexpr, BESIDE: tl.constexpr, CELL: tl.constexpr, COLUMNS: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """Store one element of each cell of CELL rows and columns: the one BELOW and BESIDE its first one.

    PAIRED, a cell has two neighbouring columns; `second` belongs to the second column, and one store writes both.
    Storing a tile's last row several times is harmless then; a mask for it would split the store.
    """
    height, width = cells.height, cells.width
    rows = cells.row * CELL[0] + BELOW
    if PAIRED:
        block = tl.program_id(0) % tl.cdiv(tl.cdiv(width, 2), COLUMNS)
        columns = block * (2 * COLUMNS) + tl.arange(0, 2 * COLUMNS)[None, :]  # [1, 2 · COLUMNS]
        values = tl.interleave(first, second)  # [PLANES · ROWS, 2 · COLUMNS]
        mask = (rows < height) & (columns < width)
    else:
        columns = cells.column * CELL[1] + BESIDE
        values = first  # [OUTER, INNER]
        mask = cells.mask & (rows < height) & (columns < width)
    pointers = images_ptr + image_offsets(cells.image, cells.channel, rows, columns.to(rows.dtype), strides)
    tl.store(pointers, values.to(images_ptr.dtype.element_ty), mask=mask)
