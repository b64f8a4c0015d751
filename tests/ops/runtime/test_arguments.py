"""Checks of operators' arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilesmith.ops.runtime.arguments import (
    require_dimensions,
    require_floating,
    require_number,
    require_same_device,
    require_vector,
)

VECTOR = torch.zeros(4)


def test_valid_arguments_pass() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        require_floating("op", x=VECTOR.to(dtype))
    require_same_device("op", x=VECTOR, weight=None, bias=VECTOR)
    require_dimensions("op", "x", VECTOR, at_least=1)
    require_vector("op", "weight", VECTOR, 4, of="x")
    require_vector("op", "weight", None, 4, of="x")
    for number in (0, 0.0, 1, 2.5, float("inf")):
        require_number("op", "eps", number, at_least=0.0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1.0], "x is a list, but must be a tensor"),
        (VECTOR.long(), "x has dtype int64, but must be one of float32, float16, bfloat16, float64"),
        (VECTOR.to_sparse(), "x has layout sparse_coo, but must be a dense tensor"),
    ],
    ids=["list", "int64", "sparse"],
)
def test_non_floating_point_tensor_is_rejected(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"^op: {words}$"):
        require_floating("op", x=value)


def test_tensor_on_another_device_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"^op: bias is on meta, but x is on cpu; they must share a device$"):
        require_same_device("op", x=VECTOR, weight=None, bias=VECTOR.to("meta"))


def test_too_few_dimensions_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"^op: x has 1 dimensions \(shape \(4,\)\), but must have at least 2$"):
        require_dimensions("op", "x", VECTOR, at_least=2)


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        (torch.zeros(3), "weight has 3 elements, but x has 4 columns"),
        (torch.zeros(1, 4), r"weight has shape \(1, 4\), but must be a vector of 4 elements"),
        (torch.tensor(0.0), r"weight has shape \(\), but must be a vector of 4 elements"),
    ],
    ids=["length", "matrix", "scalar"],
)
def test_vector_of_wrong_length_is_rejected(vector: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=f"^op: {words}$"):
        require_vector("op", "weight", vector, 4, of="x")


@pytest.mark.parametrize("value", ["1", None, True, torch.tensor(1.0), 1j], ids=lambda value: type(value).__name__)
def test_non_number_is_rejected(value: object) -> None:
    with pytest.raises(TypeError, match=f"^op: eps is a {type(value).__name__}, but must be a number$"):
        require_number("op", "eps", value, at_least=0.0)


@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), float("-inf")])
def test_too_small_number_is_rejected(value: float) -> None:
    with pytest.raises(ValueError, match=f"^op: eps is {value}, but must be at least 0$"):
        require_number("op", "eps", value, at_least=0.0)
