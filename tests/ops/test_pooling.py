"""max_pool2d and avg_pool2d in what is theirs alone: every window PyTorch takes, ties, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.dispatch import configured
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.toolchain.compiler import Target, compile_kernel

INFINITY, NAN = float("inf"), float("nan")
OPERATORS = {name: SPECS[name].op for name in ("max_pool2d", "avg_pool2d")}
BOTH = pytest.mark.parametrize("name", OPERATORS)


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def compare(name: str, x: Tensor, **options: Any) -> None:
    """Result and gradient are PyTorch's, and so is the way they lie in memory."""
    ours, right = x.detach().requires_grad_(), x.detach().clone().requires_grad_()
    y, wanted = OPERATORS[name](ours, **options), SPECS[name].rivals["torch"](right, **options)
    torch.testing.assert_close(y, wanted, equal_nan=True)
    assert y.stride() == wanted.stride()
    # Of whole numbers this small, sums are exact in every dtype, in whatever order.
    cotangent = torch.randint(-20, 21, wanted.shape).to(wanted.dtype)
    y.backward(cotangent)
    wanted.backward(cotangent)
    torch.testing.assert_close(ours.grad, right.grad)
    assert ours.grad is not None
    assert ours.grad.stride() == torch.empty_like(x).stride()


WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": (1, 3), "stride": (2, 1)},
    {"kernel_size": [3], "stride": [2], "padding": [1]},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    {"kernel_size": (5, 4), "stride": (1, 2), "padding": (2, 1)},
    {"kernel_size": 6, "stride": 1, "padding": 3},
    {"kernel_size": 1, "stride": 4},
]


@BOTH
@pytest.mark.parametrize("options", WINDOWS, ids=str)
def test_takes_every_window_that_pytorch_takes(name: str, options: dict[str, Any]) -> None:
    compare(name, torch.randn(2, 3, 7, 6), **options)


@BOTH
@pytest.mark.parametrize("layout", ["one image", "channels last", "transposed", "sliced", "one channel", "no images"])
def test_takes_every_layout(name: str, layout: str) -> None:
    x = {
        "one image": torch.randn(3, 6, 5),
        "channels last": torch.randn(2, 20, 6, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(5, 6, 3, 2).permute(3, 2, 1, 0),
        "sliced": torch.randn(4, 6, 12, 10)[::2, ::2, ::2, ::2],
        "one channel": torch.randn(2, 1, 6, 5).to(memory_format=torch.channels_last),
        "no images": torch.randn(0, 3, 6, 5),
    }[layout]
    y = OPERATORS[name](x, 3, 2, 1)
    torch.testing.assert_close(y, SPECS[name].reference(x, 3, 2, 1))
    if layout not in ("transposed", "sliced"):
        compare(name, x, kernel_size=3, stride=2, padding=1)


@pytest.mark.parametrize("dilation", [(1, 2), (3, 1), (2, 2)])
def test_max_pool2d_takes_dilated_windows(dilation: tuple[int, int]) -> None:
    compare("max_pool2d", torch.randn(2, 2, 9, 8), kernel_size=(3, 2), stride=(1, 3), padding=1, dilation=dilation)


WINDOWS_OVER_PIECES: list[dict[str, Any]] = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2},  # rows of what comes out begin at no multiple of anything
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": (2, 5), "stride": (3, 1), "padding": (0, 2)},
    {"kernel_size": 2, "stride": 4, "padding": 1},
]


