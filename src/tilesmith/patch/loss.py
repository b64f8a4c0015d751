"""The loss of a causal language model without its logits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.linear_cross_entropy import linear_cross_entropy
from tilesmith.patch.bare import is_linear
from tilesmith.patch.embedding import embedded

ALONGSIDE = ("past_key_values", "hidden_states", "attentions")
"""What a model's output has beside loss and logits, where it was asked for."""


def why_logits(model: Any, standard_loss: Callable[..., Any]) -> str | None:
    """Why the loss of this model needs its logits; None where it does not."""
    if getattr(model.config, "final_logit_softcapping", None) is not None:
        return "logits are capped (final_logit_softcapping), which linear_cross_entropy does not do"
    if model.loss_function is not standard_loss:
        return "the model has a loss function of its own"
    if not is_linear(model.lm_head):
        return "lm_head is more than a linear layer with its whole weight at hand"
    return None


def standard_loss() -> Callable[..., Any]:
    """Transformers' loss of causal language models, which is the one that is computed here."""
    found: Callable[..., Any] = import_module("transformers.loss.loss_utils").ForCausalLMLoss
    return found


@functools.cache
def without_logits(original: Callable[..., Any]) -> Callable[..., Any]:
    """A causal language model's `forward` that finds the loss without logits, where it is asked for a loss.

    It does so in training, or as `skip_logits` says; everything else is left to the model's own `forward`. In training
    it keeps no cache either, unless it is asked for one.
    """
    names = tuple(inspect.signature(original).parameters)[1:]  # but self
    # Imported here and not when called: torch.compile follows no imports.
    standard = standard_loss()
    make_output = import_module("transformers.modeling_outputs").CausalLMOutputWithPast

    @functools.wraps(original)
    def forward(self: Any, *arguments: Any, skip_logits: bool | None = None, **named: Any) -> Any:
        named.update(zip(names, arguments, strict=False))
        skips = self.training if skip_logits is None else skip_logits
        kept = named.get("logits_to_keep", 0)
        of_all = named.get("labels") is not None and isinstance(kept, int) and kept == 0
        if not (skips and of_all) or why_logits(self, standard):
            return original(self, **named)
        if self.training and named.get("past_key_values") is None and named.get("use_cache") is None:
            named["use_cache"] = False  # a cache copies every key and value, and no step of training reads it
        return_dict = named.pop("return_dict", None)
        result = make_output(**_with_loss(self, **named))
        as_dict = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        return result if as_dict else result.to_tuple()

    return forward


def _with_loss(
    model: Any,
    *,
    labels: Tensor,
    logits_to_keep: int = 0,
    shift_labels: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    **inputs: Any,
) -> dict[str, Any]:
    """The loss, and what else the model's output holds."""
    inputs, weight = embedded(model, inputs)
    outputs = model.model(**inputs, return_dict=True)
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]  # each token is to predict the next
    hidden = outputs.last_hidden_state
    loss = linear_cross_entropy(
        hidden, weight, shift_labels.to(hidden.device), model.lm_head.bias, ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum",
    )  # fmt: skip
    if num_items_in_batch is not None:
        items = num_items_in_batch
        loss = loss / (items.to(loss.device) if isinstance(items, Tensor) else items)
    return {"loss": loss, **{name: outputs[name] for name in ALONGSIDE if name in outputs}}
