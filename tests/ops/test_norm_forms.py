"""Every form of the norms' kernels, at sizes small enough for the interpreter: right kernels, right results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
from differentiation import assert_same, cotangent_of, forward_and_backward, leaves_of, tensors_of
from specialisation import planned_launches
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops import SPECS
from tilesmith.ops.add_rms_norm import backward as backward_of_sum
from tilesmith.ops.add_rms_norm import forward as norm_of_sum
from tilesmith.ops.device import teams
from tilesmith.ops.rms_norm import one_plus
from tilesmith.ops.rms_norm.forward import forward as norm
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import Plan
from tilesmith.spec import Inputs, is_differentiable
from tilesmith.toolchain.compiler import Target, compile_kernel

NORMS = ["rms_norm", "add_rms_norm", "rms_norm_relu", "layer_norm"]
FORWARD_FORMS: dict[str, dict[str, Any]] = {
    "forward_kernel": {"form": "registers", "BLOCK_SIZE": 64, "ROWS": 2},
    "forward_blocks_kernel": {"form": "blocks", "BLOCK_SIZE": 16, "ROWS": 2},
}
BACKWARD_FORMS: dict[str, dict[str, Any]] = {
    "backward_kernel": {"BLOCK_SIZE": 64, "ROWS": 2, "PIPELINE": 3},
    "team_backward_kernel": {"BLOCK_SIZE": 128, "ROWS": 1, "PIPELINE": 2, "form": "team"},  # a team of one
    "backward_tiles_kernel": {"BLOCK_SIZE": 16, "ROWS": 2, "form": "two sweeps"},
}
WEIGHTS = pytest.mark.parametrize("parameters", [True, False], ids=["with parameters", "without"])


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with ts.use("interpret"):
        yield


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are launched from here on."""
    names: list[str] = []
    run = Plan.run

    def noted(plan: Plan, arguments: Any) -> Any:
        names.extend(launch.kernel.__name__ for launch in plan.launches)
        return run(plan, arguments)

    monkeypatch.setattr(Plan, "run", noted)
    return names


def inputs_of(operator: str, parameters: bool, dtype: torch.dtype = torch.float32) -> Inputs:
    """More rows than programs, and columns that fill no block."""
    torch.manual_seed(0)
    spec = SPECS[operator]
    inputs = spec.inputs(spec.cases[1].with_sizes(rows=7, cols=43), dtype, "cpu")
    return {name: value if parameters or name not in ("weight", "bias") else None for name, value in inputs.items()}


@WEIGHTS
@pytest.mark.parametrize("form", [*FORWARD_FORMS, *BACKWARD_FORMS])
@pytest.mark.parametrize("operator", NORMS)
def test_norm_form_matches_the_reference(operator: str, form: str, parameters: bool, launched: list[str]) -> None:
    inputs = inputs_of(operator, parameters)
    with ts.ops.configured(**{**FORWARD_FORMS, **BACKWARD_FORMS}[form]):
        ours = forward_and_backward(SPECS[operator].op, inputs)
    family = "norm" if form == "team_backward_kernel" else "layer_norm" if operator == "layer_norm" else "rms_norm"
    assert f"{family}_{form}" in launched
    assert_same(ours, forward_and_backward(SPECS[operator].reference, inputs))


