"""What users rely on with every operator: clear errors, untouched inputs, special values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from differentiation import leaves_of, tensors_of
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.spec import Case, Inputs, Spec, called, is_differentiable

rms_norm = SPECS["rms_norm"].op

# In mode "auto" PyTorch computes a CPU call, in "interpret" the kernels: both must raise the same errors.
BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])


@pytest.fixture(autouse=True)
def in_the_interpreter(interpreted_once: None) -> Iterator[None]:
    with ts.use("interpret"):
        yield


def tensor_names(inputs: Inputs) -> list[str]:
    return [name for name, value in inputs.items() if is_differentiable(value)]


class TestBadInput:
    """The message names the operator and the argument."""

    @BOTH_WAYS
    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float8_e5m2], ids=str)
    def test_dtype_without_kernels(self, spec: Spec, inputs: Inputs, mode: Any, dtype: torch.dtype) -> None:
        for name in tensor_names(inputs):
            wrong = {**inputs, name: inputs[name].to(dtype)}
            short = str(dtype).removeprefix("torch.")
            with (
                ts.use(mode),
                pytest.raises(TypeError, match=f"^{spec.name}: {name} has dtype {short}, but must be one of"),
            ):
                spec.op(**wrong)

    @BOTH_WAYS
    @pytest.mark.parametrize("wrong", [[[1.0, 2.0]], 3.0, "x"], ids=["list", "float", "str"])
    def test_not_a_tensor(self, spec: Spec, inputs: Inputs, mode: Any, wrong: object) -> None:
        for name in tensor_names(inputs):
            if (spec.name, name) == ("add", "y") and isinstance(wrong, float):
                continue  # y may be a number
            words = f"^{spec.name}: {name} is a {type(wrong).__name__}, but must be a tensor"
            with ts.use(mode), pytest.raises(TypeError, match=words):
                spec.op(**{**inputs, name: wrong})

    @BOTH_WAYS
    def test_none_where_a_tensor_is_needed(self, spec: Spec, inputs: Inputs, mode: Any) -> None:
        first = tensor_names(inputs)[0]
        with ts.use(mode), pytest.raises(TypeError, match=f"^{spec.name}: {first} is"):
            spec.op(**{**inputs, first: None})

    @BOTH_WAYS
    def test_sparse_tensor(self, spec: Spec, inputs: Inputs, mode: Any) -> None:
        for name in tensor_names(inputs):
            wrong = {**inputs, name: inputs[name].to_sparse()}
            with ts.use(mode), pytest.raises(TypeError, match=f"^{spec.name}: {name} has layout sparse_coo"):
                spec.op(**wrong)

    @BOTH_WAYS
    def test_two_devices(self, spec: Spec, inputs: Inputs, mode: Any) -> None:
        for name in tensor_names(inputs)[1:]:
            wrong = {**inputs, name: inputs[name].to("meta")}
            with ts.use(mode), pytest.raises(ValueError, match=f"^{spec.name}: {name} is on meta, but .* is on cpu"):
                spec.op(**wrong)

    @BOTH_WAYS
    def test_unknown_keyword(self, spec: Spec, inputs: Inputs, mode: Any) -> None:
        with ts.use(mode), pytest.raises(TypeError, match=f"^{spec.name}: .*'colour'.*{spec.name}\\("):
            spec.op(**inputs, colour=3)

    @BOTH_WAYS
    def test_missing_argument(self, spec: Spec, inputs: Inputs, mode: Any) -> None:
        first = next(iter(inputs))
        with ts.use(mode), pytest.raises(TypeError, match=f"^{spec.name}: missing a required argument: '{first}'"):
            spec.op()

    @BOTH_WAYS
    def test_too_many_arguments(self, spec: Spec, inputs: Inputs, mode: Any) -> None:
        too_many = [*inputs.values()] * 4
        with ts.use(mode), pytest.raises(TypeError, match=f"^{spec.name}: too many positional arguments"):
            spec.op(*too_many)

    @BOTH_WAYS
    def test_an_argument_given_twice(self, spec: Spec, inputs: Inputs, mode: Any) -> None:
        first = next(iter(inputs))
        with ts.use(mode), pytest.raises(TypeError, match=f"^{spec.name}: .*'{first}'"):
            spec.op(inputs[first], **inputs)

    def test_is_refused_again_after_a_good_call(self) -> None:
        """What was worked out for one look of the arguments must not let a bad one through."""
        rms_norm(torch.ones(3, 8), torch.ones(8), 1e-6)
        for _ in range(2):
            with pytest.raises(ValueError, match="eps is -1"):
                rms_norm(torch.ones(3, 8), torch.ones(8), -1.0)

    def test_true_is_rejected_also_after_the_number_one(self) -> None:
        rms_norm(torch.ones(3, 8), torch.ones(8), 1)
        with pytest.raises(TypeError, match="eps is a bool"):
            rms_norm(torch.ones(3, 8), torch.ones(8), True)


def test_an_expanded_cotangent(spec: Spec, inputs: Inputs) -> None:
    """`y.sum().backward()` passes one element with stride zero."""
    ours, right = leaves_of(inputs), leaves_of(inputs)
    for function, leaves in ((spec.op, ours), (spec.reference, right)):
        torch.stack([output.sum() for output in tensors_of(called(function, leaves))]).sum().backward()  # type: ignore[no-untyped-call]
    for name in tensor_names(inputs):
        torch.testing.assert_close(ours[name].grad, right[name].grad)


def test_inputs_are_not_changed(spec: Spec, inputs: Inputs) -> None:
    before = leaves_of(inputs)
    leaves = {name: value.requires_grad_() if is_differentiable(value) else value for name, value in inputs.items()}
    outputs = tensors_of(spec.op(**leaves))
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    for name, value in leaves.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value.detach(), before[name].detach(), rtol=0, atol=0)


def test_outputs_share_no_memory_with_inputs(spec: Spec, inputs: Inputs) -> None:
    taken = {value.untyped_storage().data_ptr() for value in inputs.values() if isinstance(value, Tensor)}
    assert not taken & {output.untyped_storage().data_ptr() for output in tensors_of(spec.op(**inputs))}


@pytest.mark.parametrize("special", [float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e-40, 3e38], ids=str)
def test_special_values_match_the_reference(spec: Spec, small_case: Case, special: float) -> None:
    torch.manual_seed(0)
    inputs = spec.inputs(small_case, torch.float32, "cpu")
    first = inputs[tensor_names(inputs)[0]]
    first[(0,) * first.ndim] = special
    # Whether PyTorch's own layer norm loses the square of 3e38 depends on the CPU; its definition always does.
    ours = tensors_of(spec.op(**inputs))
    with patch.object(torch.nn.functional, "layer_norm", _layer_norm):
        right = tensors_of(spec.reference(**inputs))
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def _layer_norm(x: Tensor, shape: Any, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return SPECS["layer_norm"].reference(x, weight, bias, eps)  # type: ignore[no-any-return]  # a spec holds Any
