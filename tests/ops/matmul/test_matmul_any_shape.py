"""Half-precision products of any shape: operands that TMA cannot walk are copied; sizes decide the tiles."""

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.matmul.planning.tile_times import TILES, Times
from tilesmith.ops.runtime.kernels import recorded_plans

H200 = 132  # multiprocessors


def launched(a: Tensor, b: Tensor) -> list[str]:
    """Return the kernels that the product of operands like these launches on Hopper."""
    with recorded_plans("cuda:90") as plans, ts.use("triton"):
        ts.ops.matmul(a.to("meta"), b.to("meta"))
    return [launch.kernel.__name__ for plan in plans for launch in plan.launches]


def operand(rows: int, columns: int, walk: str, dtype: torch.dtype, batch: tuple[int, ...] = ()) -> Tensor:
    """Return a random matrix: "rows" or "columns" contiguous, "steps": neither, "offset": an odd address."""
    if walk == "columns":
        return torch.randn(*batch, columns, rows).to(dtype).mT
    if walk == "steps":
        return torch.randn(*batch, rows, 2 * columns).to(dtype)[..., ::2]
    if walk == "offset":
        size = rows * columns
        return torch.randn(size + 1).to(dtype)[1:].view(rows, columns)
    return torch.randn(*batch, rows, columns).to(dtype)


def require_product(a: Tensor, b: Tensor) -> None:
    exact = a.double() @ b.double()
    with ts.use("interpret"):
        y = ts.ops.matmul(a, b)
    # One rounding of the result, and sums in float32 of up to 67 terms.
    bound = exact.abs() * torch.finfo(a.dtype).eps + 67 * 2**-23 * (a.double().abs() @ b.double().abs())
    assert ((y.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("b_walk", ["rows", "columns", "steps", "offset"])
@pytest.mark.parametrize("a_walk", ["rows", "columns", "steps", "offset"])
def test_operands_that_tma_cannot_walk_are_copied(a_walk: str, b_walk: str, dtype: torch.dtype) -> None:
    a, b = operand(35, 67, a_walk, dtype), operand(67, 41, b_walk, dtype)
    require_product(a, b)
    assert launched(a, b)[0] == "realign_kernel"


def test_only_the_operand_that_needs_a_copy_is_copied() -> None:
    a, b = operand(40, 67, "rows", torch.bfloat16), operand(67, 48, "rows", torch.bfloat16)
    require_product(a, b)
    with recorded_plans("cuda:90") as plans, ts.use("triton"):
        ts.ops.matmul(a.to("meta"), b.to("meta"))
    copying = plans[0].launches[0]
    assert copying.kernel.__name__ == "realign_kernel"
    assert copying.arguments["b_ptr"] is None


def test_odd_depth_copies_both_float32_operands() -> None:
    """TMA could walk b, but both operands must have the same depth, zeros included."""
    a, b = operand(35, 67, "rows", torch.float32), operand(67, 44, "rows", torch.float32)
    require_product(a, b)
    with recorded_plans("cuda:90") as plans, ts.use("triton"):
        ts.ops.matmul(a.to("meta"), b.to("meta"))
    assert plans[0].launches[0].arguments["b_ptr"] is not None


@pytest.mark.parametrize("walk", ["rows", "columns"])
def test_half_precision_copies_read_along_memory(walk: str) -> None:
    a, b = operand(35, 67, walk, torch.bfloat16), operand(67, 41, walk, torch.bfloat16)
    with recorded_plans("cuda:90") as plans, ts.use("triton"):
        ts.ops.matmul(a.to("meta"), b.to("meta"))
    arguments = plans[0].launches[0].arguments
    assert arguments["a_strides"][2] == arguments["b_strides"][2] == 1  # type: ignore[index]  # tuples of strides


@pytest.mark.parametrize("shared", [False, True])
def test_batches_are_copied(shared: bool) -> None:
    a = operand(35, 67, "rows", torch.bfloat16, (3,))
    b = operand(67, 41, "rows", torch.bfloat16, () if shared else (3,))
    require_product(a, b)


def test_gradients_of_odd_sizes_are_right() -> None:
    a, b = (one.requires_grad_() for one in (operand(35, 67, "rows", torch.bfloat16), torch.randn(67, 41).bfloat16()))
    dy = torch.randn(35, 41).bfloat16()
    with ts.use("interpret"):
        da, db = torch.autograd.grad(ts.ops.matmul(a, b), (a, b), dy)
    torch.testing.assert_close(da.double(), dy.double() @ b.double().T, rtol=2**-7, atol=1e-4)
    torch.testing.assert_close(db.double(), a.double().T @ dy.double(), rtol=2**-7, atol=1e-4)


def test_aligned_operands_few_rows_and_other_dtypes_are_not_copied() -> None:
    assert "realign_kernel" not in launched(torch.empty(64, 64).bfloat16(), torch.empty(64, 64).bfloat16())
    assert "realign_kernel" not in launched(torch.empty(5, 4097).bfloat16(), torch.empty(4097, 4099).bfloat16())
    assert "realign_kernel" not in launched(torch.empty(64, 67).double(), torch.empty(67, 65).double())


def test_small_operand_is_copied_however_few_its_rows() -> None:
    a, b = operand(20, 67, "rows", torch.bfloat16), operand(67, 256, "rows", torch.bfloat16)
    require_product(a, b)
    assert launched(a, b)[0] == "realign_kernel"


@pytest.mark.parametrize("b_walk", ["rows", "columns", "steps"])
@pytest.mark.parametrize("a_walk", ["rows", "columns", "steps"])
@pytest.mark.parametrize("depth", [64, 67])
def test_exact_operands_are_copied_along_depth_with_zeros_at_the_end(a_walk: str, b_walk: str, depth: int) -> None:
    a, b = operand(35, depth, a_walk, torch.float32), operand(depth, 41, b_walk, torch.float32)
    require_product(a, b)
    if "steps" not in (a_walk, b_walk) and (depth % 4 or a_walk == "columns" or b_walk == "rows"):
        assert launched(a, b)[:2] == ["realign_kernel", "matmul_hopper_exact_kernel"]


def test_infinite_elements_meet_no_padding() -> None:
    a, b = operand(35, 67, "rows", torch.float32), operand(67, 41, "rows", torch.float32)
    a[3, 66] = float("inf")
    with ts.use("interpret"):
        y = ts.ops.matmul(a, b)
    assert y[3].isinf().all()
    assert y[:3].isfinite().all()
    assert y[4:].isfinite().all()


@pytest.mark.parametrize(("sizes", "rows"), [((1, 4096, 14336), 16), ((16, 8192, 8192), 16), ((8192, 8192, 8192), 128)])
def test_tiles_are_as_high_as_the_product_has_rows_for(sizes: tuple[int, int, int], rows: int) -> None:
    assert Times(*sizes, 1, H200).fastest()[1].rows == rows


def test_few_deep_tiles_split_the_depth() -> None:
    _, _, split_k = Times(945, 2304, 28680, 1, H200).fastest()
    assert split_k > 1
    assert 28680 // split_k >= 256
    assert Times(4096, 4096, 4096, 1, H200).fastest()[2] == 1


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}x{tile.depth}")
def test_more_work_takes_no_less_time(tile: object) -> None:
    for deeper in (1024, 4096):
        small, large = Times(512, 512, deeper, 1, H200), Times(1024, 1024, 2 * deeper, 1, H200)
        assert small.microseconds(tile) <= large.microseconds(tile)  # type: ignore[arg-type]  # parametrize is untyped
