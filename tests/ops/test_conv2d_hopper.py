"""Convolution in half precision on Hopper: which kernels run, their results, and that none spills."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from on_hopper import interpreted, names, names_launched, only_on_hopper
from torch import Tensor
from torch.nn import functional as F

import tilesmith as ts
from tilesmith.ops.conv2d.hopper import gather_plan, weight_gradient_plan
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import Plan
from tilesmith.toolchain.compiler import Target, compile_kernel

GATHER, WEIGHT = "conv2d_hopper_gather_kernel", "conv2d_hopper_weight_gradient_kernel"
Sizes = tuple[int, int, int, int, int, int]  # images, channels, outputs, rows, columns, side of the window
ours: Any = ts.ops.conv2d
torchs: Any = F.conv2d


def tensors(sizes: Sizes, dtype: torch.dtype, *, last: bool, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Return images, a weight and a bias."""
    images, channels, outputs, rows, columns, side = sizes
    x = torch.randn(images, channels, rows, columns, dtype=dtype, device=device)
    weight = torch.randn(outputs, channels, side, side, dtype=dtype, device=device) * (channels * side**2) ** -0.5
    layout = torch.channels_last if last else torch.contiguous_format
    bias = torch.randn(outputs, dtype=dtype, device=device)
    return x.to(memory_format=layout), weight.to(memory_format=layout), bias


def plans_for(given: tuple[Tensor, Tensor, Tensor], target: str = "cuda:90", **options: Any) -> dict[str, Plan]:
    """Return the plans of forward, input gradient and weight gradient by name."""
    with ts.use("triton"), recorded_plans(target) as plans:
        y = ours(*(one.detach().to("meta").requires_grad_() for one in given), **options)
        y.backward(torch.empty_like(y))
    return {plan.kernels.removeprefix("conv2d_"): plan for plan in plans if plan.kernels.startswith("conv2d_")}


PROBLEMS: list[tuple[Sizes, dict[str, Any], bool]] = [
    ((2, 64, 64, 8, 8, 3), {"padding": 1}, True),
    ((2, 72, 136, 7, 9, 3), {"padding": 1}, True),
    ((3, 24, 40, 5, 6, 2), {}, True),
    ((1, 32, 96, 9, 9, 3), {"padding": 2, "dilation": 2}, True),
    ((2, 64, 128, 8, 6, 3), {"padding": 1, "stride": 2}, True),
    ((2, 128, 64, 6, 4, 1), {"stride": 2}, True),
    ((2, 192, 64, 5, 5, 1), {}, True),
    ((2, 64, 64, 6, 8, 3), {"padding": 1}, False),
    ((130, 16, 32, 3, 2, 2), {"padding": 1}, True),
    ((2, 100, 52, 5, 6, 3), {"padding": 1}, True),
    ((2, 36, 100, 4, 6, 2), {}, False),
    ((1, 64, 20, 4, 8, 3), {"padding": 1, "stride": 2}, True),
]


@pytest.mark.parametrize(("sizes", "options", "last"), PROBLEMS, ids=str)
def test_conv2d_on_hopper_matches_torch(sizes: Sizes, options: dict[str, Any], last: bool) -> None:
    torch.manual_seed(0)
    given = tensors(sizes, torch.bfloat16, last=last)
    leaves = [one.float().requires_grad_() for one in given]
    wanted = torchs(*leaves, **options)
    dy = torch.randn_like(wanted).bfloat16()
    dy = dy.to(memory_format=torch.channels_last) if last else dy.contiguous()
    wanted.backward(dy.float())
    plans = plans_for(given, **options)
    assert GATHER in names(plans["forward"])
    assert GATHER in names(plans["input_gradient"])
    assert WEIGHT in names(plans["weight_gradient"])
    x, weight, bias = given
    found = {
        "forward": (interpreted(plans["forward"], [x, weight, bias])[0], wanted.detach()),
        "input_gradient": (interpreted(plans["input_gradient"], [dy, weight])[0], leaves[0].grad),
        "weight_gradient": (interpreted(plans["weight_gradient"], [dy, x, weight])[0], leaves[1].grad),
    }
    for name, (result, expected) in found.items():
        assert expected is not None
        error = (result.float() - expected).norm() / expected.norm()
        assert error < 3e-3, name  # half of a unit of bf16 is 2e-3
        torch.testing.assert_close(result.float(), expected, atol=3e-2, rtol=1e-2)


