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
from tilesmith.ops.rms_norm import one_plus, rms_norm
from tilesmith.ops.rms_norm.operator import native
from tilesmith.patch.gradients.plain_modules import applying, kernels_can_take
from tilesmith.patch.gradients.second_order import differentiable_gradients, wants_graph
from tilesmith.patch.parts.norms import CENTRED_SCALES, SCALES, eps_of, gemma_norm, is_centred, is_ours
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
NORM_AND_SUM = r"^( *)hidden_states = self\.(\w*norm\w*)\(hidden_states\)\n\1hidden_states = residual \+ hidden_states$"
"""The norm of a branch's result, and the sum after it (Gemma 2, OLMo 2)."""
NORM_SUM_NORM = NORM_AND_SUM[:-1] + NORM.replace(r"^( *)", r"\n\1").replace(r"\2", r"\3")
"""The same before the norm of the next branch (Gemma 2)."""


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
    names = {"norm_of_sum": norm_of_sum, "norm_and_input": norm_and_input, "sum_with_norm": sum_with_norm}
    changes = {}
    if matches(forward, NORM_SUM_NORM):
        changes[NORM_SUM_NORM] = r"\1hidden_states, residual = norm_of_sum(self.\3, residual, hidden_states, self.\2)"
        changes[NORM_AND_SUM] = r"\1hidden_states = sum_with_norm(self.\2, residual, hidden_states)"
    if any_order or not changes:
        changes[SUM_AND_NORM] = r"\1hidden_states, residual = norm_of_sum(self.\4, residual, \2\3)"
    changes[NORM] = r"\1hidden_states, residual = norm_and_input(self.\2, hidden_states)"
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


def norm_of_sum(norm: Any, residual: Tensor, branch: Tensor, first: Any = None) -> tuple[Tensor, Tensor]:
    """Return norm(residual + branch), and the sum. `first` norms the branch before, where a layer has such a norm."""
    joined = _joined(branch, residual, first, norm) if is_ours(norm) else None
    if joined is not None:
        return joined  # type: ignore[no-any-return]  # both tensors
    branch = branch if first is None else first(branch)
    if not is_ours(norm):  # the kernel with a sum is RMSNorm's
        return norm_and_input(norm, residual + branch)
    # add_rms_norm returns the residual's dtype. PyTorch would return that only where it is the widest of the three.
    dtype = torch.promote_types(torch.promote_types(residual.dtype, branch.dtype), norm.weight.dtype)
    if dtype != residual.dtype:
        return norm_and_input(norm, residual + branch)
    normal, total = add_rms_norm(residual, branch, *SCALES[norm.forward.__func__](norm))
    return normal, total


def sum_with_norm(norm: Any, residual: Tensor, branch: Tensor) -> Tensor:
    """Return residual + norm(branch)."""
    joined: Tensor | None = _joined(branch, residual, norm, None)
    return residual + norm(branch) if joined is None else joined


def norm_and_input(norm: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return norm(x), and x; the norm's backward adds the gradients of both."""
    if is_ours(norm):
        joined = _joined(x, None, None, norm)
        if joined is not None:
            return joined  # type: ignore[no-any-return]  # both tensors
    elif is_centred(norm):
        weight = norm.weight
        if torch.is_grad_enabled() and x.requires_grad and kernels_can_take(x, weight) and _keeps_dtype(x, weight):
            normal: Tensor
            same: Tensor
            normal, same = _centred_norm_and_input(x, *CENTRED_SCALES[norm.forward.__func__](norm))
            return normal, same
    return norm(x), x


def _keeps_dtype(x: Tensor, weight: Tensor) -> bool:
    """Return whether a norm of x has the dtype of x."""
    return x.dtype is weight.dtype or torch.promote_types(x.dtype, weight.dtype) == x.dtype


def _joined(x: Tensor, residual: Tensor | None, first: Any, norm: Any) -> Any:
    """Return what `_Joined` does for these norms; None where it does not apply. `norm` is ours, `first` may be any."""
    if not torch.is_grad_enabled() or not x.requires_grad or (first is not None and not is_ours(first)):
        return None
    norms = [one for one in (first, norm) if one is not None]
    weights = [one.weight for one in norms]
    adds_one = norms[0].forward.__func__ is gemma_norm
    if len(norms) > 1 and (norms[1].forward.__func__ is gemma_norm) is not adds_one:
        return None
    if residual is not None and (residual.dtype is not x.dtype or residual.shape != x.shape):
        return None
    if not kernels_can_take(x, *weights, *(() if residual is None else (residual,))):
        return None
    for weight in weights:
        if not _keeps_dtype(x, weight):
            return None
    return _apply_joined(
        x, residual, None if first is None else weights[0], None if norm is None else weights[-1],
        0.0 if first is None else eps_of(first), 0.0 if norm is None else eps_of(norm), adds_one,
    )  # fmt: skip


class _Joined(Function):
    """y = norm(total) and total = residual + first(x). Each of `norm`, `residual` and `first` may be missing.

    Without `norm` it returns the total alone. With `adds_one` the norms multiply by 1 + weight.
    """

    @staticmethod
    def forward(
        context: Any, x: Tensor, residual: Tensor | None, first_weight: Tensor | None, weight: Tensor | None,
        first_eps: float, eps: float, adds_one: bool,
    ) -> Any:  # fmt: skip
        norm, norm_of_sum = (one_plus.forward, one_plus.sum_forward) if adds_one else (rms_norm, add_rms_norm)
        total = x if first_weight is None else norm(x, first_weight, first_eps)
        normal = None
        if residual is None:
            normal = norm(total, weight, eps)
        elif weight is None:
            total = residual + total
        else:
            normal, total = norm_of_sum(residual, total, weight, eps)
        kept = None if first_weight is None else x, None if weight is None else total
        context.save_for_backward(*kept, first_weight, weight)
        context.numbers = first_eps, eps, adds_one
        context.set_materialize_grads(False)
        return total if weight is None else (normal, total)

    @staticmethod
    def backward(context: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, total, first_weight, weight = context.saved_tensors
        needed = context.needs_input_grad
        first_eps, eps, adds_one = context.numbers
        dtotal, dweight, dfirst_weight = gradients[-1], None, None
        if weight is not None and gradients[0] is not None:
            dtotal, dweight = _norm_gradients(gradients[0], dtotal, total, weight, eps, adds_one, needed[3])
        dx = dtotal
        if first_weight is not None and dtotal is not None:
            dx, dfirst_weight = _norm_gradients(dtotal, None, x, first_weight, first_eps, adds_one, needed[2])
        return dx, dtotal if needed[1] else None, dfirst_weight, dweight, None, None, None


def _norm_gradients(
    dy: Tensor, dsum: Tensor | None, x: Tensor, weight: Tensor, eps: float, adds_one: bool, of_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradient of x, which dsum bypasses, and that of the weight of a norm, None where it is not wanted."""
    if wants_graph():

        def in_pytorch(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            return native(
                x, 1.0 + weight.to(torch.promote_types(weight.dtype, torch.float32)) if adds_one else weight, eps
            ), x

        dx, dweight = differentiable_gradients(in_pytorch, (x, weight), (True, of_weight), (dy, dsum))
        return dx, dweight
    dx, dweight = (one_plus.backward if adds_one else gradients_of_sum)(dy, dsum, x, weight, eps, of_weight)
    return dx, dweight if of_weight else None


_apply_joined = applying(_Joined)


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
