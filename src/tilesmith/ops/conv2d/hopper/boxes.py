"""Positions as boxes that TMA loads and stores: some images, rows and columns, with a block of channels.

The descriptor of images has five dimensions: images, groups of rows, rows of a group, groups of columns, and columns of
a group times channels. Without a stride a group is one row or column. With a stride of two, a group is two rows: the
rows that one tap reads are those of one place in all groups, so a box of them is contiguous in groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tilesmith.ops.conv2d.problem import FEWEST_CHANNELS
from tilesmith.ops.device.hopper import runs_on_hopper
from tilesmith.ops.runtime.plan import Operand, Plan

FAR = gl.constexpr(1 << 12)  # more groups than a window reaches beyond an image: makes rows before it positive


UNIT = 8  # elements of 16 bytes, the least that TMA loads


class Boxes(NamedTuple):
    """How many boxes lie side by side across an image and down; images follow."""

    across: Any
    down: Any


@gluon.jit
def place_of_box(box, boxes, FORM: gl.constexpr):
    """Return the first image, row and column of a box."""
    IMAGES: gl.constexpr = FORM.POSITIONS // (FORM.BOX_ROWS * FORM.BOX_COLUMNS)
    row = box // boxes.across % boxes.down * FORM.BOX_ROWS
    return box // boxes.across // boxes.down * IMAGES, row, box % boxes.across * FORM.BOX_COLUMNS


@gluon.jit
def group_of(offset, step):
    """Return the group of a row or column `offset` from that of position 0, and its place in the group."""
    shifted = offset + FAR * step
    return shifted // step - FAR, shifted % step


@gluon.constexpr_function
def half_of_box(part, positions, rows, columns):
    """Return how many images, rows and columns further the part-th half of a box begins."""
    images = positions // (rows * columns)
    if images > 1:
        return part * images // 2, 0, 0
    return (0, part * rows // 2, 0) if rows > 1 else (0, 0, part * columns // 2)


def half_box(images: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the sides of half a box."""
    if images > 1:
        return images // 2, rows, columns
    return (1, rows // 2, columns) if rows > 1 else (1, 1, columns // 2)


def in_groups(images: Operand, steps: Sequence[int]) -> Operand | None:
    """Return images [N, C, H, W] as the five dimensions above, or None where TMA cannot load them so."""
    (batch, channels, height, width), (of_image, of_channel, of_row, of_column) = images.shape, images.strides
    down, across = steps
    if of_channel != 1 or height % down or width % across:
        return None
    grouped = images.seen_as(
        (batch, height // down, down, width // across, (across - 1) * of_column + channels),
        (of_image, down * of_row, of_row, across * of_column, 1),
    )
    return grouped if grouped.describable() else None


def unit_of_rows(plan: Plan, dtype: torch.dtype, sizes: Sequence[int], groups: int) -> int:
    """Return the multiple of elements that channels must begin at for the Hopper kernels; 1 where these do not run.

    `sizes`: the channels and outputs. With fewer than 16 of one, most of a block would be empty.
    """
    runs = runs_on_hopper(plan) and dtype in (torch.bfloat16, torch.float16) and groups == 1
    return UNIT if runs and min(sizes) >= FEWEST_CHANNELS else 1
