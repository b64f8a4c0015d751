# mypy: disable-error-code="no-untyped-call"
# PyTorch does not annotate its rarer functions and base classes.
"""Operators as PyTorch sees them: in its dispatcher, on meta tensors, under tracers and dispatch modes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from differentiation import assert_same, backward, forward_and_backward, forwards_of, leaves_of, tensors_of
from representatives import REPRESENTATIVES_FIRST
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import tilesmith as ts
from tilesmith.lab.check import interpretable
from tilesmith.ops.geglu import backward_with_output as geglu_backward
from tilesmith.ops.gelu import backward_with_output as gelu_backward
from tilesmith.ops.matmul.internal.sum_of_products import chosen_at_run_time, linear_product
from tilesmith.ops.rms_norm import one_plus
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.kernels import Kernels
from tilesmith.ops.runtime.operator import Operator
from tilesmith.ops.swiglu.operator import backward_with_output as swiglu_backward
from tilesmith.spec import LAYOUTS, Case, Inputs, Layout, Spec, is_differentiable


@pytest.fixture(autouse=True)
def in_the_interpreter(interpreted_once: None) -> Iterator[None]:
    with ts.use("interpret"):
        yield


class Listener(TorchDispatchMode):
    """Records every call of our torch operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "tilesmith":
            self.calls.append((func, tuple(one.detach() if isinstance(one, Tensor) else one for one in args)))
        return func(*args, **(kwargs or {}))


def calls_of(spec: Spec, inputs: Inputs) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return the calls of our torch operators in one forward and backward, with their arguments."""
    listener = Listener()
    with listener:
        outputs = tensors_of(spec.op(**leaves_of(inputs)))
        if spec.differentiable:
            backward(outputs)
    return listener.calls


def declared_kernels() -> dict[str, Kernels]:
    """Return all `Kernels` in the operators' modules."""
    modules = [module for name, module in sys.modules.items() if name.startswith("tilesmith.ops.")]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Kernels)]
    return {f"tilesmith::{kernels.name}": kernels for kernels in found}


@REPRESENTATIVES_FIRST
def test_dispatch_mode_sees_the_operator(spec: Spec, operator: Operator[..., Any], inputs: Inputs) -> None:
    with Listener() as listener:
        result = forward_and_backward(operator, inputs)
    assert listener.calls[0][0] in [one.dispatched for one in forwards_of(operator)]
    assert_same(result, forward_and_backward(spec.reference, inputs))


# test_aot_dispatch_dynamic is left out: test_torch_compile also traces all kernels of an operator for dynamic sizes.
WITHOUT_TRACING = ("test_schema", "test_faketensor", "test_autograd_registration")
IN_FULL = (*WITHOUT_TRACING, "test_aot_dispatch_dynamic")


