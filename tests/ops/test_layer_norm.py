"""LayerNorm beyond the tests that every operator has: errors, optional parameters, rows with a large mean."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differentiation import assert_same, forward_and_backward, leaves_of
from layouts import views
from test_norm_forms import BACKWARD_FORMS
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops import SPECS
from tilesmith.ops.layer_norm.backward import backward, branch_backward
from tilesmith.ops.layer_norm.forward import forward
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.spec import Inputs
from tilesmith.toolchain.compiler import Target, compile_kernel

layer_norm, reference = SPECS["layer_norm"].op, SPECS["layer_norm"].reference
BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with ts.use("interpret"):
        yield


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"weight": torch.ones(7)}, ValueError, "weight has 7 elements, but x has 8 columns"),
        ({"bias": torch.ones(9)}, ValueError, "bias has 9 elements, but x has 8 columns"),
        ({"bias": torch.ones(1, 8)}, ValueError, r"bias has shape \(1, 8\), but must be a vector of 8 elements"),
        ({"x": torch.tensor(1.0)}, ValueError, r"x has 0 dimensions \(shape \(\)\), but must have at least 1"),
        ({"eps": -1e-6}, ValueError, "eps is -1e-06, but must be at least 0"),
        ({"eps": "small"}, TypeError, "eps is a str, but must be a number"),
    ],
)
def test_layer_norm_rejects_bad_input(mode: Any, arguments: Inputs, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^layer_norm: {words}"):
        layer_norm(**{"x": torch.ones(3, 8), "weight": torch.ones(8), "bias": torch.ones(8), **arguments})


@BOTH_WAYS
@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_works_without_weight_and_bias(mode: Any, weight: bool, bias: bool) -> None:
    torch.manual_seed(0)
    inputs = {
        "x": torch.randn(5, 24),
        "weight": torch.randn(24) if weight else None,
        "bias": torch.randn(24) if bias else None,
        "eps": 1e-5,
    }
    with ts.use(mode):
        assert_same(forward_and_backward(layer_norm, inputs), forward_and_backward(reference, inputs))


@pytest.mark.parametrize("columns_apart", [False, True])
@pytest.mark.parametrize("form", BACKWARD_FORMS)
def test_layer_norm_backward_adds_dsum_to_dx(form: str, columns_apart: bool) -> None:
    torch.manual_seed(0)
    x, dy, dsum = (torch.randn(7, 43) for _ in range(3))
    dsum = dsum.t().contiguous().t() if columns_apart else dsum
    weight, bias = torch.randn(43), torch.randn(43)
    _, statistics = forward(x, weight, bias, 1e-5, True)
    with ts.ops.configured(**BACKWARD_FORMS[form]):
        alone, *parameters = backward(dy, x, weight, bias, statistics, True, True)
        added, *unchanged = backward(dy, x, weight, bias, statistics, True, True, dsum)
    torch.testing.assert_close(added, alone + dsum)
    torch.testing.assert_close(unchanged, parameters)


# Teams do not sum dsum.
BRANCH_FORMS = [form for form in BACKWARD_FORMS if form != "team_backward_kernel"]


@pytest.mark.parametrize(
    ("form", "columns_apart", "dtype"),
    [
        *((form, columns_apart, torch.float32) for form in BRANCH_FORMS for columns_apart in (False, True)),
        # How dtypes are converted and rounded is the same in every form.
        *((form, False, dtype) for form, dtype in zip(BRANCH_FORMS, (torch.float64, torch.bfloat16), strict=True)),
    ],
    ids=str,
)
def test_layer_norm_branch_backward_sums_dsum_over_rows(form: str, columns_apart: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, dy, dsum = (torch.randn(23, 43, dtype=dtype) for _ in range(3))
    dsum = dsum.t().contiguous().t() if columns_apart else dsum
    weight, bias = torch.randn(43, dtype=dtype), torch.randn(43)
    _, statistics = forward(x, weight, bias, 1e-5, True)
    with ts.ops.configured(**BACKWARD_FORMS[form], programs_per_multiprocessor=1):  # which take several turns each
        alone = backward(dy, x, weight, bias, statistics, True, True, dsum)
        *others, total = branch_backward(dy, x, weight, bias, statistics, dsum)
    torch.testing.assert_close(others, list(alone), rtol=0, atol=0)
    assert total.dtype == dtype
    torch.testing.assert_close(total, dsum.double().sum(0).to(dtype))


def test_layer_norm_branch_backward_takes_no_extra_launch() -> None:
    x, weight, statistics = torch.randn(5, 24), torch.randn(24), torch.rand(5, 2)
    plan = branch_backward.plan_for(x, x, weight, weight, statistics, x)
    assert [launch.kernel.__name__ for launch in plan.launches] == [
        "layer_norm_backward_kernel",
        "sum_several_partials_kernel",
    ]


def test_opcheck_accepts_layer_norm_branch_backward() -> None:
    x, weight, statistics = torch.randn(5, 24), torch.randn(24), torch.rand(5, 2)
    torch.library.opcheck(torch.ops.tilesmith.layer_norm_branch_backward, (x, x, weight, weight, statistics, x))


# Every width once, summed too, which is the other and more; the other alone at two of them.
COMPILED_FIRST = {
    *((True, columns, torch.float32) for columns in (64, 8192, 10240)),
    *((True, columns, torch.bfloat16) for columns in (84, 1024)),
    (False, 10240, torch.bfloat16),
}


@pytest.mark.parametrize(
    ("summed", "columns", "dtype"),
    [
        pytest.param(*one, id=f"{'and summed' if one[0] else 'added'}-{one[1]}-{one[2]}",
                     marks=[] if one in COMPILED_FIRST else [pytest.mark.slow])
        for one in product(
            (False, True), (64, 84, 128, 256, 1024, 2048, 4096, 8192, 10240), (torch.float32, torch.bfloat16)
        )
    ],
)  # fmt: skip
def test_layer_norm_backward_with_dsum_does_not_spill(summed: bool, columns: int, dtype: torch.dtype) -> None:
    x, vector = torch.empty(16384, columns, dtype=dtype, device="meta"), torch.empty(columns, device="meta")
    statistics = torch.empty(16384, 2, device="meta")
    with recorded_plans() as plans:
        if summed:
            branch_backward(x, x, vector, vector, statistics, x)
        else:
            backward(x, x, vector, vector, statistics, True, True, x)
    for launch in plans[0].launches:
        binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
        assert binary.spill_bytes == 0


def test_layer_norm_matches_pytorch() -> None:
    torch.manual_seed(0)
    inputs = {"x": torch.randn(5, 24), "weight": torch.randn(24), "bias": torch.randn(24), "eps": 0.1}

    def pytorchs(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, (24,), weight, bias, eps)

    assert_same(forward_and_backward(layer_norm, inputs), forward_and_backward(pytorchs, inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("form", "block_size"), [("registers", 1024), ("blocks", 64)])
@pytest.mark.parametrize("offset", [300.0, -1e4])
def test_layer_norm_of_a_large_mean_is_as_accurate_as_pytorch(
    dtype: torch.dtype, form: str, block_size: int, offset: float
) -> None:
    """mean(x²) − mean(x)² would be noise here: at a mean of 1e4 the squares are 1e8 with a rounding of 8."""
    torch.manual_seed(0)
    spread = torch.randn(4, 700) * (1 if dtype == torch.float32 else 64)
    x, weight, bias = (offset + spread).to(dtype), torch.randn(700).to(dtype), torch.randn(700).to(dtype)
    exact = F.layer_norm(x.double(), (700,), weight.double(), bias.double(), 1e-5)
    with ts.ops.configured(form=form, BLOCK_SIZE=block_size):
        ours = layer_norm(x, weight, bias, 1e-5)
    theirs = F.layer_norm(x, (700,), weight, bias, 1e-5)
    floor = torch.finfo(dtype).eps * exact.abs().max()
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


@pytest.mark.parametrize(("form", "block_size"), [("registers", 1024), ("blocks", 64)])
@pytest.mark.parametrize("place", [0, 5, 699])
def test_layer_norm_of_an_outlier_is_as_accurate_as_pytorch(form: str, block_size: int, place: int) -> None:
    torch.manual_seed(0)
    x = 300.0 + torch.randn(4, 700)
    x[:, place] = 1e4
    exact, theirs = F.layer_norm(x.double(), (700,)), F.layer_norm(x, (700,))
    with ts.ops.configured(form=form, BLOCK_SIZE=block_size):
        ours = layer_norm(x, None)
    floor = torch.finfo(torch.float32).eps * exact.abs().max()
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


@pytest.mark.parametrize(
    "form",
    [
        {"BLOCK_SIZE": 1024},
        {"BLOCK_SIZE": 64, "form": "two sweeps"},
        {"BLOCK_SIZE": 128, "form": "any width"},
        {"BLOCK_SIZE": 1024, "form": "team"},
    ],
    ids=["one sweep", "two sweeps", "any width", "team of one"],
)
def test_layer_norm_gradient_of_a_large_mean_is_as_accurate_as_pytorch(form: dict[str, Any]) -> None:
    torch.manual_seed(0)
    inputs = {"x": 1e4 + torch.randn(3, 700), "weight": torch.randn(700), "bias": torch.randn(700), "eps": 1e-5}
    doubles = {name: value.double() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    exact = forward_and_backward(reference, doubles)
    theirs = forward_and_backward(lambda x, weight, bias, eps: F.layer_norm(x, (700,), weight, bias, eps), inputs)
    with ts.ops.configured(**form):
        ours = forward_and_backward(layer_norm, inputs)
    for name, value in exact.items():
        allowed = 2 * (theirs[name] - value).abs().max() + torch.finfo(torch.float32).eps * value.abs().max()
        assert (ours[name] - value).abs().max() <= allowed, name


@pytest.mark.parametrize(("form", "block_size"), [("registers", 1024), ("blocks", 64)])
def test_layer_norm_of_a_constant_row_is_zero(form: str, block_size: int) -> None:
    x = torch.full((2, 700), 3.0)
    x[1] = torch.randn(700)
    with ts.ops.configured(form=form, BLOCK_SIZE=block_size):
        y = layer_norm(x, None)
    torch.testing.assert_close(y[0], torch.zeros(700))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", [10000.1, -7.7])
def test_layer_norm_of_a_constant_row_is_its_bias_on_every_route(value: float, dtype: torch.dtype) -> None:
    x = torch.full((2, 1), value, dtype=dtype).expand(2, 1000)
    weight, bias = torch.ones(1000, dtype=dtype), torch.full((1000,), 0.5, dtype=dtype)
    for route in ("interpret", "torch"):
        with ts.use(route):
            assert layer_norm(x, weight, bias).eq(0.5).all(), route
            assert layer_norm(x.contiguous(), weight.bfloat16()).eq(0).all(), route


@pytest.mark.parametrize("size", [1e20, 3e38])
def test_layer_norm_of_overflowing_squares_is_zero_in_every_form(size: float) -> None:
    """As PyTorch's formula has it: the variance is infinite. A sum of 0 · ∞ would give NaN instead."""
    x = torch.randn(2, 100)
    x[0, 3] = size
    for form in ({"form": "registers"}, {"form": "blocks"}, {"form": "blocks", "BLOCK_SIZE": 16}):
        with ts.ops.configured(**{"BLOCK_SIZE": 128, **form}):
            torch.testing.assert_close(layer_norm(x, None), reference(x, None))


