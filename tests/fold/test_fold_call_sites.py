"""The calls of Boltz, OpenFold3 and Protenix: their arguments and shapes, on our functions, against the algorithms.

The modules here have those projects' parameters and make their calls; the code around the calls is ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import published
import pytest
import torch
from torch import Tensor, nn

import tilesmith as ts
import tilesmith.fold
from covering import covering

LENGTH, CHANNELS, HEADS, HEAD = 9, 16, 2, 8


@pytest.fixture(autouse=True, params=["torch", "interpret"])
def installed(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.manual_seed(0)
    tilesmith.fold.install()
    with ts.use(request.param):
        yield
    tilesmith.fold.uninstall()


class Attention(nn.Module):
    """The parameters that all three projects have in a triangle attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(CHANNELS)
        self.linear = nn.Linear(CHANNELS, HEADS, bias=False)
        for name in "qkvg":
            setattr(self, f"linear_{name}", nn.Linear(CHANNELS, HEADS * HEAD, bias=False))
        self.linear_o = nn.Linear(HEADS * HEAD, CHANNELS, bias=False)

    def heads(self, x: Tensor) -> list[Tensor]:
        """q, k and v as [*, H, length, D]."""
        layers: list[Any] = [self.linear_q, self.linear_k, self.linear_v]
        return [layer(x).unflatten(-1, (HEADS, -1)).transpose(-2, -3) for layer in layers]

    def ended(self, attended: Tensor, x: Tensor) -> Tensor:
        """The gate and the output layer of attention, [*, length, H, D]."""
        gate: Any = self.linear_g
        output: Tensor = self.linear_o((attended * gate(x).sigmoid().unflatten(-1, (HEADS, -1))).flatten(-2))
        return output


def boltz_attention(module: Attention, x: Tensor, mask: Tensor) -> Tensor:
    """Five dimensions; the bias as a projection leaves it; a boolean mask; everything after v by name."""
    from cuequivariance_torch.primitives.triangle import triangle_attention  # type: ignore[import-not-found]

    x = module.layer_norm(x)
    bias = module.linear(x).permute(0, 3, 1, 2).unsqueeze(-4)
    q, k, v = module.heads(x)
    o = triangle_attention(q, k, v, bias, mask=mask[..., :, None, None, :].bool(), scale=1.0 / math.sqrt(HEAD))
    return module.ended(o.transpose(-2, -3), x)


def openfold3_attention(module: Attention, x: Tensor, mask: Tensor) -> Tensor:
    """The mask from an additive one, as `mask_bias == 0`; the bias by name; templates folded into the batch."""
    from cuequivariance_ops_torch.triangle_attention import (  # type: ignore[import-not-found]
        CUEQ_TRIATTN_FALLBACK_THRESHOLD,
    )
    from cuequivariance_torch.primitives.triangle import triangle_attention

    assert CUEQ_TRIATTN_FALLBACK_THRESHOLD == 0
    x = module.layer_norm(x)
    mask_bias = (1e9 * (mask - 1))[..., :, None, None, :]
    bias = module.linear(x).permute(0, 3, 1, 2).unsqueeze(-4)
    q, k, v = module.heads(x)
    o = triangle_attention(q, k, v, bias=bias, mask=mask_bias == 0, scale=1.0 / math.sqrt(HEAD))
    return module.ended(o.transpose(-2, -3), x)


def openfold3_attention_without_batch(module: Attention, x: Tensor, mask: Tensor) -> Tensor:
    """Four dimensions; the first of the five that come back is removed."""
    from cuequivariance_torch.primitives.triangle import triangle_attention

    x = module.layer_norm(x[0])
    mask_bias = (1e9 * (mask[0] - 1))[..., :, None, None, :]
    q, k, v = module.heads(x)
    o = triangle_attention(
        q, k, v, bias=module.linear(x).permute(2, 0, 1).unsqueeze(-4), mask=mask_bias == 0, scale=1.0 / math.sqrt(HEAD)
    ).squeeze(0)
    return module.ended(o.transpose(-2, -3), x)[None]


def protenix_attention(module: Attention, x: Tensor, mask: Tensor) -> Tensor:
    """Four dimensions; the bias in float32; the result's first element."""
    from cuequivariance_torch.primitives.triangle import triangle_attention

    x = module.layer_norm(x[0])
    biases = [(1e9 * (mask[0] - 1))[..., :, None, None, :], module.linear(x).permute(2, 0, 1).unsqueeze(-4)]
    q, k, v = module.heads(x)
    scale = 1.0 / math.sqrt(HEAD)
    o = triangle_attention(q, k, v, biases[1].float(), mask=(biases[0] == 0).bool(), scale=scale)[0]
    return module.ended(o.transpose(-2, -3), x)[None]


def published_attention(module: Attention, x: Tensor, mask: Tensor) -> Tensor:
    x = module.layer_norm(x)
    q, k, v = module.heads(x)
    bias = module.linear(x).permute(0, 3, 1, 2).unsqueeze(-4)
    attended = published.triangle_attention(q, k, v, bias, mask[..., :, None, None, :])
    return module.ended(attended.transpose(-2, -3), x)


