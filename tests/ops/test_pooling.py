"""What max_pool2d and avg_pool2d share: every window and layout PyTorch takes, and the input they reject."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pooling_comparison import assert_as_torchs_pooling

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.dispatch import configured

OPERATORS = {name: SPECS[name].op for name in ("max_pool2d", "avg_pool2d")}
BOTH = pytest.mark.parametrize("name", OPERATORS)


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": (1, 3), "stride": (2, 1)},
    {"kernel_size": [3], "stride": [2], "padding": [1]},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    {"kernel_size": (5, 4), "stride": (1, 2), "padding": (2, 1)},
    {"kernel_size": 6, "stride": 1, "padding": 3},
    {"kernel_size": 1, "stride": 4},
]


@BOTH
@pytest.mark.parametrize("options", WINDOWS, ids=str)
def test_pooling_takes_every_window_that_pytorch_takes(name: str, options: dict[str, Any]) -> None:
    assert_as_torchs_pooling(name, torch.randn(2, 3, 7, 6), **options)


@BOTH
@pytest.mark.parametrize("layout", ["one image", "channels last", "transposed", "sliced", "one channel", "no images"])
def test_pooling_takes_every_layout(name: str, layout: str) -> None:
    x = {
        "one image": torch.randn(3, 6, 5),
        "channels last": torch.randn(2, 20, 6, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(5, 6, 3, 2).permute(3, 2, 1, 0),
        "sliced": torch.randn(4, 6, 12, 10)[::2, ::2, ::2, ::2],
        "one channel": torch.randn(2, 1, 6, 5).to(memory_format=torch.channels_last),
        "no images": torch.randn(0, 3, 6, 5),
    }[layout]
    y = OPERATORS[name](x, 3, 2, 1)
    torch.testing.assert_close(y, SPECS[name].reference(x, 3, 2, 1))
    if layout not in ("transposed", "sliced"):
        assert_as_torchs_pooling(name, x, kernel_size=3, stride=2, padding=1)


WINDOWS_OVER_PIECES: list[dict[str, Any]] = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2},  # rows of the result are not aligned
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": (2, 5), "stride": (3, 1), "padding": (0, 2)},
    {"kernel_size": 2, "stride": 4, "padding": 1},
]


# PyTorch rounds the gradients of half-precision means at every step, so avg_pool2d is compared in single.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("max_pool2d", torch.float32), ("max_pool2d", torch.bfloat16), ("avg_pool2d", torch.float32)],
)
@pytest.mark.parametrize("options", WINDOWS_OVER_PIECES, ids=str)
def test_pooling_reads_the_right_columns_as_vectors(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    """Few distinct values: every window has ties."""
    assert_as_torchs_pooling(name, torch.randint(-2, 2, (2, 2, 11, 24)).to(dtype), **options)


@BOTH
@pytest.mark.parametrize("cell", [{"DOWN": 1, "ALONG": 1}, {"DOWN": 8, "ALONG": 2}, {"ALONG": 8}], ids=str)
def test_pooling_takes_any_number_of_windows_per_cell(name: str, cell: dict[str, int]) -> None:
    with configured(**cell):
        assert_as_torchs_pooling(name, torch.randn(1, 2, 11, 24), kernel_size=3, stride=2, padding=1)
        assert_as_torchs_pooling(
            name, torch.randn(1, 20, 5, 6).to(memory_format=torch.channels_last), kernel_size=3, stride=2
        )


@BOTH
@pytest.mark.parametrize("mode", ["auto", "interpret"])
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"x": torch.ones(4, 4)}, ValueError, r"x has 2 dimensions \(shape \(4, 4\)\), but must have 4, or 3"),
        ({"x": torch.ones(2, 0, 4, 4)}, ValueError, "x has no channels"),
        ({"x": torch.ones(2, 3, 0, 4)}, ValueError, "x has no rows"),
        ({"x": torch.ones(2, 3, 4, 0)}, ValueError, "x has no columns"),
        ({"kernel_size": 0}, ValueError, "kernel_size is 0, but must be at least 1"),
        ({"kernel_size": (2, -1)}, ValueError, r"kernel_size is \(2, -1\), but must be at least 1"),
        ({"kernel_size": (2, 2, 2)}, ValueError, "kernel_size has 3 numbers, but must have one or two"),
        ({"kernel_size": 2.5}, TypeError, "kernel_size is a float, but must be a whole number or two"),
        ({"kernel_size": (2, 2.5)}, TypeError, "kernel_size holds a float, but must hold whole numbers"),
        ({"kernel_size": True}, TypeError, "kernel_size is a bool"),
        ({"kernel_size": "two"}, TypeError, "kernel_size is a str"),
        ({"kernel_size": 9}, ValueError, "a window covers 9 rows, but x has 4, with padding 4"),
        ({"kernel_size": (1, 7), "padding": (0, 1)}, ValueError, "a window covers 7 columns, but x has 4, with padd"),
        ({"stride": 0}, ValueError, "stride is 0, but must be at least 1"),
        ({"padding": -1}, ValueError, "padding is -1, but must be at least 0"),
        ({"padding": 2}, ValueError, "padding is 2, but must be at most half of what a window covers, which is 2"),
        ({"ceil_mode": 1}, TypeError, "ceil_mode is a int, but must be True or False"),
    ],
)
def test_pooling_rejects(name: str, mode: Any, arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^{name}: {words}"):
        OPERATORS[name](**{"x": torch.ones(2, 3, 4, 4), "kernel_size": 2, **arguments})
