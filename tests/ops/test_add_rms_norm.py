"""What is add_rms_norm's own: two results with gradients each, a sum that is rounded first, one gradient for two."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from differentiation import assert_same, cotangent_of, forward_and_backward, leaves_of
from layouts import views
from saved_tensors import with_saved_addresses
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.spec import Inputs

add_rms_norm, reference = SPECS["add_rms_norm"].op, SPECS["add_rms_norm"].reference
rms_norm = SPECS["rms_norm"].op
BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def some_inputs(dtype: torch.dtype = torch.float32) -> Inputs:
    return {
        "x": torch.randn(5, 24).to(dtype),
        "residual": torch.randn(5, 24).to(dtype),
        "weight": torch.randn(24).to(dtype),
        "eps": 1e-6,
    }


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"residual": torch.ones(3, 7)}, ValueError, r"residual has shape \(3, 7\), but must have that of x, \(3, 8\)"),
        ({"residual": torch.ones(8)}, ValueError, r"residual has shape \(8,\), but must have that of x, \(3, 8\)"),
        ({"weight": torch.ones(7)}, ValueError, "weight has 7 elements, but x has 8 columns"),
        ({"x": torch.tensor(1.0)}, ValueError, r"x has 0 dimensions \(shape \(\)\), but must have at least 1"),
        ({"eps": -1e-6}, ValueError, "eps is -1e-06, but must be at least 0"),
    ],
)
def test_add_rms_norm_rejects_bad_input(mode: Any, arguments: Inputs, kind: type[Exception], words: str) -> None:
    good = {"x": torch.ones(3, 8), "residual": torch.ones(3, 8), "weight": torch.ones(8)}
    with ts.use(mode), pytest.raises(kind, match=f"^add_rms_norm: {words}"):
        add_rms_norm(**{**good, **arguments})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("form", [{"form": "registers", "BLOCK_SIZE": 32}, {"form": "blocks", "BLOCK_SIZE": 16}])
def test_add_rms_norm_norms_the_rounded_sum_it_returns(dtype: torch.dtype, form: dict[str, Any]) -> None:
    """Small residuals vanish when the sum is rounded; a norm of the exact sum would still see them."""
    inputs = some_inputs(dtype)
    inputs["x"] *= 100
    with ts.ops.configured(**form):
        y, total = add_rms_norm(**inputs)
        of_the_sum = rms_norm(inputs["x"] + inputs["residual"], inputs["weight"], inputs["eps"])
    torch.testing.assert_close(total, inputs["x"] + inputs["residual"], rtol=0, atol=0)
    torch.testing.assert_close(y, of_the_sum, rtol=0, atol=0)


@BOTH_WAYS
@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("residual_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_add_rms_norm_keeps_a_residual_in_higher_precision(
    mode: Any, x_dtype: torch.dtype, residual_dtype: torch.dtype
) -> None:
    inputs = {**some_inputs(), "x": torch.randn(5, 24).to(x_dtype), "residual": torch.randn(5, 24).to(residual_dtype)}
    with ts.use(mode):
        found = forward_and_backward(add_rms_norm, inputs)
    assert found["output 0"].dtype == found["gradient of x"].dtype == x_dtype
    assert found["output 1"].dtype == torch.promote_types(x_dtype, residual_dtype)
    assert found["gradient of residual"].dtype == residual_dtype
    torch.testing.assert_close(found["output 1"], inputs["x"] + inputs["residual"], rtol=0, atol=0)
    exact = {name: value.double() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    for name, value in forward_and_backward(reference, exact).items():
        torch.testing.assert_close(found[name].double(), value, rtol=2e-2, atol=3e-2)


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("surroundings", ["eager", "compiled"])
def test_add_rms_norm_gradient_with_one_unused_result(used: int, surroundings: str) -> None:
    inputs = some_inputs()
    ours, right = leaves_of(inputs), leaves_of(inputs)

    def result(*arguments: Any) -> Tensor:
        return add_rms_norm(*arguments)[used]  # type: ignore[no-any-return]  # a spec's op may return anything

    torch._dynamo.reset()
    function = torch.compile(result, fullgraph=True, backend="aot_eager") if surroundings == "compiled" else result
    cotangent = torch.randn(5, 24)
    torch.autograd.backward(function(*ours.values()), cotangent)
    torch.autograd.backward(reference(*right.values())[used], cotangent)
    for name in ("x", "residual"):
        torch.testing.assert_close(ours[name].grad, right[name].grad)
    if used == 0:
        torch.testing.assert_close(ours["weight"].grad, right["weight"].grad)


def test_add_rms_norm_allocates_no_zeros_for_an_unused_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a model the last sum has no reader: reading a tensor of zeros would cost a quarter of the backward."""
    module = sys.modules["tilesmith.ops.add_rms_norm"]  # under the same name the package has the operator
    seen: list[Any] = []
    backward = module.backward

    def noted(dy: Tensor, dsum: Tensor | None, *rest: Any) -> Any:
        seen.append(dsum)
        return backward(dy, dsum, *rest)

    monkeypatch.setattr(module, "backward", noted)
    add_rms_norm(*leaves_of(some_inputs()).values())[0].sum().backward()
    assert seen == [None]