class Multiplication(nn.Module):
    """Boltz's parameters; OpenFold3 and Protenix have those for a and b apart, and join them for the call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        for name in ("linear_a_p", "linear_b_p", "linear_a_g", "linear_b_g", "p_out", "g_out"):
            setattr(self, name, nn.Linear(CHANNELS, CHANNELS, bias=False))

    def joined(self, kind: str) -> Tensor:
        a, b = (getattr(self, f"linear_{one}_{kind}") for one in "ab")
        return torch.cat((a.weight, b.weight))

    def arguments(self) -> dict[str, Tensor]:
        layers: dict[str, Any] = {name: getattr(self, name) for name in ("norm_in", "norm_out", "p_out", "g_out")}
        made = {f"{name}_weight": layer.weight for name, layer in layers.items()}
        made |= {f"{name}_bias": layers[name].bias for name in ("norm_in", "norm_out")}
        return made | {"p_in_weight": self.joined("p"), "g_in_weight": self.joined("g")}


def boltz_multiplication(module: Multiplication, x: Tensor, mask: Tensor) -> Tensor:
    """x by position, everything else by name, a mask in float32."""
    from cuequivariance_torch.primitives.triangle import triangle_multiplicative_update

    made: Tensor = triangle_multiplicative_update(x, direction="outgoing", mask=mask, **module.arguments(), eps=1e-5)
    return made


def openfold3_multiplication(module: Multiplication, x: Tensor, mask: Tensor) -> Tensor:
    """From the package itself; templates folded into the batch."""
    from cuequivariance_torch import triangle_multiplicative_update  # type: ignore[import-not-found]  # installed by the fixture

    z, its_mask = (one[:, None].expand(-1, 2, *one.shape[1:]) for one in (x, mask))
    z, its_mask = (one.reshape(-1, *one.shape[2:]) for one in (z, its_mask))
    made: Tensor = triangle_multiplicative_update(
        z, direction="outgoing", mask=its_mask, **module.arguments(), eps=1e-5
    )
    return made.view(x.shape[0], 2, *made.shape[1:])[:, 1]


def protenix_multiplication(module: Multiplication, x: Tensor, mask: Tensor) -> Tensor:
    """Without a batch."""
    from cuequivariance_torch.primitives.triangle import triangle_multiplicative_update

    made: Tensor = triangle_multiplicative_update(
        x[0], direction="outgoing", mask=mask[0], **module.arguments(), eps=1e-5
    )
    return made[None]


def published_multiplication(module: Multiplication, x: Tensor, mask: Tensor) -> Tensor:
    return published.triangle_multiplication(x, "outgoing", mask, 1e-5, **module.arguments())


ATTENTIONS = [boltz_attention, openfold3_attention, openfold3_attention_without_batch, protenix_attention]
MULTIPLICATIONS = [boltz_multiplication, openfold3_multiplication, protenix_multiplication]


def assert_module_as_published(
    kind: type[nn.Module], ours: Callable[..., Tensor], plain: Callable[..., Tensor], batch: int, dtype: torch.dtype
) -> None:
    """Compare output, dx and the gradient of every parameter."""
    module = kind()
    residues = torch.ones(batch, LENGTH)
    residues[0, -3:] = 0  # padding, as every one of these models has it
    mask = residues[:, :, None] * residues[:, None, :]
    leaves = {name.replace(".", "/"): parameter.detach() for name, parameter in module.named_parameters()}
    leaves["x"] = torch.randn(batch, LENGTH, LENGTH, CHANNELS)

    def calling(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        class Call(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = kind()

            def forward(self, x: Tensor) -> Tensor:
                return function(self.inner, x, mask)

        def call(x: Tensor, **parameters: Tensor) -> Tensor:
            named = {f"inner.{name.replace('/', '.')}": one for name, one in parameters.items()}
            made: Tensor = torch.func.functional_call(Call(), named, (x,))
            return made

        return call

    published.assert_as_published(calling(ours), calling(plain), leaves, dtype)


@covering(site=ATTENTIONS, dtype=[torch.float32, torch.bfloat16])
def test_triangle_attention_of_each_project(site: Callable[..., Tensor], dtype: torch.dtype) -> None:
    batch = 1 if site in (openfold3_attention_without_batch, protenix_attention) else 2
    assert_module_as_published(Attention, site, published_attention, batch, dtype)


@covering(site=MULTIPLICATIONS, dtype=[torch.float32, torch.bfloat16])
def test_triangle_multiplication_of_each_project(site: Callable[..., Tensor], dtype: torch.dtype) -> None:
    batch = 1 if site is protenix_multiplication else 2
    assert_module_as_published(Multiplication, site, published_multiplication, batch, dtype)


def test_package_is_found_under_its_name_and_gone_after() -> None:
    assert importlib.util.find_spec("cuequivariance_torch") is not None
    module = importlib.import_module("cuequivariance_torch")
    assert module.attention_pair_bias is tilesmith.fold.attention_pair_bias
    tilesmith.fold.install()  # a second time changes nothing
    tilesmith.fold.uninstall()
    assert "cuequivariance_torch" not in sys.modules
    tilesmith.fold.uninstall()
