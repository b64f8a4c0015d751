"""`fold` replaces modules with layer norms of other classes, and leaves those whose norms compute something else."""

from __future__ import annotations

from collections.abc import Callable

import pair_bias_models as models
import protein_models as proteins
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilesmith.patch import fold, report


class NarrowNorm(nn.Module):
    """A layer norm whose kernel does not take the trial's numbers: they have four dimensions, or lie on a CPU."""

    def __init__(self, columns: int, affine: bool = True) -> None:
        super().__init__()
        self.normalized_shape, self.eps = (columns,), 1e-3
        self.weight = nn.Parameter(torch.ones(columns)) if affine else None
        self.bias = nn.Parameter(torch.zeros(columns)) if affine else None

    def refuses(self, x: Tensor) -> bool:
        return x.ndim > 3

    def forward(self, x: Tensor) -> Tensor:
        if self.refuses(x):
            raise RuntimeError("its kernel does not take this input")
        return self.normed(x)

    def normed(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class NormOnGpu(NarrowNorm):
    def refuses(self, x: Tensor) -> bool:
        return not x.is_cuda


class NarrowRms(NarrowNorm):
    def normed(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class NarrowDropout(NarrowNorm):
    def normed(self, x: Tensor) -> Tensor:
        return F.dropout(super().normed(x), 0.5, self.training)


class NarrowDetached(NarrowNorm):
    def normed(self, x: Tensor) -> Tensor:
        return super().normed(x.detach()) + 0 * x


def with_norms(kind: Callable[[int], nn.Module]) -> nn.Module:
    module = proteins.OpenFoldMultiplication(bias=False)
    module.layer_norm_in, module.layer_norm_out = kind(proteins.CHANNELS), kind(proteins.HIDDEN)  # type: ignore[assignment]
    return module


def test_layer_norm_that_the_trial_cannot_run_is_tried_alone() -> None:
    made = report(fold(nn.ModuleList([with_norms(NarrowNorm), with_norms(nn.LayerNorm)])))
    assert made.replaced == {"triangle multiplication": 2}


@pytest.mark.parametrize("kind", [NarrowRms, NarrowDropout, NarrowDetached])
def test_other_norm_that_the_trial_cannot_run_is_left(kind: Callable[[int], nn.Module]) -> None:
    made = report(fold(nn.ModuleList([with_norms(kind)])))
    assert made.replaced == {}
    assert "its kernel does not take this input" in made.left["OpenFoldMultiplication"]


class NamedEpsilon(NarrowNorm):
    def __init__(self, columns: int) -> None:
        super().__init__(columns)
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, 1e-6)


class EpsilonOutside(NamedEpsilon):
    def forward(self, x: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        normal = centered / (centered.square().mean(-1, keepdim=True).sqrt() + self.eps)
        return normal if self.weight is None or self.bias is None else normal * self.weight + self.bias


class Clipped(NamedEpsilon):
    def forward(self, x: Tensor) -> Tensor:
        return self.normed(x.clamp(-50, 50))


class DoubledGrids(NamedEpsilon):
    def forward(self, x: Tensor) -> Tensor:
        return self.normed(x) * (2 if x.ndim > 3 else 1)


@pytest.mark.parametrize("kind", [NamedEpsilon, EpsilonOutside, Clipped, DoubledGrids])
def test_norm_that_differs_for_some_numbers_is_left(kind: Callable[[int], NarrowNorm]) -> None:
    made = report(fold(nn.ModuleList([with_norms(kind)])))
    assert made.left == {"OpenFoldMultiplication": "it computes something else than the published algorithm"}


def test_integer_parameters_are_left() -> None:
    class Quantised(NarrowNorm):
        def forward(self, x: Tensor) -> Tensor:
            assert self.weight is not None
            return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias, self.eps)

    module, x = proteins.BoltzTransition(), torch.randn(2, 3, proteins.CHANNELS)
    module.norm = Quantised(proteins.CHANNELS)  # type: ignore[assignment]
    module.norm.weight = nn.Parameter(torch.ones(proteins.CHANNELS, dtype=torch.int8), requires_grad=False)
    wanted = module(x)
    torch.testing.assert_close(fold(module)(x), wanted)


@pytest.mark.gpu
def test_layer_norm_that_needs_a_gpu() -> None:
    torch.manual_seed(0)
    module, z = with_norms(NormOnGpu).cuda(), torch.randn(2, 9, 9, proteins.CHANNELS, device="cuda")
    wanted = module(z)
    assert report(fold(module)).replaced == {"triangle multiplication": 1}
    torch.testing.assert_close(module(z), wanted, rtol=2e-3, atol=2e-3)
    adaptive = models.ProtenixPairBias()
    adaptive.layernorm_a.layernorm_a = NormOnGpu(proteins.SINGLE, affine=False)
    assert report(fold(adaptive.cuda())).replaced == {"conditioned attention with pair bias": 1}
