# mypy: disable-error-code="no-untyped-call"
# PyTorch does not annotate its rarer functions and base classes.
"""Every way of PyTorch to differentiate gives the right result or a clear error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from differentiation import assert_same, backward, cotangent_of, forward_and_backward, leaves_of, tensors_of
from representatives import REPRESENTATIVES_FIRST
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import tilesmith as ts
from tilesmith.spec import Inputs, Spec, is_differentiable


@pytest.fixture(autouse=True)
def in_the_interpreter(interpreted_once: None) -> Iterator[None]:
    with ts.use("interpret"):
        yield


@contextmanager
def right_or_refused(words: str) -> Iterator[None]:
    """Suppress a RuntimeError with these words, and no other."""
    try:
        yield
    except RuntimeError as error:
        if words not in str(error):
            raise


def as_function_of_tensors(function: Callable[..., Any], inputs: Inputs) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Return a scalar function of the differentiable arguments, as torch.func needs it."""
    names = [name for name, value in inputs.items() if is_differentiable(value)]

    def summed(*values: Tensor) -> Tensor:
        made = tensors_of(function(**{**inputs, **dict(zip(names, values, strict=True))}))
        return torch.stack([torch.sin(one).sum() for one in made]).sum()

    return summed, [inputs[name] for name in names]


def test_gradients_accumulate_over_two_backwards(spec: Spec, inputs: Inputs) -> None:
    once, twice = leaves_of(inputs), leaves_of(inputs)
    backward(tensors_of(spec.op(**once)))
    outputs = tensors_of(spec.op(**twice))
    for _ in range(2):
        torch.autograd.backward(outputs, [cotangent_of(output) for output in outputs], retain_graph=True)
    for name, value in once.items():
        if is_differentiable(value):
            torch.testing.assert_close(twice[name].grad, 2 * value.grad, rtol=0, atol=0)


@REPRESENTATIVES_FIRST
@pytest.mark.parametrize("route", ["interpret", "torch"])
def test_cotangents_may_overlap_in_memory(spec: Spec, inputs: Inputs, route: Any) -> None:
    with ts.use(route):
        found = []
        for change in (lambda one: one, torch.clone):
            leaves = leaves_of(inputs)
            outputs = [one for one in tensors_of(spec.op(**leaves)) if one.requires_grad]
            windows = [torch.arange(1.0, sum(one.shape) + 2).sin().to(one) for one in outputs]
            overlapping = [
                its.as_strided(one.shape, (1,) * one.ndim) for its, one in zip(windows, outputs, strict=True)
            ]
            torch.autograd.backward(outputs, [change(one) for one in overlapping])
            found.append({name: value.grad for name, value in leaves.items() if is_differentiable(value)})
    assert_same(*found)


def test_backward_raises_after_an_in_place_change_of_an_input(spec: Spec, inputs: Inputs) -> None:
    right = forward_and_backward(spec.op, inputs)
    leaves = leaves_of(inputs)
    outputs = tensors_of(spec.op(**leaves))
    with torch.no_grad():
        for value in leaves.values():
            if is_differentiable(value):
                value.mul_(3)
    with right_or_refused("modified by an inplace operation"):  # also right: a gradient that does not need the input
        backward(outputs)
        for name, value in leaves.items():
            if is_differentiable(value):
                torch.testing.assert_close(value.grad, right[f"gradient of {name}"])


