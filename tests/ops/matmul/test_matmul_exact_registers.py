"""`hopper/exact_registers`: when it is chosen, how programs share the work, and on Hopper that its results are
right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact_products import (
    SPECIAL_VALUES,
    assert_as_exact_as_pytorch,
    assert_special_values_come_out,
    launched_on_hopper,
    launches_of,
    multiplied,
    operands,
    operands_among_nan,
)
from specialisation import key_of
from torch import Tensor

from tilesmith.ops import configured
from tilesmith.toolchain.compiler import Target, compile_kernel

KERNEL = "matmul_hopper_rows_kernel"
AHEAD = "matmul_hopper_exact_kernel"
LAYOUTS = ["nn", "nt", "tn"]
"""a and b: "n" row-major, "t" a transposed view."""

FORM: dict[str, Any] = {"form": "exact_registers", "BLOCK_N": 128, "B_SLOTS": 4, "split_k": 0}
WIDTHS: dict[int, dict[str, Any]] = {
    width: {**FORM, "BLOCK_N": width, "B_SLOTS": 4 * 128 // width} for width in (128, 64)
}


class TestChoice:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize(
        "sizes", [(16384, 512, 128), (16384, 128, 640), (512, 128, 16384), (1024, 4096, 512)], ids=str
    )
    def test_many_rows_and_a_long_depth_run_this_kernel(self, layout: str, sizes: tuple[int, ...]) -> None:
        assert launches_of(*operands(layout, *sizes))[0].kernel.__name__ == KERNEL

    @pytest.mark.parametrize(
        "sizes", [(4096, 256, 64), (64, 64, 64), (64, 256, 4096), (128, 128, 16384), (16384, 128, 128)], ids=str
    )
    def test_small_products_run_exact_shared(self, sizes: tuple[int, ...]) -> None:
        assert launches_of(*operands("nn", *sizes))[0].kernel.__name__ == AHEAD

    @pytest.mark.parametrize(
        ("sizes", "tile"),
        [((64, 32, 4096, 64), (64, 32)), ((64, 8192, 512, 4), (64, 128)), ((512, 8192, 64, 4), (64, 64))],
        ids=str,
    )
    def test_batches_get_tiles_that_fit_their_matrices(self, sizes: tuple[int, ...], tile: tuple[int, int]) -> None:
        launch = launches_of(*operands("nn", *sizes))[0]
        assert launch.kernel.__name__ == AHEAD
        assert (launch.arguments["BLOCK_M"], launch.arguments["BLOCK_N"]) == tile

    def test_few_columns_get_narrow_tiles_and_no_split_k(self) -> None:
        (launch,) = launches_of(*operands("nn", 4096, 64, 256))
        assert launch.kernel.__name__ == KERNEL
        assert launch.arguments["BLOCK_N"] == 32

    @pytest.mark.parametrize(
        "given",
        [
            operands("tt", 16384, 512, 128),
            operands("nn", 2048, 256, 128, 3),
            [*operands("nn", 16384, 512, 128), torch.empty(1024, device="meta")[::2]],
            operands("nt", 16384, 510, 128),
        ],
        ids=["both-transposed", "a-batch", "a-bias-with-gaps", "columns-no-whole-units"],
    )
    def test_problems_it_cannot_take_run_exact_shared(self, given: list[Tensor]) -> None:
        """In large tiles, with the warps that these need; also where a sweep names this form."""
        for fields in ({}, FORM):
            with configured(**fields):
                launch = launches_of(*given)[0]
            assert (launch.kernel.__name__, launch.config.num_warps) == (AHEAD, 8)

    @pytest.mark.parametrize("fields", [{"num_warps": 8}, {"BLOCK_M": 64}, {"BLOCK_K": 64}], ids=str)
    def test_other_tiles_run_exact_shared(self, fields: dict[str, int]) -> None:
        with configured(**fields):
            assert launches_of(*operands("nn", 16384, 512, 128))[0].kernel.__name__ == AHEAD

    def test_batch_of_another_size_does_not_compile_again(self) -> None:
        keys = {key_of(launches_of(*operands("nt", rows, 512, 128))[0]) for rows in (16384, 16001, 40000)}
        assert len(keys) == 1


class TestWalkers:
    def test_every_multiprocessor_walks_one_column_of_tiles(self) -> None:
        (launch,) = launches_of(*operands("nt", 16384, 512, 128))
        assert launch.arguments["n_walkers"] == 33
        assert launch.grid[0] == 4 * 33
        assert launch.arguments["HELD"]

    def test_depth_beyond_shared_memory_is_not_held(self) -> None:
        (launch,) = launches_of(*operands("nn", 16384, 128, 512))
        assert not launch.arguments["HELD"]

    def test_no_program_of_a_split_k_is_empty(self) -> None:
        """33 programs would fit, but 512 steps, 16 each, are 32."""
        launch, total = launches_of(*operands("tn", 512, 128, 16384))
        assert launch.arguments["steps_per_split"] == 16
        assert launch.grid[0] == 4 * 32
        assert total.arguments["n_partials"] == 32
        assert total.arguments["PARTIALS"] == 32

    def test_walkers_are_at_most_the_blocks_of_rows(self) -> None:
        with configured(**FORM):
            (launch,) = launches_of(*operands("nn", 200, 128, 64))
        assert launch.arguments["n_walkers"] == launch.grid[0] == 2


COMPILED_FIRST = {("tn", 1000)}


@pytest.mark.parametrize(
    ("layout", "columns", "depth"),
    [
        pytest.param(layout, columns, depth, marks=[] if (layout, depth) in COMPILED_FIRST else [pytest.mark.slow])
        for columns in (276,)
        for depth in (128, 1000)
        for layout in LAYOUTS
    ],
)
def test_compiles_to_wgmma_with_rows_in_registers(layout: str, columns: int, depth: int) -> None:
    with configured(**{**FORM, "split_k": 1}):
        (launch,) = launches_of(*operands(layout, 4096, columns, depth), torch.empty(columns, device="meta"), "relu")
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert launch.kernel.__name__ == KERNEL
    assert binary.spill_bytes == 0
    products = [line for line in binary.assembly["ptx"].splitlines() if "wgmma.mma_async" in line]
    assert len(products) == 2 * 6 * 2  # two warpgroups, six products, each of two that are 16 deep
    assert all(line.count("{") == 2 for line in products), "sums and rows of a are lists of registers"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return launched_on_hopper(monkeypatch)


SIZES = {  # rows, columns, depth
    "whole-tiles": (256, 128, 128),
    "rows-of-a-model": (16384, 128, 512),
    "over-many-rows": (128, 256, 16384),
    "an-edge-everywhere": (332, 276, 100),
    "less-than-a-tile": (20, 36, 28),
    "deep-and-odd": (68, 76, 5012),
    "several-blocks-with-b-held": (17200, 136, 96),
    "several-blocks-with-b-split-anew": (17200, 136, 520),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_sizes_of_the_gpu_tests_are_planned_for_this_kernel(layout: str, width: int, sizes: tuple[int, ...]) -> None:
    with configured(**WIDTHS[width]):
        launch, *_ = launches_of(*operands(layout, *sizes))
    assert (launch.kernel.__name__, launch.arguments["BLOCK_N"]) == (KERNEL, width)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_error_is_at_most_pytorchs_and_every_run_is_equal(
    layout: str, width: int, sizes: tuple[int, ...], launched: list[str]
) -> None:
    with configured(**WIDTHS[width]):
        assert_as_exact_as_pytorch(*operands(layout, *sizes, device="cuda"))
    assert launched.count(KERNEL) == 6


@pytest.mark.gpu
def test_result_of_a_row_does_not_depend_on_the_number_of_rows(launched: list[str]) -> None:
    a, b = operands("nt", 17200, 512, 128, device="cuda")
    assert torch.equal(multiplied(a, b)[9000:16384], multiplied(a[9000:16384], b))
    assert launched == [KERNEL, KERNEL]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_reads_nothing_beyond_the_edges(layout: str, width: int, launched: list[str]) -> None:
    a, b = operands_among_nan(layout, 332, 276, 100)
    with configured(**WIDTHS[width]):
        torch.testing.assert_close(multiplied(a, b).double(), a.double() @ b.double(), atol=1e-4, rtol=1e-5)
    assert launched.count(KERNEL) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(400, 136, 100), (64, 48, 4096)], ids=["at-once", "split-k"])
def test_bias_and_relu_match_float64(sizes: tuple[int, ...], launched: list[str]) -> None:
    a, b = operands("nt", *sizes, device="cuda")
    bias = torch.randn(sizes[1], device="cuda")
    right = a.double() @ b.double() + bias.double()
    with configured(**FORM):
        torch.testing.assert_close(multiplied(a, b, bias).double(), right, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(multiplied(a, b, bias, "relu").double(), right.relu(), atol=1e-4, rtol=1e-5)
    assert launched.count(KERNEL) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(256, 128, 128), (68, 72, 2052)], ids=str)
@SPECIAL_VALUES
def test_special_values_match_float32(
    layout: str, sizes: tuple[int, ...], a: float, b: float, launched: list[str]
) -> None:
    with configured(**FORM):
        assert_special_values_come_out(layout, sizes, a, b)
    assert launched.count(KERNEL) == 1
