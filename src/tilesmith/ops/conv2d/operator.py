"""The operator: its definition, its checks, its gradient and its spec.

`forward.py` chooses the kernels of the forward and of the input gradient: depthwise, interleaved, or the implicit GEMM,
on Hopper or by pointers. `weight_gradient.py` has the weight gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.conv2d.forward import forward, input_gradient
from tilesmith.ops.conv2d.problem import Problem
from tilesmith.ops.conv2d.weight_gradient import weight_gradient
from tilesmith.ops.device.images.windows import (
    Sides,
    Window,
    images_of,
    is_whole,
    lies_channels_last,
    numbers_of,
    pair,
    require_images,
    require_pair,
    require_windows,
)
from tilesmith.ops.runtime.arguments import require_floating, require_same_device
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.precision import tf32_allowed_in_convolutions
from tilesmith.ops.sum import forward as sum_forward
from tilesmith.spec import Case, Cost, Layout, Spec, Work


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sides = 1,
    padding: Sides | str = 0,
    dilation: Sides = 1,
    groups: int = 1,
) -> Tensor:
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def native(x: Tensor, weight: Tensor, bias: Tensor | None = None, *window: Any) -> Tensor:
    # In half precision PyTorch's gradient of the weight held a NaN in one drawn call on x86: bf16, two groups.
    if x.device.type == "cpu" and x.dtype.itemsize == 2:
        return reference(x.float(), weight.float(), None if bias is None else bias.float(), *window).to(x.dtype)
    return reference(x, weight, bias, *window)


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, context.window, context.groups, context.tf32 = inputs
    context.has_bias = bias is not None
    context.save_for_backward(x, weight)


def gradient(context: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = context.saved_tensors
    needs_x, needs_weight, needs_bias = context.needs_input_grad[:3]
    same = context.window, context.groups, context.tf32
    last = lies_channels_last(x.shape, x.stride())
    dx = input_gradient(dy, weight, *x.shape[-2:], *same, last) if needs_x else None
    dweight = weight_gradient(dy, x, weight, *same) if needs_weight else None
    everything_else = [dimension for dimension in range(dy.ndim) if dimension != dy.ndim - 3]
    # Ours: PyTorch's sum takes 38 µs for 32×64×56² channels last in bf16 on an H200, the rest of the backward 100.
    dbias = sum_forward(dy, everything_else, False) if context.has_bias and needs_bias else None
    return dx, dweight, dbias, None, None, None


def window_of(height: int, width: int, stride: Sides, padding: Sides | str, dilation: Sides) -> Window:
    """Return the window of a weight of this height and width. "same" pads more after the image if the sum is odd."""
    kernel, dilations = (height, width), pair(dilation)
    if padding == "same":
        missing = [gap * (size - 1) for gap, size in zip(dilations, kernel, strict=True)]
        before = (missing[0] // 2, missing[1] // 2)
        after = (missing[0] - before[0], missing[1] - before[1])
    else:
        before = after = (0, 0) if isinstance(padding, str) else pair(padding)
    return Window(kernel, pair(stride), before, after, dilations)


window_numbers = numbers_of(window_of)


def prepare(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sides, padding: Sides | str, dilation: Sides, groups: int
) -> tuple[Tensor, Tensor, Tensor | None, tuple[int, ...], int, bool]:
    _, _, height, width = weight.shape
    window = window_numbers(height, width, stride, padding, dilation)
    return x, weight, bias, window, groups, tf32_allowed_in_convolutions()


def takes(x: Tensor, weight: Tensor, bias: Tensor | None, window: Sequence[int], groups: int, tf32: bool) -> bool:
    """Return whether our kernels compute this: no double precision on a GPU, fewer than 2³¹ positions."""
    positions = Problem.of(x.shape, weight.shape, window, groups).positions
    return not (x.is_cuda and x.dtype == torch.float64) and positions < 2**31


def sizes(
    x: Tensor, weight: Tensor, bias: Tensor | None, window: Sequence[int], groups: int, tf32: bool
) -> tuple[Any, ...]:
    """Return what decides whether PyTorch is faster: with channels first it is, with channels last rarely."""
    layout = "channels-last" if x.stride(1) == 1 else "channels-first"
    return x, weight, tuple(window), groups, tf32 and x.dtype == torch.float32, layout


@operator(
    "conv2d",
    reference=reference,
    native=native,
    forward=forward,
    save=save,
    gradient=gradient,
    prepare=prepare,
    options=Options(sizes=sizes, takes=takes, switches=tf32_allowed_in_convolutions, autocasts=True),
)
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sides = 1,
    padding: Sides | str = 0,
    dilation: Sides = 1,
    groups: int = 1,
) -> Tensor:
    """Return the convolution of one or several images, as torch.nn.functional.conv2d does.

    Sums are in single precision or better. `torch.backends.cudnn.allow_tf32` decides, as in PyTorch, whether single
    precision is rounded to tf32 or multiplied exactly. Images and weight with channels last in memory
    (`torch.channels_last`) are fastest; others of 16 channels and more are first copied to that layout.
    """
    require_floating("conv2d", x=x, weight=weight)
    if bias is not None:
        require_floating("conv2d", bias=bias)
    require_images("conv2d", "x", x)
    require_same_device("conv2d", x=x, weight=weight, bias=bias)
    require_same_dtype(x, weight=weight, bias=bias)
    require_groups(x, weight, bias, groups)
    require_pair("conv2d", "stride", stride, at_least=1)
    require_pair("conv2d", "dilation", dilation, at_least=1)
    require_padding(padding, stride)
    _, _, height, width = weight.shape
    require_windows("conv2d", x, window_of(height, width, stride, padding, dilation))
    return x


def require_same_dtype(x: Tensor, **others: Tensor | None) -> None:
    for name, other in others.items():
        if other is not None and other.dtype != x.dtype:
            theirs, ours = (str(dtype).removeprefix("torch.") for dtype in (other.dtype, x.dtype))
            raise TypeError(f"conv2d: {name} has dtype {theirs}, but x has {ours}; they must be the same")


def require_groups(x: Tensor, weight: Tensor, bias: Tensor | None, groups: Any) -> None:
    if weight.ndim != 4 or 0 in weight.shape:
        raise ValueError(
            f"conv2d: weight has shape {tuple(weight.shape)}, but must be [outputs, channels per group, rows, columns]"
        )
    if not is_whole(groups):
        raise TypeError(f"conv2d: groups is a {type(groups).__name__}, but must be a whole number")
    outputs, channels = weight.shape[:2]
    if groups < 1 or outputs % groups:
        raise ValueError(f"conv2d: groups is {groups}, but must divide the {outputs} outputs of weight")
    if x.shape[-3] != channels * groups:
        raise ValueError(
            f"conv2d: x has {x.shape[-3]} channels, but weight takes {channels} in each of {groups} groups"
        )
    if bias is not None and bias.shape != (outputs,):
        raise ValueError(f"conv2d: bias has shape {tuple(bias.shape)}, but weight has {outputs} outputs")


def require_padding(padding: object, stride: Any) -> None:
    if not isinstance(padding, str):
        require_pair("conv2d", "padding", padding, at_least=0)
    elif padding not in ("same", "valid"):
        raise ValueError(f"conv2d: padding is {padding!r}, but must be numbers, 'same' or 'valid'")
    elif padding == "same" and pair(stride) != (1, 1):
        raise ValueError(f"conv2d: padding is 'same', for which stride must be 1, but it is {stride}")


OPTIONS: dict[str, dict[str, Any]] = {
    "one": {},
    "odd": {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)},
    "depthwise": {"padding": 1, "groups": 5},
    "depthwise-channels-last": {"stride": (1, 2), "padding": (1, 0), "groups": 5},
    "grouped": {"groups": 2},
    "strided-channels-last": {"stride": 2, "padding": 1},
    "pointwise-channels-last": {},
    "stem-channels-last": {"stride": 2, "padding": 3},
}
KERNELS = {
    "one": (1, 1),
    "depthwise": (2, 3),
    "depthwise-channels-last": (2, 2),
    "grouped": (1, 1),
    "strided-channels-last": (3, 2),
    "stem-channels-last": (7, 7),
    "pointwise-channels-last": (1, 1),
}


DEFAULTS: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def options_of(case: Case) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the window's size and the operator's options of a case."""
    return KERNELS.get(case.name, (3, 3)), {**DEFAULTS, **OPTIONS.get(case.name, {"padding": 1})}


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    kernel, options = options_of(case)
    x = images_of(case, dtype, device, layout, channels=case.channels * options["groups"])
    outputs = case.outputs * options["groups"]
    # As in a network: results are about as large as the inputs.
    scale = (case.channels * math.prod(kernel)) ** -0.5
    if case.name.endswith("channels-last"):
        weight = torch.randn(outputs, *kernel, case.channels, dtype=dtype, device=device) * scale
        weight = layout(weight).permute(0, 3, 1, 2)
    else:
        weight = layout(torch.randn(outputs, case.channels, *kernel, dtype=dtype, device=device) * scale)
    return {"x": x, "weight": weight, "bias": layout(torch.randn(outputs, dtype=dtype, device=device)), **options}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    kernel, options = options_of(case)
    groups = options.pop("groups")
    images = (case.batch, case.channels * groups, case.height, case.width)
    weight = (case.outputs * groups, case.channels, *kernel)
    problem = Problem.of(images, weight, window_of(*kernel, **options).numbers, groups)
    results = problem.positions * weight[0]
    once = (math.prod(images) + math.prod(weight) + weight[0] + results) * dtype.itemsize
    return Cost(
        forward=Work(bytes=once, flops=problem.flops),
        # x, weight and dy are read, dx, dweight and dbias written.
        backward=Work(bytes=2 * once - results * dtype.itemsize, flops=2 * problem.flops),
    )


SPEC = Spec(
    name="conv2d",
    op=conv2d,
    reference=reference,
    formula="y[k, p, q] = Σ over c, r, s of x[c, p·stride − padding + r·dilation, …] · w[k, c, r, s] + b[k]",
    cases=[
        Case("one", batch=1, channels=1, outputs=1, height=1, width=1),
        Case("odd", batch=2, channels=4, outputs=5, height=6, width=5),
        Case("depthwise", batch=2, channels=1, outputs=1, height=8, width=7),
        Case("depthwise-channels-last", batch=2, channels=1, outputs=2, height=8, width=7),
        Case("grouped", batch=1, channels=16, outputs=16, height=5, width=6),
        Case("strided-channels-last", batch=1, channels=24, outputs=16, height=5, width=6),
        Case("stem-channels-last", batch=32, channels=3, outputs=64, height=224, width=224),
        Case("early", batch=32, channels=64, outputs=64, height=56, width=56),
        Case("early-channels-last", batch=32, channels=64, outputs=64, height=56, width=56),
        Case("late-channels-last", batch=32, channels=256, outputs=256, height=14, width=14),
        Case("pointwise-channels-last", batch=128, channels=64, outputs=256, height=28, width=28),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": reference},
)
