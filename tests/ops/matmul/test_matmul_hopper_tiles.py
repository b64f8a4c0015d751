"""`hopper/tiles`: that its results are right, interpreted and on Hopper, when it is chosen, and with which tiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from on_hopper import interpreted, names, names_launched, only_on_hopper
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import configured
from tilesmith.ops.matmul import matmul
from tilesmith.ops.matmul.planning.half_tiles import TILES, HalfTilesConfig
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import Plan, PlannedLaunch
from tilesmith.toolchain.compiler import Target, compile_kernel

KERNEL, SUM = "matmul_hopper_tiles_kernel", "sum_partial_products_kernel"
LAYOUTS = ("NN", "NT", "TN", "TT")


def operands(
    rows: int, columns: int, depth: int, layout: str = "NT", batch: tuple[int, ...] = (),
    dtype: torch.dtype = torch.bfloat16, device: str = "cpu",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return a and b, with row-major memory ("N") or its transpose ("T")."""
    torch.manual_seed(0)
    made = [
        torch.randn(*batch, *(shape if order == "N" else shape[::-1]), dtype=dtype, device=device)
        for shape, order in zip(((rows, depth), (depth, columns)), layout, strict=True)
    ]
    a, b = (one if order == "N" else one.mT for one, order in zip(made, layout, strict=True))
    return a, b


