"""A norm fused with the residual addition before it: one pass instead of two, forward and backward.

In a decoder layer x enters a norm and also bypasses it. PyTorch adds the two gradients of x in a separate pass; the
norm's backward adds the bypassing gradient while it holds the other in registers. Where x is the sum of a block's input
and result, the norm's forward computes that sum too. Hidden states between layers stay plain tensors for hooks,
checkpoints and `output_hidden_states`: each layer computes the sum at its end by itself. Layer norm has the backward
with the bypassing gradient; its forward leaves the sum to PyTorch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from tilesmith.ops.add_rms_norm import add_rms_norm
from tilesmith.ops.add_rms_norm import backward as gradients_of_sum
from tilesmith.ops.layer_norm.backward import backward as centred_gradients
from tilesmith.ops.layer_norm.forward import forward as centred_norm
from tilesmith.ops.layer_norm.operator import native as native_layer_norm
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.ops.rms_norm.operator import native
from tilesmith.patch.gradients.plain_modules import applying, kernels_can_take
from tilesmith.patch.gradients.second_order import differentiable_gradients, wants_graph
from tilesmith.patch.parts.norms import CENTRED_SCALES, SCALES, is_centred, is_ours
from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import matches, rewritten

SUM_AND_NORM = (
    r"^( *)hidden_states = (?:residual \+ ((?:(?! if ).)*)|(\w+) \+ residual)\n\1residual = hidden_states\n"
    r"\1hidden_states = self\.(\w+)\(hidden_states\)$"
)
NORM = r"^( *)residual = hidden_states\n\1hidden_states = self\.(\w+)\(hidden_states\)$"
PLAIN = r"(?:(?! for | if |lambda).)*"
INNER_NORM = rf"^( *)([\w, ]+ = {PLAIN})self\.(\w*(?:norm|ln_)\w*)\((\w+)\)({PLAIN})$"
"""A norm of a variable inside an assignment (ModernBERT, GPT-NeoX)."""
IN_PLACE = r"^ *\w+ [-+*/]= |\.[a-z]\w*_\("
NORM_AND_SUM = r"hidden_states = self\.\w*norm\w*\(hidden_states\)\n *hidden_states = residual \+ hidden_states"


def norms_follow_branches(forward: Callable[..., Any]) -> bool:
    """Return whether a decoder layer norms the results of its branches, and not their inputs (OLMo 2)."""
    return matches(forward, NORM_AND_SUM) and not matches(forward, NORM.replace(r"(\w+)", r"\w*norm\w*"))


def layers_with_norms(model: nn.Module) -> list[type[nn.Module]]:
    """Return the classes of layers, modules in a list, that have a norm of ours."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = [
        layer for one in lists for layer in one if any(is_ours(norm) or is_centred(norm) for norm in layer.children())
    ]
    return list(dict.fromkeys(type(layer) for layer in layers))


@functools.cache
def with_fused_residual(forward: Callable[..., Any], any_order: bool) -> Callable[..., Any]:
    """Return a layer's own `forward` with fused sums and norms; UnknownCodeError where it is not recognised.

    With `any_order` it suffices that some norm is found; else there must be two, as in Llama.
    """
    names = {"norm_of_sum": norm_of_sum, "norm_and_input": norm_and_input}
    changes = {
        SUM_AND_NORM: r"\1hidden_states, residual = norm_of_sum(self.\4, residual, \2\3)",
        NORM: r"\1hidden_states, residual = norm_and_input(self.\2, hidden_states)",
    }
    if any_order:
        if matches(forward, IN_PLACE):  # autograd does not allow that for the second result of norm_and_input
            raise UnknownCodeError.of(forward)
        changes[INNER_NORM] = r"\1tilesmith_normal, \4 = norm_and_input(self.\3, \4)\n\1\2tilesmith_normal\5"
    fused = rewritten(forward, names, changes, any_number=any_order)
    # From transformers 5.23 on, a layer's own `forward` checkpoints its activations. Before, `__call__` does.
    checkpoints = inspect.unwrap(forward) is not forward and "gradient_checkpointing" in forward.__code__.co_names
    return _checkpointed(fused) if checkpoints else fused


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer's `forward` that the backward computes again where gradient checkpointing is on."""

    @functools.wraps(forward)
    def checkpointed(self: Any, *arguments: Any, **named: Any) -> Any:
        if not (self.gradient_checkpointing and self.training):
            return forward(self, *arguments, **named)
        caches = () if self._can_checkpoint_with_cache else ("past_key_values", "layer_past")
        named |= {name: None for name in caches if name in named}
        if named.get("use_cache"):
            named["use_cache"] = False
        return self._gradient_checkpointing_func(functools.partial(forward, self, **named), *arguments)

    return checkpointed


