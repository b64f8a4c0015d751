"""Modules that look like a norm, a feed-forward block or an activation: replaced only where they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import assert_same
from torch import Tensor, nn

from tilesmith.patch import patch, report, unpatch
from tilesmith.patch.parts.feed_forward import recognised_block
from tilesmith.patch.parts.norms import looks_like_norm, norm_form
from tilesmith.patch.parts.trials import activation_form

COLUMNS = 24


def rms(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def as_llama(self: Any, x: Tensor) -> Any:
    return self.weight * (x.float() * rms(x.float(), self.eps)).to(x.dtype)


def as_gemma(self: Any, x: Tensor) -> Any:
    return ((1 + self.weight.float()) * (x.float() * rms(x.float(), self.eps))).to(x.dtype)


def rounded_last(self: Any, x: Tensor) -> Any:
    return (self.weight.float() * (x.float() * rms(x.float(), self.eps))).to(x.dtype)


def with_bias(self: Any, x: Tensor) -> Any:
    return as_llama(self, x) + 0.1


def eps_outside_the_root(self: Any, x: Tensor) -> Any:
    return self.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)


def eps_as_a_bound(self: Any, x: Tensor) -> Any:
    return self.weight * x / x.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=self.eps)


def another_eps(self: Any, x: Tensor) -> Any:
    return self.weight * x * rms(x, 2 * self.eps)


def sum_of_squares(self: Any, x: Tensor) -> Any:
    return self.weight * x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + self.eps)


def unbiased_variance(self: Any, x: Tensor) -> Any:
    return self.weight * (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + self.eps)


def without_gradient_of_the_root(self: Any, x: Tensor) -> Any:
    return self.weight * x * rms(x, self.eps).detach()


def louder_in_training(self: Any, x: Tensor) -> Any:
    return as_llama(self, x) * (1.1 if self.training else 1.0)


def always_in_float32(self: Any, x: Tensor) -> Any:
    return self.weight.float() * (x.float() * rms(x.float(), self.eps))


def clamped(self: Any, x: Tensor) -> Any:
    return as_llama(self, x.clamp(-100, 100))


def with_a_gate(self: Any, x: Tensor, gate: Tensor | None = None) -> Any:
    return as_llama(self, x if gate is None else x * gate)


def over_all_tokens(self: Any, x: Tensor) -> Any:
    return self.weight * x * torch.rsqrt(x.pow(2).mean((-2, -1), keepdim=True) + self.eps)


def mean_of_sizes(self: Any, x: Tensor) -> Any:
    return self.weight * x / (x.abs().mean(-1, keepdim=True) + self.eps)


def with_a_number(self: Any, x: Tensor) -> Any:
    return as_llama(self, x) * self.gain


NORMS: dict[Callable[..., Tensor], str | None] = {
    as_llama: "plain_norm", as_gemma: "gemma_norm", rounded_last: "plain_norm_in_dtype",
    **dict.fromkeys((
        with_bias, eps_outside_the_root, eps_as_a_bound, another_eps, sum_of_squares, unbiased_variance,
        without_gradient_of_the_root, louder_in_training, always_in_float32, clamped, with_a_gate, over_all_tokens,
        mean_of_sizes, with_a_number,
    )),
}  # fmt: skip


class Norm(nn.Module):
    def __init__(self, columns: int = COLUMNS, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))
        self.eps, self.gain = eps, 1.0


@pytest.mark.parametrize("forward", NORMS, ids=lambda forward: forward.__name__)
def test_norms_are_recognised_by_what_they_compute(forward: Callable[..., Tensor]) -> None:
    norm = type(forward.__name__, (Norm,), {"forward": forward})()
    assert looks_like_norm(norm)
    form = norm_form(norm)
    assert (form and form.__name__) == NORMS[forward]


def test_unbiased_variance_of_many_columns_is_not_layer_norm() -> None:
    assert norm_form(type("Unbiased", (Norm,), {"forward": unbiased_variance})(8192)) is None


def test_norm_with_a_buffer_is_left() -> None:
    norm = type("Scaled", (Norm,), {"forward": as_llama})()
    norm.register_buffer("scale", torch.ones(1))
    assert not looks_like_norm(norm)
    assert not looks_like_norm(nn.BatchNorm1d(COLUMNS))


def test_norms_of_one_class_may_have_several_forms() -> None:
    class Either(Norm):
        def __init__(self, one: bool) -> None:
            super().__init__()
            self.one = one

        def forward(self, x: Tensor) -> Any:
            return as_gemma(self, x) if self.one else as_llama(self, x)

    model = nn.Sequential(Either(True), Either(False), type("Odd", (Norm,), {"forward": another_eps})())
    x = torch.randn(3, COLUMNS)
    wanted = model(x)
    patch(model)
    assert report(model).swapped == {"norm": 2}
    assert "1 of 1 Odd modules compute something else" in report(model).left["norm"]
    torch.testing.assert_close(model(x), wanted)
    unpatch(model)
    torch.testing.assert_close(model(x), wanted, rtol=0, atol=0)


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x) * (1.01 if self.training else 1.0)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (F.silu, "silu"),
        (nn.SiLU(), "silu"),
        (lambda x: x * torch.sigmoid(x), "silu"),
        (nn.GELU(), "gelu"),
        (nn.GELU(approximate="tanh"), "gelu_tanh"),
        (lambda x: F.gelu(x).clamp(-10, 10), None),
        (lambda x: F.silu(x).clamp(max=700), None),
        (lambda x: x * torch.sigmoid(1.702 * x), None),
        (lambda x: F.silu(x).detach() + x - x.detach(), None),
        (Learned(), None),
        (Noisy(), None),
        (nn.Mish(), None),
    ],
)
def test_activations_are_recognised_by_what_they_compute(function: Any, wanted: str | None) -> None:
    assert activation_form(function) == wanted


def gated(self: Any, x: Tensor) -> Any:
    return self.w3(F.silu(self.w1(x)) * self.w2(x))


def gated_by_the_second(self: Any, x: Tensor) -> Any:
    return self.w3(self.w1(x) * F.gelu(self.w2(x)))


def two_layers(self: Any, x: Tensor) -> Any:
    return self.w3(F.gelu(self.w1(x), approximate="tanh"))


def halves_of_one_layer(self: Any, x: Tensor) -> Any:
    first, second = self.w1(x).chunk(2, dim=-1)
    return self.w3(F.silu(first) * second)


def second_half_active(self: Any, x: Tensor) -> Any:
    first, second = self.w1(x).chunk(2, dim=-1)
    return self.w3(first * F.silu(second))


def added(self: Any, x: Tensor) -> Any:
    return self.w3(F.silu(self.w1(x)) + self.w2(x))


def with_residual(self: Any, x: Tensor) -> Any:
    return x + self.w3(F.silu(self.w1(x)) * self.w2(x))


def halved(self: Any, x: Tensor) -> Any:
    return 0.5 * self.w3(F.silu(self.w1(x)) * self.w2(x))


def both_active(self: Any, x: Tensor) -> Any:
    return self.w3(F.silu(self.w1(x)) * F.silu(self.w2(x)))


def clamped_gate(self: Any, x: Tensor) -> Any:
    return self.w3(F.silu(self.w1(x).clamp(max=7)) * self.w2(x).clamp(-7, 7))


def detached_gate(self: Any, x: Tensor) -> Any:
    return self.w3(F.silu(self.w1(x)).detach() * self.w2(x))


def in_training_only(self: Any, x: Tensor) -> Any:
    return self.w3(F.silu(self.w1(x)) * self.w2(x)) if self.training else self.w3(self.w2(x))


def squared(self: Any, x: Tensor) -> Any:
    return self.w3(F.relu(self.w1(x)).square())


BLOCKS: dict[Callable[..., Tensor], tuple[int, bool]] = {
    gated: (3, True), gated_by_the_second: (3, True), two_layers: (1, True), halves_of_one_layer: (2, True),
    second_half_active: (2, False), added: (3, False), with_residual: (3, False), halved: (3, False),
    both_active: (3, False), clamped_gate: (3, False), detached_gate: (3, False), in_training_only: (3, False),
    squared: (1, False),
}  # fmt: skip
"""By `forward`: three for three layers, else how many times as wide the first of two layers is; is it a block."""


class Block(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(COLUMNS, 40 * (2 if layers == 2 else 1), bias=False)
        if layers == 3:
            self.w2 = nn.Linear(COLUMNS, 40, bias=False)
        self.w3 = nn.Linear(40, COLUMNS, bias=False)


@pytest.mark.parametrize("forward", BLOCKS, ids=lambda forward: forward.__name__)
def test_blocks_of_any_name_are_recognised_by_what_they_compute(forward: Callable[..., Tensor]) -> None:
    layers, is_block = BLOCKS[forward]
    torch.manual_seed(0)
    block = type(forward.__name__, (Block,), {"forward": forward})(layers)
    assert (recognised_block(block) is not None) == is_block
    if not is_block:
        with pytest.raises(ValueError, match="no norm or feed-forward block that Tilesmith recognises"):
            patch(nn.Sequential(block))
        return
    x = torch.randn(5, COLUMNS)
    wanted = _gradients(block, x)
    model = patch(nn.Sequential(block))
    assert report(model).swapped == {"mlp": 1}
    assert_same(_gradients(model[0], x), wanted)


def _gradients(block: nn.Module, x: Tensor) -> dict[str, Tensor]:
    block.zero_grad()
    y = block(x)
    y.square().sum().backward()
    return {
        "y": y.detach(),
        **{name: one.grad.clone() for name, one in block.named_parameters() if one.grad is not None},
    }
