"""RMSNorm in the two forms of transformers, Llama's, and Gemma's with the factor 1 + weight; and layer norm.

All compute in single precision and round once, where transformers rounds to the model's dtype in between.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.ops.layer_norm import layer_norm
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.ops.runtime.kernels import must_be_dispatched
from tilesmith.patch.gradients.plain_modules import has_hooks
from tilesmith.patch.own_forward import FORWARD
from tilesmith.patch.parts.default_positions import is_captured
from tilesmith.patch.parts.trials import is_close, reads_numbers
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
    for name in ("variance_epsilon", "eps"):
        # A module without the attribute raises inside getattr, which takes longer than the whole search.
        if name in norm.__dict__ or hasattr(type(norm), name):
            eps = getattr(norm, name)
            if isinstance(eps, float):
                return eps
    kind: Any = type(norm)
    return _written_eps(kind) or 0.0


@functools.cache
def _written_eps(kind: Any) -> float | None:
    """Return the small number in the code of a norm's class that has no attribute for epsilon (nanoGPT)."""
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    small = [one for one in getattr(code, "co_consts", ()) if isinstance(one, float) and 0 < one < 0.01]
    return small[0] if len(small) == 1 else None


def plain_norm_in_dtype(self: Any, hidden_states: Tensor) -> Tensor:
    """RMSNorm whose result has the dtype of its input (OLMo 2, gpt-oss, Helium)."""
    normal: Tensor = rms_norm(hidden_states, self.weight.to(_wider(self, hidden_states)), eps_of(self))
    return normal


def _wider(norm: Any, x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, norm.weight.dtype)


def gemma_norm(self: Any, x: Tensor) -> Tensor:
    normal: Tensor = rms_norm(x, *gemma_scale(self))
    return normal


def gemma_scale(norm: Any) -> tuple[Tensor, float]:
    return one_plus(norm.weight), eps_of(norm)


def one_plus(weight: Tensor) -> Tensor:
    """Return 1 + weight in single precision."""
    one = None if must_be_dispatched() else _kept_one(weight.device)
    # Adding a vector in single precision is one launch and one node of autograd's, a conversion one more of each.
    return 1.0 + weight.float() if one is None else torch.add(one, weight)


_ones: dict[torch.device, Tensor] = {}


def _kept_one(device: torch.device) -> Tensor | None:
    """Return [1.0] in single precision; None where it is not made yet and cannot be while a CUDA graph is captured."""
    if device not in _ones and (device.type != "cuda" or not is_captured()):
        with torch.inference_mode(False):
            _ones[device] = torch.ones(1, device=device)
    return _ones.get(device)


def centred_norm(self: Any, hidden_states: Tensor) -> Tensor:
    dtype = torch.promote_types(hidden_states.dtype, self.weight.dtype)
    normal: Tensor = layer_norm(hidden_states.to(dtype), *centred_scale(self))
    return normal


def centred_scale(norm: Any) -> tuple[Tensor, Tensor | None, float]:
    return norm.weight, getattr(norm, "bias", None), eps_of(norm)


def centred_norm_in_dtype(self: Any, hidden_states: Tensor) -> Tensor:
    """Layer norm whose result has the dtype of its input (Cohere)."""
    normal: Tensor = centred_norm(self, hidden_states)
    return normal.to(hidden_states.dtype)


def centred_norm_of_one(self: Any, hidden_states: Tensor) -> Tensor:
    """Layer norm with the factor 1 + weight (Nemotron)."""
    dtype = torch.promote_types(hidden_states.dtype, self.weight.dtype)
    weight, bias, eps = centred_scale_of_one(self)
    normal: Tensor = layer_norm(hidden_states.to(dtype), weight.to(dtype), bias, eps)
    return normal


def centred_scale_of_one(norm: Any) -> tuple[Tensor, Tensor | None, float]:
    return one_plus(norm.weight), getattr(norm, "bias", None), eps_of(norm)


def bare_norm(self: Any, hidden_states: Tensor) -> Tensor:
    """RMSNorm without a weight."""
    return _without_weight(rms_norm, self, hidden_states)


def bare_centred_norm(self: Any, hidden_states: Tensor) -> Tensor:
    """Layer norm without a weight (OLMo)."""
    return _without_weight(layer_norm, self, hidden_states)


def _without_weight(operator: Callable[..., Tensor], norm: Any, x: Tensor) -> Tensor:
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        theirs: Tensor = type(norm).forward(norm, x)  # PyTorch's layer norm returns float32 there
        return theirs
    return operator(x, weight=None, eps=eps_of(norm))


BARE_FORMS = (bare_norm, bare_centred_norm)
"""The forms of norms without parameters."""
FORMS = (
    plain_norm, plain_norm_in_dtype, gemma_norm, centred_norm, centred_norm_in_dtype, centred_norm_of_one,
)  # fmt: skip


def looks_like_norm(module: Any) -> bool:
    """Return whether a module has an epsilon, perhaps a weight and a bias for each feature, and nothing else."""
    parameters = dict(module.named_parameters())
    has_eps = eps_of(module) > 0
    is_vector = not parameters or ("weight" in parameters and all(one.ndim == 1 for one in parameters.values()))
    alone = not list(module.children()) and not list(module.buffers())
    return has_eps and is_vector and alone and parameters.keys() <= {"weight", "bias"}


