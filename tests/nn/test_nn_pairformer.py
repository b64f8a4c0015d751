"""AlphaFold 3's parts and OpenFold's parts: the published formulas, and state dicts of other projects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilesmith as ts
from tilesmith.nn import AttentionPairBias, SwiGLUTransition, TriangleMultiplication
from tilesmith.nn.evoformer import part_from_openfold


@pytest.fixture(autouse=True, params=["torch", "interpret"])
def route(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    with ts.use(request.param):
        yield


def test_attention_pair_bias_as_published() -> None:
    module = AttentionPairBias(12, 6, 3, 4)
    a, z = torch.randn(2, 7, 12), torch.randn(2, 7, 7, 6)
    mask = torch.rand(2, 7) > 0.3
    mask[:, 0] = True
    normal = F.layer_norm(a, (12,))
    layers = (module.mha.linear_q, module.mha.linear_k, module.mha.linear_v)
    q, k, v = (layer(normal).unflatten(-1, (3, 4)).transpose(1, 2) for layer in layers)
    bias = F.linear(F.layer_norm(z, (6,)), module.linear_z.weight).permute(0, 3, 1, 2)
    bias = bias.masked_fill(~mask[:, None, None, :], -torch.inf)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
    wanted = module.mha.linear_o(module.mha.linear_g(normal).sigmoid() * attended)
    torch.testing.assert_close(module(a, z, mask), wanted, rtol=1e-4, atol=1e-5)


def test_swiglu_transition_as_published() -> None:
    module = SwiGLUTransition(10, factor=2)
    x, mask = torch.randn(2, 5, 10), torch.rand(2, 5) > 0.4
    normal = F.layer_norm(x, (10,))
    hidden = F.silu(module.swiglu.linear_a(normal)) * module.swiglu.linear_b(normal)
    wanted = module.linear_out(hidden) * mask[..., None]
    torch.testing.assert_close(module(x, mask), wanted, rtol=1e-4, atol=1e-5)


def test_state_dicts_have_the_names_of_openfold3() -> None:
    mha = {f"mha.linear_{name}.weight" for name in "qkvgo"} | {"mha.linear_q.bias"}
    norms = {f"layer_norm_{one}.{kind}" for one in "az" for kind in ("weight", "bias")}
    assert set(AttentionPairBias(8, 4, 2, 4).state_dict()) == mha | norms | {"linear_z.weight"}
    assert set(SwiGLUTransition(8).state_dict()) == {
        "layer_norm.weight", "layer_norm.bias", "swiglu.linear_a.weight", "swiglu.linear_b.weight",
        "linear_out.weight",
    }  # fmt: skip


def test_part_of_openfold_is_loaded() -> None:
    rows = {"linear_a_p": (6, 8), "linear_b_p": (6, 8), "linear_a_g": (6, 8), "linear_b_g": (6, 8), "linear_g": (8, 8),
            "linear_z": (8, 6)}  # fmt: skip
    state = {f"{name}.weight": torch.randn(shape) for name, shape in rows.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in rows.items()}
    for name, size in (("layer_norm_in", 8), ("layer_norm_out", 6)):
        state |= {f"{name}.weight": torch.randn(size), f"{name}.bias": torch.randn(size)}
    module = TriangleMultiplication(8, 6)
    module.load_state_dict(part_from_openfold("tri_mul_out", state))
    z = torch.randn(1, 5, 5, 8)
    zn = F.layer_norm(z, (8,), state["layer_norm_in.weight"], state["layer_norm_in.bias"])

    def layer(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    a, b = (layer(f"linear_{one}_g", zn).sigmoid() * layer(f"linear_{one}_p", zn) for one in "ab")
    product = F.layer_norm(
        torch.einsum("bikc,bjkc->bijc", a, b), (6,), state["layer_norm_out.weight"], state["layer_norm_out.bias"]
    )
    wanted = layer("linear_g", zn).sigmoid() * layer("linear_z", product)
    torch.testing.assert_close(module(z), wanted, rtol=1e-4, atol=1e-4)


def test_unknown_parts_and_names_are_named() -> None:
    with pytest.raises(ValueError, match="part is 'tri_mul', but must be one of"):
        part_from_openfold("tri_mul", {})
    with pytest.raises(ValueError, match="state has extra, which our pair_transition does not have"):
        part_from_openfold("pair_transition", {"extra": torch.ones(1)})
