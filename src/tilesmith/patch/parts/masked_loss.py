"""The loss of a model of masked tokens, such as BERT, without its logits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tilesmith.ops.linear_cross_entropy import linear_cross_entropy
from tilesmith.patch.gradients.plain_modules import is_linear
from tilesmith.patch.report import UnknownCodeError
from tilesmith.patch.rewriting import names_in

LOSSES = ({"CrossEntropyLoss"}, {"loss_function"})
"""How a `forward` may name the cross-entropy of its logits."""


@functools.cache
def masked_without_logits(original: Callable[..., Any], before: str, decoder: str) -> Callable[..., Any]:
    """Return a `forward` that, with labels in training, computes the loss without logits.

    `before` and `decoder` are the attributes of the modules before the logits and of the logits. `skip_logits` as in
    `loss.py`. Raise UnknownCodeError where the original does not use them.
    """
    used = names_in(original)
    if before.split(".")[0] not in used or not any(one <= used for one in LOSSES):
        raise UnknownCodeError.of(original)
    names = tuple(inspect.signature(original).parameters)[1:]  # without self
    make_output = import_module("transformers.modeling_outputs").MaskedLMOutput

    @functools.wraps(original)
    def forward(self: Any, *arguments: Any, skip_logits: bool | None = None, **named: Any) -> Any:
        named.update(zip(names, arguments, strict=False))
        skips = self.training if skip_logits is None else skip_logits
        layer = self.get_submodule(decoder)
        sparse = getattr(self, "sparse_prediction", False)
        counted = named.get("num_items_in_batch") is not None
        if not skips or named.get("labels") is None or sparse or counted or not is_linear(layer):
            return original(self, **named)
        labels, return_dict = named.pop("labels"), named.pop("return_dict", None)
        outputs = self.base_model(**named, return_dict=True)
        hidden = self.get_submodule(before)(outputs.last_hidden_state)
        loss = linear_cross_entropy(hidden, layer.weight, labels.to(hidden.device), layer.bias)
        result = make_output(loss=loss, hidden_states=outputs.hidden_states, attentions=outputs.attentions)
        as_dict = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        return result if as_dict else result.to_tuple()

    return forward