def planned(a: Tensor, b: Tensor, **fields: Any) -> Plan:
    """Return the plan on an H200; with fields, this form's with these values."""
    left, right = (torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta") for one in (a, b))
    asked = {"form": "half_tiles", **fields} if fields else {}
    with recorded_plans() as plans, configured(**asked):
        matmul(left, right)
    (plan,) = plans
    return plan


def assert_right(y: Tensor, a: Tensor, b: Tensor) -> None:
    exact = a.double() @ b.double()
    assert y.shape == exact.shape
    assert (y.double() - exact).abs().max() <= 6e-3 * exact.abs().max()


def launch_of(plan: Plan) -> PlannedLaunch:
    return plan.launches[0]


def config_of(plan: Plan) -> HalfTilesConfig:
    config = launch_of(plan).config
    assert isinstance(config, HalfTilesConfig)
    return config


# Sizes that leave the last tiles partly empty in rows, columns and depth; two blocks of columns; both orientations.
TRIED: dict[str, tuple[tuple[int, int, int], tuple[int, ...], dict[str, Any]]] = {
    "two blocks": ((136, 200, 200), (), {"ROWS": 128, "COLUMNS": 64, "MORE": 32}),
    "two blocks, turned": ((136, 200, 200), (), {"ROWS": 128, "COLUMNS": 64, "MORE": 32, "TURNED": True}),
    "tall": ((264, 136, 136), (), {"ROWS": 256, "COLUMNS": 64}),
    "parts of the depth": ((8, 520, 328), (), {"COLUMNS": 16, "TURNED": True, "split_k": 4}),
    "parts of the depth, two blocks": ((136, 200, 328), (), {"COLUMNS": 64, "MORE": 32, "split_k": 3}),
    "batch": ((136, 128, 72), (3,), {"COLUMNS": 64, "MORE": 32, "TURNED": True}),
    "batch, parts of the depth": ((136, 128, 136), (3,), {"COLUMNS": 64, "split_k": 2}),
}


@pytest.mark.parametrize("tried", TRIED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_interpreted_results_are_right(tried: str, layout: str) -> None:
    sizes, batch, fields = TRIED[tried]
    a, b = operands(*sizes, layout, batch, torch.float16 if "turned" in tried else torch.bfloat16)
    plan = planned(a, b, **fields)
    assert names(plan) == [KERNEL, *[SUM] * ("split_k" in fields)]
    assert_right(interpreted(plan, [a, b])[0], a, b)


def test_tiles_that_follow_each_other_in_one_program_are_right() -> None:
    a, b = operands(264, 264, 136)
    plan = planned(a, b, ROWS=128, COLUMNS=64, MORE=32)
    (launch,) = plan.launches
    assert launch.grid == (9, 1, 1)
    plan.launches[0] = PlannedLaunch(launch.kernel, (2, 1, 1), launch.arguments, launch.config)
    assert_right(interpreted(plan, [a, b])[0], a, b)


def test_results_that_tma_cannot_store_are_right() -> None:
    a, b = operands(136, 131, 136)
    plan = planned(a, b, COLUMNS=64, MORE=32)
    assert launch_of(plan).arguments["y"] is None
    assert_right(interpreted(plan, [a, b])[0], a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("tried", TRIED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_on_hopper_are_right(tried: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only_on_hopper()
    (rows, columns, depth), batch, fields = TRIED[tried]
    a, b = operands(8 * rows, 8 * columns, 8 * depth, layout, batch, device="cuda")
    launched = names_launched(monkeypatch)
    with configured(form="half_tiles", **fields), ts.use("triton"):
        y = matmul(a, b)
    assert launched[0] == KERNEL
    assert_right(y, a, b)


def test_matrix_that_a_batch_shares_runs_another_kernel() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(136, 72, dtype=torch.bfloat16), torch.randn(3, 72, 128, dtype=torch.bfloat16)
    assert KERNEL not in names(planned(a, b, COLUMNS=64))


def test_rows_that_tma_loads_one_by_one_take_wider_tiles() -> None:
    """Rows of 10,264 elements are no multiple of 32 bytes: on an H200 tiles of 128×128 take 88 µs, of 128×256 60.7."""
    tiles = {
        depth: config_of(planned(*operands(419, 3584, depth, "NN", device="meta"))).COLUMNS for depth in (10264, 10272)
    }
    assert tiles == {10264: 256, 10272: 128}


# On an H200, in µs: with this kernel, without it, and by cuBLAS.
CHOSEN = {
    (284, 14336, 2880): "43.9, 58.2, 36.3",
    (896, 4864, 8192): "118, 157, 98.6",
    (1536, 6144, 4096): "104, 121, 99.0",
    (256, 3584, 18944): "61.9, 82.9, 54.3",
}


@pytest.mark.parametrize("sizes", CHOSEN, ids=str)
def test_products_of_few_tiles_run_this_kernel(sizes: tuple[int, int, int]) -> None:
    assert KERNEL in names(planned(*operands(*sizes, device="meta")))


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(4096, 4096, 4096), (8192, 8192, 2048), (512, 512, 64), (64, 64, 64)]
)
def test_products_of_many_tiles_or_little_work_do_not(rows: int, columns: int, depth: int) -> None:
    assert KERNEL not in names(planned(*operands(rows, columns, depth, device="meta")))


def test_an_epilogue_runs_another_kernel() -> None:
    a, b = operands(284, 14336, 2880, device="meta")
    with recorded_plans() as plans:
        matmul(a, b, bias=torch.empty(14336, dtype=a.dtype, device="meta"))
    assert KERNEL not in names(plans[0])


def test_programs_share_the_depth_of_deep_products() -> None:
    config = config_of(planned(*operands(256, 3584, 18944, device="meta")))
    assert config.split_k > 1


def test_few_rows_are_the_columns_of_tiles() -> None:
    a, b = operands(32, 8192, 8192, device="meta")
    config = config_of(planned(a, b, COLUMNS=32, TURNED=True))
    assert launch_of(planned(a, b, COLUMNS=32, TURNED=True)).arguments["n_rows"] == 8192
    assert config.TURNED


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_tiles_compile_without_spills(tile: tuple[int, int, int], layout: str) -> None:
    rows, columns, more = tile
    for turned, split_k in ((False, 1), (True, 2)):
        a, b = operands(1024, 1024, 2048, layout, device="meta")
        fields = {"ROWS": rows, "COLUMNS": columns, "MORE": more, "TURNED": turned, "split_k": split_k, "STAGES": 8}
        launch = launch_of(planned(a, b, **fields))
        binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
        assert binary.spill_bytes == 0
