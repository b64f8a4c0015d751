"""`hopper/exact_shared`: when it is chosen, and on Hopper that its results are right."""

from __future__ import annotations

from contextlib import AbstractContextManager
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

import tilesmith as ts
from tilesmith.ops import configured
from tilesmith.ops.matmul.forward import forward_keeping_z
from tilesmith.ops.matmul.internal.exact_or_blas import product, product_with_relu
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.toolchain.compiler import Target, compile_kernel

KERNEL = "matmul_hopper_exact_kernel"
LAYOUTS = ["nn", "nt", "tn", "tt"]
"""a and b: "n" row-major, "t" a transposed view."""


def imagined(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def names_of(*arguments: Any, **named: Any) -> list[str]:
    return [launch.kernel.__name__ for launch in launches_of(*arguments, **named)]


def split_ahead(sizes: tuple[int, ...]) -> AbstractContextManager[None]:
    """Inside, products that `exact_registers` would take run this kernel, in large tiles."""
    large = {"form": "exact_shared", "num_warps": 8, "BLOCK_M": 128, "BLOCK_N": 128}
    return configured(**large if 16384 in sizes else {})


class TestChoice:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("sizes", [(2048, 256, 128, 3), (64, 256, 4096), (64, 64, 64, 512), (100, 92, 84)], ids=str)
    def test_batches_and_small_products_run_this_kernel(self, layout: str, sizes: tuple[int, ...]) -> None:
        assert names_of(*operands(layout, *sizes))[0] == KERNEL

    @pytest.mark.parametrize(
        ("layout", "sizes"), [("nn", (4096, 4096, 4096)), ("tt", (1024, 1024, 1024)), ("tt", (8192, 512, 512))], ids=str
    )
    def test_large_products_are_split_in_memory(self, layout: str, sizes: tuple[int, ...]) -> None:
        """A few thousand rows only where `exact_registers` cannot compute them."""
        assert names_of(*operands(layout, *sizes)) == ["split_bf16x3_kernel", "matmul_descriptors_kernel"]

    @pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
    def test_other_gpus_never_run_this_kernel(self, target: str) -> None:
        assert KERNEL not in names_of(*operands("nn", 16384, 128, 128), target=target)

    @pytest.mark.parametrize(
        ("a", "b"),
        [
            (imagined(64, 128)[:, :126], imagined(126, 64)),
            (imagined(64, 128), imagined(128, 128)[:, :126]),
            (imagined(64, 128)[:, :126].t(), imagined(64, 128)),
            (imagined(2, 3, 64, 128).transpose(0, 1), imagined(3, 2, 128, 64)),
            (imagined(1).as_strided((64, 128), (1 << 24, 1)), imagined(128, 64)),
        ],
        ids=[
            "rows-of-a-no-whole-units", "rows-of-b-no-whole-units", "columns-of-a-no-whole-units",
            "a-batch-of-two-dimensions", "rows-far-apart",
        ],
    )  # fmt: skip
    def test_layouts_it_cannot_load_go_to_another_form(self, a: Tensor, b: Tensor) -> None:
        names = names_of(a, b)
        assert names
        assert KERNEL not in names

    @pytest.mark.parametrize(
        "a",
        [imagined(64, 130)[:, :128], imagined(64, 128, 2)[:, :, 0], imagined(1, 128).expand(64, 128)],
        ids=["rows-off-units", "no-neighbours", "one-row-for-all"],
    )
    def test_rows_that_tma_cannot_walk_are_copied_first(self, a: Tensor) -> None:
        assert names_of(a, imagined(128, 64)) == ["realign_kernel", KERNEL]

    @pytest.mark.parametrize("activation", ["silu", "gelu"])
    def test_epilogues_it_lacks_go_to_the_pointer_form(self, activation: str) -> None:
        a, b = operands("nn", 64, 64, 64)
        assert names_of(a, b, activation="relu") == [KERNEL]
        assert names_of(a, b, activation=activation) == ["matmul_pointers_kernel"]
        with recorded_plans() as plans:
            forward_keeping_z(a, b, None, activation, None, None, a.dtype, False)
        assert [launch.kernel.__name__ for launch in plans[0].launches] == ["matmul_pointers_kernel"]

    def test_other_precisions_never_run_this_kernel(self) -> None:
        a, b = operands("nn", 16384, 128, 128)
        assert KERNEL not in names_of(a.bfloat16(), b.bfloat16())
        assert KERNEL not in names_of(a, b, tf32=True)

    def test_interpreter_runs_the_pointer_form(self) -> None:
        a, b = operands("nn", 24, 20, 40, device="cpu")
        with ts.use("interpret"), configured(form="exact_shared"):
            torch.testing.assert_close(product(a, b), a @ b)

    def test_tiles_that_no_warpgroup_takes_go_to_the_pointer_form(self) -> None:
        a, b = operands("nn", 64, 64, 64)
        for fields in ({"BLOCK_M": 32}, {"num_warps": 2}, {"BLOCK_M": 64, "num_warps": 8}):
            with configured(**fields):
                assert names_of(a, b) == ["matmul_pointers_kernel"]

    def test_few_columns_get_narrow_tiles(self) -> None:
        launch, total = launches_of(*operands("nn", 2048, 16, 2048, 4))
        assert launch.kernel.__name__ == "matmul_pointers_kernel"
        assert launch.arguments["BLOCK_N"] == 16
        assert total.arguments["n_partials"] == 2

    def test_batch_of_another_size_does_not_compile_again(self) -> None:
        keys = {
            key_of(launches_of(*operands(layout, rows, 128, 128))[0])
            for layout in ("nn", "nt")
            for rows in (4096, 4001)
        }
        assert len(keys) == 2


COMPILED_FIRST = {("nn", 16384), ("tt", 1000)}


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        pytest.param(layout, sizes, marks=[] if (layout, sizes[0]) in COMPILED_FIRST else [pytest.mark.slow])
        for sizes in ((16384, 128, 128), (64, 64, 64), (1000, 200, 100))
        for layout in LAYOUTS
    ],
)
def test_compiles_to_wgmma_with_loads_of_16_bytes(layout: str, sizes: tuple[int, ...]) -> None:
    with split_ahead(sizes):
        (launch,) = launches_of(*operands(layout, *sizes))
    assert launch.kernel.__name__ == KERNEL
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    ptx = binary.assembly["ptx"]
    assert binary.spill_bytes == 0
    assert "wgmma.mma_async.sync.aligned.m64n" in ptx
    loads = [line for line in ptx.splitlines() if "ld.global" in line]
    assert loads
    assert all(".v4." in line for line in loads)