@pytest.mark.parametrize("name", views())
def test_layer_norm_takes_any_strides(name: str) -> None:
    x = views()[name]
    weight, bias = torch.randn(x.shape[-1] * 2)[::2], torch.randn(x.shape[-1])
    ours, copy = x.detach().requires_grad_(), x.detach().clone().requires_grad_()
    y, right = layer_norm(ours, weight, bias, 1e-5), reference(copy, weight, bias, 1e-5)
    # Where columns are expanded a row is constant: what rounding leaves of x − mean is divided by √eps.
    torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-3)
    assert y.stride() == torch.empty_like(x).stride()
    cotangent = torch.randn(right.shape[::-1]).permute(*reversed(range(right.ndim)))
    (found,) = torch.autograd.grad(y, ours, cotangent)
    (expected,) = torch.autograd.grad(right, copy, cotangent)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0), (0,), (3, 0, 5), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_layer_norm_takes_empty_tensors(shape: tuple[int, ...], transposed: bool) -> None:
    x = torch.randn(shape[::-1]).permute(*reversed(range(len(shape)))) if transposed else torch.randn(shape)
    inputs = {"x": x, "weight": torch.randn(shape[-1]), "bias": torch.randn(shape[-1]), "eps": 1e-5}
    found = forward_and_backward(layer_norm, inputs)
    assert found["output 0"].shape == found["gradient of x"].shape == shape
    for name in ("weight", "bias"):
        torch.testing.assert_close(found[f"gradient of {name}"], torch.zeros(shape[-1]), rtol=0, atol=0)


