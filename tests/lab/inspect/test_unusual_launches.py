"""Launches that a GPU refuses or does not run, and launches on a tensor passed twice."""

from __future__ import annotations

import re
import tracemalloc
from contextvars import copy_context
from itertools import islice
from typing import Any

import planted
import pytest
import torch
import triton
from reading import HOPPER, access, kinds, line_of, only

from tilesmith.lab.inspect import inspect
from tilesmith.lab.inspect.session import MOST_SIGNATURES
from tilesmith.lab.inspect.tracing.effects import every_program
from tilesmith.ops import attention_varlen


def test_programs_of_the_largest_grid_come_one_by_one() -> None:
    grid = (2**31 - 1, 65_535, 65_535)
    assert list(islice(every_program(grid), 3)) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert list(every_program((2, 1, 2))) == [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]


@pytest.mark.parametrize("grid", [(1, 65_536, 1), (1, 1, 65_536)])
def test_grid_that_cuda_refuses_is_an_error(grid: tuple[int, int, int]) -> None:
    axis = grid.index(65_536)
    found = inspect(lambda: planted.fill[grid](torch.empty(4), BLOCK=4), targets=(*HOPPER, "hip:gfx942"), programs=2)
    (finding,) = [one for one in found.findings if one.kind == "compile-error"]
    assert (finding.severity, finding.line, finding.target) == ("error", line_of(planted.fill, "def fill"), "cuda:90")
    assert f"65,536 programs on axis {axis}, CUDA allows 65,535" in finding.message


def test_scratch_memory_without_an_allocator_is_an_error() -> None:
    def program() -> None:
        planted.copy_with_descriptors[(1,)](torch.ones(64), torch.empty(64), 64, BLOCK=64)

    def with_allocator() -> None:
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
        program()

    finding = only(inspect(program, targets=(*HOPPER, "cuda:80")), "compile-error")
    assert finding.severity == "error"
    assert finding.line == line_of(planted.copy_with_descriptors, "def copy")
    assert finding.message.startswith("does not launch on cuda:90: each program needs 256 bytes of scratch memory")
    assert "triton.set_allocator(" in finding.advice
    assert "compile-error" not in kinds(copy_context().run(inspect, with_allocator, targets=HOPPER))


def test_addresses_of_billions_of_programs_are_computed_in_little_memory_while_there_is_time() -> None:
    def program() -> None:
        y = torch.zeros(4, device="cuda")
        triton.testing.do_bench(lambda: planted.stores_from_one_program[(2**31 - 1,)](y, 3_000_000))

    tracemalloc.start()
    try:
        found = inspect(program, targets=HOPPER, programs=2)
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()
    assert only(found, "out-of-bounds").program == (3_000_000, 0, 0)
    assert re.search(r"no more, because 2,\d{3},\d{3},\d{3} of its programs would take too", found.kernels[0].sampled)


def test_tensor_on_the_cpu_beside_tensors_on_the_gpu_is_named() -> None:
    def program(device: str) -> None:
        x, y, z = torch.ones(64, device="cuda"), torch.ones(64, device=device), torch.empty(64, device="cuda")
        planted.add[(1,)](x, y, z, 64, BLOCK=64)

    assert only(inspect(lambda: program("cpu"), targets=HOPPER), "host-tensor").message.startswith(
        "y_ptr is on the CPU"
    )
    assert "host-tensor" not in kinds(inspect(lambda: program("cuda"), targets=HOPPER))


def test_launches_on_cpu_tensors_alone_have_no_remark_about_them() -> None:
    x = torch.ones(64)
    assert "host-tensor" not in kinds(inspect(lambda: planted.add[(1,)](x, x, x.clone(), 64, BLOCK=64), targets=HOPPER))


def test_empty_grid_is_named() -> None:
    found = inspect(lambda: planted.add[(0,)](*[torch.empty(0)] * 3, 0, BLOCK=64), targets=HOPPER)
    assert (found.kernels, found.notes) == ((), ("the grid of add is empty, so no program runs",))


def test_tensor_passed_twice_is_accessed_once_by_each_argument() -> None:
    x = torch.ones(1000)
    found = inspect(lambda: planted.add[(4,)](x, x, torch.empty(1000), 1000, BLOCK=256), targets=HOPPER)
    (kernel,) = found.kernels
    assert {access(kernel, "load", name).accesses_per_element for name in ("x_ptr", "y_ptr")} == {1.0}
    finding = only(found, "redundant-load")
    assert "x_ptr and y_ptr, one tensor, 2.0 times" in finding.message
    assert finding.cost_bytes == 4 * 1000


def test_overlapping_views_count_their_own_elements() -> None:
    x = torch.ones(1001)
    found = inspect(lambda: planted.add[(4,)](x[:-1], x[1:], torch.empty(1000), 1000, BLOCK=256), targets=HOPPER)
    loads = [access(found.kernels[0], "load", name) for name in ("x_ptr", "y_ptr")]
    assert [one.accesses_per_element for one in loads] == [1.0, 1.0]


def test_narrow_accesses_name_the_lines_in_the_right_number() -> None:
    def message(kernel: Any, *tensors: torch.Tensor) -> str:
        return only(inspect(lambda: kernel[(1,)](*tensors, 1000, BLOCK=1024), targets=HOPPER), "misaligned").message

    x, y = torch.ones(1000), torch.empty(1000)
    store = line_of(planted.one_large_block, "tl.store")
    assert message(planted.one_large_block, x, y).endswith(f"so do the accesses in line {store}")
    lines = f"{line_of(planted.add, 'y = tl.load')}, {line_of(planted.add, 'tl.store')}"
    assert message(planted.add, x, x.clone(), y).endswith(f"so do the accesses in lines {lines}")


def test_masked_lanes_at_the_edges_of_tiles_are_not_blamed_on_a_block_larger_than_the_data() -> None:
    x, y = torch.ones(300), torch.empty(300)
    found = inspect(lambda: planted.copy[(2,)](x, y, 300, BLOCK=256), targets=HOPPER)
    assert {one.advice for one in found.findings if one.kind == "masked-waste"} == {
        "Blocks of 256 elements reach past the data: use smaller blocks, or sizes that divide the data."
    }


def test_compile_error_of_all_targets_is_shown_once() -> None:
    found = inspect(lambda: planted.type_changes[(1,)](torch.empty(1), 3))
    shown = found.report()
    assert shown.count("compile-error") == shown.count("does not compile") == 1
    assert "; the same on hip:gfx942" in shown
    assert [one.severity for one in found.findings if one.kind == "compile-error"] == ["error", "info"]


def test_kernel_that_does_not_compile_is_skipped_at_sizes_that_are_not_shown() -> None:
    def program() -> None:
        for size in range(10):
            y = torch.empty(size + 1, device="cuda")
            planted.fill[(size + 1,)](y, BLOCK=3)
            y.sum().item()

    found = inspect(program, targets=HOPPER)
    assert len(found.kernels) == MOST_SIGNATURES
    assert kinds(found) == {"compile-error"}


def test_operator_with_descriptors_allocates_their_memory() -> None:
    def program() -> None:
        q = torch.randn(48, 2, 64, dtype=torch.bfloat16, device="cuda")
        attention_varlen(q, q, q, torch.tensor([0, 16, 48], dtype=torch.int32, device="cuda"))

    found = inspect(program, targets=HOPPER)
    assert any(kernel.targets["cuda:90"].scratch_bytes for kernel in found.kernels)
    assert "compile-error" not in kinds(found)
