"""Exact single precision in attention: operands are split into three bf16 parts, without a loss of accuracy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.attention import SPEC
from tilesmith.ops.attention_varlen import SPEC as PACKED
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.ops.triangle_attention import SPEC as TRIANGLE
from tilesmith.spec import Inputs, Spec, is_differentiable
from tilesmith.toolchain.compiler import Target, compile_kernel

LATER = pytest.mark.slow
WHERE = pytest.mark.parametrize("where", ["on_load", "stored"])
# Both ways share all code but the loads of operands: each of the other features is tried with one of them first.
ON_LOAD_FIRST = pytest.mark.parametrize("where", ["on_load", pytest.param("stored", marks=LATER)])
STORED_FIRST = pytest.mark.parametrize("where", [pytest.param("on_load", marks=LATER), "stored"])
# PyTorch's own single precision is off by 1.0e-7 to 1.7e-7 here; with any of the six products left out it is 2.1e-6.
ALLOWED = 8e-7


SMALL = {"BLOCK_QUERIES": 16, "BLOCK_KEYS": 16}  # tiles of which a few dozen queries and keys take several


@pytest.fixture(autouse=True)
def the_same_numbers() -> None:
    torch.manual_seed(0)


def found_by(function: Any, dtype: torch.dtype, inputs: Inputs) -> list[Tensor]:
    """The output and the gradient of every tensor that has one, in double precision. Strides stay as they are."""
    leaves = dict(inputs)
    for name, value in inputs.items():
        if is_differentiable(value):
            leaves[name] = value.detach().to(dtype).requires_grad_()
    output = function(**leaves)
    wanted = [value for value in leaves.values() if is_differentiable(value)]
    cotangent = torch.arange(output.numel()).mul(1.7).sin().view(output.shape).to(dtype)
    return [one.detach().double() for one in (output, *torch.autograd.grad(output, wanted, cotangent))]


def assert_exact(where: str, spec: Spec, inputs: Inputs, **fields: Any) -> None:
    """With these fields of the configurations, in small tiles."""
    right = found_by(spec.reference, torch.float64, inputs)
    with ts.use("interpret"), ts.ops.configured(bf16x3=where, **SMALL, **fields):
        ours = found_by(spec.op, torch.float32, inputs)
    for one, other in zip(ours, right, strict=True):
        assert (one - other).norm() <= ALLOWED * other.norm()


def heads(queries: int, keys: int, *, batch: int = 2, group: int = 2, head: int = 16) -> Inputs:
    shapes = {"q": (batch, 2 * group, queries, head), "k": (batch, 2, keys, head), "v": (batch, 2, keys, head)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


class TestNothingIsLost:
    @pytest.mark.parametrize(
        ("keys", "described"), [(33, True), (16, False)], ids=["several blocks", "one, by pointers"]
    )
    @WHERE
    def test_forward_and_gradients(self, where: str, keys: int, described: bool) -> None:
        assert_exact(where, SPEC, {**heads(33, keys, batch=1), "causal": True}, described=described)

    @STORED_FIRST
    def test_of_several_blocks_by_pointers(self, where: str) -> None:
        assert_exact(where, SPEC, {**heads(17, 18, batch=1, group=1), "causal": True}, described=False)

    @ON_LOAD_FIRST
    def test_where_one_block_holds_all_keys_but_does_not_make_dq(self, where: str) -> None:
        assert_exact(where, SPEC, heads(9, 13), with_dq=False)

    @pytest.mark.parametrize("head", [20, 64])
    @ON_LOAD_FIRST
    def test_of_heads_of_other_sizes(self, where: str, head: int) -> None:
        assert_exact(where, SPEC, heads(17, 18, batch=1, group=1, head=head))

    @STORED_FIRST
    def test_of_rows_before_heads_and_of_every_second_element(self, where: str) -> None:
        q, k, v = (torch.randn(2, 20, 2, 32)[..., ::2].transpose(1, 2) for _ in range(3))
        assert_exact(where, SPEC, {"q": q, "k": k, "v": v})

    @ON_LOAD_FIRST
    def test_of_a_bias_a_mask_and_what_bends_scores(self, where: str) -> None:
        options = {"bias": torch.randn(2, 20, 24), "mask": torch.rand(2, 24) > 0.2, "softcap": 3.0}
        assert_exact(where, SPEC, {**heads(20, 24, group=1), **options, "dropout": 0.2, "seed": 1})

    @STORED_FIRST
    def test_of_packed_sequences(self, where: str) -> None:
        starts = torch.tensor([0, 5, 5, 38, 40], dtype=torch.int32)
        q, k, v = torch.randn(40, 2, 16), torch.randn(40, 1, 16), torch.randn(40, 1, 16)
        assert_exact(where, PACKED, {"q": q, "k": k, "v": v, "cu_seqlens": starts, "causal": True})

    @ON_LOAD_FIRST
    def test_of_a_grid(self, where: str) -> None:
        q, k, v = (torch.randn(2, 2, 18, 2, 16) for _ in range(3))
        inputs = {"q": q, "k": k, "v": v, "bias": torch.randn(2, 2, 18, 18), "mask": torch.rand(2, 2, 18) > 0.2}
        assert_exact(where, TRIANGLE, inputs)


@WHERE
def test_special_values_come_out_as_from_single_precision(where: str) -> None:
    """The lower parts of an infinity, NaN or the largest number mean nothing, so their products are dropped."""
    inputs = heads(5, 7, batch=1, group=1)
    for column, value in enumerate((float("inf"), float("-inf"), float("nan"), 3.4028234e38, 1e-40)):
        inputs["v"][0, 0, column, column] = value
    with ts.use("interpret"):
        right = SPEC.op(**inputs)
        with ts.ops.configured(bf16x3=where):
            torch.testing.assert_close(SPEC.op(**inputs), right, equal_nan=True)


def launched(inputs: Inputs, target: str = "cuda:90") -> dict[str, PlannedLaunch]:
    """What a forward and a backward launch on such a GPU, by the names of the kernels."""
    with recorded_plans(target) as plans:
        output = SPEC.op(**inputs)
        output.backward(torch.empty_like(output))
    return {launch.kernel.__name__: launch for plan in plans for launch in plan.launches}


def where_from(launches: dict[str, PlannedLaunch]) -> dict[str, Any]:
    return {name: launch.arguments["BF16X3"] for name, launch in launches.items() if "BF16X3" in launch.arguments}


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, device="meta", dtype=dtype, requires_grad=True)


def language_model(dtype: torch.dtype = torch.float32, head: int = 64) -> Inputs:
    """128 tokens, of which two heads share one of keys."""
    q, k, v = (empty(8, count, 128, head, dtype=dtype) for count in (8, 4, 4))
    return {"q": q, "k": k, "v": v, "causal": True}


def many_short_sequences() -> Inputs:
    q, k, v = (empty(256, 4, 64, 32) for _ in range(3))
    return {"q": q, "k": k, "v": v, "bias": empty(4, 64, 64)}


class TestWhatIsSplit:
    def test_once_beforehand_where_tiles_are_visited_often(self) -> None:
        assert where_from(launched(language_model())) == {
            "attention_forward_kernel": "on_load",
            "attention_dq_kernel": "stored",
            "attention_dkdv_kernel": "stored",
        }

    def test_in_the_tile_where_a_single_kernel_makes_all_gradients(self) -> None:
        with ts.ops.configured(short=False):
            launches = launched(many_short_sequences())
        assert where_from(launches) == {
            "attention_forward_kernel": "on_load",
            "attention_dkdv_kernel": "on_load",
            "attention_dbias_kernel": "on_load",
        }
        assert launches["attention_dkdv_kernel"].arguments["WITH_DQ"]
        assert "split_heads_kernel" not in launches

    def test_in_the_tile_where_that_holds_all_scores(self) -> None:
        assert where_from(launched(many_short_sequences())) == {
            "attention_short_forward_kernel": "on_load",
            "attention_short_backward_kernel": "on_load",
        }

    def test_by_one_launch_for_all_kernels_of_the_backward(self) -> None:
        q, k, v = (empty(2, 4, 1000, 32) for _ in range(3))
        with recorded_plans("cuda:90") as plans:
            output = SPEC.op(q, k, v, bias=empty(4, 1000, 1000))
            output.backward(torch.empty_like(output))
        names = [[launch.kernel.__name__ for launch in plan.launches] for plan in plans]
        assert [of_plan.count("split_heads_kernel") for of_plan in names] == [1, 1]
        assert "attention_dbias_kernel" in names[-1]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_not_what_tensor_cores_take_as_it_is(self, dtype: torch.dtype) -> None:
        assert set(where_from(launched(language_model(dtype, head=32))).values()) == {""}

    @pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
    def test_not_on_other_gpus(self, target: str) -> None:
        assert set(where_from(launched(language_model(), target)).values()) == {""}

    @pytest.mark.parametrize("options", [{"softcap": 2.0}, {"dropout": 0.1, "seed": 1}], ids=["softcap", "dropout"])
    def test_not_where_bending_scores_takes_the_registers(self, options: Inputs) -> None:
        assert set(where_from(launched({**language_model(), **options})).values()) == {""}

    def test_not_what_the_copy_engine_cannot_bring(self) -> None:
        assert set(where_from(launched(language_model(head=63))).values()) == {""}

    def test_not_where_pytorch_was_told_that_tf32_will_do(self) -> None:
        torch.set_float32_matmul_precision("high")
        try:
            with ts.ops.configured(bf16x3="stored"):
                assert set(where_from(launched(language_model())).values()) == {""}
        finally:
            torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("inputs", "kernel"),
    [
        pytest.param(language_model, "attention_forward_kernel", marks=pytest.mark.slow),
        pytest.param(language_model, "attention_dq_kernel", marks=pytest.mark.slow),
        (language_model, "attention_dkdv_kernel"),
        pytest.param(many_short_sequences, "attention_forward_kernel", marks=pytest.mark.slow),
        pytest.param(many_short_sequences, "attention_dkdv_kernel", marks=pytest.mark.slow),
        pytest.param(many_short_sequences, "attention_dbias_kernel", marks=pytest.mark.slow),
    ],
)
def test_hoppers_tensor_cores_multiply_without_spilling(inputs: Any, kernel: str) -> None:
    with ts.ops.configured(short=False):
        launch = launched(inputs())[kernel]
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0
    assert "wgmma.mma_async" in binary.assembly["ptx"]
