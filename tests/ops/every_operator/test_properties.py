"""Drawn calls agree with references written anew: sizes, strides, offsets, dtypes, magnitudes, gradients.

The fast part draws a few calls of each operator, the slow part thousands: `TILESMITH_DRAWN_CALLS` of each.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from differentiation import tensors_of
from independent_references import REFERENCES
from torch import Tensor

import tilesmith as ts
from tilesmith.spec import Inputs

pytest.importorskip("hypothesis")  # a machine with a GPU may not have it

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

FAST, SLOW = 4, int(os.environ.get("TILESMITH_DRAWN_CALLS", "300"))
# Roundings of a result in units of the dtype's precision, relative to the largest element.
ALLOWED = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1.5e-1, torch.float64: 1e-12}
SIZES = st.sampled_from([0, 1, 1, 2, 3, 5, 9])  # the interpreter takes long for thousands of rows
SMALL = st.sampled_from([0, 1, 2, 3, 5, 9])


class Drawn:
    """Draws tensors of one call: all of one dtype, each in a layout of its own."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.random = torch.Generator().manual_seed(self.draw(st.integers(0, 2**31)))
        self.dtype = self.draw(st.sampled_from(list(ALLOWED)))
        self.magnitude = self.draw(st.sampled_from([1.0, 1.0, 1e-3, 30.0]))

    def tensor(self, *shape: int, magnitude: float | None = None) -> Tensor:
        values = torch.randn(shape, generator=self.random) * (self.magnitude if magnitude is None else magnitude)
        return self.laid_out(values.to(self.dtype))

    def laid_out(self, values: Tensor) -> Tensor:
        """Return the same values with other strides and another offset."""
        kind = self.draw(st.sampled_from(["dense", "transposed", "gaps", "offset", "reversed order", "expanded"]))
        if kind == "transposed" and values.ndim > 1:
            return values.transpose(0, -1).contiguous().transpose(0, -1)
        if kind == "gaps" and values.ndim:
            return values.repeat_interleave(2, -1)[..., ::2]
        if kind == "offset":
            return torch.cat([values.new_zeros(1), values.flatten()])[1:].view(values.shape)
        if kind == "reversed order":
            order = tuple(reversed(range(values.ndim)))
            return values.permute(order).contiguous().permute(order)
        if kind == "expanded" and values.ndim > 1 and values.shape[0]:
            return values[:1].expand(values.shape)
        return values

    def shape(self, least: int = 1, most: int = 3) -> list[int]:
        return self.draw(st.lists(SIZES, min_size=least, max_size=most))

    def inputs(self, operator: str) -> Inputs:
        return getattr(self, f"_{operator}")()  # type: ignore[no-any-return]  # one method for each operator

    def _add(self) -> Inputs:
        shape = self.shape()
        return {"x": self.tensor(*shape), "y": self.tensor(*shape[self.draw(st.integers(0, len(shape))) :])}

    def _silu(self) -> Inputs:
        return {"x": self.tensor(*self.shape())}

    def _gate(self) -> Inputs:
        shape = self.shape()
        return {"x": self.tensor(*shape), "gate": self.tensor(*shape)}

    def _swiglu(self) -> Inputs:
        shape = self.shape()
        return {"gate": self.tensor(*shape), "up": self.tensor(*shape)}

    def _gelu(self) -> Inputs:
        return {**self._silu(), "approximate": self.draw(st.sampled_from(["none", "tanh"]))}

    def _geglu(self) -> Inputs:
        return {**self._swiglu(), "approximate": self.draw(st.sampled_from(["none", "tanh"]))}

    def _rms_norm(self) -> Inputs:
        shape = [*self.shape(0, 2), self.draw(st.sampled_from([2, 5, 16, 33, 130]))]
        return {"x": self.tensor(*shape), "weight": self.tensor(shape[-1], magnitude=1.0), "eps": 1e-5}

    _rms_norm_relu = _rms_norm

    def _add_rms_norm(self) -> Inputs:
        inputs = self._rms_norm()
        return {"x": inputs["x"], "residual": self.tensor(*inputs["x"].shape), "weight": inputs["weight"], "eps": 1e-5}

    def _layer_norm(self) -> Inputs:
        inputs = self._rms_norm()
        return {**inputs, "bias": self.tensor(inputs["x"].shape[-1], magnitude=1.0), "eps": 1e-3}

    def _softmax(self) -> Inputs:
        shape = self.shape()
        return {"x": self.tensor(*shape), "dim": self.draw(st.integers(-len(shape), len(shape) - 1))}

    def _sum(self) -> Inputs:
        shape = self.shape(1, 4)
        dim = st.one_of(st.none(), st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True).map(tuple))
        return {"x": self.tensor(*shape), "dim": self.draw(dim)}

    def _transpose(self) -> Inputs:
        return {"x": self.tensor(*self.shape(2, 4))}

    def _cross_entropy(self) -> Inputs:
        rows, classes = self.draw(SIZES), self.draw(st.sampled_from([1, 2, 7, 33]))
        target = torch.randint(classes, (rows,), generator=self.random)
        target[torch.rand(rows, generator=self.random) < 0.2] = -100
        reduction = self.draw(st.sampled_from(["none", "sum"] + ["mean"] * bool((target != -100).any())))
        smoothing = self.draw(st.sampled_from([0.0, 0.1]))
        return {"logits": self.tensor(rows, classes), "target": target, "label_smoothing": smoothing,
                "reduction": reduction}  # fmt: skip

    def _matmul(self) -> Inputs:
        batch, rows, inner, columns = (self.draw(SMALL) for _ in range(4))
        return {"a": self.tensor(batch, rows, inner), "b": self.tensor(batch, inner, columns)}

    def _attention(self) -> Inputs:
        self.magnitude = min(self.magnitude, 1.0)
        batch, queries, keys = self.draw(st.sampled_from([0, 1, 2])), self.draw(SMALL), self.draw(SMALL)
        key_heads, group, head = (self.draw(st.sampled_from([1, 2])) for _ in range(3))
        heads, head = key_heads * group, 4 * head
        has_mask, has_bias = self.draw(st.booleans()), self.draw(st.booleans())
        return {
            "q": self.tensor(batch, heads, queries, head), "k": self.tensor(batch, key_heads, keys, head),
            "v": self.tensor(batch, key_heads, keys, head), "causal": self.draw(st.booleans()),
            "mask": torch.rand(batch, keys, generator=self.random) < 0.7 if has_mask else None,
            "bias": self.tensor(heads, queries, keys) if has_bias else None, "scale": 0.4,
        }  # fmt: skip

    def _outer_product_mean(self) -> Inputs:
        batch, sequences, residues = (self.draw(st.sampled_from([0, 1, 2, 3])) for _ in range(3))
        shape = batch, sequences, residues, self.draw(st.sampled_from([1, 3]))
        mask = torch.rand(shape[:3], generator=self.random) < 0.7
        return {"a": self.tensor(*shape), "b": self.tensor(*shape), "mask": mask, "eps": 0.1}