def test_windows_need_not_be_square() -> None:
    """Taps down and across, strides and padding of the two sides are not exchanged."""
    torch.manual_seed(0)
    x = torch.randn(2, 64, 6, 8).bfloat16().to(memory_format=torch.channels_last)
    weight = (torch.randn(64, 64, 2, 3) * 384**-0.5).bfloat16().to(memory_format=torch.channels_last)
    bias = torch.randn(64).bfloat16()
    options: dict[str, Any] = {"stride": (1, 2), "padding": (1, 2)}
    leaves = [one.float().requires_grad_() for one in (x, weight)]
    wanted = torchs(*leaves, bias.float(), **options)
    dy = torch.randn_like(wanted).bfloat16().to(memory_format=torch.channels_last)
    wanted.backward(dy.float())
    plans = plans_for((x, weight, bias), **options)
    given = {"forward": [x, weight, bias], "input_gradient": [dy, weight], "weight_gradient": [dy, x, weight]}
    for (name, tensors_of_call), expected in zip(given.items(), [wanted, leaves[0].grad, leaves[1].grad], strict=True):
        assert any("hopper" in kernel for kernel in names(plans[name]))
        result = interpreted(plans[name], tensors_of_call)[0]
        torch.testing.assert_close(result.float(), expected.detach(), atol=3e-2, rtol=1e-2)


def test_a_class_of_positions_without_taps_is_zero() -> None:
    """A 1×1 window of stride 2 reaches every second row and column: the other gradients are zero, not unwritten."""
    given = tensors((1, 64, 64, 4, 4, 1), torch.bfloat16, last=True)
    plan = plans_for(given, stride=2)["input_gradient"]
    dy = torch.randn(1, 64, 2, 2).bfloat16().to(memory_format=torch.channels_last)
    assert names(plan) == [GATHER] * 4
    dx = interpreted(plan, [dy, given[1]])[0]
    assert (dx[:, :, 1::2] == 0).all()
    assert (dx[:, :, :, 1::2] == 0).all()
    assert dx[:, :, ::2, ::2].abs().min() > 0


@pytest.mark.parametrize("tiles", gather_plan.TILES, ids=str)
def test_every_gather_tile_computes_and_does_not_spill(tiles: gather_plan.HopperGatherConfig) -> None:
    given = tensors((2, 96, 136, 6, 7, 3), torch.float16, last=True)
    with ts.ops.configured(**{name: value for name, value in tiles.fields().items() if name.isupper()}):
        plan = plans_for(given, padding=1)["forward"]
    x, weight, bias = given
    expected = F.conv2d(x.float(), weight.float(), bias.float(), padding=1)
    torch.testing.assert_close(interpreted(plan, [x, weight, bias])[0].float(), expected, atol=1e-2, rtol=1e-2)
    compiles(plan)


@pytest.mark.parametrize("tiles", weight_gradient_plan.TILES, ids=str)
@pytest.mark.parametrize("splits", [1, 3])
def test_every_weight_gradient_tile_computes_and_does_not_spill(
    tiles: weight_gradient_plan.HopperWeightGradientConfig, splits: int
) -> None:
    given = tensors((9, 40, 72, 6, 7, 2), torch.bfloat16, last=True)
    fields = {name: value for name, value in tiles.fields().items() if name.isupper()}
    with ts.ops.configured(**fields, splits=splits):
        plan = plans_for(given)["weight_gradient"]
    x, weight, bias = given
    leaf = weight.float().requires_grad_()
    dy = torch.randn(9, 72, 5, 6).bfloat16().to(memory_format=torch.channels_last)
    torchs(x.float(), leaf, bias.float()).backward(dy.float())
    assert leaf.grad is not None
    torch.testing.assert_close(interpreted(plan, [dy, x, weight])[0].float(), leaf.grad, atol=0.3, rtol=1e-2)
    if splits == 1:
        compiles(plan)