def test_recording_a_gradient_does_not_change_the_result(spec: Spec, inputs: Inputs) -> None:
    plain = tensors_of(spec.op(**inputs))
    recorded = tensors_of(spec.op(**leaves_of(inputs)))
    assert not any(one.requires_grad for one in plain)
    assert all(one.requires_grad for one in recorded)
    for one, other in zip(plain, recorded, strict=True):
        torch.testing.assert_close(other.detach(), one, rtol=0, atol=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_recorded_without_gradients(spec: Spec, inputs: Inputs, mode: Callable[[], Any]) -> None:
    leaves = leaves_of(inputs)
    with mode():
        unrecorded = tensors_of(spec.op(**leaves))
    assert not any(one.requires_grad for one in unrecorded)
    assert_same({"output": unrecorded[0].clone()}, {"output": tensors_of(spec.op(**inputs))[0]})
    assert all(one.requires_grad for one in tensors_of(spec.op(**leaves)))


def test_takes_tensors_made_in_inference_mode(spec: Spec, inputs: Inputs) -> None:
    with torch.inference_mode():
        copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    for one, right in zip(tensors_of(spec.op(**copies)), tensors_of(spec.op(**inputs)), strict=True):
        torch.testing.assert_close(one, right)


def test_only_wanted_gradients_are_computed(spec: Spec, inputs: Inputs) -> None:
    right = forward_and_backward(spec.reference, inputs)
    for wanted in [name for name, value in inputs.items() if is_differentiable(value)]:
        leaves = {
            name: value.requires_grad_(name == wanted) if is_differentiable(value) else value
            for name, value in leaves_of(inputs).items()
        }
        backward(tensors_of(spec.op(**leaves)))
        torch.testing.assert_close(leaves[wanted].grad, right[f"gradient of {wanted}"])
        assert [name for name, value in leaves.items() if isinstance(value, Tensor) and value.grad is not None] == [
            wanted
        ]


class Onlooker(TorchDispatchMode):
    """Changes nothing, but sends every operator through PyTorch's dispatcher."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "surroundings",
    [pytest.param(nullcontext, id="eager"), pytest.param(Onlooker, id="dispatched", marks=pytest.mark.slow)],
)
def test_second_gradient_is_right_or_raises(
    spec: Spec, inputs: Inputs, surroundings: Callable[[], AbstractContextManager[Any]]
) -> None:
    right = gradient_with_penalty(spec.reference, inputs)
    with surroundings(), right_or_refused("twice"):
        torch.testing.assert_close(gradient_with_penalty(spec.op, inputs), right)


def gradient_with_penalty(function: Callable[..., Any], inputs: Inputs) -> tuple[Tensor, ...]:
    """Compute the gradient of a loss that contains the norm of a gradient."""
    summed, values = as_function_of_tensors(function, inputs)
    leaves = [value.detach().clone().requires_grad_() for value in values]
    loss = summed(*leaves)
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    return torch.autograd.grad(loss + sum(one.square().sum() for one in first), leaves)


def test_torch_func_grad(spec: Spec, inputs: Inputs) -> None:
    ours, values = as_function_of_tensors(spec.op, inputs)
    right, _ = as_function_of_tensors(spec.reference, inputs)
    everything = tuple(range(len(values)))
    torch.testing.assert_close(
        torch.func.grad(ours, argnums=everything)(*values), torch.func.grad(right, argnums=everything)(*values)
    )


def test_torch_func_hessian_vector_product(spec: Spec, inputs: Inputs) -> None:
    ours, values = as_function_of_tensors(spec.op, inputs)
    right, _ = as_function_of_tensors(spec.reference, inputs)
    direction = torch.ones_like(values[0])

    def product(function: Callable[..., Tensor]) -> Any:
        gradient = torch.func.grad(function)
        return torch.func.jvp(lambda first: gradient(first, *values[1:]), (values[0],), (direction,))

    torch.testing.assert_close(product(ours), product(right))


@REPRESENTATIVES_FIRST
def test_tensors_kept_from_a_torch_func_transform_are_plain_again(spec: Spec, inputs: Inputs) -> None:
    kept: list[Tensor] = []

    def keep(*values: Tensor) -> Tensor:
        kept[:] = values
        return values[0].sum()

    ours, values = as_function_of_tensors(spec.op, inputs)
    torch.func.grad(keep)(*values)
    leaf = values[-1].detach().clone().requires_grad_()
    rest = [leaf, *kept[1:]] if len(values) == 1 else [*kept[:-1], leaf]
    plain = [leaf, *values[1:]] if len(values) == 1 else [*values[:-1], leaf]
    (found,), (wanted,) = (torch.autograd.grad(ours(*one), leaf) for one in (rest, plain))
    torch.testing.assert_close(found, wanted)


def test_torch_func_vmap(spec: Spec, inputs: Inputs) -> None:
    ours, values = as_function_of_tensors(spec.op, inputs)
    batches = [torch.stack([value, value * 2, value - 1]) for value in values]
    right, _ = as_function_of_tensors(spec.reference, inputs)
    one_by_one = torch.stack([right(*members) for members in zip(*batches, strict=True)])
    torch.testing.assert_close(torch.func.vmap(ours)(*batches), one_by_one)


def test_forward_mode(spec: Spec, inputs: Inputs) -> None:
    ours, values = as_function_of_tensors(spec.op, inputs)
    right, _ = as_function_of_tensors(spec.reference, inputs)
    tangents = [torch.cos(value) for value in values]
    wanted = torch.func.jvp(right, tuple(values), tuple(tangents))[1]
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(value, tangent) for value, tangent in zip(values, tangents, strict=True)]
        tangent = forward_ad.unpack_dual(ours(*duals)).tangent
    torch.testing.assert_close(tangent, wanted)
    torch.testing.assert_close(torch.func.jvp(ours, tuple(values), tuple(tangents))[1], wanted)


def test_autocast_gives_what_it_gives_for_the_reference(spec: Spec, inputs: Inputs) -> None:
    """Autocast does not apply to these operators: the arguments keep their dtypes."""
    tensors = [name for name, value in inputs.items() if is_differentiable(value)]
    mixed = {**inputs, tensors[0]: inputs[tensors[0]].bfloat16()}
    with torch.autocast("cpu", torch.bfloat16):
        ours = forward_and_backward(spec.op, mixed)
    with ts.use("torch"), torch.autocast("cpu", torch.bfloat16):
        natively = forward_and_backward(spec.op, mixed)
    assert {name: value.dtype for name, value in ours.items()} == {
        name: value.dtype for name, value in natively.items()
    }
    right = forward_and_backward(spec.reference, {name: _doubled(value) for name, value in mixed.items()})
    for name, value in ours.items():
        torch.testing.assert_close(value.double(), right[name], rtol=2e-2, atol=2e-2)


def _doubled(value: Any) -> Any:
    return value.double() if is_differentiable(value) else value


def test_hooks_and_retained_gradients_see_the_output(spec: Spec, inputs: Inputs) -> None:
    seen: list[Tensor] = []
    outputs = tensors_of(spec.op(**leaves_of(inputs)))
    outputs[0].register_hook(seen.append)
    outputs[0].retain_grad()
    backward(outputs)
    assert len(seen) == 1
    assert outputs[0].grad is not None
