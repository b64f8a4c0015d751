"""Norms. Several normalised dimensions are flattened to one."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.nn.arguments import checked, require_input
from tilesmith.ops.add_rms_norm import add_rms_norm
from tilesmith.ops.layer_norm import layer_norm
from tilesmith.ops.rms_norm import rms_norm


@checked
class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm on `ops.rms_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        require_input("RMSNorm", "x", x, normalized_shape=tuple(self.normalized_shape))
        eps = _eps_of(self, x)
        count = len(self.normalized_shape)
        if count == 1:
            return rms_norm(x, self.weight, eps)
        return rms_norm(x.flatten(-count), _flat(self.weight), eps).view(x.shape)


@checked
class AddRMSNorm(torch.nn.RMSNorm):
    """RMSNorm of x + residual on `ops.add_rms_norm`: returns the norm and the sum, which is the next residual.

    Constructor and state dict are torch.nn.RMSNorm's, so weights of a model with a separate addition load unchanged.
    """

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # one more argument
        require_input("AddRMSNorm", "x", x, normalized_shape=tuple(self.normalized_shape))
        require_input("AddRMSNorm", "residual", residual, normalized_shape=tuple(self.normalized_shape))
        eps = _eps_of(self, x)
        count = len(self.normalized_shape)
        if count == 1:
            return add_rms_norm(x, residual, self.weight, eps)
        y, total = add_rms_norm(x.flatten(-count), residual.flatten(-count), _flat(self.weight), eps)
        return y.view(x.shape), total.view(x.shape)


@checked
class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm on `ops.layer_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        require_input("LayerNorm", "x", x, normalized_shape=tuple(self.normalized_shape))
        count = len(self.normalized_shape)
        if count == 1:
            return layer_norm(x, self.weight, self.bias, self.eps)
        y = layer_norm(x.flatten(-count), _flat(self.weight), _flat(self.bias), self.eps)
        return y.view(x.shape)


def _eps_of(module: torch.nn.RMSNorm, x: Tensor) -> float:
    """Return eps; torch's default is the machine epsilon of the compute dtype."""
    return torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps if module.eps is None else module.eps


def _flat(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.flatten()