@BOTH_WAYS
@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("other_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_layer_norm_keeps_the_dtype_of_x(mode: Any, x_dtype: torch.dtype, other_dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = {
        "x": torch.randn(5, 24).to(x_dtype),
        "weight": torch.randn(24).to(other_dtype),
        "bias": torch.randn(24),
        "eps": 1e-5,
    }
    with ts.use(mode):
        found = forward_and_backward(layer_norm, inputs)
    assert found["output 0"].dtype == found["gradient of x"].dtype == x_dtype
    assert found["gradient of weight"].dtype == other_dtype
    assert found["gradient of bias"].dtype == torch.float32
    exact = {name: value.double() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    for name, value in forward_and_backward(reference, exact).items():
        torch.testing.assert_close(found[name].double(), value, rtol=2e-2, atol=3e-2)


def test_layer_norm_sums_both_parameter_gradients_in_one_launch() -> None:
    x, weight = torch.randn(5, 24), torch.randn(24)
    plan = backward.plan_for(x, x, weight, weight, 1e-5, True, True)
    assert [launch.kernel.__name__ for launch in plan.launches] == [
        "layer_norm_backward_kernel",
        "sum_several_partials_kernel",
    ]


def test_layer_norm_keeps_its_arguments_and_two_numbers_for_each_row() -> None:
    leaves = leaves_of({"x": torch.randn(5, 24), "weight": torch.randn(24), "bias": torch.randn(24), "eps": 1e-5})
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda one: one):
        layer_norm(*leaves.values())
    arguments = {one.data_ptr() for one in leaves.values() if isinstance(one, Tensor)}
    added = [one for one in kept if one.data_ptr() not in arguments]
    assert [one.shape for one in added] == [(5, 2)]


