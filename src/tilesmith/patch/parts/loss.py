"""The loss of a causal language model without its logits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.linear_cross_entropy import linear_cross_entropy
from tilesmith.patch.gradients.plain_modules import is_linear
from tilesmith.patch.gradients.tied_embedding import embedded_inputs, under_head
from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import names_in

ALONGSIDE = ("past_key_values", "hidden_states", "attentions", "cross_attentions")
"""Optional entries of a model's output beside loss and logits."""


NEEDED = {"lm_head", "loss_function"}
OUTPUTS = ("CausalLMOutputWithPast", "MoeCausalLMOutputWithPast", "CausalLMOutputWithCrossAttentions")
PLAIN = {
    "config", "vocab_size", "last_hidden_state", *OUTPUTS, "slice_logits_to_keep", "use_return_dict",
    "output_attentions", "output_hidden_states", "slice", "isinstance", "int", *ALONGSIDE,
}  # fmt: skip
CHANGED_LOGITS = {"final_logit_softcapping", "torch", "tanh", "logit_scale", "logits_scaling"}
MIXTURES = {
    "output_router_logits", "router_logits", "load_balancing_loss_func", "device", "to",
    "num_experts", "num_experts_per_tok", "router_aux_loss_coef",
}  # fmt: skip
"""What a model's `forward` may use: what it needs, plain names, caps and scales of logits, and mixtures of experts."""


def require_known_loss(forward: Callable[..., Any], base: str, known_family: bool = True) -> None:
    """Raise UnknownCodeError where a model's `forward` does not compute its loss from lm_head and loss_function.

    `base` is the attribute of the model under the head. The `forward` of an unknown family may use no other names than
    known ones: they might change the logits.
    """
    used = names_in(forward)
    others = used - NEEDED - {base} - PLAIN - CHANGED_LOGITS - MIXTURES
    if not used >= NEEDED | {base} or not used & set(OUTPUTS) or (others and not known_family):
        raise UnknownCodeError.of(forward)


def logit_options(model: Any, forward: Callable[..., Any]) -> dict[str, float]:
    """Return how a model's `forward` changes its logits, as arguments of linear_cross_entropy."""
    used, made = names_in(forward), {}
    if "final_logit_softcapping" in used:
        made["softcap"] = float(getattr(model.config, "final_logit_softcapping", None) or 0.0)
    if "logit_scale" in used:
        made["scale"] = float(model.logit_scale)
    if "logits_scaling" in used:
        made["scale"] = 1.0 / model.config.logits_scaling
    return made


def why_logits(model: Any, standard_loss: Callable[..., Any]) -> str | None:
    """Return why the loss of this model needs logits, or None where it does not."""
    if loss_function_of(model, standard_loss) is not standard_loss:
        return "the model has its own loss function"
    if not is_linear(model.lm_head):
        return "lm_head is not a plain linear layer: it has hooks, an adapter, or a quantised or sharded weight"
    return None


def loss_function_of(model: Any, standard_loss: Callable[..., Any]) -> Any:
    """Return the model's loss function.

    The property of transformers logs where a configuration names no loss (GPT-2); torch.compile cannot trace that.
    """
    names_none = getattr(model, "loss_type", None) is None and not hasattr(model, "_loss_function")
    return standard_loss if torch.compiler.is_compiling() and names_none else model.loss_function


def standard_loss() -> Callable[..., Any]:
    """Return transformers' loss of causal language models, which this module computes without logits."""
    found: Callable[..., Any] = import_module("transformers.loss.loss_utils").ForCausalLMLoss
    return found


@functools.cache
def without_logits(original: Callable[..., Any], joins_embedding: bool = True) -> Callable[..., Any]:
    """Return a causal language model's `forward` that computes the loss without logits.

    With `joins_embedding`, a tied embedding and the head share one gradient; the decoder then gets vectors, not tokens.

    It does so for calls with labels in training, or as `skip_logits` says; the original `forward` runs all other
    calls. In training it keeps no cache of keys and values unless `use_cache` asks for one.
    """
    names = tuple(inspect.signature(original).parameters)[1:]  # without self
    # Imported here and not in `forward`: torch.compile cannot trace an import.
    standard = standard_loss()
    outputs = import_module("transformers.modeling_outputs")
    has_experts = "MoeCausalLMOutputWithPast" in names_in(original)
    make_output = getattr(outputs, next(name for name in OUTPUTS if name in names_in(original)))

    @functools.wraps(original)
    def forward(self: Any, *arguments: Any, skip_logits: bool | None = None, **named: Any) -> Any:
        named.update(zip(names, arguments, strict=False))
        skips = self.training if skip_logits is None else skip_logits
        kept = named.get("logits_to_keep", 0)
        needs_all = named.get("labels") is not None and isinstance(kept, int) and kept == 0
        routed = named.get("output_router_logits")
        routed = getattr(self.config, "output_router_logits", False) if routed is None else routed
        if not (skips and needs_all) or (has_experts and routed) or why_logits(self, standard):
            return original(self, **named)
        if self.training and named.get("past_key_values") is None and named.get("use_cache") is None:
            named["use_cache"] = False  # a cache copies every key and value, and training never reads it
        return_dict = named.pop("return_dict", None)
        named.pop("output_router_logits", None)
        weight = self.lm_head.weight
        if joins_embedding:
            named, weight = embedded_inputs(self, named)
        result = make_output(**_with_loss(self, weight, logit_options(self, original), **named))
        as_dict = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        return result if as_dict else result.to_tuple()

    return forward


def _with_loss(
    model: Any,
    weight: Tensor,
    logits: dict[str, float],
    *,
    labels: Tensor,
    logits_to_keep: int = 0,
    shift_labels: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    **inputs: Any,
) -> dict[str, Any]:
    """Return the loss and the optional entries of the model's output, by name."""
    outputs = getattr(model, under_head(model))(**inputs, return_dict=True)
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]  # each token predicts the next
    hidden = outputs.last_hidden_state
    loss = linear_cross_entropy(
        hidden, weight, shift_labels.to(hidden.device), model.lm_head.bias, ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum", **logits,
    )  # fmt: skip
    if num_items_in_batch is not None:
        items = num_items_in_batch
        loss = loss / (items.to(loss.device) if isinstance(items, Tensor) else items)
    return {"loss": loss, **{name: outputs[name] for name in ALONGSIDE if name in outputs}}