@pytest.mark.parametrize(
    ("layout", "tests"),
    [
        pytest.param(LAYOUTS[0], WITHOUT_TRACING, id="contiguous"),
        pytest.param(LAYOUTS[2], WITHOUT_TRACING, id="laid out otherwise", marks=pytest.mark.slow),
        pytest.param(LAYOUTS[0], IN_FULL, id="in full", marks=pytest.mark.slow),
    ],
)
def test_opcheck_accepts_every_kernel_of_the_operator(
    spec: Spec, operator: Operator[..., Any], small_case: Case, layout: Layout, tests: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Give opcheck the forward, which comes first, with gradients, and the other kernels."""
    (forward, arguments), *others = calls_of(spec, spec.inputs(small_case, torch.float32, "cpu", layout))
    assert forward in [one.dispatched for one in forwards_of(operator)]
    # Memory that a kernel does not write, such as padding of a tile, is then the same at every call.
    empty = torch.empty_strided
    monkeypatch.setattr(torch, "empty_strided", lambda *given, **named: empty(*given, **named).zero_())
    for function, given in [(forward, tuple(_leaf(one) for one in arguments)), *others]:
        torch.library.opcheck(function, given, test_utils=tests)


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_() if is_differentiable(value) else value


# Only other torch operators of ours call these: composed operators, or operators at sizes beyond the small cases.
INNER = {
    "attention_update_gated", "attention_update_projections_gradient", "chosen_linear",
    "chosen_sum_of_products",
    "layer_norm_branch_backward", "matmul_finish_gradient", "matmul_forward_with_addend",
    "one_plus_add_rms_norm_forward", "one_plus_rms_norm_backward", "one_plus_rms_norm_forward",
    "outer_product_mean_few_backward",
    "outer_product_mean_few_forward", "outer_product_mean_epilogue", "outer_product_mean_scaled_transposed",
    "swiglu_backward_with_output", "geglu_backward_with_output", "gelu_backward_with_output",
    "triangle_multiply_exact_backward", "triangle_multiply_exact_forward", "triangle_multiply_gate_gradient",
    "triangle_multiply_gated", "triangle_multiply_output_gate_gradient", "triangle_multiply_output_gated",
    "triangle_multiply_product_norm", "triangle_multiply_product_norm_gradient",
}  # fmt: skip


@pytest.mark.parametrize(
    "tests",
    [pytest.param(WITHOUT_TRACING, id="without tracing"), pytest.param(IN_FULL, id="in full", marks=pytest.mark.slow)],
)
def test_opcheck_accepts_kernels_that_others_call(monkeypatch: pytest.MonkeyPatch, tests: tuple[str, ...]) -> None:
    called: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    call, runner_for = Kernels.__call__, Kernels.runner_for

    def note(kernels: Kernels, arguments: Sequence[Any]) -> None:
        copies = tuple(one.detach().clone() if isinstance(one, Tensor) else one for one in arguments)
        called.setdefault(kernels.name, (kernels.dispatched, copies))

    def noted_call(kernels: Kernels, *arguments: Any) -> Any:
        note(kernels, arguments)
        return call(kernels, *arguments)

    def noted_runner_for(kernels: Kernels, arguments: Sequence[Any]) -> Any:
        note(kernels, arguments)
        return runner_for(kernels, arguments)

    monkeypatch.setattr(Kernels, "__call__", noted_call)
    monkeypatch.setattr(Kernels, "runner_for", noted_runner_for)
    monkeypatch.setattr(sys.modules["tilesmith.ops.triangle_multiply.operator"], "MOST_FUSED_EXACT_ELEMENTS", 0)
    dispatch.forget()  # else a call that was planned before runs without its inner calls
    torch.manual_seed(0)
    for name in ("triangle_multiply", "attention_update", "transition"):
        spec = ts.ops.SPECS[name]
        case = next(case for case in spec.cases if spec.inputs(case, torch.float32, "meta").get("residual"))
        forward_and_backward(spec.op, spec.inputs(case, torch.float32, "cpu"))
    sides = {"a": torch.randn(1, 2, 3, 4), "b": torch.randn(1, 2, 3, 4), "weight": torch.randn(5, 16)}
    forward_and_backward(ts.ops.SPECS["outer_product_mean"].op, sides)
    x, y, z = torch.randn(3, 3, 4)
    swiglu_backward(x, y, z)
    geglu_backward(x, y, z, "tanh")
    gelu_backward(x, y, "none")
    one_plus.forward(x, y[0], 1e-6)
    one_plus.sum_forward(x, y, z[0], 1e-6)
    one_plus.backward(x, y, z, x[0], 1e-6, True)
    chosen_at_run_time(torch.randn(3, 4), torch.randn(4, 5))
    linear_product(torch.randn(2, 3, 4), torch.randn(5, 4))
    assert set(called) >= INNER
    monkeypatch.undo()
    for name in sorted(INNER):
        torch.library.opcheck(*called[name], test_utils=tests)


# The operator's own tests give these to opcheck, since no case has the argument that they need.
ELSEWHERE = {
    "tilesmith::cross_entropy_loss_and_gradient",
    "tilesmith::gated_products_forward",
    "tilesmith::gated_products_backward",
    "tilesmith::outer_product_mean_scaled",
    "tilesmith::outer_product_mean_transposed",
    "tilesmith::summed_products",
    "tilesmith::triangle_multiply_chunked_forward",
    "tilesmith::triangle_multiply_chunked_backward",
}


def test_opcheck_was_given_every_kernel_there_is() -> None:
    """Try cases, the smallest first, until every kernel was called."""
    cases = [
        (spec.cost(case, torch.float32).forward.bytes, number, spec, case)
        for number, spec in enumerate(ts.ops.SPECS.values())
        for case in spec.cases
        if spec.cost is not None and interpretable(spec, case)
    ]
    missing = set(declared_kernels()) - ELSEWHERE - {f"tilesmith::{name}" for name in INNER}
    for *_, spec, case in sorted(cases, key=lambda one: one[:2]):
        if not missing:
            break
        calls = calls_of(spec, spec.inputs(case, torch.float32, "meta"))
        missing -= {function.name().removesuffix(".default") for function, _ in calls}
    assert not missing


@pytest.mark.usefixtures("only_plans")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout.name))
def test_fake_results_match_the_real_ones(spec: Spec, small_case: Case, layout: Layout) -> None:
    inputs = spec.inputs(small_case, torch.bfloat16, "cpu", layout)
    real = tensors_of(spec.op(**inputs))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        pass
    for device, imagine in (("cpu", mode.from_tensor), ("meta", lambda tensor: tensor.to("meta"))):
        given = {name: imagine(value) if isinstance(value, Tensor) else value for name, value in inputs.items()}
        imagined = tensors_of(spec.op(**given))
        assert [look(one) for one in imagined] == [look(one) for one in real]
        assert {one.device.type for one in imagined} == {device}


def look(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def test_gradients_flow_on_meta_tensors(spec: Spec, small_case: Case) -> None:
    leaves = leaves_of(spec.inputs(small_case, torch.float32, "meta"))
    outputs = tensors_of(spec.op(**leaves))
    torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
    for value in leaves.values():
        if is_differentiable(value):
            assert value.grad.shape == value.shape
            assert value.grad.device.type == "meta"


@REPRESENTATIVES_FIRST
def test_make_fx_traces_forward_and_backward(operator: Operator[..., Any], inputs: Inputs) -> None:
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    names = [name for name, value in inputs.items() if isinstance(value, Tensor)]

    def step(*values: Tensor) -> list[Tensor]:
        found = forward_and_backward(operator, {**inputs, **dict(zip(names, values, strict=True))})
        return list(found.values())

    traced = make_fx(step)(*tensors)
    targets = [node.target for node in traced.graph.nodes]
    assert any(one.dispatched in targets for one in forwards_of(operator))
    for ours, right in zip(traced(*tensors), step(*tensors), strict=True):
        torch.testing.assert_close(ours, right)


@REPRESENTATIVES_FIRST
def test_a_lazily_negated_tensor_counts_as_negated(spec: Spec, inputs: Inputs) -> None:
    negated = {name: torch._neg_view(value) if is_differentiable(value) else value for name, value in inputs.items()}
    assert any(isinstance(value, Tensor) and value.is_neg() for value in negated.values())
    plainly = {name: -value if is_differentiable(value) else value for name, value in inputs.items()}
    ours, right = tensors_of(spec.op(**negated)), tensors_of(spec.op(**plainly))
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one, other)


class Marked(Tensor):
    """A user's tensor class."""


def test_a_tensor_subclass_is_left_to_pytorch(spec: Spec, inputs: Inputs) -> None:
    marked = {name: value.as_subclass(Marked) if is_differentiable(value) else value for name, value in inputs.items()}
    with Listener() as listener:
        made = tensors_of(spec.op(**marked))
    assert not listener.calls
    assert all(isinstance(one, Marked) for one in made)
    for one, right in zip(made, tensors_of(spec.reference(**inputs)), strict=True):
        torch.testing.assert_close(one.as_subclass(Tensor), right)
