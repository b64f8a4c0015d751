"""float64 is double precision throughout: kernels get eps, scale and other numbers in double precision too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl
from differentiation import forward_and_backward
from specialisation import planned_launches

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.spec import Case, Spec
from tilesmith.toolchain.compiler import Target, compile_kernel

# Numbers that no float32 holds, so that one rounding to float32 shows in the ninth digit.
NUMBERS: dict[str, list[dict[str, Any]]] = {
    "add_rms_norm": [{"eps": 0.1}],
    "attention": [{"scale": 0.3}, {"softcap": 0.7, "scale": 0.9}, {"dropout": 0.3, "seed": 5}],
    "attention_update": [{"eps": 0.1}],
    "attention_varlen": [{"scale": 0.3}, {"softcap": 0.7}, {"dropout": 0.3, "seed": 5}],
    "cross_entropy": [{"label_smoothing": 0.1}],
    "edge_norm": [{"eps": 0.1}],
    "layer_norm": [{"eps": 0.1}],
    "linear_cross_entropy": [{"label_smoothing": 0.1}, {"softcap": 0.7, "scale": 0.3}],
    "msa_column_attention": [{"scale": 0.3}],
    "msa_row_attention": [{"scale": 0.3}],
    "outer_product_mean": [{"eps": 0.1}],
    "rms_norm": [{"eps": 0.1}],
    "rms_norm_relu": [{"eps": 0.1}],
    "rms_norm_rope": [{"eps": 0.1}],
    "transition": [{"eps": 0.1}],
    "triangle_attention": [{"scale": 0.3}],
    "triangle_multiply": [{"eps": 0.1}],
}


def test_every_number_of_every_operator_is_tried() -> None:
    for name, spec in SPECS.items():
        parameters = spec.op.__signature__.parameters  # type: ignore[attr-defined]  # an Operator
        floats = {one.name for one in parameters.values() if one.annotation in ("float", "float | None", float)}
        assert floats <= {number for numbers in NUMBERS.get(name, []) for number in numbers}, name


def test_float64_holds_fourteen_digits(spec: Spec, small_case: Case) -> None:
    torch.manual_seed(3)
    for numbers in NUMBERS.get(spec.name, [{}]):
        inputs = spec.inputs(small_case, torch.float64, "cpu") | numbers
        with ts.use("interpret"):
            ours = forward_and_backward(spec.op, inputs)
        right = forward_and_backward(spec.reference, inputs)
        for what, value in right.items():
            error = (ours[what] - value).abs().max() / value.abs().max().clamp(min=1e-300)
            assert error < 1e-14, f"{what} is off by {error:.1e} with {numbers}"


@pytest.mark.parametrize("name", ["rms_norm", "cross_entropy"])
def test_double_precision_constants_compile(name: str) -> None:
    spec = SPECS[name]
    case = spec.case("smoothed") if name == "cross_entropy" else spec.cases[0]
    for launch in planned_launches(spec, case, torch.float64):
        constants = [value for value in launch.arguments.values() if isinstance(value, tl.constexpr)]
        if constants:
            compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
            assert all(isinstance(one.value, float) for one in constants)


def test_single_precision_launches_have_no_constants() -> None:
    """One compiled kernel serves every eps."""
    for launch in planned_launches(SPECS["rms_norm"], SPECS["rms_norm"].cases[0], torch.float32):
        assert not any(isinstance(value, tl.constexpr) for value in launch.arguments.values())
