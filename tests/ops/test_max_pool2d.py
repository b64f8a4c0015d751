"""max_pool2d beyond the tests it shares with avg_pool2d: dilation, ties, NaN, columns read as vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pooling_comparison import assert_as_torchs_pooling
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.toolchain.compiler import Target, compile_kernel

max_pool2d = SPECS["max_pool2d"].op
INFINITY, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


@pytest.mark.parametrize("dilation", [(1, 2), (3, 1), (2, 2)])
def test_max_pool2d_takes_dilated_windows(dilation: tuple[int, int]) -> None:
    assert_as_torchs_pooling(
        "max_pool2d", torch.randn(2, 2, 9, 8), kernel_size=(3, 2), stride=(1, 3), padding=1, dilation=dilation
    )


def forward_launch(x: Tensor, **options: Any) -> PlannedLaunch:
    with recorded_plans() as plans, torch.no_grad():
        max_pool2d(x, **options)
    (launch,) = plans[0].launches
    return launch


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("x", "stride", "piece"),
    [
        (meta(2, 3, 8, 112), 2, 8),
        (meta(2, 3, 8, 112), 1, 8),
        (meta(2, 3, 8, 112, dtype=torch.float32), 2, 4),
        (meta(2, 3, 8, 28), 2, 4),
        (meta(2, 3, 8, 27), 2, 0),
        (meta(2, 3, 8, 112), 3, 0),
        (meta(2, 3, 8, 112)[..., ::2], 2, 0),
        (meta(2, 3, 8, 113)[..., :112], 2, 0),
        (meta(2, 16, 8, 112).to(memory_format=torch.channels_last), 2, 0),
    ],
)
def test_max_pool2d_reads_vectors_where_rows_are_aligned(x: Tensor, stride: int, piece: int) -> None:
    assert forward_launch(x, kernel_size=3, stride=stride, padding=1).arguments["PIECE"] == piece


@pytest.mark.parametrize(("shape", "planes"), [((4, 48, 28, 28), 4), ((2, 96, 14, 14), 4), ((64, 64, 28, 28), 16)])
def test_max_pool2d_gradient_of_few_planes_fills_the_gpu(shape: tuple[int, ...], planes: int) -> None:
    x = meta(*shape).requires_grad_()
    with recorded_plans("cuda:90") as plans:
        max_pool2d(x, 3, 2, 1).sum().backward()
    (launch,) = (one for plan in plans for one in plan.launches if one.kernel.__name__ == "pooling_backward_kernel")
    assert launch.arguments["PLANES"] == planes
    assert launch.config.num_warps == 2
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0


def test_max_pool2d_reads_each_element_once_in_16_byte_vectors() -> None:
    """A thread reads nine rows for sixteen 3 × 3 windows of stride 2: one vector and one element of each row."""
    launch = forward_launch(meta(32, 64, 56, 56), kernel_size=3, stride=2, padding=1)
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    bytes_of = {
        kind: sorted(one.vector_bytes for one in binary.accesses if one.kind == kind for _ in range(one.count))
        for kind in ("load", "store")
    }
    assert bytes_of == {"load": [2] * 9 + [16] * 9, "store": [8] * 4}
    assert binary.shared_bytes == binary.spill_bytes == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_max_pool2d_gradient_goes_to_the_first_of_equal_elements(dtype: torch.dtype, channels_last: bool) -> None:
    """Few distinct values: every window has ties."""
    x = torch.randint(0, 3, (2, 3, 6, 7)).to(dtype)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    assert_as_torchs_pooling("max_pool2d", x, kernel_size=3, stride=2, padding=1)


@pytest.mark.parametrize("value", [-INFINITY, INFINITY, 0.0])
def test_max_pool2d_gradient_never_goes_to_padding(value: float) -> None:
    assert_as_torchs_pooling("max_pool2d", torch.full((1, 2, 5, 5), value), kernel_size=3, stride=2, padding=1)


def test_max_pool2d_gradient_goes_to_the_last_nan() -> None:
    x = torch.randn(1, 1, 6, 6)
    x[..., 1, 1] = x[..., 2, 0] = x[..., 4, 5] = NAN
    x[..., 0, 0] = INFINITY
    assert_as_torchs_pooling("max_pool2d", x, kernel_size=3)


def test_max_pool2d_forward_alone_propagates_nan() -> None:
    x = torch.randn(1, 1, 6, 6)
    x[..., 1, 1], x[..., 2, 2] = NAN, INFINITY
    torch.testing.assert_close(max_pool2d(x, 3), F.max_pool2d(x, 3), equal_nan=True)


def test_max_pool2d_window_of_more_than_256_elements() -> None:
    x = torch.randn(1, 1, 4, 129)
    x[..., 1, -1] = 9.0
    assert_as_torchs_pooling("max_pool2d", x, kernel_size=(2, 129))


def test_max_pool2d_rejects_zero_dilation() -> None:
    with pytest.raises(ValueError, match=r"^max_pool2d: dilation is 0, but must be at least 1"):
        max_pool2d(torch.ones(1, 1, 4, 4), 2, dilation=0)


def test_max_pool2d_keeps_positions_only_for_a_gradient() -> None:
    forward = max_pool2d.forward  # type: ignore[attr-defined]  # an Operator
    x = torch.randn(1, 2, 4, 4)
    window = [2, 2, 2, 2, 0, 0, 0, 0, 1, 1]
    assert forward(x, window, False, False)[1].numel() == 0
    assert forward(x, window, False, True)[1].dtype == torch.uint8