SIZES = {  # rows, columns, depth, and how many
    "whole-tiles": (256, 128, 128),
    "rows-of-a-model": (16384, 128, 512),
    "over-many-rows": (128, 256, 16384),
    "an-edge-everywhere": (332, 276, 100),
    "less-than-a-tile": (20, 36, 28),
    "one-step-of-depth": (640, 136, 32),
    "deep-and-odd": (68, 76, 5012),
    "many": (64, 64, 64, 512),
    "many-with-edges": (100, 92, 84, 7),
    "many-over-many-rows": (64, 128, 4100, 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_sizes_of_the_gpu_tests_are_planned_for_this_kernel(layout: str, sizes: tuple[int, ...]) -> None:
    with split_ahead(sizes):
        assert names_of(*operands(layout, *sizes))[0] == KERNEL


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return launched_on_hopper(monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_error_is_at_most_pytorchs_and_every_run_is_equal(
    layout: str, sizes: tuple[int, ...], launched: list[str]
) -> None:
    with split_ahead(sizes):
        assert_as_exact_as_pytorch(*operands(layout, *sizes, device="cuda"))
    assert launched.count(KERNEL) == 6


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [64, 128])
def test_reads_nothing_beyond_the_edges(layout: str, block: int, launched: list[str]) -> None:
    a, b = operands_among_nan(layout, 332, 276, 100)
    with configured(BLOCK_M=block, BLOCK_N=block, num_warps=block // 16):
        torch.testing.assert_close(multiplied(a, b).double(), a.double() @ b.double(), atol=1e-4, rtol=1e-5)
    assert launched.count(KERNEL) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(400, 136, 100), (64, 48, 4096)], ids=["at-once", "split-k"])
def test_bias_and_relu_match_float64(sizes: tuple[int, ...], launched: list[str]) -> None:
    a, b = operands("nt", *sizes, device="cuda")
    bias = torch.randn(2 * sizes[1], device="cuda")[::2]
    right = a.double() @ b.double() + bias.double()
    torch.testing.assert_close(product(a, b, bias).double(), right, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(product_with_relu(a, b, bias).double(), right.relu(), atol=1e-4, rtol=1e-5)
    assert launched.count(KERNEL) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(256, 128, 256), (64, 64, 96), (68, 72, 2052)], ids=str)
@SPECIAL_VALUES
def test_special_values_match_float32(
    layout: str, sizes: tuple[int, ...], a: float, b: float, launched: list[str]
) -> None:
    assert_special_values_come_out(layout, sizes, a, b)
    assert launched.count(KERNEL) == 1


@pytest.mark.gpu
def test_overlapping_and_shared_operands_match_float64(launched: list[str]) -> None:
    a, b = torch.randn(68, 96, device="cuda"), torch.randn(5, 96, 72, device="cuda")
    torch.testing.assert_close(multiplied(a, b).double(), a.double() @ b.double(), atol=1e-4, rtol=1e-5)
    windows = torch.randn(100, 128, device="cuda").as_strided((97, 128), (4, 1))
    torch.testing.assert_close(
        multiplied(windows, windows.t()).double(), windows.double() @ windows.double().t(), atol=1e-4, rtol=1e-5
    )
    assert launched.count(KERNEL) == 1 + 1