def is_named_norm(module: Any) -> bool:
    """Return whether a module without others inside calls itself a norm."""
    return re.search("norm(?!al)", type(module).__name__, re.IGNORECASE) is not None and not list(module.children())


def settings_of(norm: Any) -> tuple[Any, ...]:
    """Return what decides a norm's form: its class, its columns and its own attributes; equal for equal norms."""
    own = ((name, one) for name, one in vars(norm).items() if not name.startswith("_") and name != "training")
    plain = ((name, one if isinstance(one, bool | int | float | str | tuple) else id(one)) for name, one in own)
    return (type(norm), getattr(getattr(norm, "weight", None), "shape", None), *sorted(plain))


def norm_form(module: Any) -> Callable[..., Tensor] | None:
    """Return the form that computes the same as this norm on random numbers; None where there is none.

    The numbers are small, so that epsilon matters, usual and large, in each dtype, in training and evaluation. The
    gradients must be the same too.
    """
    theirs = type(module).forward
    if len(inspect.signature(theirs).parameters) != 2 or reads_numbers(module):
        return None
    try:
        plain = copy.deepcopy(module).to(device="cpu")
        sizes = _columns_of(plain)
        forms = FORMS if list(plain.parameters()) else BARE_FORMS
        return next((form for form in forms if all(_norms_the_same(form, theirs, plain, one) for one in sizes)), None)
    except Exception:  # code of any kind
        return None


def _columns_of(norm: Any) -> tuple[int, ...]:
    """Return the numbers of columns to try a norm on: two without a weight, where groups of columns might be normed."""
    if list(norm.parameters()):
        return (norm.weight.shape[0],)
    return tuple(getattr(norm, "normalized_shape", ())) or (24, 35)


def _norms_the_same(form: Callable[..., Tensor], theirs: Callable[..., Tensor], norm: Any, columns: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    for parameter in norm.parameters():
        parameter.requires_grad_(True).data = 0.7 + 0.3 * torch.randn(parameter.shape, generator=generator)
    single, half = torch.float32, torch.bfloat16
    for scale, training, of_x, of_weight in (
        (1.0, True, single, single), (0.3 * eps_of(norm) ** 0.5, False, single, single), (1e3, False, single, single),
        (1.0, False, half, half), (1.0, False, half, single), (1.0, False, single, half),
    ):  # fmt: skip
        x = scale * (0.5 + torch.randn(3, 4, columns, generator=generator)).to(of_x)
        norm.to(of_weight).train(training)
        if of_x != of_weight and "layer_norm" in names_in(theirs):
            continue  # PyTorch's layer norm takes one dtype on GPUs, and computes in float32 under autocast
        wanted, ours = _with_gradients(theirs, norm, x), _with_gradients(form, norm, x)
        # PyTorch adds the gradient of a bias in bf16 on CPUs: off by 0.02 in twelve rows.
        limit = 5e-6 if (of_x, of_weight) == (single, single) else 0.05
        if not all(is_close(one, right, limit) for one, right in zip(ours, wanted, strict=True)):
            return False
    return True


def _with_gradients(forward: Callable[..., Tensor], norm: Any, x: Tensor) -> list[Tensor]:
    """Return the result, and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_(True)
    with torch.enable_grad():
        y = forward(norm, x)
        weights = torch.linspace(-1, 1, y.numel()).view(y.shape)
        inputs = (x, *norm.parameters())
        gradients = torch.autograd.grad((y.float() * weights).sum(), inputs, materialize_grads=True)
        return [y.detach(), *gradients]


SCALES: dict[Any, Callable[[Any], tuple[Tensor, float]]] = {
    plain_norm: plain_scale,
    plain_norm_in_dtype: plain_scale,
    gemma_norm: gemma_scale,
}
"""For the `forward` of each RMSNorm, the function that returns the weight and eps for rms_norm."""
CENTRED_SCALES: dict[Any, Callable[[Any], tuple[Tensor, Tensor | None, float]]] = {
    centred_norm: centred_scale,
    centred_norm_in_dtype: centred_scale,
    centred_norm_of_one: centred_scale_of_one,
}
"""For the `forward` of each layer norm, the function that returns the weight, bias and eps for layer_norm."""


def is_ours(norm: Any) -> bool:
    """Return whether a norm has our forward of RMSNorm and no hooks."""
    return _has_forward_of(SCALES, norm)


def is_centred(norm: Any) -> bool:
    """Return whether a norm has our forward of layer norm and no hooks."""
    return _has_forward_of(CENTRED_SCALES, norm)


def _has_forward_of(scales: dict[Any, Any], norm: Any) -> bool:
    attributes = vars(norm)
    if FORWARD not in attributes or attributes.get("forward") is not attributes[FORWARD]:
        return False
    # torch.compile of PyTorch 2.11 traces this, but not getattr(..., "__func__", None).
    return norm.forward.__func__ in scales and not has_hooks(norm)


def norm_forward(original: Callable[..., Any], is_gemma: bool) -> Callable[..., Tensor]:
    """Return the replacement for a norm's `forward`; UnknownCodeError where the original uses other attributes."""
    expected = {"_norm", "weight"} if is_gemma else {"variance_epsilon", "weight"}
    if not expected <= names_in(original):
        raise UnknownCodeError.of(original)
    return gemma_norm if is_gemma else plain_norm