def compiles(plan: Plan) -> None:
    """Assert that the plan's Hopper kernels compile, do not spill and fit into shared memory."""
    for launch in plan.launches:
        if "hopper" in launch.kernel.__name__:
            binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
            assert binary.spill_bytes == 0
            assert binary.shared_bytes <= 227 * 1024


OTHERS: list[tuple[Sizes, dict[str, Any], torch.dtype, str]] = [
    ((2, 64, 64, 8, 8, 3), {"padding": 1}, torch.float32, "cuda:90"),
    ((2, 64, 64, 8, 8, 3), {"padding": 1}, torch.bfloat16, "cuda:80"),
    ((2, 8, 64, 8, 8, 3), {"padding": 1}, torch.bfloat16, "cuda:90"),
    ((2, 64, 3, 8, 8, 3), {"padding": 1}, torch.bfloat16, "cuda:90"),
    ((2, 64, 64, 7, 8, 3), {"padding": 1, "stride": 2}, torch.bfloat16, "cuda:90"),
]


@pytest.mark.parametrize(("sizes", "options", "dtype", "target"), OTHERS, ids=str)
def test_the_portable_kernel_computes_the_rest(
    sizes: Sizes, options: dict[str, Any], dtype: torch.dtype, target: str
) -> None:
    """Other dtypes and GPUs, few channels or outputs, and images whose last row has no partner in its group."""
    plan = plans_for(tensors(sizes, dtype, last=True), target, **options)["forward"]
    assert names(plan)[-1] == "conv2d_gather_kernel"


def test_tiles_follow_the_size() -> None:
    """Few positions take small tiles, so that more multiprocessors have one; 192 outputs are three tiles of 64."""
    few = plans_for(tensors((32, 256, 256, 14, 14, 3), torch.bfloat16, last=True), padding=1)["forward"]
    assert few.launches[0].grid[0] == 98
    shape = (100, 256, 64, 64)
    x, weight = (
        torch.empty(one, dtype=torch.bfloat16, device="meta").to(memory_format=torch.channels_last)
        for one in (shape, (192, 256, 3, 3))
    )
    given = (x, weight, torch.empty(192).bfloat16())
    config = plans_for(given, padding=1)["forward"].launches[0].config
    assert isinstance(config, gather_plan.HopperGatherConfig)
    assert config.COLUMNS == 64


ON_GPU: list[tuple[Sizes, dict[str, Any], bool]] = [
    ((10, 512, 96, 224, 224, 1), {}, True),
    ((32, 256, 256, 14, 14, 3), {"padding": 1}, True),
    ((16, 128, 128, 56, 56, 3), {"padding": 1, "stride": 2}, True),
    ((9, 24, 96, 57, 55, 7), {"padding": 3}, True),
    ((22, 96, 320, 56, 56, 3), {"padding": 1}, False),
    ((3, 512, 40, 7, 7, 3), {"padding": 2, "dilation": 2}, True),
    ((10, 100, 100, 56, 56, 7), {"padding": 3}, True),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("sizes", "options", "last"), ON_GPU, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_large_convolutions_match_torch_at_every_run(
    sizes: Sizes, options: dict[str, Any], last: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operand overwritten while wgmma reads it spoils a thousandth of the results, others at every run."""
    only_on_hopper()
    torch.manual_seed(0)
    launched = names_launched(monkeypatch)
    given = [one.requires_grad_() for one in tensors(sizes, dtype, last=last, device="cuda")]
    exact = [one.detach().float().requires_grad_() for one in given]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    wanted = torchs(*exact, **options)
    dy = torch.randn_like(wanted).to(dtype)
    wanted.backward(dy.float())
    first: list[Tensor] = []
    for _ in range(3):
        with ts.use("triton"):
            y = ours(*given, **options)
            found = [y, *torch.autograd.grad(y, given, dy)]
        for result, expected in zip(found, [wanted.detach(), *(one.grad for one in exact)], strict=True):
            assert expected is not None
            scale = expected.square().mean().sqrt()
            assert (result.float() - expected).abs().max() < 0.06 * scale
            assert (result.float() - expected).norm() < 3e-3 * expected.norm()
        assert all(torch.equal(result, before) for result, before in zip(found, first, strict=False))
        first = [one.detach() for one in found]
    assert GATHER in launched
    assert WEIGHT in launched
