"""Language models written by hand: norms and feed-forward blocks run on our operators, and nothing changes."""

from __future__ import annotations

from typing import Any, Literal

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
    assert done.left == {
        "loss": "in Model (1); only models of transformers get this part",
        "attention": "in Attention (2); only models of transformers get this part",
    }
    assert "transformers:" not in str(done)
    assert_same(found(model), wanted, 2e-5)
    with ts.use("interpret"):
        assert_same(found(model), wanted, 2e-5)
    assert_same(found(unpatch(model)), wanted, 1e-12)


class BareNorm(nn.Module):
    """RMSNorm without a weight."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.eps, self.groups = 1e-5, groups

    def forward(self, x: Tensor) -> Any:
        parts = x.view(*x.shape[:-1], self.groups, -1)
        return (parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + self.eps)).flatten(-2)


class SquaredRelu(nn.Module):
    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.down(F.relu(self.up(x)).square())


class Rope(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.roll(1, -1)


def mixed_model() -> nn.Sequential:
    torch.manual_seed(0)
    bare = nn.LayerNorm(WIDTH, elementwise_affine=False)
    known = nn.Sequential(BareNorm(), bare, nn.LayerNorm(WIDTH), Swiglu(0.0))
    plain = nn.Sequential(nn.Linear(WIDTH, 40), nn.ReLU(), nn.Linear(40, WIDTH))
    return nn.Sequential(known, BareNorm(groups=3), nn.GroupNorm(1, 5), nn.RMSNorm(WIDTH), SquaredRelu(), plain, Rope())


def test_report_counts_every_norm_and_block_that_was_left() -> None:
    model = patch(mixed_model())
    done = report(model)
    assert done.swapped == {"norm": 3, "mlp": 1}
    norm, block = "RMSNorm or layer norm with a fixed epsilon", "a feed-forward block with SiLU or GELU"
    other = "modules compute something else than"
    assert done.left == {
        "norm": f"1 of 2 BareNorm {other} {norm}, 1 of 1 GroupNorm {other} {norm}, 1 of 1 RMSNorm {other} {norm}",
        "mlp": f"1 of 1 SquaredRelu {other} {block}, 1 of 1 Sequential {other} {block}",
        "rotary": "in Rope (1); only models of transformers get this part",
    }
    assert "mlp left as is: 1 of 1 SquaredRelu" in str(done)
    assert report(patch(mixed_model(), rotary=False, mlp=False)).left.keys() == {"norm"}


def test_report_lists_no_part_that_the_model_does_not_have() -> None:
    done = report(patch(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))))
    assert (done.swapped, done.left) == ({"norm": 1}, {})


def test_norms_without_a_weight_stay_the_same() -> None:
    x = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1))
    results: list[dict[str, Tensor]] = []
    modes: tuple[Literal["torch", "interpret"], ...] = ("torch", "torch", "interpret")
    for mode, model in zip(modes, (mixed_model(), patch(mixed_model()), patch(mixed_model())), strict=True):
        given = x.clone().requires_grad_(True)
        with ts.use(mode):
            result = model(given)
            result.square().sum().backward()
        assert given.grad is not None
        results.append({"result": result.detach(), "gradient": given.grad})
    assert_same(results[1], results[0], 2e-5)
    assert_same(results[2], results[0], 2e-5)


def test_norm_without_a_weight_keeps_the_dtype_of_autocast() -> None:
    class Wide(nn.LayerNorm):
        """Layer norm that returns float32 under autocast, as PyTorch's does on GPUs."""

        def forward(self, x: Tensor) -> Tensor:
            normal = super().forward(x)
            return normal.float() if torch.is_autocast_enabled(x.device.type) else normal

    model = patch(nn.Sequential(Wide(WIDTH, elementwise_affine=False)))
    assert report(model).swapped == {"norm": 1}
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.ones(2, WIDTH, dtype=torch.bfloat16)).dtype == torch.float32
