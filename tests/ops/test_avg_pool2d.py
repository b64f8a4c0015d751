"""avg_pool2d beyond the tests it shares with max_pool2d: its divisors, sums in single precision, its reference."""

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

avg_pool2d = SPECS["avg_pool2d"].op


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


@pytest.mark.parametrize("options", [{"count_include_pad": False}, {"divisor_override": 7}, {"divisor_override": -2}])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_avg_pool2d_divides_as_pytorch_does(options: dict[str, Any], ceil_mode: bool) -> None:
    assert_as_torchs_pooling(
        "avg_pool2d", torch.randn(1, 2, 8, 7), kernel_size=3, stride=2, padding=1, ceil_mode=ceil_mode, **options
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_avg_pool2d_reference_calls_pytorch_with_contiguous_images(
    layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's GPU gradient of channels-last images is wrong; its CPU gradient is right and must equal ours."""
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


def test_avg_pool2d_of_half_precision_sums_in_single() -> None:
    x = torch.full((1, 1, 4, 4), 60000.0, dtype=torch.float16)
    torch.testing.assert_close(avg_pool2d(x, 4), x[..., :1, :1])


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"divisor_override": 0}, ValueError, "divisor_override is 0, but must be another number"),
        ({"divisor_override": 2.0}, TypeError, "divisor_override is a float, but must be a whole number"),
        ({"count_include_pad": None}, TypeError, "count_include_pad is a NoneType, but must be True or False"),
    ],
)
def test_avg_pool2d_rejects(arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=f"^avg_pool2d: {words}"):
        avg_pool2d(torch.ones(1, 1, 4, 4), 2, **arguments)
