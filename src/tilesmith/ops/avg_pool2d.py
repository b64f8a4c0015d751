"""Mean over windows of an image: y[n, c, p, q] = Σ over r, s of x[n, c, p·stride − padding + r, …] / how many they are.

Forward reads x and writes y, backward reads dy and writes dx. A window's elements come from memory once and from cache
after that, and each costs one addition: memory-bound. The backward gathers: each input element adds up the gradients of
the few windows that contain it, in the same order at every run. It keeps nothing.
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
    is_whole,
    lies_channels_last,
    plan_empty_images,
)
from tilesmith.ops.runtime.arguments import require_flag, require_floating
from tilesmith.ops.runtime.kernels import kernels
from tilesmith.ops.runtime.operator import operator
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.spec import Case, Cost, Layout, Spec


def reference(
    x: Tensor,
    kernel_size: Sides,
    stride: Sides | None = None,
    padding: Sides = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    # PyTorch's GPU gradient of channels-last images is wrong: off by 0.7 for 3 × 3 windows of stride 2 over
    # [2, 20, 5, 6]. Its gradient of contiguous images is right.
    y = F.avg_pool2d(x.contiguous(), kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return y.contiguous(memory_format=torch.channels_last) if lies_channels_last(x.shape, x.stride()) else y


@kernels("avg_pool2d_forward")
def forward(x: Tensor, window: Sequence[int], ceil_mode: bool, count_padding: bool, divisor: int) -> Tensor:
    """Return sums divided by `divisor`, or by the number of a window's elements if that is zero."""
    shape = pooling_shape(x.shape, Window.of(window), ceil_mode=ceil_mode)
    return empty_images(x, shape, x.dtype, channels_last=lies_channels_last(x.shape, x.stride()))


@forward.plan
def plan_forward(
    plan: Plan, x: Operand, window: Sequence[int], ceil_mode: bool, count_padding: bool, divisor: int
) -> Operand:
    given = Window.of(window)
    shape = pooling_shape(x.shape, given, ceil_mode=ceil_mode)
    y = plan_empty_images(plan, shape, x.dtype, channels_last=lies_channels_last(x.shape, x.strides))
    plan_pooling_forward(
        plan, x, y, None, given, of_maxima=False, count_padding=count_padding, divisor=divisor
    )  # fmt: skip
    return y


@kernels("avg_pool2d_backward")
def backward(
    dy: Tensor, height: int, width: int, window: Sequence[int], count_padding: bool, divisor: int, channels_last: bool
) -> Tensor:
    """Return the gradient of images of this height, width and memory format."""
    return empty_images(dy, (*dy.shape[:-2], height, width), dy.dtype, channels_last=channels_last)


@backward.plan
def plan_backward(
    plan: Plan, dy: Operand, height: int, width: int, window: Sequence[int], count_padding: bool, divisor: int,
    channels_last: bool,
) -> Operand:  # fmt: skip
    dx = plan_empty_images(plan, (*dy.shape[:-2], height, width), dy.dtype, channels_last=channels_last)
    plan_pooling_backward(plan, dy, None, dx, Window.of(window), count_padding, divisor)
    return dx


def save(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, context.window, _, context.count_padding, context.divisor = inputs
    context.sides = x.shape[-2:]
    context.channels_last = lies_channels_last(x.shape, x.stride())


def gradient(context: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
    dx = backward(
        dy, *context.sides, context.window, context.count_padding, context.divisor, context.channels_last
    )  # fmt: skip
    return dx, None, None, None, None


def prepare(
    x: Tensor, kernel_size: Sides, stride: Sides | None, padding: Sides, ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None,
) -> tuple[Tensor, tuple[int, ...], bool, bool, int]:  # fmt: skip
    return x, pooling_numbers(kernel_size, stride, padding), ceil_mode, count_include_pad, divisor_override or 0


@operator(
    "avg_pool2d", reference=reference, forward=forward, save=save, gradient=gradient, prepare=prepare
)  # fmt: skip
def avg_pool2d(
    x: Tensor,
    kernel_size: Sides,
    stride: Sides | None = None,
    padding: Sides = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window of one or several images, as torch.nn.functional.avg_pool2d does."""
    require_floating("avg_pool2d", x=x)
    require_pooling("avg_pool2d", x, kernel_size, stride, padding, ceil_mode)
    require_flag("avg_pool2d", "count_include_pad", count_include_pad)
    if divisor_override is not None:
        require_divisor(divisor_override)
    return x


def require_divisor(divisor: object) -> None:
    if not is_whole(divisor):
        raise TypeError(f"avg_pool2d: divisor_override is a {type(divisor).__name__}, but must be a whole number")
    if divisor == 0:
        raise ValueError("avg_pool2d: divisor_override is 0, but must be another number")


OPTIONS: dict[str, dict[str, Any]] = {
    "one": {"kernel_size": 1},
    "odd": {
        "kernel_size": (2, 3), "stride": (3, 2), "padding": (1, 0), "ceil_mode": True, "count_include_pad": False,
    },
    "large-window": {"kernel_size": (9, 3), "stride": 1, "padding": (4, 1), "divisor_override": 5},
    "channels-last": {"kernel_size": 3, "stride": 2, "padding": 1},
    "batch": {"kernel_size": 3, "stride": 2, "padding": 1},
}  # fmt: skip


DEFAULTS: dict[str, Any] = {
    "kernel_size": 1, "stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True,
    "divisor_override": None,
}  # fmt: skip


def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
    return {"x": images_of(case, dtype, device, layout), **DEFAULTS, **OPTIONS[case.name]}


def cost(case: Case, dtype: torch.dtype) -> Cost:
    options = OPTIONS[case.name]
    window = pooling_window(options["kernel_size"], options.get("stride"), options.get("padding", 0))
    return pooling_work(case, dtype, window, ceil_mode=options.get("ceil_mode", False))


SPEC = Spec(
    name="avg_pool2d",
    op=avg_pool2d,
    reference=reference,
    formula="y[p, q] = Σ over r, s of x[p·stride − padding + r, …] / number of elements",
    cases=[
        Case("one", batch=1, channels=1, height=1, width=1),
        Case("odd", batch=2, channels=3, height=6, width=8),
        Case("large-window", batch=2, channels=2, height=8, width=7),
        Case("channels-last", batch=2, channels=20, height=5, width=6),
        Case("batch", batch=128, channels=64, height=112, width=112),
    ],
    make_inputs=make_inputs,
    cost=cost,
    rivals={"torch": F.avg_pool2d},
)
