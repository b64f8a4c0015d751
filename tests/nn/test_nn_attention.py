"""The attention module against plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.nn.attention import Attention
from tilesmith.ops.attention.reference import reference


def by_hand(module: Attention, x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    batch, length, _ = x.shape
    q, k, v = (
        projection(x).view(batch, length, -1, module.head_dim).transpose(1, 2)
        for projection in (module.q_proj, module.k_proj, module.v_proj)
    )
    if module.rotary is not None:
        angles = torch.arange(length)[:, None] * 10000.0 ** -(torch.arange(0, module.head_dim, 2) / module.head_dim)
        q, k = (turned(tensor, angles) for tensor in (q, k))
    output = reference(q, k, v, causal=module.causal, mask=mask, bias=bias)
    return module.o_proj(output.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


def turned(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@pytest.mark.parametrize("mode", ["auto", "interpret"])
@pytest.mark.parametrize("rope_base", [None, 10000.0])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
def test_attention_matches_pytorch(mode: Any, rope_base: float | None, heads: int, kv_heads: int) -> None:
    torch.manual_seed(0)
    module = Attention(32, heads, kv_heads, rope_base=rope_base)
    x = torch.randn(2, 11, 32)
    mask, bias = torch.rand(2, 11) > 0.3, torch.randn(heads, 11, 11)
    with ts.use(mode):
        output = module(x, mask=mask, bias=bias)
        gradients = torch.autograd.grad(output.sin().sum(), list(module.parameters()))
    right = by_hand(module, x, mask, bias)
    torch.testing.assert_close(output, right, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(right.sin().sum(), list(module.parameters()))
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-4)


def test_attention_has_the_parameters_of_llama() -> None:
    shapes = {name: tuple(value.shape) for name, value in Attention(32, 4, 2, head_dim=16).state_dict().items()}
    assert shapes == {
        "q_proj.weight": (64, 32),
        "k_proj.weight": (32, 32),
        "v_proj.weight": (32, 32),
        "o_proj.weight": (32, 64),
    }


def test_dropout_applies_in_training_only() -> None:
    torch.manual_seed(0)
    module, x = Attention(32, 4, dropout=0.5), torch.randn(1, 9, 32)
    assert not torch.allclose(module(x), module(x))
    module.eval()
    torch.testing.assert_close(module(x), module(x), rtol=0, atol=0)


def test_positions_may_start_anywhere() -> None:
    """Only differences of positions matter."""
    torch.manual_seed(0)
    module, x = Attention(32, 4), torch.randn(1, 9, 32)
    torch.testing.assert_close(module(x, positions=torch.arange(9) + 100), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"hidden_size": 30, "num_heads": 4}, "hidden_size is 30, which is not divisible by 4 heads"),
        ({"hidden_size": 32, "num_heads": 4, "num_kv_heads": 3}, "num_kv_heads is 3, but must divide num_heads"),
    ],
)
def test_rejects_inconsistent_heads(arguments: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=f"^Attention: {words}"):
        Attention(**arguments)  # type: ignore[arg-type]  # whole numbers for whole numbers