def norm_of_sum(norm: Any, residual: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
    """Return norm(residual + branch), and the sum."""
    if not is_ours(norm):  # the kernel with a sum is RMSNorm's
        return norm_and_input(norm, residual + branch)
    # add_rms_norm returns the residual's dtype. PyTorch would return that only where it is the widest of the three.
    dtype = torch.promote_types(torch.promote_types(residual.dtype, branch.dtype), norm.weight.dtype)
    if dtype != residual.dtype:
        return norm_and_input(norm, residual + branch)
    normal, total = add_rms_norm(residual, branch, *SCALES[norm.forward.__func__](norm))
    return normal, total


def norm_and_input(norm: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return norm(x), and x; the norm's backward adds the gradients of both."""
    centred = is_centred(norm)
    if not torch.is_grad_enabled() or not x.requires_grad or not (centred or is_ours(norm)):
        return norm(x), x
    weight = norm.weight
    if not kernels_can_take(x, weight):
        return norm(x), x
    if x.dtype is not weight.dtype and torch.promote_types(x.dtype, weight.dtype) != x.dtype:
        return norm(x), x
    function = norm.forward.__func__
    normal: Tensor
    same: Tensor
    if centred:
        normal, same = _centred_norm_and_input(x, *CENTRED_SCALES[function](norm))
    else:
        normal, same = _norm_and_input(x, *SCALES[function](norm))
    return normal, same


class _NormAndInput(Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        context.save_for_backward(x, weight)
        context.eps = eps
        context.set_materialize_grads(False)
        return rms_norm(x, weight, eps), x

    @staticmethod
    def backward(context: Any, dnormal: Tensor | None, dsame: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight = context.saved_tensors
        needed = context.needs_input_grad
        if dnormal is None:
            return dsame, None, None
        if wants_graph():
            inputs = x, weight, context.eps
            return differentiable_gradients(lambda x, *scale: (native(x, *scale), x), inputs, needed, (dnormal, dsame))
        dx, dweight = gradients_of_sum(dnormal, dsame, x, weight, context.eps, needed[1])
        return dx, dweight if needed[1] else None, None


_norm_and_input = applying(_NormAndInput)


class _CentredNormAndInput(Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
        normal, statistics = centred_norm(x, weight, bias, eps, True)
        context.save_for_backward(x, weight, bias, statistics)
        context.eps = eps
        context.set_materialize_grads(False)
        return normal, x

    @staticmethod
    def backward(context: Any, dnormal: Tensor | None, dsame: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, statistics = context.saved_tensors
        needed = context.needs_input_grad
        if dnormal is None:
            return dsame, None, None, None
        if wants_graph():
            inputs = x, weight, bias, context.eps
            return differentiable_gradients(
                lambda x, *scale: (native_layer_norm(x, *scale), x), inputs, needed, (dnormal, dsame)
            )
        of_weight, of_bias = needed[1], bias is not None and needed[2]
        dx, dweight, dbias = centred_gradients(dnormal, x, weight, bias, statistics, of_weight, of_bias, dsame)
        return dx, dweight if of_weight else None, dbias if of_bias else None, None


_centred_norm_and_input = applying(_CentredNormAndInput)
