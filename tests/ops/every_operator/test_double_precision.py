"""float64 is double precision throughout: kernels get eps, scale and other numbers in double precision too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from differentiation import forward_and_backward

import tilesmith as ts
from tilesmith.ops import SPECS

# Numbers that no float32 holds, so that one rounding to float32 shows in the ninth digit.
NUMBERS: dict[str, list[dict[str, Any]]] = {
    "add_rms_norm": [{"eps": 0.1}],
    "attention": [{"scale": 0.3}, {"softcap": 0.7, "scale": 0.9}, {"dropout": 0.3, "seed": 5}],
    "attention_update": [{"eps": 0.1}],
    "attention_varlen": [{"scale": 0.3}, {"softcap": 0.7}, {"dropout": 0.3, "seed": 5}],
    "cross_entropy": [{"label_smoothing": 0.1}],
    "edge_norm": [{"eps": 0.1}],
    "layer_norm": [{"eps": 0.1}],
    "linear_cross_entropy": [{"label_smoothing": 0.1}],
    "msa_column_attention": [{"scale": 0.3}],
    "msa_row_attention": [{"scale": 0.3}],
    "outer_product_mean": [{"eps": 0.1}],
    "rms_norm": [{"eps": 0.1}],
    "rms_norm_relu": [{"eps": 0.1}],
    "transition": [{"eps": 0.1}],
    "triangle_attention": [{"scale": 0.3}],
    "triangle_multiply": [{"eps": 0.1}],
}
CALLS = [(name, numbers) for name in SPECS for numbers in NUMBERS.get(name, [{}])]


def test_every_number_of_every_operator_is_tried() -> None:
    for name, spec in SPECS.items():
        parameters = spec.op.__signature__.parameters  # type: ignore[attr-defined]  # an Operator
        floats = {one.name for one in parameters.values() if one.annotation in ("float", "float | None", float)}
        assert floats <= {number for numbers in NUMBERS.get(name, []) for number in numbers}, name


@pytest.mark.parametrize(("name", "numbers"), CALLS, ids=[f"{name} {' '.join(numbers)}" for name, numbers in CALLS])
def test_float64_holds_fourteen_digits(name: str, numbers: dict[str, Any]) -> None:
    from conftest import SMALLER, _second_smallest

    spec = SPECS[name]
    torch.manual_seed(3)
    case = _second_smallest(name).with_sizes(**SMALLER.get(name, {}))
    inputs = spec.inputs(case, torch.float64, "cpu") | numbers
    with ts.use("interpret"):
        ours = forward_and_backward(spec.op, inputs)
    right = forward_and_backward(spec.reference, inputs)
    for what, value in right.items():
        error = (ours[what] - value).abs().max() / value.abs().max().clamp(min=1e-300)
        assert error < 1e-14, f"{what} is off by {error:.1e}"