def _compare(operator: str, data: st.DataObject) -> None:
    drawn = Drawn(data)
    inputs = drawn.inputs(operator)
    floating = [name for name, value in inputs.items() if isinstance(value, Tensor) and value.is_floating_point()]
    wanted = drawn.draw(st.lists(st.sampled_from(floating), min_size=1, unique=True), label="requires_grad")
    route: Any = drawn.draw(st.sampled_from(["interpret", "interpret", "torch"]))
    ours = {name: value.detach().requires_grad_(name in wanted) if name in floating else value
            for name, value in inputs.items()}  # fmt: skip
    exact = {name: value.detach().double().requires_grad_(name in wanted) if isinstance(value, Tensor)
             and value.is_floating_point() else value for name, value in inputs.items()}  # fmt: skip
    with ts.use(route):
        outputs = tensors_of(getattr(ts.ops, operator)(**ours))
    rights = tensors_of(REFERENCES[operator](**exact))
    cotangents = [drawn.laid_out(torch.randn(one.shape, generator=drawn.random).to(one.dtype)) for one in outputs]
    _backward(outputs, cotangents)
    _backward(rights, [one.double() for one in cotangents])
    pairs: list[tuple[str, Tensor | None, Tensor | None]]
    pairs = [("output", one, right) for one, right in zip(outputs, rights, strict=True)]
    pairs += [(f"gradient of {name}", ours[name].grad, exact[name].grad) for name in wanted]
    for what, found, right in pairs:
        assert found is not None, what
        right = torch.zeros_like(found, dtype=torch.float64) if right is None else right
        assert found.shape == right.shape, what
        size = right.abs().max().item() if right.numel() else 0.0
        error = (found.double() - right).abs().max().item() if right.numel() else 0.0
        assert error <= ALLOWED[drawn.dtype] * max(size, 1e-2), f"{what}: {error:.1e} of {size:.1e}"


def _backward(outputs: list[Tensor], cotangents: list[Tensor]) -> None:
    """Run the backward of the outputs that depend on something that requires a gradient."""
    both = [(one, its) for one, its in zip(outputs, cotangents, strict=True) if one.requires_grad]
    if both:
        torch.autograd.backward([one for one, _ in both], [its for _, its in both])


QUIET = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], derandomize=True
)


@pytest.mark.parametrize("operator", REFERENCES)
@settings(QUIET, max_examples=FAST)
@given(data=st.data())
def test_a_few_drawn_calls(operator: str, data: st.DataObject) -> None:
    _compare(operator, data)


@pytest.mark.slow
@pytest.mark.parametrize("operator", REFERENCES)
@settings(QUIET, max_examples=SLOW, derandomize=False)
@given(data=st.data())
def test_many_drawn_calls(operator: str, data: st.DataObject) -> None:
    _compare(operator, data)
