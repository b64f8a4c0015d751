"""The embedding of a model whose head has the same weight, V classes of H features.

PyTorch writes a gradient of V·H elements for the embedding, mostly zeros, and adds it to the head's gradient: this
moves 4·V·H elements. Here the head's gradient passes through the embedding's backward, which adds the rows of the
tokens in the batch and touches no other rows. The rows of one token are added in order and rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from tilesmith.ops.runtime.kernels import must_be_dispatched
from tilesmith.patch.gradients.embedding_rows import add_rows_
from tilesmith.patch.gradients.plain_modules import has_hooks, kernels_can_take
from tilesmith.patch.gradients.second_order import differentiable_gradients, wants_graph
from tilesmith.patch.rewriting import names_in

SCALED = {"super", "forward", "embed_scale", "to", "weight", "dtype"}
"""What the `forward` of an embedding uses that multiplies its vectors by `embed_scale`."""


def under_head(model: Any) -> str:
    """Return the attribute with the model under the head. `base_model_prefix` may name another one (Llama 4)."""
    prefix: str = model.base_model_prefix
    return prefix if hasattr(model, prefix) else "model"


def embedded_inputs(model: Any, inputs: dict[str, Any]) -> tuple[dict[str, Any], Tensor]:
    """Return the inputs, with tokens embedded where embedding and head share a gradient, and the head's weight."""
    embedding, weight = model.get_input_embeddings(), model.lm_head.weight
    tokens = inputs.get("input_ids")
    # Hooks of the decoder may read the tokens.
    decoder = getattr(model, under_head(model))
    must_keep = tokens is None or inputs.get("inputs_embeds") is not None or has_hooks(decoder)
    if must_keep or not _is_tied(embedding, weight):
        return inputs, weight
    scale = scale_of(embedding)
    vectors, same = _Embedded.apply(tokens, weight, embedding.padding_idx)  # type: ignore[no-untyped-call]  # PyTorch leaves apply untyped
    if isinstance(scale, Tensor):
        vectors = vectors * scale.to(weight.dtype)
    return {**inputs, "input_ids": None, "inputs_embeds": vectors}, same


def scale_of(embedding: Any) -> Tensor | float | None:
    """Return the factor of the vectors: 1 for torch's own embedding, Gemma's number; None for any other module."""
    if type(embedding) is nn.Embedding:
        return 1.0
    scaled = type(embedding).__module__.startswith("transformers.") and names_in(type(embedding).forward) == SCALED
    return embedding.embed_scale if scaled else None


def _is_tied(embedding: nn.Module, weight: Tensor) -> bool:
    """Return whether this is torch's own embedding of this weight, and our kernels may train the weight."""
    if scale_of(embedding) is None or not isinstance(embedding, nn.Embedding) or embedding.weight is not weight:
        return False
    special = embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse
    must_be_called = special or has_hooks(embedding) or "forward" in vars(embedding)
    return not must_be_called and torch.is_grad_enabled() and weight.requires_grad and kernels_can_take(weight)


class _Embedded(Function):
    """The vectors of tokens, and the weight for the head: only the head uses it, so its gradient may be overwritten."""

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
        if dweight is None or wants_graph():
            of_weight = differentiable_gradients(
                lambda weight: (F.embedding(tokens, weight, context.padding), weight),
                (weight,), (True,), (dvectors, dweight),
            )  # fmt: skip
            return None, of_weight[0], None
        rows = dvectors.reshape(tokens.numel(), -1)
        padding = -1 if context.padding is None else context.padding
        add_rows = torch.ops.tilesmith.embedding_add_rows if must_be_dispatched() else add_rows_
        add_rows(dweight, rows, *tokens.reshape(-1).sort(stable=True), padding)
        return None, dweight, None
