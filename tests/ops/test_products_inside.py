"""Products inside other operators: ours where single precision must be exact, the BLAS everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.matmul.inside import product, rectified
from tilesmith.ops.runtime.kernels import recorded_plans


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def small_numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    """Whole numbers, whose sums have no error."""
    return torch.randint(-4, 5, shape).to(dtype)


def over_rows(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a, b, c = (small_numbers(*shape, dtype=dtype) for shape in ((200, 3), (200, 5), (5,)))
    right = a.double().t() @ b.double()
    assert torch.equal(product(a.t(), b, c).double(), right + c.double())
    return product(a.t(), b), right


def of_a_batch(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a, b = small_numbers(3, 7, 9, dtype=dtype), small_numbers(3, 5, 9, dtype=dtype).mT
    return product(a, b), a.double() @ b.double()


def with_a_rectifier(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a, b, c = (small_numbers(*shape, dtype=dtype) for shape in ((7, 9), (9, 5), (5,)))
    return rectified(a, b, c), (a.double() @ b.double() + c.double()).relu()


EVERY_KIND = pytest.mark.parametrize("kind", [over_rows, of_a_batch, with_a_rectifier])


@EVERY_KIND
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_is_right(kind: Callable[[torch.dtype], tuple[Tensor, Tensor]], dtype: torch.dtype) -> None:
    ours, right = kind(dtype)
    assert torch.equal(ours.double(), right.to(dtype).double())


@EVERY_KIND
def test_is_ours_where_single_precision_must_be_exact(
    kind: Callable[[torch.dtype], tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("by the BLAS")

    for name in ("mm", "bmm", "addmm", "_addmm_activation"):
        monkeypatch.setattr(torch, name, refused)
    kind(torch.float32)
    with pytest.raises(AssertionError, match="by the BLAS"):
        kind(torch.bfloat16)
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(AssertionError, match="by the BLAS"):
            kind(torch.float32)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_sum_over_very_many_rows_is_made_of_shorter_ones() -> None:
    """Of 16,384 rows, as the gradient of a weight has them for every pair of 64 residues of 4 chains."""
    a, b = (torch.empty(16384, columns, device="meta") for columns in (640, 128))
    with recorded_plans("cuda:90") as plans:
        product(a.t(), b)
    tiles, total = [launch for plan in plans for launch in plan.launches]
    steps, block = (cast(int, tiles.arguments[name]) for name in ("steps_per_share", "BLOCK_K"))
    assert total.kernel.__name__ == "sum_shares_kernel"
    assert steps * block <= 4096
