"""transpose in what is its own: any layout in, no gaps out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.dispatch import configured
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.toolchain.compiler import Target, compile_kernel

transpose = SPECS["transpose"].op


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def views() -> dict[str, Tensor]:
    return {
        "a matrix": torch.randn(5, 70),
        "already transposed": torch.randn(9, 5).mT,
        "sliced both ways": torch.randn(12, 10)[::2, ::3],
        "expanded rows": torch.randn(1, 6).expand(5, 6),
        "several batch dimensions that do not merge": torch.randn(3, 2, 4, 5, 6).permute(1, 0, 2, 3, 4)[:, :, ::2],
        "more batch dimensions than a kernel walks": torch.randn(2, 3, 2, 3, 2, 5).permute(3, 2, 1, 0, 4, 5),
        "one row": torch.randn(2, 1, 33),
        "one column": torch.randn(2, 33, 1),
        "overlapping windows": torch.randn(20).unfold(0, 6, 2),
    }


@pytest.mark.parametrize("name", views())
def test_transpose_of_any_layout_is_contiguous(name: str) -> None:
    x = views()[name].requires_grad_()
    y = transpose(x)
    torch.testing.assert_close(y, x.mT, rtol=0, atol=0)
    assert y.is_contiguous()
    cotangent = torch.randn(y.shape)
    (gradient,) = torch.autograd.grad(y, x, cotangent)
    torch.testing.assert_close(gradient, cotangent.mT, rtol=0, atol=0)


def test_transpose_gradient_moves_nothing() -> None:
    x = torch.randn(2, 5, 7, requires_grad=True)
    y = transpose(x)
    cotangent = torch.randn(y.shape)
    (gradient,) = torch.autograd.grad(y, x, cotangent)
    assert gradient.data_ptr() == cotangent.data_ptr()


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 3, 4), (3, 0, 4), (2, 3, 0)], ids=str)
def test_transpose_takes_empty_matrices(shape: tuple[int, ...]) -> None:
    assert transpose(torch.randn(shape)).shape == torch.randn(shape).mT.shape


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_transpose_rejects_fewer_than_two_dimensions(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"^transpose: x has {len(shape)} dimensions .* but must have at least 2"):
        transpose(torch.randn(shape))


def test_transpose_is_exact_in_every_dtype() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(3, 67, 9).to(dtype)
        torch.testing.assert_close(transpose(x), x.mT, rtol=0, atol=0)


@pytest.mark.parametrize("name", views())
def test_transpose_by_axes_of_any_layout(name: str) -> None:
    x = views()[name]
    with configured(ROWS=4, COLUMNS=8):
        torch.testing.assert_close(transpose(x), x.mT, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1, 28672), (28672, 1)], ids=str)
def test_transpose_by_axes_copies_one_row_or_column_in_vectors(shape: tuple[int, int]) -> None:
    with recorded_plans("cuda:90") as plans:
        transpose(torch.empty(shape, dtype=torch.bfloat16, device="meta"))
    (launch,) = plans[0].launches
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert {access.vector_bytes for access in binary.accesses} == {16}
    assert binary.shared_bytes == 0


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize(
    ("shape", "small", "tile"),
    [
        ((553, 517), True, (32, 32)),
        ((1100, 1300), True, (32, 32)),
        ((2, 28672), True, (2, 512)),
        ((8192, 8192), False, (128, 128)),
        ((2000, 1999), False, (64, 64)),
        ((512, 256, 256), False, (128, 128)),
    ],
    ids=str,
)
def test_transpose_takes_small_tiles_by_axes_where_there_are_few(
    shape: tuple[int, ...], small: bool, tile: tuple[int, int], target: str
) -> None:
    with recorded_plans(target) as plans:
        transpose(torch.empty(shape, dtype=torch.bfloat16, device="meta"))
    (launch,) = plans[0].launches
    if target == "cuda:90":
        assert launch.arguments["BY_AXES"] is small
        assert (launch.arguments["ROWS"], launch.arguments["COLUMNS"]) == tile
    binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0