# Of means in half precision PyTorch's own gradients are rounded at every step.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("max_pool2d", torch.float32), ("max_pool2d", torch.bfloat16), ("avg_pool2d", torch.float32)],
)
@pytest.mark.parametrize("options", WINDOWS_OVER_PIECES, ids=str)
def test_columns_read_in_pieces_are_the_same_columns(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    """Few values on many elements: every window has ties."""
    compare(name, torch.randint(-2, 2, (2, 2, 11, 24)).to(dtype), **options)


@BOTH
@pytest.mark.parametrize("cell", [{"DOWN": 1, "ALONG": 1}, {"DOWN": 8, "ALONG": 2}, {"ALONG": 8}], ids=str)
def test_a_sweep_may_pool_any_number_of_windows_together(name: str, cell: dict[str, int]) -> None:
    with configured(**cell):
        compare(name, torch.randn(1, 2, 11, 24), kernel_size=3, stride=2, padding=1)
        compare(name, torch.randn(1, 20, 5, 6).to(memory_format=torch.channels_last), kernel_size=3, stride=2)


def forward_launch(x: Tensor, **options: Any) -> PlannedLaunch:
    with recorded_plans() as plans, torch.no_grad():
        OPERATORS["max_pool2d"](x, **options)
    (launch,) = plans[0].launches
    return launch


def look(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("x", "stride", "piece"),
    [
        (look(2, 3, 8, 112), 2, 8),
        (look(2, 3, 8, 112), 1, 8),
        (look(2, 3, 8, 112, dtype=torch.float32), 2, 4),
        (look(2, 3, 8, 28), 2, 4),
        (look(2, 3, 8, 27), 2, 0),
        (look(2, 3, 8, 112), 3, 0),
        (look(2, 3, 8, 112)[..., ::2], 2, 0),
        (look(2, 3, 8, 113)[..., :112], 2, 0),
        (look(2, 16, 8, 112).to(memory_format=torch.channels_last), 2, 0),
    ],
)
def test_columns_are_read_in_pieces_where_they_begin_at_multiples_of_them(x: Tensor, stride: int, piece: int) -> None:
    assert forward_launch(x, kernel_size=3, stride=stride, padding=1).arguments["PIECE"] == piece


def test_every_element_is_read_about_once_and_sixteen_bytes_at_a_time() -> None:
    """Of 3 × 3 windows two apart a thread reads nine rows for sixteen windows: a piece of each, and one element."""
    launch = forward_launch(look(32, 64, 56, 56), kernel_size=3, stride=2, padding=1)
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    bytes_of = {
        kind: sorted(one.vector_bytes for one in binary.accesses if one.kind == kind for _ in range(one.count))
        for kind in ("load", "store")
    }
    assert bytes_of == {"load": [2] * 9 + [16] * 9, "store": [8] * 4}
    assert binary.shared_bytes == binary.spill_bytes == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_of_equal_elements_the_first_gets_the_gradient(dtype: torch.dtype, channels_last: bool) -> None:
    """Few values on many elements: every window has ties."""
    x = torch.randint(0, 3, (2, 3, 6, 7)).to(dtype)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    compare("max_pool2d", x, kernel_size=3, stride=2, padding=1)


@pytest.mark.parametrize("value", [-INFINITY, INFINITY, 0.0])
def test_of_all_the_same_the_first_that_is_no_padding_gets_the_gradient(value: float) -> None:
    compare("max_pool2d", torch.full((1, 2, 5, 5), value), kernel_size=3, stride=2, padding=1)


def test_nan_is_larger_than_all_and_the_last_of_several_gets_the_gradient() -> None:
    x = torch.randn(1, 1, 6, 6)
    x[..., 1, 1] = x[..., 2, 0] = x[..., 4, 5] = NAN
    x[..., 0, 0] = INFINITY
    compare("max_pool2d", x, kernel_size=3)


def test_the_forward_alone_lets_nan_through_too() -> None:
    x = torch.randn(1, 1, 6, 6)
    x[..., 1, 1], x[..., 2, 2] = NAN, INFINITY
    torch.testing.assert_close(OPERATORS["max_pool2d"](x, 3), F.max_pool2d(x, 3), equal_nan=True)


def test_a_window_of_more_elements_than_a_byte_can_number() -> None:
    x = torch.randn(1, 1, 4, 129)
    x[..., 1, -1] = 9.0
    compare("max_pool2d", x, kernel_size=(2, 129))


@pytest.mark.parametrize("options", [{"count_include_pad": False}, {"divisor_override": 7}, {"divisor_override": -2}])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_avg_pool2d_divides_by_what_pytorch_divides_by(options: dict[str, Any], ceil_mode: bool) -> None:
    compare("avg_pool2d", torch.randn(1, 2, 8, 7), kernel_size=3, stride=2, padding=1, ceil_mode=ceil_mode, **options)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_avg_pool2d_is_defined_by_what_pytorch_makes_of_contiguous_images(
    layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of others PyTorch's gradient is wrong on a GPU. On a CPU it is right, and shows that nothing else differs."""
    seen = []
    pytorch = F.avg_pool2d

    def watched(x: Tensor, *options: Any) -> Tensor:
        seen.append(x)
        return pytorch(x, *options)

    x = torch.randn(2, 20, 5, 6).to(memory_format=layout).requires_grad_()
    wanted = pytorch(x, 3, 2, 1)
    cotangent = torch.randn_like(wanted)
    (wanted_gradient,) = torch.autograd.grad(wanted, x, cotangent)
    monkeypatch.setattr(F, "avg_pool2d", watched)
    y = SPECS["avg_pool2d"].reference(x, 3, 2, 1)
    (gradient,) = torch.autograd.grad(y, x, cotangent)
    torch.testing.assert_close((y, gradient), (wanted, wanted_gradient), rtol=0, atol=0)
    assert [one.is_contiguous() for one in seen] == [True]
    assert y.stride() == wanted.stride()


def test_avg_pool2d_of_half_precision_is_added_up_in_single() -> None:
    x = torch.full((1, 1, 4, 4), 60000.0, dtype=torch.float16)
    torch.testing.assert_close(OPERATORS["avg_pool2d"](x, 4), x[..., :1, :1])


@BOTH
@pytest.mark.parametrize("mode", ["auto", "interpret"])
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"x": torch.ones(4, 4)}, ValueError, r"x has 2 dimensions \(shape \(4, 4\)\), but must have 4, or 3"),
        ({"x": torch.ones(2, 0, 4, 4)}, ValueError, "x has no channels"),
        ({"x": torch.ones(2, 3, 0, 4)}, ValueError, "x has no rows"),
        ({"x": torch.ones(2, 3, 4, 0)}, ValueError, "x has no columns"),
        ({"kernel_size": 0}, ValueError, "kernel_size is 0, but must be at least 1"),
        ({"kernel_size": (2, -1)}, ValueError, r"kernel_size is \(2, -1\), but must be at least 1"),
        ({"kernel_size": (2, 2, 2)}, ValueError, "kernel_size has 3 numbers, but must have one or two"),
        ({"kernel_size": 2.5}, TypeError, "kernel_size is a float, but must be a whole number or two"),
        ({"kernel_size": (2, 2.5)}, TypeError, "kernel_size holds a float, but must hold whole numbers"),
        ({"kernel_size": True}, TypeError, "kernel_size is a bool"),
        ({"kernel_size": "two"}, TypeError, "kernel_size is a str"),
        ({"kernel_size": 9}, ValueError, "a window covers 9 rows, but x has 4, with padding 4"),
        ({"kernel_size": (1, 7), "padding": (0, 1)}, ValueError, "a window covers 7 columns, but x has 4, with padd"),
        ({"stride": 0}, ValueError, "stride is 0, but must be at least 1"),
        ({"padding": -1}, ValueError, "padding is -1, but must be at least 0"),
        ({"padding": 2}, ValueError, "padding is 2, but must be at most half of what a window covers, which is 2"),
        ({"ceil_mode": 1}, TypeError, "ceil_mode is a int, but must be True or False"),
    ],
)
def test_refuses(name: str, mode: Any, arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^{name}: {words}"):
        OPERATORS[name](**{"x": torch.ones(2, 3, 4, 4), "kernel_size": 2, **arguments})


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"divisor_override": 0}, ValueError, "divisor_override is 0, but must be another number"),
        ({"divisor_override": 2.0}, TypeError, "divisor_override is a float, but must be a whole number"),
        ({"count_include_pad": None}, TypeError, "count_include_pad is a NoneType, but must be True or False"),
    ],
)
def test_avg_pool2d_refuses(arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=f"^avg_pool2d: {words}"):
        OPERATORS["avg_pool2d"](torch.ones(1, 1, 4, 4), 2, **arguments)


def test_max_pool2d_refuses_a_dilation_of_nothing() -> None:
    with pytest.raises(ValueError, match=r"^max_pool2d: dilation is 0, but must be at least 1"):
        OPERATORS["max_pool2d"](torch.ones(1, 1, 4, 4), 2, dilation=0)


def test_positions_are_kept_only_for_a_gradient() -> None:
    forward = OPERATORS["max_pool2d"].forward  # type: ignore[attr-defined]  # an Operator
    x = torch.randn(1, 2, 4, 4)
    window = [2, 2, 2, 2, 0, 0, 0, 0, 1, 1]
    assert forward(x, window, False, False)[1].numel() == 0
    assert forward(x, window, False, True)[1].dtype == torch.uint8
