"""Language models written by hand: norms and feed-forward blocks run on our operators, and nothing changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import assert_same
from torch import Tensor, nn

import tilesmith as ts
from tilesmith.patch import patch, report, unpatch

WIDTH, HEADS, VOCABULARY = 24, 3, 31


class NormWithoutEps(nn.Module):
    """Layer norm with an optional bias and a written epsilon (nanoGPT)."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class FloatNorm(nn.Module):
    """RMSNorm in two methods (llama2.c)."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-5
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        return self._norm(x.float()).type_as(x) * self.weight


class OffsetNorm(nn.Module):
    """RMSNorm with settings (LitGPT)."""

    def __init__(self, offset: bool) -> None:
        super().__init__()
        self.weight, self.eps, self.dim, self.offset = nn.Parameter(torch.ones(WIDTH)), 1e-6, -1, offset

    def forward(self, x: Tensor) -> Tensor:
        dtype, x = x.dtype, x.float()
        normed = x * torch.rsqrt(torch.mean(x * x, dim=self.dim, keepdim=True) + self.eps)
        weight = (1 + self.weight) if self.offset else self.weight
        return (normed * weight.float()).to(dtype=dtype)


class GeluBlock(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.c_fc, self.gelu = nn.Linear(WIDTH, 40), nn.GELU()
        self.c_proj, self.dropout = nn.Linear(40, WIDTH), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Any:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class DroppedSwiglu(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(*sizes, bias=False) for sizes in ((WIDTH, 40), (40, WIDTH), (WIDTH, 40)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Any:
        return self.dropout(self.w2(F.silu(self.w1(x)) * self.w3(x)))


class Swiglu(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.fc_1, self.fc_2, self.proj = nn.Linear(WIDTH, 40), nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.proj(F.silu(self.fc_1(x)) * self.fc_2(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.c_attn(x).split(WIDTH, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, norms: list[nn.Module], block: nn.Module) -> None:
        super().__init__()
        (self.ln_1, self.ln_2), self.attn, self.mlp = norms, Attention(), block

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


STYLES: dict[str, tuple[Any, Any]] = {
    "nanoGPT": (lambda: NormWithoutEps(bias=True), GeluBlock),
    "nanoGPT without bias": (lambda: NormWithoutEps(bias=False), GeluBlock),
    "llama2.c": (FloatNorm, DroppedSwiglu),
    "LitGPT": (lambda: OffsetNorm(offset=False), Swiglu),
    "LitGPT, Gemma": (lambda: OffsetNorm(offset=True), Swiglu),
}


class Model(nn.Module):
    def __init__(self, style: str, dropout: float) -> None:
        super().__init__()
        norm, block = STYLES[style]
        self.wte, self.ln_f = nn.Embedding(VOCABULARY, WIDTH), norm()
        self.h = nn.ModuleList(Layer([norm(), norm()], block(dropout)) for _ in range(2))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for layer in self.h:
            x = layer(x)
        return F.cross_entropy(self.lm_head(self.ln_f(x))[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def model_of(style: str, dropout: float) -> Model:
    torch.manual_seed(0)
    model = Model(style, dropout)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.8 if parameter.ndim == 1 else 0.0, 0.2)
    return model


def found(model: Model) -> dict[str, Tensor]:
    tokens = torch.randint(0, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    model.zero_grad()
    torch.manual_seed(2)  # for dropout
    loss = model(tokens)
    loss.backward()
    gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    return {"loss": loss.detach(), **gradients}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("style", STYLES)
def test_loss_and_gradients_of_a_hand_written_model_stay_the_same(style: str, dropout: float) -> None:
    wanted = found(model_of(style, dropout))
    model = patch(model_of(style, dropout))
    done = report(model)
    assert done.swapped == {"norm": 5, "mlp": 2}
    assert set(done.left) == {"attention", "loss", "rotary"}
    assert_same(found(model), wanted, 2e-5)
    with ts.use("interpret"):
        assert_same(found(model), wanted, 2e-5)
    assert_same(found(unpatch(model)), wanted, 1e-12)
