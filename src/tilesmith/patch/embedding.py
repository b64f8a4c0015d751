"""The embedding of a model whose head has the same weight, V classes of H features.

Apart, PyTorch writes a gradient of V·H elements for the embedding, zero but for the tokens that came up, and adds it to
the head's: four times V·H elements moved. Here the head's gradient comes by way of the embedding, whose backward adds
to it the rows of those tokens and touches no others. The rows of one token are added in order, and rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from tilesmith.ops.runtime.kernels import must_be_dispatched
from tilesmith.patch.bare import goes_to_kernels, has_hooks
from tilesmith.patch.embedding_rows import add_rows_, rows_added
from tilesmith.patch.gradients import by_pytorch


def embedded(model: Any, inputs: dict[str, Any]) -> tuple[dict[str, Any], Tensor]:
    """The inputs of a model, with its tokens embedded where that can be joined with its head; and the head's weight."""
    embedding, weight = model.get_input_embeddings(), model.lm_head.weight
    tokens = inputs.get("input_ids")
    # Hooks of what lies under the head may want to see tokens.
    as_given = tokens is None or inputs.get("inputs_embeds") is not None or has_hooks(model.model)
    if as_given or not _is_of_weight(embedding, weight):
        return inputs, weight
    vectors, same = _Embedded.apply(tokens, weight, embedding.padding_idx)  # type: ignore[no-untyped-call]  # PyTorch
    return {**inputs, "input_ids": None, "inputs_embeds": vectors}, same


def _is_of_weight(embedding: nn.Module, weight: Tensor) -> bool:
    """Whether it is torch's own embedding of this weight and nothing more, and the weight is trained by our kernels."""
    if type(embedding) is not nn.Embedding or embedding.weight is not weight:
        return False
    special = embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse
    called = special or has_hooks(embedding) or "forward" in vars(embedding)
    return not called and torch.is_grad_enabled() and weight.requires_grad and goes_to_kernels(weight)


class _Embedded(Function):
    """The vectors of tokens, and the weight itself for the head alone: only its gradient may be written over."""

    @staticmethod
    def forward(context: Any, tokens: Tensor, weight: Tensor, padding: int | None) -> tuple[Tensor, Tensor]:
        context.save_for_backward(tokens, weight)
        context.padding = padding
        context.set_materialize_grads(False)
        return F.embedding(tokens, weight), weight

    @staticmethod
    def backward(context: Any, dvectors: Tensor | None, dweight: Tensor | None) -> tuple[None, Tensor | None, None]:
        tokens, weight = context.saved_tensors
        if dvectors is None:
            return None, dweight, None
        if dweight is None or torch.is_grad_enabled():
            of_weight = by_pytorch(
                lambda weight: (F.embedding(tokens, weight, context.padding), weight),
                (weight,), (True,), (dvectors, dweight),
            )  # fmt: skip
            return None, of_weight[0], None
        add_rows = rows_added if must_be_dispatched() else add_rows_
        rows = dvectors.reshape(tokens.numel(), -1)
        padding = -1 if context.padding is None else context.padding
        return None, add_rows(dweight, rows, *tokens.reshape(-1).sort(stable=True), padding), None
