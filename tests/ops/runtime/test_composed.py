"""Products over very many rows, made of shorter sums."""

from __future__ import annotations

import pytest
import torch

from tilesmith.ops.runtime import composed
from tilesmith.ops.runtime.composed import product_over_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 16, 23, 24, 100])
def test_no_row_is_lost_and_none_counted_twice(rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composed, "ROWS_OF_A_SUM", 8)
    monkeypatch.setattr(composed, "MOST_SUMS", 4)
    torch.manual_seed(rows)
    a = torch.randint(-4, 5, (rows, 3)).to(dtype)
    b = torch.randint(-4, 5, (2, rows)).to(dtype).t()  # sums of small whole numbers have no error
    assert torch.equal(product_over_rows(a, b), (a.double().t() @ b.double()).to(dtype))


def test_sums_in_single_precision_are_as_short_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def noted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        lengths.append(right.shape[1])
        return left @ right

    monkeypatch.setattr(torch, "bmm", noted)
    many = composed.ROWS_OF_A_SUM * 3
    product_over_rows(torch.ones(many, 2), torch.ones(many, 3))
    product_over_rows(torch.ones(many, 2, dtype=torch.bfloat16), torch.ones(many, 3, dtype=torch.bfloat16))
    product_over_rows(torch.ones(many * composed.MOST_SUMS, 2), torch.ones(many * composed.MOST_SUMS, 3))
    assert lengths == [composed.ROWS_OF_A_SUM, many]
