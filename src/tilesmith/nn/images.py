"""Convolution and pooling over images."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from tilesmith.nn.arguments import checked
from tilesmith.ops.avg_pool2d import avg_pool2d
from tilesmith.ops.conv2d import conv2d
from tilesmith.ops.max_pool2d import max_pool2d

Sides = int | tuple[int, int]


@checked
class Conv2d(torch.nn.Conv2d):
    """torch.nn.Conv2d on `ops.conv2d`, with zero padding only."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sides,
        stride: Sides = 1,
        padding: str | Sides = 0,
        dilation: Sides = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(
                f"Conv2d: padding_mode is {padding_mode!r}, but must be 'zeros'; for another mode, pad x first"
            )
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )

    def forward(self, input: Tensor) -> Tensor:
        return conv2d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


@checked
class MaxPool2d(torch.nn.MaxPool2d):
    """torch.nn.MaxPool2d on `ops.max_pool2d`, without indices."""

    def __init__(
        self,
        kernel_size: Sides,
        stride: Sides | None = None,
        padding: Sides = 0,
        dilation: Sides = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        if return_indices:
            raise ValueError("MaxPool2d: return_indices is True, but indices are not supported; use torch.nn.MaxPool2d")
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    def forward(self, input: Tensor) -> Tensor:
        return max_pool2d(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


@checked
class AvgPool2d(torch.nn.AvgPool2d):
    """torch.nn.AvgPool2d on `ops.avg_pool2d`."""

    def forward(self, input: Tensor) -> Tensor:
        return avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )
