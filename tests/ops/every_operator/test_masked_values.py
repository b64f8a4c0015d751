"""A masked element has no influence, whatever it holds: NaN and infinities stay out of results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
import tilesmith.fold
from tilesmith.spec import Inputs

Poison = Callable[[Inputs], None]
ROUTES = ("interpret", "torch")


def _poisoned(tensor: Tensor, hidden: Tensor) -> Tensor:
    """Return the tensor with NaN, ∞ and −∞ in turn where hidden."""
    values = torch.tensor([float("nan"), float("inf"), float("-inf")])
    return torch.where(hidden, values[torch.arange(tensor.numel()) % 3].view(tensor.shape), tensor)


def _random(*shape: int) -> Tensor:
    return torch.randn(shape)


def _mask(*shape: int) -> Tensor:
    """Return a mask with every third element false, and one row that is false everywhere."""
    mask = torch.ones(shape, dtype=torch.bool)
    mask.view(-1)[1::3] = False
    mask.flatten(0, -2)[-1] = False
    return mask


def _attention(queries: int, keys: int, key_heads: int, head: int = 5, **options: Any) -> Inputs:
    """Return inputs of attention with a mask. Short, decoding, portable and grouped calls run different kernels."""
    return {
        "q": _random(2, 2, queries, head),
        "k": _random(2, key_heads, keys, head), "v": _random(2, key_heads, keys, head),
        "bias": _random(2, queries, keys), "mask": _mask(2, keys), **options,
    }  # fmt: skip


def _poison_keys(inputs: Inputs) -> None:
    hidden = ~inputs["mask"]
    for name in ("k", "v"):
        inputs[name] = _poisoned(inputs[name], hidden[:, None, :, None])
    inputs["bias"] = _poisoned(inputs["bias"], hidden.all(dim=0)[None, None, :])


def _attention_by(shape: tuple[int, ...], **options: Any) -> Inputs:
    """Return inputs of attention with a mask of queries or heads too. It hides keys 1 and 4 from all of them."""
    mask = torch.arange(int(torch.tensor(shape).prod())).reshape(shape) % 3 > 0
    mask[..., [1, 4]] = False
    return {
        "q": _random(2, 2, 5, 5), "k": _random(2, 2, 6, 5), "v": _random(2, 2, 6, 5), "mask": mask, **options,
    }  # fmt: skip


def _poison_hidden_keys(inputs: Inputs) -> None:
    hidden = torch.tensor([False, True, False, False, True, False])
    for name in ("k", "v"):
        inputs[name] = _poisoned(inputs[name], hidden[:, None])


def _grid(along_columns: bool) -> Inputs:
    shape = (2, 3, 4, 2, 5) if along_columns else (2, 4, 3, 2, 5)
    inputs = {name: _random(*shape) for name in ("q", "k", "v")}
    return {**inputs, "mask": _mask(*shape[:3])}


def _poison_grid(inputs: Inputs) -> None:
    for name in ("k", "v"):
        inputs[name] = _poisoned(inputs[name], ~inputs["mask"][..., None, None])


def _alignment() -> Inputs:
    return {
        "a": _random(2, 4, 3, 3), "b": _random(2, 4, 3, 3), "mask": _mask(2, 4, 3), "weight": _random(5, 9),
        "bias": _random(5),
    }  # fmt: skip


def _poison_alignment(inputs: Inputs) -> None:
    for name in ("a", "b"):
        inputs[name] = _poisoned(inputs[name], ~inputs["mask"][..., None])


def _classes(smoothing: float, reduction: str) -> Inputs:
    target = torch.tensor([3, -100, 0, -100, 6])
    return {"logits": _random(5, 7), "target": target, "label_smoothing": smoothing, "reduction": reduction}


def _poison_rows(name: str) -> Poison:
    def poison(inputs: Inputs) -> None:
        inputs[name] = _poisoned(inputs[name], (inputs["target"] == -100)[:, None])

    return poison


CALLS: dict[str, tuple[str, Callable[[], Inputs], Poison]] = {
    "short": ("attention", lambda: _attention(5, 6, 2), _poison_keys),
    "softcap": ("attention", lambda: _attention(5, 6, 2, softcap=2.0), _poison_keys),
    "grouped": ("attention", lambda: _attention(9, 21, 1), _poison_keys),
    "causal": ("attention", lambda: _attention(9, 21, 1, causal=True), _poison_keys),
    "decoding": ("attention", lambda: _attention(1, 70, 2), _poison_keys),
    "long": ("attention", lambda: _attention(34, 66, 2, softcap=3.0), _poison_keys),
    "mask by query": ("attention", lambda: _attention_by((5, 6)), _poison_hidden_keys),
    "mask by head": ("attention", lambda: _attention_by((2, 1, 6), bias=_random(5, 6)), _poison_hidden_keys),
    "mask of all scores": ("attention", lambda: _attention_by((2, 2, 5, 6), causal=True), _poison_hidden_keys),
    "row": ("msa_row_attention", lambda: _grid(True) | {"bias": _random(2, 2, 4, 4)}, _poison_grid),
    "column": ("msa_column_attention", lambda: _grid(False), _poison_grid),
    "triangle": (
        "triangle_attention",
        lambda: {**_grid(False), "bias": _random(2, 2, 4, 4), "starting": False, "gate": _random(2, 4, 3, 2, 5)},
        _poison_grid,
    ),
    "outer product": ("outer_product_mean", _alignment, _poison_alignment),
    "mean": ("cross_entropy", lambda: _classes(0.0, "mean"), _poison_rows("logits")),
    "smoothed": ("cross_entropy", lambda: _classes(0.2, "sum"), _poison_rows("logits")),
    "each": ("cross_entropy", lambda: _classes(0.0, "none"), _poison_rows("logits")),
    "linear": (
        "linear_cross_entropy",
        lambda: {"hidden": _random(5, 4), "weight": _random(7, 4), "target": torch.tensor([3, -100, 0, -100, 6])},
        _poison_rows("hidden"),
    ),
}


def _results(operator: str, inputs: Inputs, route: str) -> dict[str, Tensor]:
    return _results_of(getattr(ts.ops, operator), inputs, route)


def _results_of(function: Callable[..., Any], inputs: Inputs, route: str) -> dict[str, Tensor]:
    """Return the output and all gradients."""
    leaves = {
        name: value.clone().requires_grad_() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    with ts.use(route):  # type: ignore[arg-type]  # parametrised
        output = function(**leaves)
        output.backward(torch.arange(1, output.numel() + 1).mul(1.7).sin().view(output.shape))
    gradients = {name: one.grad for name, one in leaves.items() if isinstance(one, Tensor) and one.grad is not None}
    return {"output": output.detach(), **gradients}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("call", CALLS)
def test_masked_values_reach_neither_results_nor_gradients(call: str, route: str) -> None:
    operator, make, poison = CALLS[call]
    torch.manual_seed(1)
    inputs = make()
    right = _results(operator, inputs, route)
    poison(inputs)
    torch.testing.assert_close(_results(operator, inputs, route), right)


@pytest.mark.parametrize("route", ROUTES)
def test_masked_elements_get_a_gradient_of_zero(route: str) -> None:
    """Even where a query that is NaN attends to the same sequence."""
    torch.manual_seed(1)
    for inputs in (_attention(5, 6, 2), _attention(9, 21, 1)):
        inputs["q"][0, 0, 2, 1] = float("nan")
        found = _results("attention", inputs, route)
        for name in ("k", "v"):
            hidden = ~inputs["mask"][:, None, :, None].expand_as(found[name])
            assert (found[name][hidden] == 0).all(), name


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_attention_update_ignores_masked_places(route: str, residual: bool) -> None:
    torch.manual_seed(1)
    channels, width = 6, 4
    inputs: Inputs = {
        "x": _random(1, 2, 5, channels), "norm_weight": _random(channels), "norm_bias": _random(channels),
        "query_key_value_weight": _random(3 * width, channels), "gate_weight": _random(width, channels),
        "gate_bias": _random(width), "output_weight": _random(channels, width), "output_bias": _random(channels),
        "heads": 2, "mask": _mask(1, 2, 5), "residual": residual,
    }  # fmt: skip
    shown = inputs["mask"]
    right = _results("attention_update", inputs, route)["output"]
    inputs["x"] = _poisoned(inputs["x"], ~shown[..., None])
    found = _results("attention_update", inputs, route)["output"]
    torch.testing.assert_close(found[shown], right[shown])


@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("route", ROUTES)
def test_triangle_multiply_ignores_masked_pairs(route: str, chunk: int | None, direction: str) -> None:
    torch.manual_seed(1)
    spec = ts.ops.SPECS["triangle_multiply"]
    inputs = spec.inputs(spec.cases[1], torch.float32, "cpu") | {"chunk": chunk, "direction": direction}
    shown = inputs["mask"] = _mask(*inputs["z"].shape[:3])
    right = _results("triangle_multiply", inputs, route)["output"]
    inputs["z"] = _poisoned(inputs["z"], ~shown[..., None])
    found = _results("triangle_multiply", inputs, route)["output"]
    torch.testing.assert_close(found[shown], right[shown])


@pytest.mark.parametrize("route", ROUTES)
def test_packed_sequences_do_not_spoil_each_other(route: str) -> None:
    torch.manual_seed(1)
    starts = torch.tensor([0, 3, 3, 8, 12], dtype=torch.int32)
    inputs: Inputs = {name: _random(12, 2, 5) for name in ("q", "k", "v")} | {"cu_seqlens": starts, "causal": True}
    right = _results("attention_varlen", inputs, route)
    others = torch.ones(12, dtype=torch.bool)
    others[3:8] = False
    for name in ("q", "k", "v"):
        spoiled = _poisoned(inputs[name], ~others[:, None, None])
        found = _results("attention_varlen", {**inputs, name: spoiled}, route)
        for result, tensor in found.items():
            torch.testing.assert_close(tensor[others], right[result][others], msg=f"{result}, {name} spoiled")


def _packed(lengths: Tensor, how: str, route: str) -> Callable[[Inputs], dict[str, Tensor]]:
    """Return the output and the gradients of packed attention, by torch.compile or by torch.func."""

    def output(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ts.ops.attention_varlen(q, k, v, lengths, causal=True, softcap=3.0)

    compiled = torch.compile(output, backend="aot_eager") if how == "compile" else output

    def results(inputs: Inputs) -> dict[str, Tensor]:
        leaves = [inputs[name].clone() for name in ("q", "k", "v")]
        cotangent = torch.arange(1, leaves[0].numel() + 1).mul(1.7).sin().view(leaves[0].shape)
        with ts.use(route):  # type: ignore[arg-type]  # parametrised
            if how == "func":
                made, pull = torch.func.vjp(output, *leaves)
                return {"output": made, **dict(zip(("q", "k", "v"), pull(cotangent), strict=True))}
            if how == "vmap":
                (made,) = torch.func.vmap(output)(*(one[None] for one in leaves))
                return {"output": made}
            made = compiled(*(one.requires_grad_() for one in leaves))
            made.backward(cotangent)  # type: ignore[no-untyped-call]  # PyTorch ships it untyped
        return {"output": made.detach(), **{name: one.grad for name, one in zip("qkv", leaves, strict=True)}}

    return results


@pytest.mark.parametrize(
    ("how", "route"),
    [
        pytest.param(how, route, marks=pytest.mark.slow if (how, route) == ("compile", "torch") else [])
        for how in ("compile", "func", "vmap")
        for route in ROUTES
    ],
)
def test_packed_sequences_do_not_spoil_each_other_where_pytorch_traces(how: str, route: str) -> None:
    torch.manual_seed(1)
    starts = torch.tensor([0, 3, 3, 8, 12], dtype=torch.int32)
    inputs: Inputs = {name: _random(12, 2, 5) for name in ("q", "k", "v")}
    results = _packed(starts, how, route)
    right = results(inputs)
    others = torch.ones(12, dtype=torch.bool)
    others[3:8] = False
    for name in ("q", "k", "v"):
        found = results({**inputs, name: _poisoned(inputs[name], ~others[:, None, None])})
        for result, tensor in found.items():
            torch.testing.assert_close(tensor[others], right[result][others], msg=f"{result}, {name} spoiled")
        assert found["output"][3:8].isnan().any(), f"{name} spoiled its own sequence"


def _fold_inputs(queries: int, keys: int, with_lengths: bool) -> Inputs:
    inputs = {"q": _random(2, 3, 2, queries, 4), "k": _random(2, 3, 2, keys, 4), "v": _random(2, 3, 2, keys, 4)}
    inputs["bias"] = _random(2, 1, 2, queries, keys)
    if with_lengths:
        lengths = torch.tensor([[2, 0, keys], [1, keys, 3]], dtype=torch.int32)[:, :, None, None, None]
        return {**inputs, "kv_lengths": lengths}
    mask = torch.ones(2, 3, 1, 1, keys, dtype=torch.bool)
    mask[..., 1::3] = False
    return {**inputs, "mask": mask}


@pytest.mark.parametrize("with_lengths", [False, True])
@pytest.mark.parametrize("queries", [4, 3])  # as many as keys: over pairs; fewer: plain attention
@pytest.mark.parametrize("route", ROUTES)
def test_masked_keys_of_folding_models_reach_neither_results_nor_gradients(
    route: str, queries: int, with_lengths: bool
) -> None:
    torch.manual_seed(1)
    inputs = _fold_inputs(queries, 4, with_lengths)
    seen = inputs["mask"][:, :, 0] if not with_lengths else torch.arange(4) < inputs["kv_lengths"][:, :, 0]
    hidden = ~seen[..., None]  # [batch, rows, 1, keys, 1]
    right = _results_of(ts.fold.triangle_attention, inputs, route)
    for name in ("k", "v"):
        inputs[name] = _poisoned(inputs[name], hidden)
    torch.testing.assert_close(_results_of(ts.fold.triangle_attention, inputs, route), right)
