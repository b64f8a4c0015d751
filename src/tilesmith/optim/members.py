"""One parameter that our kernels update: whether they can, and whether it is still as it was found to be.

A step of a large model comes by hundreds of parameters, and to look at everything takes the host longer than the GPU
takes for the update. So all is looked at once, and then only what may change from one step to the next.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from tilesmith.ops.runtime import dispatch
from tilesmith.optim.adamw_kernels import TRITON_DTYPES

Group = dict[str, Any]


class Member:
    """A parameter with its state and all that was found out about them."""

    __slots__ = (
        "addresses", "contiguous", "count", "device", "dtype", "elements", "exp_avg", "exp_avg_sq", "group",
        "parameter", "state", "step", "strides",
    )  # fmt: skip

    def __init__(self, parameter: Tensor, state: dict[str, Any], group: Group) -> None:
        self.parameter = parameter
        self.state = state
        self.group = group
        self.exp_avg: Tensor = state["exp_avg"]
        self.exp_avg_sq: Tensor = state["exp_avg_sq"]
        self.step: Tensor = state["step"]
        self.dtype = parameter.dtype
        self.device = parameter.device
        self.elements = parameter.numel()
        self.strides = parameter.stride()
        self.contiguous = parameter.is_contiguous()
        self.addresses = parameter.data_ptr(), self.exp_avg.data_ptr(), self.exp_avg_sq.data_ptr()
        # Where the host counts: a view of the same memory, as adding to hundreds of tensors takes PyTorch long.
        self.count = self.step.numpy() if counts_on_the_host(group, self.step) else None

    def gradient_address(self) -> int | None:
        """Of today's gradient; None where it, the parameter or its state has to be looked at anew."""
        gradient = self.parameter.grad
        if type(gradient) is not Tensor or not self._is_alike(gradient):
            return None
        state, exp_avg, exp_avg_sq = self.state, self.exp_avg, self.exp_avg_sq
        if state["exp_avg"] is not exp_avg or state["exp_avg_sq"] is not exp_avg_sq or state["step"] is not self.step:
            return None
        if (self.parameter.data_ptr(), exp_avg.data_ptr(), exp_avg_sq.data_ptr()) != self.addresses:
            return None
        return gradient.data_ptr()

    def _is_alike(self, other: Tensor) -> bool:
        """Whether this tensor's elements lie as the parameter's do."""
        if other.dtype is not self.dtype or other.device != self.device or other.layout is not torch.strided:
            return False
        return (other.stride() == self.strides or (self.contiguous and other.is_contiguous())) and not other.is_neg()

    def is_ours(self) -> bool:
        """Whether, apart from its gradient, our kernels can update the parameter."""
        if not self.contiguous and not is_dense(tuple(self.parameter.shape), self.strides):
            return False
        if not all(type(one) is Tensor and self._is_alike(one) for one in (self.exp_avg, self.exp_avg_sq)):
            return False
        rate = self.group["lr"]
        rate_is_there = isinstance(rate, Tensor) and rate.device.type != "cpu"
        if self.count is not None:
            return not rate_is_there  # to read it here would be to wait for the GPU
        if rate_is_there and (rate.device != self.device or rate.dtype is not torch.float32):
            return False
        return self.step.device == self.device and self.step.dtype is torch.float32


def found(parameter: Tensor, state: dict[str, Any], group: Group) -> Member | None:
    """The parameter as a member, if our kernels can update it and are to."""
    if type(parameter) is not Parameter and type(parameter) is not Tensor:
        return None
    if parameter.dtype not in TRITON_DTYPES or parameter.device.type == "meta" or parameter.numel() == 0:
        return None
    if not dispatch.kernels_can_run(parameter):
        return None
    member = Member(parameter, state, group)
    return member if member.is_ours() else None


def counts_on_the_host(group: Group, step: Tensor) -> bool:
    """Else the kernels count the step, in memory that is where the parameter is."""
    return step.device.type == "cpu" and not group["capturable"] and not group["fused"]


@lru_cache
def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements fill a stretch of memory, each once, in whatever order."""
    expected = 1
    for stride, length in sorted((stride, length) for length, stride in zip(shape, strides, strict=True) if length > 1):
        if stride != expected:
            return False
        expected *= length
    return True
