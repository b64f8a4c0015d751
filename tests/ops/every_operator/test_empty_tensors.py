"""Sizes of zero and one: every operator computes them, by kernels as by PyTorch, or refuses them by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from differentiation import tensors_of
from torch import Tensor

import tilesmith as ts
from tilesmith.spec import Case, Inputs, Spec, SpecError, is_differentiable

ROUTES = ("interpret", "torch")
# Sizes that no tensor of the operator may have: the spec cannot make such inputs, or the operator refuses them.
LEAST_ONE = {
    "average", "channels", "classes", "cols", "columns", "features", "head", "heads", "height", "hidden", "outputs",
    "pairs", "width",
}  # fmt: skip
# Of one channel, the norm is zero and so is its gradient. PyTorch's gradient has rounding errors there.
WITH_NORMS = {"attention_update", "edge_norm", "layer_norm", "transition", "triangle_multiply"}


def _results(spec: Spec, inputs: Inputs, route: str) -> dict[str, Tensor]:
    leaves = {
        name: value.detach().clone().requires_grad_() if is_differentiable(value) else value
        for name, value in inputs.items()
    }
    with ts.use(route):  # type: ignore[arg-type]  # parametrised
        outputs = tensors_of(spec.op(**leaves))
    if spec.leaves(inputs):
        assert all(output.requires_grad for output in outputs)
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    found = {f"output {number}": output.detach() for number, output in enumerate(outputs)}
    return found | {f"gradient of {name}": leaves[name].grad for name in spec.leaves(inputs)}


def test_sizes_of_zero_and_one(spec: Spec, small_case: Case) -> None:
    """Both routes give the same results, and a gradient for every argument."""
    for name in small_case.sizes:
        for size in (0, 1):
            torch.manual_seed(5)
            try:
                inputs = spec.inputs(small_case.with_sizes(**{name: size}), torch.float32, "cpu")
            except SpecError:
                assert size == 0, f"{name}={size}"
                assert name in LEAST_ONE, f"{name}={size}"
                continue
            right, ours = (_outcome(spec, inputs, route) for route in ("torch", "interpret"))
            if isinstance(ours, str) or isinstance(right, str):
                assert name in LEAST_ONE, f"{name}={size}: {ours} {right}"
                continue
            close: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3} if spec.name in WITH_NORMS else {}
            torch.testing.assert_close(ours, right, equal_nan=True, check_stride=False, **close, msg=f"{name}={size}")


def _outcome(spec: Spec, inputs: Inputs, route: str) -> dict[str, Tensor] | str:
    try:
        return _results(spec, inputs, route)
    except (TypeError, ValueError) as error:
        if not str(error).startswith(f"{spec.name}: "):
            raise
        return str(error)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4, 5), (2, 3, 4, 0), (0, 0, 0, 0, 0, 0)])
def test_sum_of_an_empty_tensor(shape: tuple[int, ...], route: str) -> None:
    for dim in (None, 0, -1, (1, 2), (0, -1)):
        x = torch.zeros(shape).transpose(0, -1).requires_grad_()
        with ts.use(route):  # type: ignore[arg-type]  # parametrised
            found = ts.ops.sum(x, dim)
        torch.testing.assert_close(found, x.sum(dim))
        found.sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        assert x.grad is not None
        assert x.grad.shape == x.shape


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("operator", ["softmax", "silu", "rms_norm", "transpose", "add"])
def test_empty_tensors_of_many_dimensions(operator: str, route: str) -> None:
    x = torch.zeros(2, 3, 0, 4, 5).permute(3, 0, 4, 2, 1).requires_grad_()
    with ts.use(route):  # type: ignore[arg-type]  # parametrised
        found = getattr(ts.ops, operator)(x, x) if operator == "add" else getattr(ts.ops, operator)(x)
    assert found.numel() == 0
    found.sum().backward()
    assert x.grad is not None


ATTENTION: dict[str, tuple[int, int, int, int]] = {  # batch, heads, queries, keys
    "no keys": (2, 2, 3, 0), "no queries": (2, 2, 0, 3), "neither": (2, 2, 0, 0), "no batch": (0, 2, 3, 3),
    "no heads": (2, 0, 3, 3),
}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"softcap": 1.0}, {"window": (1, 1)}, {"dropout": 0.5, "seed": 3}]
)
@pytest.mark.parametrize("sizes", ATTENTION)
def test_attention_without_keys_or_queries(sizes: str, options: dict[str, Any], route: str) -> None:
    batch, heads, queries, keys = ATTENTION[sizes]
    q = torch.randn(batch, heads, queries, 4, requires_grad=True)
    k, v = (torch.randn(batch, max(heads, 1), keys, 4, requires_grad=True) for _ in range(2))
    with ts.use(route):  # type: ignore[arg-type]  # parametrised
        output = ts.ops.attention(q, k, v, **options)
    _assert_zeros(output, q, k, v)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("rows", [(0, 0), (5, 0), (0, 5)])
def test_packed_attention_without_keys_or_queries(rows: tuple[int, int], route: str) -> None:
    q = torch.randn(rows[0], 2, 4, requires_grad=True)
    k, v = (torch.randn(rows[1], 2, 4, requires_grad=True) for _ in range(2))
    starts = [torch.tensor([0, count // 2, count], dtype=torch.int32) for count in rows]
    with ts.use(route):  # type: ignore[arg-type]  # parametrised
        output = ts.ops.attention_varlen(q, k, v, *starts)
    _assert_zeros(output, q, k, v)


def _assert_zeros(output: Tensor, *arguments: Tensor) -> None:
    """The output and every gradient exist and are zero."""
    assert output.requires_grad
    assert output.shape == arguments[0].shape
    assert (output == 0).all()
    output.backward(torch.randn(output.shape))  # type: ignore[no-untyped-call]  # PyTorch leaves it so
    for argument in arguments:
        assert argument.grad is not None
        assert (argument.grad == 0).all()


@pytest.fixture
def nan_in_new_memory() -> Iterator[None]:
    """Fill every `torch.empty` with NaN, so that memory which nothing writes shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("shape", [(5,), (1, 1, 5), (4, 1, 5), (2, 4, 1, 5)])
@pytest.mark.parametrize("head", [5, 80])
@pytest.mark.parametrize("key_heads", [2, 4])
def test_bias_of_no_queries_gets_a_gradient_of_zero(
    nan_in_new_memory: None, shape: tuple[int, ...], head: int, key_heads: int
) -> None:
    bias = torch.randn(shape, requires_grad=True)
    q = torch.randn(2, 4, 0, head, requires_grad=True)
    k, v = (torch.randn(2, key_heads, 5, head, requires_grad=True) for _ in range(2))
    with ts.use("interpret"):
        ts.ops.attention(q, k, v, bias=bias).sum().backward()  # type: ignore[no-untyped-call]  # PyTorch ships it untyped
    for one in (bias, k, v):
        torch.testing.assert_close(one.grad, torch.zeros_like(one))
