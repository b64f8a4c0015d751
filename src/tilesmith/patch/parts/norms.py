"""RMSNorm in the two forms of transformers, Llama's, and Gemma's with the factor 1 + weight; and layer norm.

All compute in single precision and round once, where transformers rounds to the model's dtype in between.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.layer_norm import layer_norm
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.patch.gradients.plain_modules import FORWARD, has_hooks
from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import names_in


def plain_norm(self: Any, hidden_states: Tensor) -> Tensor:
    # A weight in higher precision, as under autocast, raises the precision of the result; later code relies on that.
    dtype = torch.promote_types(hidden_states.dtype, self.weight.dtype)
    normal: Tensor = rms_norm(hidden_states.to(dtype), *plain_scale(self))
    return normal


def plain_scale(norm: Any) -> tuple[Tensor, float]:
    return norm.weight, eps_of(norm)


def eps_of(norm: Any) -> float:
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def gemma_norm(self: Any, x: Tensor) -> Tensor:
    normal: Tensor = rms_norm(x, *gemma_scale(self))
    return normal


def gemma_scale(norm: Any) -> tuple[Tensor, float]:
    return 1.0 + norm.weight.float(), eps_of(norm)


def centred_norm(self: Any, hidden_states: Tensor) -> Tensor:
    dtype = torch.promote_types(hidden_states.dtype, self.weight.dtype)
    normal: Tensor = layer_norm(hidden_states.to(dtype), self.weight, getattr(self, "bias", None), eps_of(self))
    return normal


def centred_norm_of_one(self: Any, hidden_states: Tensor) -> Tensor:
    """Layer norm with the factor 1 + weight (Nemotron)."""
    dtype = torch.promote_types(hidden_states.dtype, self.weight.dtype)
    weight = (1.0 + self.weight.float()).to(dtype)
    normal: Tensor = layer_norm(hidden_states.to(dtype), weight, getattr(self, "bias", None), eps_of(self))
    return normal


FORMS = (plain_norm, gemma_norm, centred_norm, centred_norm_of_one)


def looks_like_norm(module: Any) -> bool:
    """Return whether a module has a weight for each feature, perhaps a bias, an epsilon, and nothing else."""
    parameters = dict(module.named_parameters())
    has_eps = hasattr(module, "variance_epsilon") or hasattr(module, "eps")
    is_vector = "weight" in parameters and all(one.ndim == 1 for one in parameters.values())
    return has_eps and is_vector and parameters.keys() <= {"weight", "bias"} and not list(module.children())


@torch.no_grad()
def norm_form(module: Any) -> Callable[..., Tensor] | None:
    """Return the form that computes the same as this norm on random numbers; None where there is none."""
    generator = torch.Generator().manual_seed(0)
    try:
        plain = copy.deepcopy(module).to(device="cpu", dtype=torch.float32)
        for parameter in plain.parameters():
            parameter.copy_(0.7 + 0.3 * torch.randn(parameter.shape, generator=generator))
        x = torch.randn(3, 4, plain.weight.shape[0], generator=generator)
        wanted = type(module).forward(plain, x)
        for form in FORMS:
            if torch.allclose(form(plain, x), wanted, rtol=1e-4, atol=1e-5):
                return form
    except (RuntimeError, TypeError, ValueError, AttributeError):  # takes something else than one tensor
        return None
    return None


SCALES: dict[Any, Callable[[Any], tuple[Tensor, float]]] = {plain_norm: plain_scale, gemma_norm: gemma_scale}
"""For the `forward` of each norm, the function that returns the weight and eps for rms_norm."""


def is_ours(norm: Any) -> bool:
    """Return whether a norm has our forward and no hooks."""
    attributes = vars(norm)
    if FORWARD not in attributes or attributes.get("forward") is not attributes[FORWARD]:
        return False
    # torch.compile of PyTorch 2.11 traces this, but not getattr(..., "__func__", None).
    return norm.forward.__func__ in SCALES and not has_hooks(norm)


def norm_forward(original: Callable[..., Any], is_gemma: bool) -> Callable[..., Tensor]:
    """Return the replacement for a norm's `forward`; UnknownCodeError where the original uses other attributes."""
    expected = {"_norm", "weight"} if is_gemma else {"variance_epsilon", "weight"}
    if not expected <= names_in(original):
        raise UnknownCodeError.of(original)
    return gemma_norm if is_gemma else plain_norm
