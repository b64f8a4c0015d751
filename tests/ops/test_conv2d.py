"""conv2d in what is its own: every form of its kernels, strings for padding, precision, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.conv2d.operator import conv2d as as_declared
from tilesmith.ops.conv2d.problem import Problem, backward_walk, best_box
from tilesmith.ops.device.images.windows import Window
from tilesmith.ops.runtime.kernels import recorded_plans

conv2d = SPECS["conv2d"].op


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def compare(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> None:
    """Result and gradients are PyTorch's, and so is the way they lie in memory."""
    given = [x, weight] if bias is None else [x, weight, bias]
    ours = [one.detach().requires_grad_() for one in given]
    right = [one.detach().clone().requires_grad_() for one in given]
    y, wanted = conv2d(*ours, **options), SPECS["conv2d"].reference(*right, **options)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    assert y.stride() == wanted.stride()
    cotangent = torch.randn(wanted.shape)
    for one, other in zip(
        torch.autograd.grad(y, ours, cotangent), torch.autograd.grad(wanted, right, cotangent), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "outputs", "groups"), [(3, 5, 1), (16, 17, 1), (1, 6, 1), (4, 4, 4), (4, 8, 4), (6, 4, 2)]
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_conv2d_of_few_and_many_channels_in_groups(
    channels: int, outputs: int, groups: int, channels_last: bool
) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(2, channels, 5, 4).to(memory_format=layout)
    weight = torch.randn(outputs, channels // groups, 2, 3).to(memory_format=layout)
    compare(x, weight, torch.randn(outputs), padding=1, groups=groups)


STEPS: list[dict[str, Any]] = [
    {"stride": 2, "padding": 1},
    {"stride": (3, 2), "padding": (0, 2)},
    {"stride": 2, "padding": 2, "dilation": 2},
    {"stride": (2, 4), "padding": (1, 2), "dilation": (4, 2)},
    {"stride": (3, 1), "padding": 2, "dilation": (2, 3)},
]


@pytest.mark.parametrize("options", STEPS, ids=str)
def test_conv2d_strides_and_dilations_with_and_without_common_factors(options: dict[str, Any]) -> None:
    """The input's gradient takes only those taps that a position can be reached by: which ones depends on both."""
    compare(torch.randn(1, 2, 9, 10), torch.randn(3, 2, 3, 3), **options)


def test_conv2d_stride_beyond_the_window_gives_zero_gradients() -> None:
    compare(torch.randn(1, 16, 7, 8), torch.randn(16, 16, 1, 1), stride=3)


STEMS: list[tuple[tuple[int, ...], tuple[int, int], dict[str, Any]]] = [
    ((2, 3, 11, 10), (7, 7), {"stride": 2, "padding": 3}),
    ((1, 4, 8, 9), (2, 2), {"stride": 2}),
    ((1, 2, 9, 7), (3, 5), {"stride": (3, 1), "padding": (0, 4)}),
    ((2, 1, 7, 7), (2, 3), {"stride": (4, 4), "padding": 1}),
    ((3, 5, 12), (4, 3), {"stride": (1, 3), "padding": (2, 0)}),
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("shape", "kernel", "options"), STEMS, ids=str)
def test_conv2d_strided_over_few_channels(
    shape: tuple[int, ...], kernel: tuple[int, int], options: dict[str, Any], channels_last: bool
) -> None:
    """The input's gradient comes of one product for all classes of positions, and is put together afterwards."""
    x, weight = torch.randn(shape), torch.randn(18, shape[-3], *kernel)
    if channels_last and x.ndim == 4:
        x, weight = (one.to(memory_format=torch.channels_last) for one in (x, weight))
    compare(x, weight, torch.randn(18), **options)
    with recorded_plans() as plans:
        y = conv2d(x.to("meta").requires_grad_(), weight.to("meta"), **options)
        y.backward(torch.empty_like(y))
    launched = [launch.kernel.__name__ for plan in plans for launch in plan.launches]
    products = [name for name in launched if name == "conv2d_gather_kernel"]
    assert len(products) == 2  # one of them forward
    assert launched[-1] == "conv2d_interleave_kernel"


@pytest.mark.parametrize("kernel", [(2, 3), (4, 1)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_conv2d_padding_same(kernel: tuple[int, int], dilation: int) -> None:
    """An even window has one more column of padding behind than before."""
    compare(torch.randn(1, 2, 7, 8), torch.randn(2, 2, *kernel), padding="same", dilation=dilation)


def test_conv2d_padding_valid_pads_nothing() -> None:
    compare(torch.randn(1, 2, 5, 5), torch.randn(2, 2, 3, 3), padding="valid")


def test_conv2d_of_a_single_image() -> None:
    compare(torch.randn(3, 6, 5), torch.randn(4, 3, 3, 3), torch.randn(4), padding=1)


def test_conv2d_of_images_of_one_pixel() -> None:
    """Every layout of them is the same, and what comes out has its channels first, as from PyTorch."""
    compare(torch.randn(2, 1, 1, 1), torch.randn(4, 1, 3, 3), padding=2)


def test_conv2d_of_no_images() -> None:
    compare(torch.randn(0, 3, 6, 5), torch.randn(4, 3, 3, 3), torch.randn(4))


def test_conv2d_takes_strided_arguments() -> None:
    x, weight = torch.randn(4, 20, 10, 6)[::2, ::1, ::2, 1:], torch.randn(6, 20, 3, 4)[::2, :, :, ::2]
    compare(x, weight, torch.randn(6)[::2], padding=1)


@pytest.mark.parametrize("keep_in_l1", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d_every_way_to_load_blocks_of_channels(keep_in_l1: bool, groups: int) -> None:
    """Several blocks of outputs and of channels, forward and back."""
    x = torch.randn(2, 32 * groups, 4, 5).to(memory_format=torch.channels_last)
    weight = torch.randn(32 * groups, 32, 2, 3).to(memory_format=torch.channels_last)
    with ts.ops.configured(KEEP_IN_L1=keep_in_l1, BLOCK_OUTPUTS=16, BLOCK_CHANNELS=16):
        compare(x, weight, padding=1, groups=groups)


def planned(x: Tensor, weight: Tensor, **options: Any) -> list[str]:
    with recorded_plans("cuda:90") as plans:
        conv2d(x, weight, **options)
    return [launch.kernel.__name__ for plan in plans for launch in plan.launches]


def test_conv2d_copies_nothing_with_channels_last() -> None:
    x = torch.empty(2, 64, 8, 8, device="meta").to(memory_format=torch.channels_last)
    weight = torch.empty(64, 64, 3, 3, device="meta").to(memory_format=torch.channels_last)
    assert planned(x, weight) == ["conv2d_gather_kernel"]


def test_conv2d_follows_pytorchs_switch_for_tf32() -> None:
    """At every call: what was worked out for arguments of this look under one setting must not serve the other."""
    x, weight = torch.empty(1, 2, 3, 3, device="meta"), torch.empty(2, 2, 1, 1, device="meta")
    before = torch.backends.cudnn.allow_tf32
    try:
        for allowed, wanted in ((True, "tf32"), (False, "bf16x6"), (True, "tf32")):
            torch.backends.cudnn.allow_tf32 = allowed
            with ts.use("triton"), recorded_plans("cuda:90") as plans:
                conv2d(x, weight)
            assert plans[-1].launches[-1].arguments["PRECISION"] == wanted
    finally:
        torch.backends.cudnn.allow_tf32 = before


def test_conv2d_exact_single_precision_uses_bf16x3() -> None:
    x, weight = torch.empty(2, 64, 8, 8, device="meta"), torch.empty(64, 64, 3, 3, device="meta")
    with recorded_plans("cuda:90") as plans:
        SPECS["conv2d"].op.forward(x, weight, None, [3, 3, 1, 1, 0, 0, 0, 0, 1, 1], 1, False)  # type: ignore[attr-defined]
    assert plans[-1].launches[-1].arguments["PRECISION"] == "bf16x6"


def test_conv2d_leaves_double_precision_on_a_gpu_to_pytorch() -> None:
    """Its tensor cores would not be faster, and the interpreter needs it for gradcheck alone."""

    class OnGpu(Tensor):
        is_cuda = True

    from tilesmith.ops.conv2d.operator import takes

    x, weight = torch.randn(1, 2, 4, 4).double(), torch.randn(2, 2, 1, 1).double()
    window = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert takes(x, weight, None, window, 1, True)
    assert not takes(x.as_subclass(OnGpu), weight, None, window, 1, True)


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("dilation", [1, 2, 3, 4])
def test_conv2d_input_gradient_reads_every_tap_once(stride: int, dilation: int) -> None:
    size, kernel, padding = 17, 4, 3
    window = Window((kernel, 1), (stride, 1), (padding, 0), (padding, 0), (dilation, 1))
    problem = Problem(1, 1, 1, 1, size, 1, window)
    wanted = {
        (p * stride - padding + r * dilation, p, r)
        for p in range(problem.counts[0])
        for r in range(kernel)
        if 0 <= p * stride - padding + r * dilation < size
    }
    walked = []
    for remainder in range(stride):
        walk = backward_walk(problem, 0, remainder)
        for i in range(-(-(size - remainder) // stride)):
            for tap in range(walk.taps):
                p = i * walk.step + walk.start + tap * walk.tap_step
                if 0 <= p < problem.counts[0]:
                    walked.append((remainder + i * stride, p, walk.first + tap * walk.weight_step))
    assert sorted(walked) == sorted(wanted)


def test_conv2d_best_box_wastes_nothing_where_possible() -> None:
    assert best_box(128, 32, 56, 56) == (8, 8)
    assert best_box(128, 32, 14, 14) == (2, 2)
    assert best_box(128, 1, 64, 64) == (2, 64)


def test_conv2d_sums_half_precision_in_single() -> None:
    x, weight = torch.full((1, 32, 4, 4), 100.0).half(), torch.full((1, 32, 4, 4), 8.0).half()
    weight[:, ::2] *= -1
    weight[:, 0] += 1
    torch.testing.assert_close(conv2d(x, weight), torch.full((1, 1, 1, 1), 1600.0).half())


@pytest.mark.parametrize("channels", [1, 3, 20])
def test_conv2d_infinity_reaches_only_its_windows(channels: int) -> None:
    """What fills up a block is multiplied too, by zeros: it must not be read from elsewhere."""
    x, weight = torch.randn(1, channels, 7, 6), torch.randn(6, channels, 2, 3)
    x[0, 0, 3, 3] = float("inf")
    ours = conv2d(x, weight, padding=1)
    assert (ours.isfinite() == SPECS["conv2d"].reference(x, weight, padding=1).isfinite()).all()


def test_conv2d_keeps_partial_sums_in_single_precision() -> None:
    """Each half of the positions adds up to more than half precision holds, and both together to nothing."""
    x = torch.full((1, 2, 16, 16), 32.0).half()
    weight = torch.zeros(2, 2, 1, 1).half().requires_grad_()
    y = conv2d(x, weight)
    cotangent = torch.full_like(y, 32.0)
    cotangent[..., 8:, :] *= -1
    y.backward(cotangent)
    torch.testing.assert_close(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize("mode", ["auto", "interpret"])
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"x": torch.ones(5, 5)}, ValueError, r"x has 2 dimensions \(shape \(5, 5\)\), but must have 4, or 3"),
        ({"x": torch.ones(1, 3, 5, 5)}, ValueError, "x has 3 channels, but weight takes 4 in each of 1 groups"),
        ({"x": torch.ones(1, 0, 5, 5)}, ValueError, "x has no channels"),
        ({"weight": torch.ones(6, 4, 3)}, ValueError, r"weight has shape \(6, 4, 3\), but must be \[outputs, chan"),
        ({"weight": torch.ones(6, 4, 0, 3)}, ValueError, r"weight has shape \(6, 4, 0, 3\), but must be"),
        ({"weight": torch.ones(6, 4, 3, 3).half()}, TypeError, "weight has dtype float16, but x has float32"),
        ({"weight": torch.ones(6, 4, 3, 7)}, ValueError, "a window covers 7 columns, but x has 5, with padding 5"),
        ({"bias": torch.ones(5)}, ValueError, r"bias has shape \(5,\), but weight has 6 outputs"),
        ({"bias": torch.ones(6).double()}, TypeError, "bias has dtype float64, but x has float32"),
        ({"stride": 0}, ValueError, "stride is 0, but must be at least 1"),
        ({"stride": (1, 1, 1)}, ValueError, "stride has 3 numbers"),
        ({"padding": -1}, ValueError, "padding is -1, but must be at least 0"),
        ({"padding": "full"}, ValueError, "padding is 'full', but must be numbers, 'same' or 'valid'"),
        ({"padding": "same", "stride": 2}, ValueError, "padding is 'same', for which stride must be 1, but it is 2"),
        ({"dilation": 3}, ValueError, "a window covers 7 rows, but x has 5"),
        ({"groups": 4}, ValueError, "groups is 4, but must divide the 6 outputs of weight"),
        ({"groups": 0}, ValueError, "groups is 0, but must divide the 6 outputs of weight"),
        ({"groups": 2.0}, TypeError, "groups is a float, but must be a whole number"),
        ({"groups": 2}, ValueError, "x has 4 channels, but weight takes 4 in each of 2 groups"),
    ],
)
def test_conv2d_rejects(mode: Any, arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^conv2d: {words}"):
        conv2d(**{"x": torch.ones(1, 4, 5, 5), "weight": torch.ones(6, 4, 3, 3), **arguments})


def test_conv2d_dispatch_distinguishes_memory_formats() -> None:
    x, weight = torch.empty(2, 8, 6, 6, device="meta"), torch.empty(4, 8, 3, 3, device="meta")
    first = as_declared.bucket_for(x=x, weight=weight)
    last = as_declared.bucket_for(x=x.to(memory_format=torch.channels_last), weight=weight)
    assert first.removesuffix("channels-first") == last.removesuffix("channels-last") != first