class TestOneGradientForBoth:
    """x and residual are handed the same tensor; nobody may add to it in place while the other still needs it."""

    def test_leaves_keep_gradients_apart(self) -> None:
        """What happens to the gradient of one, as clipping does it in place, does not happen to the other's."""
        leaves = leaves_of(some_inputs())
        y, total = add_rms_norm(*leaves.values())
        (y.sum() + total.square().sum()).backward()
        before = leaves["residual"].grad.clone()
        leaves["x"].grad.zero_()
        torch.testing.assert_close(leaves["residual"].grad, before, rtol=0, atol=0)

    def test_accumulation_over_retained_backwards(self) -> None:
        inputs = some_inputs()
        ours, right = leaves_of(inputs), leaves_of(inputs)
        for function, leaves in ((add_rms_norm, ours), (reference, right)):
            y, total = function(*leaves.values())
            loss = (y * 3).sum() + total.square().sum()
            for _ in range(3):
                loss.backward(retain_graph=True)
        for name in ("x", "residual", "weight"):
            torch.testing.assert_close(ours[name].grad, right[name].grad)

    def test_where_x_and_residual_come_from_one_tensor(self) -> None:
        """The gradient comes back twice to the same place, and is added to itself."""
        inputs = some_inputs()
        ours, right = inputs["x"].clone().requires_grad_(), inputs["x"].clone().requires_grad_()
        for function, leaf in ((add_rms_norm, ours), (reference, right)):
            y, total = function(leaf, leaf, inputs["weight"], 1e-6)
            (y.sin().sum() + total.square().sum()).backward()
        torch.testing.assert_close(ours.grad, right.grad)

    def test_through_a_chain_of_blocks(self) -> None:
        """As in a transformer: every sum is the next block's residual, and every norm feeds something else."""
        inputs = some_inputs()
        ours, right = leaves_of(inputs), leaves_of(inputs)
        for function, leaves in ((add_rms_norm, ours), (reference, right)):
            hidden, stream = leaves["x"] * 1, leaves["residual"] * 1
            for _ in range(4):
                hidden, stream = function(hidden, stream, leaves["weight"], 1e-6)
                hidden = torch.tanh(hidden) + 0.1 * hidden
            (hidden.square().sum() + stream.sin().sum()).backward()
        for name in ("x", "residual", "weight"):
            torch.testing.assert_close(ours[name].grad, right[name].grad)

    def test_a_hook_that_returns_another_gradient_for_one_leaves_the_other(self) -> None:
        inputs = some_inputs()
        right = forward_and_backward(reference, inputs)
        leaves = leaves_of(inputs)
        leaves["x"].register_hook(lambda gradient: gradient * 0)
        outputs = add_rms_norm(*leaves.values())
        torch.autograd.backward(outputs, [cotangent_of(one) for one in outputs])
        torch.testing.assert_close(leaves["residual"].grad, right["gradient of residual"])
        torch.testing.assert_close(leaves["x"].grad, torch.zeros(5, 24))


def test_add_rms_norm_keeps_only_sum_and_weight_for_the_backward() -> None:
    leaves = leaves_of(some_inputs())
    (_, total), kept = with_saved_addresses(add_rms_norm, *leaves.values())
    assert kept == {total.data_ptr(), leaves["weight"].data_ptr()}


@pytest.mark.parametrize("name", views())
def test_add_rms_norm_takes_any_strides(name: str) -> None:
    view = views()[name]
    weight = torch.randn(view.shape[-1] * 2)[::2]
    for x, residual in ((view, torch.randn(view.shape)), (torch.randn(view.shape), view)):
        ours = [one.detach().requires_grad_() for one in (x, residual)]
        copies = [one.detach().clone().requires_grad_() for one in (x, residual)]
        found, right = add_rms_norm(*ours, weight, 1e-6), reference(*copies, weight, 1e-6)
        torch.testing.assert_close(found, right)
        assert all(one.stride() == torch.empty_like(x).stride() for one in found)
        cotangents = [torch.randn(view.shape), torch.randn(view.shape[::-1]).permute(*reversed(range(view.ndim)))]
        torch.testing.assert_close(
            torch.autograd.grad(found, ours, cotangents), torch.autograd.grad(right, copies, cotangents)
        )


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0,), (2, 3, 0)], ids=str)
def test_add_rms_norm_takes_empty_tensors(shape: tuple[int, ...]) -> None:
    inputs = {"x": torch.randn(shape), "residual": torch.randn(shape), "weight": torch.randn(shape[-1]), "eps": 1e-6}
    found = forward_and_backward(add_rms_norm, inputs)
    assert {value.shape for name, value in found.items() if "weight" not in name} == {torch.Size(shape)}
    torch.testing.assert_close(found["gradient of weight"], torch.zeros(shape[-1]), rtol=0, atol=0)


@BOTH_WAYS
def test_add_rms_norm_works_without_weight(mode: Any) -> None:
    inputs = {**some_inputs(), "weight": None}
    with ts.use(mode):
        assert_same(forward_and_backward(add_rms_norm, inputs), forward_and_backward(reference, inputs))