def test_layer_norm_that_nobody_trains_keeps_no_statistics() -> None:
    x, weight = torch.empty(5, 43, device="meta"), torch.empty(43, device="meta", requires_grad=True)
    with recorded_plans() as plans, torch.no_grad():
        layer_norm(x, weight)
    (launch,) = plans[0].launches
    assert launch.arguments["statistics_ptr"] is None


@covering(columns=[3, 100, 129, 1000, 5000, 20000], expanded=[False, True])
def test_rows_of_equal_elements_give_the_bias(columns: int, expanded: bool) -> None:
    """No rounding of the mean is left in registers, in chunks, or in blocks, which expanded rows take."""
    values = torch.cat([torch.tensor([1.0, -0.1, 1e-20, 3.3e4, -7.7e8]), torch.randn(27)])  # few have a rounded mean
    x = values[:, None].expand(-1, columns)
    x = (x if expanded else x.contiguous()).requires_grad_()
    weight, bias = torch.randn(columns).requires_grad_(), torch.randn(columns).requires_grad_()
    with ts.use("interpret"):
        y = ts.ops.layer_norm(x, weight, bias)
        assert torch.equal(y, bias.expand_as(y))
        y.backward(torch.randn(y.shape))  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    assert weight.grad is not None
    assert (weight.grad == 0).all()


@covering(
    name=["edge_norm", "transition", "attention_update", "triangle_multiply", "by chunks"],
    dtype=[torch.float32, torch.float64, torch.bfloat16],
)
def test_operators_with_a_norm_take_rows_of_equal_elements_as_rows_of_zeros(name: str, dtype: torch.dtype) -> None:
    """On every route: a rounded mean would leave what √eps divides."""
    spec = SPECS["triangle_multiply" if name == "by chunks" else name]
    inputs = spec.inputs(spec.case("odd"), dtype, "cpu")
    inputs |= {"chunk": 1, "mask": None} if name == "by chunks" else {}
    first = next(iter(inputs))
    shape = inputs[first].shape
    equal = (7.7 * torch.randn(*shape[:-1], 1)).to(dtype).expand(shape).contiguous()

    def computed(rows: Tensor) -> tuple[Tensor, Tensor]:
        weight = inputs["norm_weight"].detach().requires_grad_()
        made = spec.op(**{**inputs, first: rows, "norm_weight": weight, "eps": 1e-6})
        outputs = list(made) if isinstance(made, tuple) else [made]
        (gradient,) = torch.autograd.grad(outputs, [weight], [torch.ones_like(one) for one in outputs])
        return outputs[0].detach(), gradient

    for route in ("interpret", "torch"):
        with ts.use(route):
            (found, gradient), (zero, _) = computed(equal), computed(torch.zeros_like(equal))
        assert torch.equal(found, zero), route
        assert gradient.eq(0).all(), route
