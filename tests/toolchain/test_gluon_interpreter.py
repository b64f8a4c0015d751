"""Gluon kernels in the interpreter: values, shared memory, TMA, mbarriers, wgmma and partitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilesmith.toolchain.gluon import described, fetch, put
from tilesmith.toolchain.interpreter import KernelError, interpreting


@gluon.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def row_sums(x_ptr, y_ptr, columns, ROWS: gl.constexpr, COLUMNS: gl.constexpr):  # type: ignore[no-untyped-def]
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    rows = gl.program_id(0) * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    places = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    mask = (places < columns)[None, :]
    x = gl.load(x_ptr + rows[:, None] * columns + places[None, :], mask=mask, other=0.0)
    shared = gl.allocate_shared_memory(gl.float32, [ROWS, COLUMNS], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    shared.store(x)
    x = shared.permute([1, 0]).load(layout)
    sums = gl.sum(gl.convert_layout(x, layout), axis=0)
    gl.store(y_ptr + rows, gl.convert_layout(sums, gl.SliceLayout(1, x.type.layout)))


@gluon.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def products(a, b, c, STEPS: gl.constexpr, WAITS: gl.constexpr, BYTES: gl.constexpr, ENDS: gl.constexpr):  # type: ignore[no-untyped-def]
    """One tile of a · b, by TMA and wgmma, with two buffers."""
    a_buffers = gl.allocate_shared_memory(a.dtype, [2, *a.block_type.shape], a.layout)
    b_buffers = gl.allocate_shared_memory(b.dtype, [2, *b.block_type.shape], b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(2):
        mbarrier.init(ready.index(index), count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    total = gl.zeros([64, 64], gl.float32, layout)
    for step in range(STEPS):
        index = step % 2
        mbarrier.expect(ready.index(index), BYTES)
        fetch(a, [0, step * 64], ready.index(index), a_buffers.index(index))
        fetch(b, [step * 64, 0], ready.index(index), b_buffers.index(index))
        if WAITS:
            mbarrier.wait(ready.index(index), step // 2 & 1)
        total = warpgroup_mma(a_buffers.index(index), b_buffers.index(index), total, is_async=True)
        total = warpgroup_mma_wait(0, deps=(total,))
    c_buffer = gl.allocate_shared_memory(c.dtype, c.block_type.shape, c.layout)
    c_buffer.store(total.to(c.dtype))
    fence_async_shared()
    put(c, [0, 0], c_buffer)
    if ENDS:
        tma.store_wait(0)


@gluon.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def producer(x, buffers, full, empty, STEPS: gl.constexpr):  # type: ignore[no-untyped-def]
    for step in range(STEPS):
        index = step % 2
        mbarrier.wait(empty.index(index), (step // 2 & 1) ^ 1)
        mbarrier.expect(full.index(index), x.block_type.nbytes)
        fetch(x, [step * 16, 0], full.index(index), buffers.index(index))


@gluon.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def consumer(y_ptr, buffers, full, empty, STEPS: gl.constexpr, RELEASES: gl.constexpr):  # type: ignore[no-untyped-def]
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    rows = gl.arange(0, 16, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))
    places = rows[:, None] * 32 + columns[None, :]
    for step in range(STEPS):
        index = step % 2
        mbarrier.wait(full.index(index), step // 2 & 1)
        mbarrier.arrive(empty.index((step - 1) % 2), count=1, pred=False)  # names a buffer of index -1
        if RELEASES == "early":
            mbarrier.arrive(empty.index(index), count=1)
        x = buffers.index(index).load(layout)
        if RELEASES == "late":
            mbarrier.arrive(empty.index(index), count=1)
        gl.store(y_ptr + step * 512 + places, 2 * x)


@gluon.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def doubled(x, y_ptr, STEPS: gl.constexpr, RELEASES: gl.constexpr):  # type: ignore[no-untyped-def]
    buffers = gl.allocate_shared_memory(x.dtype, [2, *x.block_type.shape], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(2):
        mbarrier.init(full.index(index), count=1)
        mbarrier.init(empty.index(index), count=1)
    gl.warp_specialize(
        [(consumer, (y_ptr, buffers, full, empty, STEPS, RELEASES)), (producer, (x, buffers, full, empty, STEPS))],
        [1],
        [24],
    )


def run_products(
    steps: int = 3, waits: bool = True, tile_bytes: int = 2 * 64 * 64 * 2, ends: bool = True
) -> tuple[Any, Any]:
    torch.manual_seed(0)
    a, b = torch.randn(64, 64 * steps).half(), torch.randn(64 * steps, 64).half()
    c = torch.empty(64, 64).half()
    tiles = [described(one, one.shape, one.stride(), [64, 64]) for one in (a, b, c)]
    with interpreting():
        products[(1,)](*tiles, steps, waits, tile_bytes, ends)
    return c, (a.float() @ b.float()).half()


def run_doubled(releases: str) -> tuple[Any, Any]:
    x = torch.randn(80, 32)
    y = torch.empty(80, 32)
    with interpreting():
        doubled[(1,)](described(x, x.shape, x.stride(), [16, 32]), y, 5, releases)
    return y, 2 * x


def test_values_and_shared_memory_of_several_programs() -> None:
    x, y = torch.randn(8, 50), torch.empty(8)
    with interpreting():
        row_sums[(2,)](x, y, 50, ROWS=4, COLUMNS=64)
    torch.testing.assert_close(y, x.sum(1))


def test_tma_and_wgmma_with_two_buffers() -> None:
    found, expected = run_products()
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-3)


def test_wgmma_that_does_not_wait_for_its_operands_is_an_error() -> None:
    with pytest.raises(KernelError, match=r"wgmma \(line \d+\) of shared memory .* does not wait for the TMA load"):
        run_products(waits=False)


def test_mbarrier_that_expects_too_many_bytes_never_ends() -> None:
    with pytest.raises(KernelError, match=r"waits for ever: the mbarrier lacks 64 bytes"):
        run_products(tile_bytes=2 * 64 * 64 * 2 + 64)


def test_kernel_that_ends_before_its_store_is_an_error() -> None:
    with pytest.raises(KernelError, match=r"the kernel does not wait for the TMA store \(line \d+\) before it ends"):
        run_products(ends=False)


def test_partitions_pass_buffers_to_each_other() -> None:
    found, expected = run_doubled("late")
    assert torch.equal(found, expected)


def test_buffer_released_before_it_is_read_is_an_error() -> None:
    with pytest.raises(KernelError, match="does not wait for"):
        run_doubled("early")


def test_partitions_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(KernelError, match=r"every partition waits: partition 0 at line \d+.*; partition 1 at line"):
        run_doubled("never")


@gluon.jit
def unwritten(y_ptr):  # type: ignore[no-untyped-def]
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    shared = gl.allocate_shared_memory(gl.float32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gl.store(y_ptr + gl.arange(0, 128, layout=layout), shared.load(layout))


def test_shared_memory_that_nobody_wrote_is_an_error() -> None:
    with pytest.raises(KernelError, match="reads 128 of 128 elements that nothing has written"), interpreting():
        unwritten[(1,)](torch.empty(128))


def test_clusters_are_named_as_unknown() -> None:
    with pytest.raises(KernelError, match=r"does not know clusters \(num_ctas=2\)"), interpreting():
        unwritten[(1,)](torch.empty(128), num_ctas=2)


def test_triton_kernels_compile_after_a_gluon_kernel_ran() -> None:
    before = gl.load, triton.language.static_range, gl.shared_memory_descriptor.load
    run_doubled("late")
    assert before == (gl.load, triton.language.static_range, gl.shared_memory_descriptor.load)
    assert not hasattr(triton.language.block_type, "layout")


@gluon.jit
def assembled(x_ptr, y_ptr, z_ptr):  # type: ignore[no-untyped-def]
    places = gl.arange(0, 64, layout=gl.BlockedLayout([1], [32], [2], [0]))
    (x,) = (gl.load(x_ptr + places),)
    hidden = gl.inline_asm_elementwise(
        "{.reg .pred seen; setp.le.s32 seen, $2, 9; selp.f32 $0, $1, 0fFF800000, seen;}",
        "=f,f,r", [x, places], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip
    gl.store(y_ptr + places, hidden)
    pair = gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x, -x], dtype=gl.int32, is_pure=True, pack=1
    )
    gl.store(z_ptr + places, pair)


def test_inline_assembly_selects_and_packs() -> None:
    x, y, z = torch.randn(64), torch.empty(64), torch.empty(64, dtype=torch.int32)
    with interpreting():
        assembled[(1,)](x, y, z)
    assert torch.equal(y, torch.where(torch.arange(64) <= 9, x, float("-inf")))
    assert torch.equal(z.view(torch.bfloat16).view(64, 2), torch.stack([x, -x], 1).bfloat16())
