"""What tests of exact products share: operands, one product through the kernels, and special values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from on_hopper import names_launched, only_on_hopper
from torch import Tensor

from tilesmith.ops.matmul.forward import forward
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch


def operands(layout: str, rows: int, columns: int, depth: int, *batch: int, device: str = "meta") -> list[Tensor]:
    """Return a and b of a layout: "n" for row-major, "t" for a transposed view."""
    sizes = [(rows, depth), (depth, columns)]
    return [
        torch.randn(*batch, *size, device=device) if one == "n" else torch.randn(*batch, *size[::-1], device=device).mT
        for one, size in zip(layout, sizes, strict=True)
    ]


def operands_among_nan(layout: str, rows: int, columns: int, depth: int) -> list[Tensor]:
    """Return operands on a GPU that lie among NaN: reading one element too many makes the result NaN."""
    return [_among_nan(one) for one in operands(layout, rows, columns, depth, device="cuda")]


def _among_nan(matrix: Tensor) -> Tensor:
    is_turned = matrix.stride(0) == 1
    rows = matrix.t() if is_turned else matrix
    place = torch.full((512, 512), float("nan"), device=matrix.device)[: rows.shape[0], : rows.shape[1]].copy_(rows)
    return place.t() if is_turned else place


def multiplied(a: Tensor, b: Tensor, bias: Tensor | None = None, activation: str = "", tf32: bool = False) -> Tensor:
    made: Tensor = forward(a, b, bias, activation, None, None, a.dtype, tf32)
    return made


def assert_as_exact_as_pytorch(a: Tensor, b: Tensor) -> None:
    """Assert that the error is at most PyTorch's, and that six runs give equal results."""
    right = a.double() @ b.double()
    ours = multiplied(a, b)
    # Sums of few terms may have an error of three roundings of the result in both.
    assert (ours - right).norm() <= max(1.1 * (a @ b - right).norm(), 1.8e-7 * right.norm())
    for _ in range(5):
        assert torch.equal(multiplied(a, b), ours)


def launches_of(*arguments: Any, target: str = "cuda:90", **named: Any) -> list[PlannedLaunch]:
    """Return the launches of one product on such a GPU."""
    with recorded_plans(target) as plans:
        multiplied(*arguments, **named)
    return [launch for plan in plans for launch in plan.launches]


def launched_on_hopper(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives the names of launched kernels. Seeds the random numbers."""
    only_on_hopper()
    torch.manual_seed(0)
    return names_launched(monkeypatch)


SPECIAL_VALUES = pytest.mark.parametrize(
    ("a", "b"),
    [
        (float("inf"), 1.0), (float("-inf"), -1.001), (float("inf"), 0.0), (float("inf"), float("-inf")),
        (float("nan"), 1.0), (3.4028234e38, 1.0), (3e38, -1.1), (-3.4e38, 1e20), (1e-40, 1.0), (1e-30, 1e-5),
    ],
)  # fmt: skip


def assert_special_values_come_out(layout: str, sizes: tuple[int, ...], a: float, b: float) -> None:
    """Assert that special values give the results of float32, and that other elements of the tile stay exact."""
    left, right = operands(layout, *sizes, device="cuda")
    left[3, 5], right[5, 7] = a, b
    ours, theirs = multiplied(left, right), left @ right
    torch.testing.assert_close(ours, theirs, equal_nan=True, atol=1e-4, rtol=1e-5)
    there = torch.ones_like(ours, dtype=torch.bool)
    there[3], there[:, 7] = False, False
    exact = left.double() @ right.double()
    torch.testing.assert_close(ours.double()[there], exact[there], atol=1e-4, rtol=1e-5)
