# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels carry no types: Triton reads their annotations as its own.
"""Which thread accesses which element, in compiled kernels."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tilesmith.toolchain.compiler import Binary, Target, compile_kernel
from tilesmith.toolchain.compiler.layouts import Blocked, LaidOutAccess, accesses_of, owners

HOPPER = Target("cuda", 90)


@triton.jit
def helper_kernel(pointers):
    return tl.load(pointers)  # in the helper


@triton.jit
def copy_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = helper_kernel(x_ptr + places)
    scale = tl.load(x_ptr)  # one number
    tl.store(y_ptr + places, x * scale)  # the result


@triton.jit
def tiles_kernel(x_ptr, scale_ptr, y_ptr, n_rows, PIPELINE: tl.constexpr):
    columns = tl.arange(0, 256)
    for start in tl.range(0, n_rows, 4, num_stages=PIPELINE):
        rows = start + tl.arange(0, 4)
        places = rows[:, None] * 256 + columns[None, :]
        x = tl.load(x_ptr + places)  # a tile
        scale = tl.load(scale_ptr + rows)[:, None]  # a slice
        tl.store(y_ptr + places, x * scale)


def compiled(kernel, **arguments: object) -> Binary:
    return compile_kernel(kernel, HOPPER, arguments, num_warps=4, enable_fp_fusion=True)


def access_at(binary: Binary, kernel, remark: str) -> LaidOutAccess:
    lines, first = inspect.getsourcelines(kernel.fn)
    line = next(first + place for place, text in enumerate(lines) if remark in text)
    (found,) = [one for one in accesses_of(binary) if (Path(one.file).name, one.line) == (Path(__file__).name, line)]
    return found


def test_accesses_are_found_by_their_own_line() -> None:
    binary = compiled(copy_kernel, x_ptr=torch.empty(4096), y_ptr=torch.empty(4096), BLOCK=1024)
    layout = Blocked((4,), (32,), (4,), (0,))
    in_helper = access_at(binary, helper_kernel, "in the helper")
    assert (in_helper.kind, in_helper.shape, in_helper.layout, in_helper.warps) == ("load", (1024,), layout, 1)
    result = access_at(binary, copy_kernel, "the result")
    assert (result.kind, result.shape, result.layout) == ("store", (1024,), layout)


def test_small_tensor_is_loaded_by_all_warps_and_stored_once() -> None:
    binary = compiled(copy_kernel, x_ptr=torch.empty(4096), y_ptr=torch.empty(4096), BLOCK=64)
    assert access_at(binary, helper_kernel, "in the helper").warps == 2
    assert access_at(binary, copy_kernel, "one number").warps == 4
    assert access_at(binary, copy_kernel, "the result").warps == 1


@pytest.mark.parametrize("pipeline", [1, 3])
def test_a_tile_may_be_copied_asynchronously(pipeline: int) -> None:
    tensors = {name: torch.empty(64, 256) for name in ("x_ptr", "scale_ptr", "y_ptr")}
    binary = compiled(tiles_kernel, **tensors, n_rows=64, PIPELINE=pipeline)
    assert binary.async_copies == (pipeline > 1)
    tile = access_at(binary, tiles_kernel, "a tile")
    assert (tile.kind, tile.shape) == ("load", (4, 256))
    assert isinstance(tile.layout, Blocked)
    assert tile.layout.order == (1, 0)


def test_a_slice_keeps_the_layout_it_was_cut_from() -> None:
    tensors = {name: torch.empty(64, 256) for name in ("x_ptr", "scale_ptr", "y_ptr")}
    binary = compiled(tiles_kernel, **tensors, n_rows=64, PIPELINE=1)
    cut = access_at(binary, tiles_kernel, "a slice")
    assert "#ttg.slice<{dim = 1" in binary.assembly["ttgir"]
    assert cut.shape == (4, 1)
    assert cut.layout == access_at(binary, tiles_kernel, "a tile").layout


def test_other_layouts_give_none() -> None:
    binary = compiled(copy_kernel, x_ptr=torch.empty(4096), y_ptr=torch.empty(4096), BLOCK=1024)
    text = binary.assembly["ttgir"].replace("order = [0]}>", "order = [0], CGALayout = [[1]]}>")
    clustered = replace(binary, assembly={"ttgir": text})
    assert access_at(clustered, copy_kernel, "the result").layout is None


def test_owners_of_a_row() -> None:
    warp, lane, register = owners((1024,), Blocked((4,), (32,), (4,), (0,)))
    assert [array[:5].tolist() for array in (warp, lane, register)] == [[0] * 5, [0, 0, 0, 0, 1], [0, 1, 2, 3, 0]]
    assert (warp[128], lane[127], register[512]) == (1, 31, 4)
    assert len(set(zip(warp.tolist(), lane.tolist(), register.tolist(), strict=True))) == 1024


def test_owners_of_a_tile_follow_the_order() -> None:
    layout = Blocked((1, 4), (4, 8), (2, 2), (1, 0))
    warp, lane, register = owners((16, 128), layout)
    assert lane[:4, ::4][:, :8].tolist() == np.arange(32).reshape(4, 8).tolist()
    assert [warp[0, 0], warp[0, 32], warp[4, 0], warp[4, 32]] == [0, 1, 2, 3]
    assert [register[0, 3], register[0, 64], register[8, 0]] == [3, 4, 8]
    assert len(set(zip(warp.flat, lane.flat, register.flat, strict=True))) == 16 * 128


def test_owners_wrap_where_a_tensor_is_smaller_than_its_layout() -> None:
    warp, lane, register = owners((4, 1), Blocked((1, 8), (1, 32), (2, 2), (1, 0)))
    assert warp.reshape(-1).tolist() == [0, 2, 0, 2]
    assert lane.reshape(-1).tolist() == [0, 0, 0, 0]
    assert register.reshape(-1).tolist() == [0, 0, 1, 1]
