"""One parameter that our kernels update: whether they can, and whether that has changed since the last step.

A large model has hundreds of parameters. Checking all their properties at every step would take the host longer than
the GPU takes for the update. So all properties are checked once, and then only those that may change between steps.
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


class UpdatedParameter:
    """A parameter, its optimiser state, and their checked properties."""

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
        # Steps on the host as a NumPy view of the same memory: adding to hundreds of tensors in PyTorch is slow.
        self.count = self.step.numpy() if counts_on_host(group, self.step) else None

    def gradient_address(self) -> int | None:
        """Return the current gradient's address, or None where gradient, parameter or state must be checked again."""
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
        """Return whether a tensor has the parameter's dtype, device and layout."""
        if other.dtype is not self.dtype or other.device != self.device or other.layout is not torch.strided:
            return False
        return (other.stride() == self.strides or (self.contiguous and other.is_contiguous())) and not other.is_neg()

    def is_ours(self) -> bool:
        """Return whether our kernels can update the parameter, apart from its gradient."""
        if not self.contiguous and not is_dense(tuple(self.parameter.shape), self.strides):
            return False
        if not all(type(one) is Tensor and self._is_alike(one) for one in (self.exp_avg, self.exp_avg_sq)):
            return False
        rate = self.group["lr"]
        rate_on_device = isinstance(rate, Tensor) and rate.device.type != "cpu"
        if self.count is not None:
            return not rate_on_device  # reading it here would wait for the GPU
        if rate_on_device and (rate.device != self.device or rate.dtype is not torch.float32):
            return False
        return self.step.device == self.device and self.step.dtype is torch.float32


def updated_parameter(parameter: Tensor, state: dict[str, Any], group: Group) -> UpdatedParameter | None:
    """Return the parameter, if our kernels can update it and the dispatch allows it; else None."""
    if type(parameter) is not Parameter and type(parameter) is not Tensor:
        return None
    if parameter.dtype not in TRITON_DTYPES or parameter.device.type == "meta" or parameter.numel() == 0:
        return None
    if not dispatch.kernels_can_run(parameter):
        return None
    updated = UpdatedParameter(parameter, state, group)
    return updated if updated.is_ours() else None


def counts_on_host(group: Group, step: Tensor) -> bool:
    """Return whether the host counts the steps; else the kernels do, on the parameter's device."""
    return step.device.type == "cpu" and not group["capturable"] and not group["fused"]


@lru_cache
def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether the elements fill a contiguous range of memory, each once, in any order."""
    expected = 1
    for stride, length in sorted((stride, length) for length, stride in zip(shape, strides, strict=True) if length > 1):
        if stride != expected:
            return False
        expected *= length
    return True
