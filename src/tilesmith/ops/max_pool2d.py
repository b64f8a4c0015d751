"""Maximum over windows of an image: y[n, c, p, q] = max over r, s of x[n, c, p·stride − padding + r·dilation, …].

Forward reads x and writes y; backward reads dy and writes dx. Memory-bound, if the kernel spends few instructions per
element: a window's elements come from memory once, and a maximum is one instruction.

- If a gradient is wanted, the forward keeps the position of each maximum in its window, one byte per output. The
  backward needs nothing else.
- The backward gathers: each input element takes the gradients of the windows that chose it. There are no atomics, so
  the result is the same at every run.
- As in PyTorch, the first of equal elements is the maximum. NaN is larger than all numbers, and the last NaN wins.

There is one kernel each way, shared with avg_pool2d: `device/images/pooling_forward.py` and `pooling_backward.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.ops.device.images.pooling import (
    pooling_numbers,
    pooling_shape,
    pooling_window,
    pooling_work,
    require_pooling,
)
from tilesmith.ops.device.images.pooling_backward import plan_pooling_backward
from tilesmith.ops.device.images.pooling_forward import plan_pooling_forward
from tilesmith.ops.device.images.windows import (
    Sides,
    Window,
    empty_images,
    images_of,
    lies_channels_last,
    plan_empty_images,
)
from tilesmith.ops.runtime.arguments import require_floating
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.options import Options
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec


def reference(
    x: Tensor,
    kernel_size: Sides,
    stride: Sides | None = None,
    padding: Sides = 0,
    dilation: Sides = 1,
    ceil_mode: bool = False,
) -> Tensor:
    return F.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode)


def position_dtype(window: Window) -> torch.dtype:
    """Return the smallest dtype that can number every element of a window."""
    return torch.uint8 if window.kernel[0] * window.kernel[1] <= 256 else torch.int32


@kernels("max_pool2d_forward")
def forward(x: Tensor, window: Sequence[int], ceil_mode: bool, keep_positions: bool) -> tuple[Tensor, Tensor]:
    """Return the maxima and their positions in their windows; the positions are empty unless wanted."""
    given = Window.of(window)
    shape, last = pooling_shape(x.shape, given, ceil_mode=ceil_mode), lies_channels_last(x.shape, x.stride())
    dtype = position_dtype(given)
    positions = empty_images(x, shape, dtype, channels_last=last) if keep_positions else x.new_empty(0, dtype=dtype)
    return empty_images(x, shape, x.dtype, channels_last=last), positions


@forward.plan
def plan_forward(
    plan: Plan, x: Operand, window: Sequence[int], ceil_mode: bool, keep_positions: bool
) -> tuple[Operand, Operand]:
    given = Window.of(window)
    shape, last = pooling_shape(x.shape, given, ceil_mode=ceil_mode), lies_channels_last(x.shape, x.strides)
    y = plan_empty_images(plan, shape, x.dtype, channels_last=last)
    dtype = position_dtype(given)
    positions = plan_empty_images(plan, shape, dtype, channels_last=last) if keep_positions else plan.empty((0,), dtype)
    plan_pooling_forward(plan, x, y, positions if keep_positions else None, given, of_maxima=True)
    return y, positions


@kernels("max_pool2d_backward")
def backward(dy: Tensor, positions: Tensor, height: int, width: int, window: Sequence[int]) -> Tensor:
    last = lies_channels_last(positions.shape, positions.stride())
    return empty_images(dy, (*dy.shape[:-2], height, width), dy.dtype, channels_last=last)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, positions: Operand, height: int, width: int, window: Sequence[int]
) -> Operand:
    last = lies_channels_last(positions.shape, positions.strides)
    dx = plan_empty_images(plan, (*dy.shape[:-2], height, width), dy.dtype, channels_last=last)
    plan_pooling_backward(plan, dy, positions, dx, Window.of(window))
    return dx


def save(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, context.window, _, _ = inputs
    context.sides = x.shape[-2:]
    context.set_materialize_grads(False)  # positions have none
    context.save_for_backward(output[1])


def gradient(context: Any, dy: Tensor | None, *positions: None) -> tuple[Tensor | None, None, None, None]:
    if dy is None:
        return None, None, None, None
    (chosen,) = context.saved_tensors
    return backward(dy, chosen, *context.sides, context.window), None, None, None


def prepare(
    x: Tensor, kernel_size: Sides, stride: Sides | None, padding: Sides, dilation: Sides, ceil_mode: bool
) -> tuple[Tensor, tuple[int, ...], bool, bool]:
    wanted = torch.is_grad_enabled() and x.requires_grad
    return x, pooling_numbers(kernel_size, stride, padding, dilation), ceil_mode, wanted


@operator(
    "max_pool2d", reference=reference, forward=forward, save=save, gradient=gradient, prepare=prepare,
    options=Options(returns="first"),
)  # fmt: skip
def max_pool2d(
    x: Tensor,
    kernel_size: Sides,
    stride: Sides | None = None,
    padding: Sides = 0,
    dilation: Sides = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the largest element of each window of one or several images, as torch.nn.functional.max_pool2d does.

    The gradient goes to the element that PyTorch picks: the first of equal elements.
    """
    require_floating("max_pool2d", x=x)
    require_pooling("max_pool2d", x, kernel_size, stride, padding, ceil_mode, dilation)
    return x


OPTIONS: dict[str, dict[str, Any]] = {
    "one": {"kernel_size": 1},
    "odd": {"kernel_size": (3, 2), "stride": (2, 3), "padding": 1, "dilation": (1, 3), "ceil_mode": True},
    "large-window": {"kernel_size": (9, 3), "stride": 1, "padding": (4, 1)},
    "channels-last": {"kernel_size": 3, "stride": 2, "padding": 1},
    "stem": {"kernel_size": 3, "stride": 2, "padding": 1},
    "batch": {"kernel_size": 3, "stride": 2, "padding": 1},
}


DEFAULTS: dict[str, Any] = {"kernel_size": 1, "stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    return {"x": images_of(case, dtype, device, layout), **DEFAULTS, **OPTIONS[case.name]}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    options = dict(OPTIONS[case.name])
    ceil_mode = options.pop("ceil_mode", False)
    return pooling_work(case, dtype, pooling_window(**options), ceil_mode=ceil_mode)


SPEC = Spec(
    name="max_pool2d",
    op=max_pool2d,
    reference=reference,
    formula="y[p, q] = max over r, s of x[p·stride − padding + r·dilation, …]",
    cases=[
        Case("one", batch=1, channels=1, height=1, width=1),
        Case("odd", batch=2, channels=3, height=6, width=8),
        Case("large-window", batch=2, channels=2, height=8, width=7),
        Case("channels-last", batch=2, channels=20, height=5, width=6),
        Case("stem", batch=32, channels=64, height=112, width=112),
        Case("batch", batch=128, channels=64, height=112, width=112),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": reference},
)
