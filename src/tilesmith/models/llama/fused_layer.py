"""A layer as one autograd node.

A layer composed of operators takes the host longer to launch than the GPU to compute, at the usual sizes: each
operator, GEMM, view and sum is an autograd node, and each call checks its arguments. Here the same kernels and GEMMs
run in sequence with explicit gradients (`blocks.py`), and one check of the inputs finds the plans of all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import Parameter

from tilesmith.models.llama.blocks import AttentionBlock, FeedForwardBlock, Gradients, Tensors
from tilesmith.models.llama.parts import ComposedLayer, LayerWeights, added
from tilesmith.ops.attention.operator import attention, takes_heads
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.ops.rope import rope
from tilesmith.ops.runtime import dispatch, tuning
from tilesmith.ops.runtime.kernels import MOST_PLANS, look, must_be_dispatched
from tilesmith.ops.runtime.operator import Operator
from tilesmith.ops.runtime.precision import tf32_allowed
from tilesmith.ops.swiglu import swiglu

Blocks = tuple[AttentionBlock, FeedForwardBlock]

# Not a view: autograd forbids in-place changes of a view that a custom function returns, and FSDP warns about it.
_reshaped = torch.ops.aten._unsafe_view.default


def fused_layer(
    composed: ComposedLayer, stream: Tensor, branch: Tensor | None, cos: Tensor, sin: Tensor, weights: LayerWeights,
    head_dim: int, eps: float,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Compute a layer as one node, or composed where kernels cannot run or PyTorch must see every operator."""
    stream = added(stream, branch)
    blocks = _blocks_for(stream, cos, sin, weights, head_dim, eps)
    if blocks is None:
        return composed(stream, None, cos, sin, weights)
    total: Tensor = _Layer.apply(stream, *weights, cos, sin, blocks, composed)  # type: ignore[no-untyped-call]  # PyTorch leaves apply untyped
    return total, None


class _Layer(Function):
    """A layer; its differentiable arguments are the stream and the six weights."""

    @staticmethod
    def forward(context: Any, *arguments: Any) -> Tensor:
        stream, *weights, cos, sin, context.blocks, context.composed = arguments
        attention_block, feed_forward_block = context.blocks
        rows = stream.reshape(-1, stream.shape[-1])
        between, kept_of_attention = attention_block(rows, weights[:3], cos, sin)
        total, kept_of_feed_forward = feed_forward_block(between, weights[3:])
        context.save_for_backward(stream, *weights, cos, sin, between, *kept_of_attention, *kept_of_feed_forward)
        reshaped: Tensor = _reshaped(total, stream.shape)
        return reshaped

    @staticmethod
    def backward(context: Any, dtotal: Tensor) -> tuple[Tensor | None, ...]:
        saved, needed = context.saved_tensors, context.needs_input_grad[:7]
        inputs, (cos, sin, *kept) = saved[:7], saved[7:]
        if torch.is_grad_enabled() or must_be_dispatched():
            gradients = _composed_gradients(context.composed, dtotal, inputs, cos, sin, needed)
        else:
            gradients = _gradients(context.blocks, dtotal, inputs, cos, sin, kept, needed)
        return *gradients, None, None, None, None


def _gradients(
    blocks: Blocks, dtotal: Tensor, inputs: Tensors, cos: Tensor, sin: Tensor, kept: Tensors, needed: Sequence[bool]
) -> Gradients:
    (stream, *weights), (attention_block, feed_forward_block) = inputs, blocks
    rows = stream.reshape(-1, stream.shape[-1])
    dtotal = dtotal.reshape(rows.shape)
    between, kept_of_attention, kept_of_feed_forward = kept[0], kept[1:-3], kept[-3:]
    dbetween, last = feed_forward_block.gradients(dtotal, between, weights[3:], kept_of_feed_forward, needed[4:])
    drows, first = attention_block.gradients(dbetween, rows, weights[:3], cos, sin, kept_of_attention, needed[1:4])
    return drows.view(stream.shape) if needed[0] else None, *first, *last


