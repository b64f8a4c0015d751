"""Attention over sequences so short that one program holds all scores of a head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from differentiation import forward_and_backward
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops.attention import SPEC
from tilesmith.ops.msa_column_attention import SPEC as COLUMNS
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import Plan, PlannedLaunch
from tilesmith.ops.triangle_attention import SPEC as TRIANGLE
from tilesmith.ops.triangle_attention.operator import backward as triangle_backward
from tilesmith.ops.triangle_attention.operator import forward as triangle_forward
from tilesmith.spec import Inputs, Spec
from tilesmith.toolchain.compiler import Target, compile_kernel

SHORT = {"attention_short_forward_kernel", "attention_short_backward_kernel"}
PARTS = pytest.mark.parametrize("bf16x3", ["", "on_load"], ids=["one part", "three parts"])


@pytest.fixture(autouse=True)
def the_same_numbers() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def assert_as_reference(spec: Spec, inputs: Inputs, **fields: Any) -> None:
    """Computed by the kernels for short sequences, which the fields must not keep from it."""
    interpreted: set[str] = set()
    interpret = Plan._interpret

    def noted(plan: Plan, tensors: list[Tensor]) -> None:
        interpreted.update(launch.kernel.__name__ for launch in plan.launches)
        interpret(plan, tensors)

    with ts.ops.configured(**fields), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "_interpret", noted)
        ours = forward_and_backward(spec.op, inputs)
    assert interpreted - {"sum_partials_kernel"} == SHORT
    right = forward_and_backward(spec.reference, {name: doubled(value) for name, value in inputs.items()})
    for name, value in ours.items():  # of a query with one key the gradient is zero, but for what is rounded
        size = max(right[name].norm(), right["output 0"].norm())
        assert (value.double() - right[name]).norm() <= 8e-7 * size, name


def doubled(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def launched(spec: Spec, inputs: Inputs, target: str = "cuda:90") -> dict[str, PlannedLaunch]:
    """What a forward and a backward launch on such a GPU, by the names of the kernels."""
    there = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in inputs.items()}
    for name, value in there.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            there[name] = value.requires_grad_()
    with ts.use("triton"), recorded_plans(target) as plans:
        output = spec.op(**there)
        output.backward(torch.empty_like(output))
    return {launch.kernel.__name__: launch for plan in plans for launch in plan.launches}


def grid(length: int, *, sequences: int = 3, heads: int = 2, head: int = 16, batch: int = 2) -> Inputs:
    """As a model has them: q, k and v beside each other in one projection, and one whole sequence masked."""
    q, k, v, _ = torch.randn(batch, sequences, length, 4, heads, head).unbind(-3)
    mask = torch.rand(batch, sequences, length) > 0.3
    mask[0, 1] = False
    return {"q": q, "k": k, "v": v, "bias": torch.randn(batch, heads, length, length), "mask": mask}


def heads_of(queries: int, keys: int, *, batch: int = 3, heads: int = 2, head: int = 16) -> Inputs:
    lengths = {"q": queries, "k": keys, "v": keys}
    return {name: torch.randn(batch, heads, length, head) for name, length in lengths.items()}


class TestAgreesWithTheReference:
    @covering(length=[1, 5, 16, 17, 32, 36, 64], bf16x3=["", "on_load"])
    def test_over_a_grid_with_a_bias_and_a_mask(self, length: int, bf16x3: str) -> None:
        assert_as_reference(TRIANGLE, grid(length), bf16x3=bf16x3)

    @PARTS
    def test_without_a_mask_where_nothing_is_checked(self, bf16x3: str) -> None:
        inputs = grid(64, batch=1)
        del inputs["mask"]
        assert not launched(TRIANGLE, inputs)["attention_short_backward_kernel"].arguments["CHECKED"]
        assert_as_reference(TRIANGLE, inputs, bf16x3=bf16x3)

    @pytest.mark.parametrize("described", [True, False], ids=["described", "pointers"])
    @pytest.mark.parametrize("length", [16, 64])
    def test_however_tiles_are_reached(self, length: int, described: bool) -> None:
        assert_as_reference(TRIANGLE, grid(length, batch=1), described=described)

    def test_along_columns_without_a_bias(self) -> None:
        inputs = grid(5, sequences=16)
        del inputs["bias"]
        assert_as_reference(COLUMNS, inputs)

    @covering(
        times=2,
        lengths=[(11, 14), (14, 11), (40, 52), (52, 40)],
        options=[{"causal": True}, {"window": (3, 2)}, {"window": (0, 40)}],
    )
    def test_of_windows(self, lengths: tuple[int, int], options: Inputs) -> None:
        assert_as_reference(SPEC, {**heads_of(*lengths), **options})

    @pytest.mark.parametrize("head", [7, 20, 32])
    def test_of_heads_of_other_sizes(self, head: int) -> None:
        assert_as_reference(SPEC, heads_of(13, 9, head=head))

    @covering(
        shape=[(9, 12), (1, 12), (2, 9, 12), (2, 1, 12), (5, 1, 9, 12), (5, 2, 1, 12), (5, 1, 1, 12), (5, 2, 9, 12)],
        shares=[1, 2, 100],
    )
    def test_of_every_bias_that_some_share(self, shape: tuple[int, ...], shares: int) -> None:
        inputs = {**heads_of(9, 12, batch=5), "bias": torch.randn(shape)}
        assert_as_reference(SPEC, inputs, programs_per_multiprocessor=shares)

    def test_of_a_bias_that_has_no_gradient(self) -> None:
        inputs = grid(16)
        tensors = [inputs[name] for name in ("q", "k", "v", "bias", "mask")]
        output, lse = triangle_forward(*tensors, True, None, False, False)
        of_output = (torch.ones_like(output), output, lse)
        *wanted, _ = triangle_backward(*of_output, True, *tensors, True, None, False, False)
        *found, dbias = triangle_backward(*of_output, False, *tensors, True, None, False, False)
        torch.testing.assert_close(found, wanted)
        assert dbias.numel() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_of_half_precision_as_well_as_the_kernels_for_long_sequences(dtype: torch.dtype) -> None:
    made = grid(33, batch=1, head=32)
    right = forward_and_backward(TRIANGLE.reference, {name: doubled(value) for name, value in made.items()})
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in made.items()}
    ours = forward_and_backward(TRIANGLE.op, inputs)
    with ts.ops.configured(short=False):
        others = forward_and_backward(TRIANGLE.op, inputs)
    for name, value in right.items():
        errors = [(one[name].double() - value).norm() / value.norm() for one in (ours, others)]
        assert errors[0] <= 1.2 * errors[1], name


def test_the_kernels_for_long_sequences_still_say_the_same() -> None:
    inputs = grid(36)
    ours = forward_and_backward(TRIANGLE.op, inputs)
    with ts.ops.configured(short=False):
        others = forward_and_backward(TRIANGLE.op, inputs)
    torch.testing.assert_close(ours, others, rtol=1e-4, atol=1e-5)


class TestWhatIsShort:
    def test_one_kernel_and_a_sum_make_all_gradients(self) -> None:
        assert set(launched(TRIANGLE, grid(64, sequences=64))) == SHORT | {"sum_partials_kernel"}

    @pytest.mark.parametrize(("length", "block"), [(3, 16), (17, 32), (36, 64)])
    def test_blocks_are_no_larger_than_they_must_be(self, length: int, block: int) -> None:
        inputs = {name: one.bfloat16() if name != "mask" else one for name, one in grid(length).items()}
        for name in SHORT:
            launch = launched(TRIANGLE, inputs)[name]
            assert launch.arguments["BLOCK_QUERIES"] == launch.arguments["BLOCK_KEYS"] == block

    @pytest.mark.parametrize(
        "options",
        [
            heads_of(8, 65),
            heads_of(65, 8),
            heads_of(8, 8, head=40),
            {**heads_of(8, 8), "softcap": 2.0},
            {**heads_of(8, 8), "dropout": 0.1, "seed": 1},
            {**heads_of(8, 8, heads=4), "k": torch.randn(3, 2, 8, 16), "v": torch.randn(3, 2, 8, 16)},
            {**heads_of(40, 37), "bias": torch.randn(40, 37)},
        ],
        ids=["keys", "queries", "head", "softcap", "dropout", "shared keys", "bias that has to be gathered"],
    )
    def test_not_what_takes_more_registers(self, options: Inputs) -> None:
        assert SHORT.isdisjoint(launched(SPEC, options))


@pytest.mark.parametrize("length", [*(pytest.param(length, marks=pytest.mark.slow) for length in (13, 32, 36)), 64])
def test_hopper_multiplies_without_spilling(length: int) -> None:
    launches = launched(TRIANGLE, grid(length, head=32))
    for name in SHORT:
        launch = launches[name]
        binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
        assert binary.spill_bytes == 0, name
        assert length <= 16 or "wgmma.mma_async" in binary.assembly["ptx"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_short_gradients_of_a_query_add_up_to_zero_for_large_scores(dtype: torch.dtype) -> None:
    """All keys are equal, so q has no gradient, however large and coarsely rounded the scores are."""
    torch.manual_seed(0)
    q = (torch.randn(1, 2, 9, 4, dtype=dtype) * 60).requires_grad_()
    k = (torch.randn(1, 2, 1, 4, dtype=dtype) * 60).expand(1, 2, 7, 4)
    v, cotangent = torch.randn(1, 2, 7, 4, dtype=dtype, requires_grad=True), torch.randn(1, 2, 9, 4, dtype=dtype)
    with ts.use("interpret"):
        torch.autograd.backward(ts.ops.attention(q, k, v), cotangent)
    assert q.grad is not None
    assert v.grad is not None
    epsilon = torch.finfo(dtype).eps
    # The weights of a query add up to one.
    torch.testing.assert_close(
        v.grad.sum(2), cotangent.sum(2), rtol=0, atol=30 * epsilon * cotangent.abs().sum().item()
    )
    terms = (cotangent @ v.detach().mT).abs().mean(-1, keepdim=True) * k[:, :, :1].abs()  # what cancels
    assert bool((q.grad.abs() <= 30 * epsilon * terms).all())
