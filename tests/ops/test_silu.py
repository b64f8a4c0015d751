"""SiLU beyond the tests that every operator has: rounding, large arguments, any strides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from differentiation import assert_same, forward_and_backward
from layouts import assert_same_in_this_layout, views
from saved_tensors import with_saved_addresses

import tilesmith as ts
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.kernels import recorded_plans

silu, reference = SPECS["silu"].op, SPECS["silu"].reference


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_silu_rounds_low_precision_once(dtype: torch.dtype) -> None:
    x, dy = torch.randn(5, 64).to(dtype), torch.randn(5, 64).to(dtype)
    low, high = x.clone().requires_grad_(), x.float().requires_grad_()
    torch.testing.assert_close(silu(low), silu(high).to(dtype), rtol=0, atol=0)
    (ours,) = torch.autograd.grad(silu(low), low, dy)
    (right,) = torch.autograd.grad(silu(high), high, dy.float())
    torch.testing.assert_close(ours, right.to(dtype), rtol=0, atol=0)


def test_silu_of_large_numbers_does_not_overflow() -> None:
    x = torch.tensor([-1e4, -100.0, 100.0, 1e4], requires_grad=True)
    y = silu(x)
    torch.testing.assert_close(y, torch.tensor([0.0, 0.0, 100.0, 1e4]), rtol=0, atol=1e-30)
    (dx,) = torch.autograd.grad(y, x, torch.ones(4))
    torch.testing.assert_close(dx, torch.tensor([0.0, 0.0, 1.0, 1.0]), rtol=0, atol=1e-30)


def test_silu_keeps_only_its_argument_for_the_backward() -> None:
    x = torch.randn(5, 24, requires_grad=True)
    _, kept = with_saved_addresses(silu, x)
    assert kept == {x.data_ptr()}


@pytest.mark.parametrize("name", views())
def test_silu_takes_any_strides(name: str) -> None:
    assert_same_in_this_layout("silu", {"x": views()[name]})


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0), (0,), (3, 0, 5), (2, 3, 0)], ids=str)
def test_silu_takes_empty_tensors(shape: tuple[int, ...]) -> None:
    inputs = {"x": torch.randn(shape)}
    assert_same(forward_and_backward(silu, inputs), forward_and_backward(reference, inputs))


@pytest.mark.parametrize(
    ("shape", "tile", "flat"),
    [
        ((991, 328), (1, 512, 4), True),
        ((300, 4099), (1, 1024, 4), True),
        ((16384, 8192), (1, 2048, 4), False),
    ],
    ids=str,
)
def test_silu_of_few_elements_takes_small_tiles(shape: tuple[int, int], tile: tuple[int, ...], flat: bool) -> None:
    with recorded_plans("cuda:90") as plans:
        silu(torch.empty(shape, dtype=torch.bfloat16, device="meta"))
    (launch,) = plans[0].launches
    assert (launch.arguments["ROWS"], launch.arguments["BLOCK_SIZE"], launch.config.num_warps) == tile
    assert launch.arguments["FLAT"] is flat


@pytest.mark.parametrize("shape", [(1,), (7, 33), (3, 4097), (5000, 3), (130, 4096)], ids=str)
def test_silu_takes_any_size(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(silu(x), reference(x))
    torch.testing.assert_close(silu(x[..., ::2]), reference(x[..., ::2]))  # rows that do not merge