def _composed_gradients(
    composed: ComposedLayer, dtotal: Tensor, inputs: Tensors, cos: Tensor, sin: Tensor, needed: Sequence[bool]
) -> Gradients:
    """Return the gradients of the composed layer, for second derivatives and for dispatch modes."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        total = added(*composed(inputs[0], None, cos, sin, LayerWeights(*inputs[1:])))
    wanted = [one for one, is_needed in zip(inputs, needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(total, wanted, dtotal, create_graph=again))
    return tuple(next(found) if is_needed else None for is_needed in needed)


PLAIN = frozenset({Tensor, Parameter})
_blocks: dict[Hashable, Blocks | None] = {}


def _blocks_for(
    stream: Tensor, cos: Tensor, sin: Tensor, weights: LayerWeights, head_dim: int, eps: float
) -> Blocks | None:
    """Return the blocks for tensors like these, or None where only the composed layer works."""
    if must_be_dispatched() or (not stream.is_meta and torch.is_autocast_enabled(stream.device.type)):
        return None
    # The key holds everything that decides the launches of our kernels, and the sizes that only the BLAS needs.
    attention_norm, qkv, output, feed_forward_norm, gate_up, down = weights
    seen = look((stream, cos, sin, attention_norm, feed_forward_norm, head_dim, eps))
    if seen is None or not PLAIN.issuperset(map(type, (qkv, output, gate_up, down))):
        return None
    key = seen, qkv.shape, output.shape, gate_up.shape, tf32_allowed()
    try:
        return _blocks[key]
    except KeyError:
        if len(_blocks) >= MOST_PLANS:
            _blocks.clear()
        made = _blocks[key] = _made(stream, cos, sin, weights, head_dim, eps)
    return made


def _made(stream: Tensor, cos: Tensor, sin: Tensor, weights: LayerWeights, head_dim: int, eps: float) -> Blocks | None:
    """Return new blocks, or None where an operator would not run our kernel or would reject its arguments."""
    batch, length, hidden = stream.shape
    norms = weights.attention_norm, weights.feed_forward_norm
    shapes = [tuple(one.shape) for one in (*norms, cos, sin)]
    if shapes != [(hidden,)] * 2 + [(length, head_dim // 2)] * 2 or stream.numel() == 0:
        return None
    if len({one.device for one in (stream, *norms, cos, sin)}) > 1 or not dispatch.kernels_can_run(stream):
        return None
    heads = weights.output.shape[1] // head_dim
    key_heads = (weights.qkv.shape[0] // head_dim - heads) // 2
    stand_in = stream.new_empty(())  # stands in for results of the layer: only their shapes matter here
    q, k = (stand_in.expand(batch, count, length, head_dim) for count in (heads, key_heads))
    tf32 = stream.dtype == torch.float32 and tf32_allowed()
    if not takes_heads(q, tf32) or _any_is_faster_by_pytorch(
        (rms_norm, {"x": stream, "weight": weights.attention_norm, "eps": eps}),
        (rope, {"q": q, "k": k, "cos": cos, "sin": sin, "rotary_dim": head_dim}),
        (attention, {"q": q, "k": k, "v": k, "causal": True}),
        (swiglu, {"gate": stand_in.expand(batch, length, weights.gate_up.shape[0])}),
        device=stream.device,
    ):
        return None
    sizes = heads, key_heads, key_heads
    return AttentionBlock((batch, length), sizes, head_dim, eps, tf32), FeedForwardBlock(eps)


def _any_is_faster_by_pytorch(*calls: tuple[Operator[..., Any], dict[str, Any]], device: torch.device) -> bool:
    """Return whether, in mode "auto", PyTorch was measured faster for one of these calls."""
    training = torch.is_grad_enabled()
    return dispatch.mode() == "auto" and any(
        tuning.prefers_torch(device, one.name, one.bucket_for(**arguments), training=training)
        for one, arguments in calls
    )
