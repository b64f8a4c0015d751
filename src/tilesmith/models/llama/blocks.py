"""The two blocks of a layer with explicit gradients: the operators' kernels, and GEMMs by the BLAS.

A block serves tensors of one signature (shapes, strides, dtypes, device). The rows of all sequences form one matrix. A
block returns the stream plus its result, and the tensors that its gradient needs: no more than the operators keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.attention.operator import backward as attention_backward
from tilesmith.ops.attention.operator import forward as attention_forward
from tilesmith.ops.attention.reference import bounds
from tilesmith.ops.rms_norm.backward import backward as norm_backward
from tilesmith.ops.rms_norm.forward import forward as norm_forward
from tilesmith.ops.rope import backward as rope_backward
from tilesmith.ops.rope import forward as rope_forward
from tilesmith.ops.runtime.kernels import Kernels
from tilesmith.ops.swiglu.operator import backward as swiglu_backward
from tilesmith.ops.swiglu.operator import forward as swiglu_forward

Tensors = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]


class Planned:
    """Kernels for tensors of one signature: the first call finds the plan."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.run: Callable[[Sequence[Any]], Any] = self._plan_and_run

    def _plan_and_run(self, arguments: Sequence[Any]) -> Any:
        self.run = self._kernels.runner_for(arguments)
        return self.run(arguments)


class AttentionBlock:
    """stream + attention(norm(stream)), with rotary positions."""

    def __init__(
        self, sequences: tuple[int, int], heads: tuple[int, int, int], head_dim: int, eps: float, tf32: bool
    ) -> None:
        """`sequences` is (batch, length); `heads` are the numbers of heads of queries, keys and values."""
        self._heads = heads
        self._head_dim = head_dim
        self._shape = (*sequences, -1, head_dim)
        self._eps = eps
        # Without bias, mask and dropout; with the default scale.
        self._options = (None, None, None, *bounds(causal=True, window=None), None, 0.0, 0.0, tf32)
        self._norm, self._norm_gradient = Planned(norm_forward), Planned(norm_backward)
        self._rope, self._rope_gradient = Planned(rope_forward), Planned(rope_backward)
        self._attention, self._attention_gradient = Planned(attention_forward), Planned(attention_backward)

    def __call__(
        self, stream: Tensor, weights: Sequence[Tensor], cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensors]:  # fmt: skip
        norm, qkv, output = weights
        x = self._norm.run((stream, norm, self._eps))
        projected = F.linear(x, qkv).view(self._shape).transpose(1, 2)
        q, k, v = projected.split_with_sizes(self._heads, 1)
        q, k = self._rope.run((q, k, cos, sin, False, self._head_dim))
        attended, statistics = self._attention.run((q, k, v, *self._options))
        rows = attended.transpose(1, 2).view(stream.shape)  # no copy: the result has the strides of q
        return F.linear(rows, output).add_(stream), (x, q, k, v, attended, rows, statistics)

    def gradients(
        self, dtotal: Tensor, stream: Tensor, weights: Sequence[Tensor], cos: Tensor, sin: Tensor,
        kept: Sequence[Tensor], needed: Sequence[bool],
    ) -> tuple[Tensor, Gradients]:  # fmt: skip
        """Return the gradient of the stream, and those of the weights; None for each that is not needed."""
        norm, qkv, output = weights
        x, q, k, v, attended, rows, statistics = kept
        doutput = torch.mm(dtotal.t(), rows) if needed[2] else None
        dattended = torch.mm(dtotal, output).view(self._shape).transpose(1, 2)
        dq, dk, dv, _ = self._attention_gradient.run(
            (dattended, attended, statistics, False, q, k, v, *self._options)
        )  # fmt: skip
        dq, dk = self._rope_gradient.run((dq, dk, cos, sin, False, self._head_dim))
        dprojected = torch.cat((dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)), 2).view(x.shape[0], -1)
        dqkv = torch.mm(dprojected.t(), x) if needed[1] else None
        dx = torch.mm(dprojected, qkv)
        dstream, dnorm = self._norm_gradient.run((dx, stream, norm, self._eps, needed[0]))
        return dstream.add_(dtotal), (dnorm if needed[0] else None, dqkv, doutput)


class FeedForwardBlock:
    """stream + down(silu(gate(norm(stream))) · up(norm(stream)))."""

    def __init__(self, eps: float) -> None:
        self._eps = eps
        self._norm, self._norm_gradient = Planned(norm_forward), Planned(norm_backward)
        self._swiglu, self._swiglu_gradient = Planned(swiglu_forward), Planned(swiglu_backward)

    def __call__(self, stream: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensors]:
        norm, gate_up, down = weights
        x = self._norm.run((stream, norm, self._eps))
        projected = F.linear(x, gate_up)
        hidden = self._swiglu.run((projected, None))
        return F.linear(hidden, down).add_(stream), (x, projected, hidden)

    def gradients(
        self, dtotal: Tensor, stream: Tensor, weights: Sequence[Tensor], kept: Sequence[Tensor], needed: Sequence[bool]
    ) -> tuple[Tensor, Gradients]:
        """Return the gradient of the stream, and those of the weights; None for each that is not needed."""
        norm, gate_up, down = weights
        x, projected, hidden = kept
        ddown = torch.mm(dtotal.t(), hidden) if needed[2] else None
        dprojected, _ = self._swiglu_gradient.run((torch.mm(dtotal, down), projected, None))
        dgate_up = torch.mm(dprojected.t(), x) if needed[1] else None
        dx = torch.mm(dprojected, gate_up)
        dstream, dnorm = self._norm_gradient.run((dx, stream, norm, self._eps, needed[0]))
        return dstream.add_(dtotal), (dnorm if needed[0] else None, dgate_up, ddown)