@pytest.mark.parametrize("form", [*FORWARD_FORMS, *BACKWARD_FORMS, "norm_any_width_kernels", "any width, aligned"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_norm_with_one_plus_weight_equals_the_norm_with_that_weight(
    form: str, dtype: torch.dtype, launched: list[str]
) -> None:
    """The kernels add the one themselves, in single precision: the same bits as with the sum as the weight."""
    columns = {"norm_any_width_kernels": 259, "any width, aligned": 520}.get(form, 43)
    torch.manual_seed(0)
    x, residual, dy, dsum = (torch.randn(7, columns).to(dtype) for _ in range(4))
    weight, eps = torch.randn(columns).to(dtype), 1e-3
    factor = 1.0 + weight.float()
    config = {**FORWARD_FORMS, **BACKWARD_FORMS}.get(form, {})
    if form == "team_backward_kernel":
        config = {**config, "BLOCK_SIZE": 128}  # lanes for the edges of rows in half precision
    with ts.ops.configured(**config):
        ours = [
            one_plus.forward(x, weight, eps), *one_plus.sum_forward(x, residual, weight, eps),
            *one_plus.backward(dy, None, x, weight, eps, True), *one_plus.backward(dy, dsum, x, weight, eps, True),
        ]  # fmt: skip
        assert any("any_width" in name for name in launched) == ("any" in form)
        right = [
            norm(x, factor, eps), *norm_of_sum(x, residual, factor, eps),
            *backward_of_sum(dy, None, x, factor, eps, True),
            *backward_of_sum(dy, dsum, x, factor, eps, True),
        ]  # fmt: skip
    for one, wanted in zip(ours, right, strict=True):
        torch.testing.assert_close(one, wanted.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("form", ["team", "any width"])
def test_chunk_without_a_lane_for_each_element_of_two_edges_is_refused(form: str, launched: list[str]) -> None:
    """A chunk of 64 elements has 8 lanes for edges; two edges may have 14 elements in half precision."""
    x, weight, dy = torch.randn(3, 43).bfloat16(), torch.ones(43).bfloat16(), torch.randn(3, 43).bfloat16()
    with ts.ops.configured(BLOCK_SIZE=64, ROWS=1, form=form):
        ours = [norm(x, weight, 1e-6), backward_of_sum(dy, None, x, weight, 1e-6, False)[0]]
    assert not any("any_width" in name or "team" in name for name in launched)
    right = [norm(x, weight, 1e-6), backward_of_sum(dy, None, x, weight, 1e-6, False)[0]]
    for one, wanted in zip(ours, right, strict=True):
        torch.testing.assert_close(one, wanted)


@pytest.mark.parametrize(
    ("columns", "target"),
    [
        (2305, "cuda:90"), (4096, "cuda:90"), (40000, "cuda:90"), (2305, "hip:gfx942"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (
            (2304, "cuda:90"), (2304, "hip:gfx942"), (4096, "hip:gfx942"), (40000, "hip:gfx942"),
        )),
    ],
)  # fmt: skip
def test_norm_with_one_plus_weight_compiles_without_spills(columns: int, target: str) -> None:
    """The widths of Gemma 2, an odd one, whole tiles, and teams."""
    x = torch.empty(4096, columns, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(columns, dtype=torch.bfloat16, device="meta")
    with recorded_plans(target) as plans:
        one_plus.sum_forward(x, x, weight, 1e-6)
        one_plus.backward(x, x, x, weight, 1e-6, True)
    for launch in (launch for plan in plans for launch in plan.launches):
        binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
        assert not binary.spill_bytes


@covering(operator=NORMS, form=list(BACKWARD_FORMS))
def test_norm_form_gradients_match_finite_differences(operator: str, form: str) -> None:
    inputs = inputs_of(operator, parameters=True, dtype=torch.float64)
    leaves = {name: value.requires_grad_() for name, value in inputs.items() if is_differentiable(value)}

    def function(*values: Tensor) -> Any:
        return SPECS[operator].op(**{**inputs, **dict(zip(leaves, values, strict=True))})

    with ts.ops.configured(**BACKWARD_FORMS[form]):
        assert torch.autograd.gradcheck(function, list(leaves.values()), eps=1e-6, atol=1e-5, fast_mode=True)


@covering(times=2, operator=NORMS, form=list(BACKWARD_FORMS))
def test_norm_form_unwanted_gradients_change_nothing(operator: str, form: str) -> None:
    """Weight and bias have sums of their own; each is left out where it is not wanted."""
    inputs = inputs_of(operator, parameters=True)
    right = forward_and_backward(SPECS[operator].reference, inputs)
    for wanted in [name for name, value in inputs.items() if is_differentiable(value)]:
        leaves = leaves_of(inputs)
        for name, value in leaves.items():
            if is_differentiable(value):
                value.requires_grad_(name == wanted)
        with ts.ops.configured(**BACKWARD_FORMS[form]):
            outputs = tensors_of(SPECS[operator].op(*leaves.values()))
            cotangents = [cotangent_of(one) for one in outputs]
            torch.autograd.backward(outputs, cotangents)
        torch.testing.assert_close(leaves[wanted].grad, right[f"gradient of {wanted}"])


@pytest.mark.parametrize("operator", NORMS)
def test_norm_of_strided_columns_takes_two_sweeps_without_a_copy(operator: str, launched: list[str]) -> None:
    """Wider than one block, so that the gradient takes two sweeps."""
    spec = SPECS[operator]
    torch.manual_seed(0)
    layout = next(layout for layout in spec.layouts if layout.name == "transposed")
    inputs = spec.inputs(spec.cases[1].with_sizes(rows=3, cols=300), torch.float32, "cpu", layout)
    leaves = {name: value.requires_grad_() for name, value in inputs.items() if is_differentiable(value)}
    outputs = tensors_of(spec.op(**{**inputs, **leaves}))
    cotangents = [torch.randn(one.shape) for one in outputs]
    torch.autograd.backward(outputs, cotangents)
    copies = leaves_of(inputs)
    torch.autograd.backward(tensors_of(spec.reference(*copies.values())), cotangents)
    assert any(name.endswith("row_statistics_kernel") for name in launched)
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.grad, copies[name].grad)


@pytest.mark.parametrize(
    "operator", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("rms_norm")) for name in NORMS]
)
def test_norm_backward_by_teams_does_not_spill(operator: str) -> None:
    """It lives on its registers: they hold the sums of a part of all columns. The specs' cases do not reach it."""
    spec = SPECS[operator]
    case = spec.cases[-1].with_sizes(cols=40000)
    (launch,) = [
        launch
        for launch in planned_launches(spec, case, torch.bfloat16)
        if launch.kernel.__name__ == "norm_team_backward_kernel"
    ]
    binary = compile_kernel(launch.kernel, Target("cuda", 90), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0


@pytest.mark.parametrize(
    ("operator", "target"),
    [
        ("rms_norm", "cuda:90"), ("layer_norm", "cuda:90"), ("layer_norm", "hip:gfx942"),
        pytest.param("rms_norm", "hip:gfx942", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_two_sweeps_over_wide_rows_compile(operator: str, target: str) -> None:
    """The specs' cases do not reach them: wide rows whose columns are apart in memory."""
    x = torch.empty(16384, 64, dtype=torch.bfloat16, device="meta").t().requires_grad_()
    parameters = [torch.empty(16384, dtype=torch.bfloat16, device="meta", requires_grad=True)]
    with recorded_plans(target) as plans:
        y = SPECS[operator].op(x, *parameters)
        y.backward(torch.empty_like(y))
    launches = [launch for plan in plans for launch in plan.launches if "backward" in plan.kernels]
    names = {launch.kernel.__name__ for launch in launches}
    assert names >= {f"{operator}_row_statistics_kernel", f"{operator}_backward_tiles_kernel"}
    for launch in launches:
        compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())


@triton.jit
def _none_is_missing(words):  # type: ignore[no-untyped-def]
    return words[0].shape[0] == 0


@pytest.mark.parametrize("cols", [400, 403])
@pytest.mark.parametrize("operator", NORMS)
def test_last_part_of_a_team_is_right(
    operator: str, cols: int, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter runs the programs of a team one after the other. Without the wait, the last one has all parts."""
    for module in ("any_width", "team_backward"):
        monkeypatch.setattr(f"tilesmith.ops.device.norms.{module}.can_share", lambda plan, parts: True)
    monkeypatch.setattr(teams, "_is_missing", _none_is_missing)
    torch.manual_seed(0)
    spec = SPECS[operator]
    inputs = spec.inputs(spec.cases[1].with_sizes(rows=7, cols=cols), torch.float32, "cpu")
    copies, leaves = leaves_of(inputs), leaves_of(inputs)
    with ts.ops.configured(form="any width", BLOCK_SIZE=64, most_chunks=2, ROWS=1):
        outputs = tensors_of(spec.op(*inputs.values()))
    exact = tensors_of(spec.reference(*copies.values()))
    last = slice(cols - 12, cols - 4)  # the edges of a row belong to the first part
    torch.testing.assert_close(outputs[0][:, last], exact[0][:, last])
    assert not torch.allclose(outputs[0][:, :64], exact[0][:, :64])  # the first part did not wait
    cotangents = [torch.randn(one.shape) for one in exact]
    with ts.ops.configured(form="team", BLOCK_SIZE=64, most_chunks=2, ROWS=1, PIPELINE=2):
        torch.autograd.backward(tensors_of(spec.op(*leaves.values())), cotangents)
    assert "norm_team_backward_kernel" in launched
    torch.autograd.backward(exact, cotangents)
    for name, leaf in leaves.items():
        if is_differentiable(leaf):
            torch.testing.assert_close(leaf.grad[..., last], copies[name].grad[..., last])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [(300, 18439), (1000, 24576), (70, 53002), (3, 131072), (513, 16999)], ids=str)
@pytest.mark.parametrize("operator", NORMS)
def test_wide_norms_by_teams_are_right_on_the_gpu(operator: str, size: tuple[int, int], dtype: torch.dtype) -> None:
    spec = SPECS[operator]
    torch.manual_seed(0)
    case = spec.cases[-1].with_sizes(rows=size[0], cols=size[1])
    inputs = spec.inputs(case, dtype, "cuda")
    assert any(one.kernel.__name__ == "norm_team_backward_kernel" for one in planned_launches(spec, case, dtype))
    leaves = leaves_of(inputs)
    copies = leaves_of({name: one.double() if isinstance(one, Tensor) else one for name, one in inputs.items()})
    with ts.use("triton"):
        outputs = tensors_of(spec.op(*leaves.values()))
    exact = tensors_of(spec.reference(*copies.values()))
    cotangents = [torch.randn(one.shape, device="cuda", dtype=dtype) for one in outputs]
    with ts.use("triton"):
        torch.autograd.backward(outputs, cotangents)
    torch.autograd.backward(exact, [one.double() for one in cotangents])
    allowed = 4 * torch.finfo(dtype).eps
    pairs = [*zip(outputs, exact, strict=True)]
    pairs += [(leaf.grad, copies[name].grad) for name, leaf in leaves.items() if is_differentiable(leaf)]
    for ours, right in pairs:
        assert (ours.double() - right).norm() <= allowed * right.norm()
