# mypy: disable-error-code="no-untyped-call"
# PyTorch types its rarer functions not at all.
"""`hopper/gated_*`: when they are chosen, how they compile, and on Hopper that their results are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilesmith as ts
from tilesmith.ops import configured
from tilesmith.ops.geglu import geglu
from tilesmith.ops.matmul.hopper import gated_tiles as hopper_tiles
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import Plan, PlannedLaunch
from tilesmith.ops.swiglu import gated_products as products
from tilesmith.ops.swiglu.operator import backward_with_output, swiglu
from tilesmith.patch.parts.feed_forward import feed_forward
from tilesmith.toolchain import launcher
from tilesmith.toolchain.compiler import Target, compile_kernel

FORWARD, BACKWARD = "gated_forward_hopper_kernel", "gated_backward_hopper_kernel"
ROWS, COLUMNS, DEPTH = 8192, 8192, 2048


class Block(nn.Module):
    def __init__(self, columns: int, depth: int, bias: bool = False, **kind: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(depth, columns, bias, **kind), nn.Linear(depth, columns, bias, **kind)
        self.down_proj = nn.Linear(columns, depth, bias, **kind)


def launched_by_a_block(
    rows: int = ROWS, columns: int = COLUMNS, depth: int = DEPTH, dtype: torch.dtype = torch.bfloat16,
    bias: bool = False, target: str = "cuda:90",
) -> set[str]:  # fmt: skip
    block = Block(columns, depth, bias, dtype=dtype, device="meta")
    x = torch.empty(2, rows // 2, depth, dtype=dtype, device="meta", requires_grad=True)
    with recorded_plans(target) as plans:
        feed_forward(block, x).backward(torch.empty_like(x))
    return names_of(plans)


def names_of(plans: list[Plan]) -> set[str]:
    """Return the names of all kernels but the plain half-precision GEMM."""
    return {launch.kernel.__name__ for plan in plans for launch in plan.launches} - {"matmul_hopper_kernel"}


APART = {"swiglu_forward_kernel", "swiglu_backward_kernel"}


def test_block_runs_separate_kernels_where_no_fused_one_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU tests put the same functions in place of both questions."""
    for question in ("suits_forward", "suits_backward"):
        monkeypatch.setattr(products, question, lambda *_: False)
    assert launched_by_a_block() == APART


class TestChoice:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("sizes", [{}, {"rows": 8190, "columns": 8200, "depth": 2056}], ids=["whole", "odd"])
    def test_half_precision_on_hopper_runs_one_kernel_each_way(self, dtype: torch.dtype, sizes: dict[str, Any]) -> None:
        assert launched_by_a_block(dtype=dtype, **sizes) == {FORWARD, BACKWARD}

    @pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
    def test_other_gpus_run_swiglu_separately(self, target: str) -> None:
        assert launched_by_a_block(target=target) == APART

    @pytest.mark.parametrize(
        "other",
        [
            {"dtype": torch.float32}, {"rows": 512}, {"depth": hopper_tiles.LEAST_DEPTH - 8}, {"columns": 8196},
            {"depth": 2052},
        ],
        ids=str,
    )  # fmt: skip
    def test_other_problems_run_swiglu_separately(self, other: dict[str, Any]) -> None:
        assert launched_by_a_block(**other) == APART

    def test_biases_of_gate_and_up_go_to_the_blas(self) -> None:
        assert launched_by_a_block(bias=True) == {"swiglu_forward_kernel", BACKWARD}

    def test_gradient_that_tma_cannot_walk_goes_to_the_blas(self) -> None:
        block = Block(COLUMNS, DEPTH, dtype=torch.bfloat16, device="meta")
        x = torch.empty(ROWS, DEPTH, dtype=torch.bfloat16, device="meta", requires_grad=True)
        with recorded_plans() as plans:
            feed_forward(block, x).backward(x.new_empty(1, 1).expand_as(x))
        assert names_of(plans) == {FORWARD, "swiglu_backward_kernel"}

    def test_programs_are_as_many_as_stay_busy_to_the_last_wave(self) -> None:
        """4096 tiles are 32 waves with 132 programs, and with 128."""
        assert {launch.grid for launch in planned()} == {(128, 1, 1)}


def planned(dtype: torch.dtype = torch.bfloat16, activation: str = "silu") -> list[PlannedLaunch]:
    x, weight, wide = (
        torch.empty(size, dtype=dtype, device="meta") for size in ((ROWS, DEPTH), (COLUMNS, DEPTH), (ROWS, COLUMNS))
    )
    with recorded_plans() as plans:
        products.forward(x, weight, weight, activation)
        products.backward(x, weight.new_empty(DEPTH, COLUMNS), wide, wide, activation)
    return [launch for plan in plans for launch in plan.launches]


@pytest.mark.parametrize(
    ("kind", "dtype", "fields"),
    [
        (FORWARD, torch.bfloat16, {}),
        pytest.param(BACKWARD, torch.bfloat16, {}, marks=pytest.mark.slow),
        pytest.param(FORWARD, torch.float16, {}, marks=pytest.mark.slow),
        pytest.param(BACKWARD, torch.float16, {}, marks=pytest.mark.slow),
        pytest.param(FORWARD, torch.bfloat16, {"STAGES": 3, "PLACES": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_compiles_without_spilling(kind: str, dtype: torch.dtype, fields: dict[str, int]) -> None:
    with configured(**fields):
        (launch,) = [one for one in planned(dtype) if one.kernel.__name__ == kind]
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0
    assert binary.shared_bytes <= 227 * 1024
    assert binary.num_warps == launch.config.all_warps
    assert "convert_layout" not in binary.assembly["ttgir"], "sums are split without leaving their registers"
    finished_at = 6 if kind == FORWARD else 16  # the unrolled first steps of a tile, and one in a loop
    products_made = [line for line in binary.assembly["ptx"].splitlines() if "wgmma.mma_async" in line]
    assert len(products_made) == 2 * (finished_at + 1) * 4
    assert all(".m64n256k16." in line for line in products_made)


@pytest.mark.slow
def test_geglu_forward_compiles_without_spilling() -> None:
    launch = planned(activation="gelu_tanh")[0]
    assert (launch.kernel.__name__, launch.arguments["ACTIVATION"]) == (FORWARD, "gelu_tanh")
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0


def test_geglu_backward_runs_separately() -> None:
    names = [one.kernel.__name__ for one in planned(activation="gelu_tanh")]
    assert names == [FORWARD, "matmul_hopper_kernel", "swiglu_backward_kernel"]


def test_exact_gelu_runs_separately() -> None:
    assert {one.kernel.__name__ for one in planned(activation="gelu")} - {"matmul_hopper_kernel"} == APART


def made(rows: int, columns: int, depth: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """x, both weights, dy and the last weight."""
    torch.manual_seed(0)
    sizes = (rows, depth), (columns, depth), (columns, depth), (rows, depth), (depth, columns)
    scales = 1.0, depth**-0.5, depth**-0.5, 1.0, depth**-0.5
    return tuple(
        (torch.randn(size, device=device) * scale).to(dtype) for size, scale in zip(sizes, scales, strict=True)
    )


def gradients_of(dy: Tensor, weight: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of gate and up by autograd, and silu(gate) · up."""
    gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
    hidden = F.silu(gate) * up
    F.linear(hidden, weight).backward(dy)
    assert gate.grad is not None
    assert up.grad is not None
    return gate.grad, up.grad, hidden.detach()


class TestOnOtherGpus:
    """GEMMs and SwiGLU one after the other."""

    def test_interpreted_forward_matches_the_reference(self) -> None:
        x, gate_weight, up_weight, _, _ = made(7, 9, 33, torch.float32, "cpu")
        with ts.use("interpret"):
            ours = products.forward(x, gate_weight, up_weight)
        torch.testing.assert_close(ours, products.reference(x, gate_weight, up_weight))

    def test_interpreted_backward_matches_autograd(self) -> None:
        x, gate_weight, up_weight, dy, weight = made(7, 9, 33, torch.float32, "cpu")
        gate, up, _ = products.reference(x, gate_weight, up_weight)
        with ts.use("interpret"):
            ours = products.backward(dy, weight, gate, up)
        torch.testing.assert_close(ours, gradients_of(dy, weight, gate, up))

    def test_cpu_tensors_go_to_the_blas(self) -> None:
        x, gate_weight, up_weight, dy, weight = made(7, 9, 33, torch.float32, "cpu")
        gate, up, _ = products.reference(x, gate_weight, up_weight)
        assert not products.suits_forward(x, gate_weight, up_weight)
        assert not products.suits_backward(dy, weight, gate, up)

    def test_opcheck_accepts_the_torch_operators(self) -> None:
        x, gate_weight, up_weight, dy, weight = made(3, 4, 5, torch.float32, "cpu")
        gate, up, _ = products.reference(x, gate_weight, up_weight)
        torch.library.opcheck(torch.ops.tilesmith.gated_products_forward, (x, gate_weight, up_weight))
        torch.library.opcheck(torch.ops.tilesmith.gated_products_backward, (dy, weight, gate, up))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """On a Hopper GPU: counts launches. Inside, these kernels also take sizes that do not fill the GPU."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no Hopper GPU")
    names: Counter[str] = Counter()
    monkeypatch.setattr(launcher, "listeners", [lambda launch: names.update([launch.kernel.__name__])])
    monkeypatch.setattr(hopper_tiles, "LEAST_WAVES", 0)
    forget()
    yield names
    forget()


REMEMBERED = (products.suits_forward, products.suits_backward)  # tests put other functions in their place


def forget() -> None:
    """Forget all that was chosen with other thresholds."""
    for suitability in REMEMBERED:
        suitability.forget()
    products.forward._plans.clear()
    products.backward._plans.clear()


SIZES = {
    "whole-tiles": (1024, 512, 1024),
    "an-edge-everywhere": (1000, 1000, 1032),
    "less-than-a-tile": (3, 8, 1024),
    "many-rounds": (4000, 4104, 1088),
}


def assert_as_right(ours: tuple[Tensor, ...], apart: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> None:
    for mine, other, exact in zip(ours, apart, right, strict=True):
        error, theirs = ((one.double() - exact).norm() for one in (mine, other))
        assert error <= 1.02 * theirs


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("fields", [{}, {"STAGES": 3, "PLACES": 3}], ids=["as chosen", "three stages"])
def test_forward_error_is_at_most_that_of_separate_kernels(
    fields: dict[str, int], sizes: tuple[int, int, int], dtype: torch.dtype, launched: Counter[str]
) -> None:
    x, gate_weight, up_weight, _, _ = made(*sizes, dtype, "cuda")
    gate, up = F.linear(x, gate_weight), F.linear(x, up_weight)
    with configured(**fields):
        ours = products.forward(x, gate_weight, up_weight)
        assert_as_right(
            ours, (gate, up, swiglu(gate, up)), products.reference(x.double(), gate_weight.double(), up_weight.double())
        )
        for _ in range(5):
            assert all(map(torch.equal, products.forward(x, gate_weight, up_weight), ours))
    assert launched[FORWARD] == 6


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_backward_error_is_at_most_that_of_separate_kernels(
    sizes: tuple[int, int, int], dtype: torch.dtype, launched: Counter[str]
) -> None:
    x, gate_weight, up_weight, dy, weight = made(*sizes, dtype, "cuda")
    gate, up = F.linear(x, gate_weight), F.linear(x, up_weight)
    ours = products.backward(dy, weight, gate, up)
    right = gradients_of(dy.double(), weight.double(), gate.double(), up.double())
    assert_as_right(ours, backward_with_output(dy.matmul(weight), gate, up), right)
    for _ in range(5):
        assert all(map(torch.equal, products.backward(dy, weight, gate, up), ours))
    assert launched[BACKWARD] == 6


@pytest.mark.gpu
def test_geglu_error_is_at_most_that_of_separate_kernels(launched: Counter[str]) -> None:
    x, gate_weight, up_weight, _, _ = made(1000, 1000, 1032, torch.bfloat16, "cuda")
    gate, up = F.linear(x, gate_weight), F.linear(x, up_weight)
    ours = products.forward(x, gate_weight, up_weight, "gelu_tanh")
    right = products.reference(x.double(), gate_weight.double(), up_weight.double(), "gelu_tanh")
    assert_as_right(ours, (gate, up, geglu(gate, up, "tanh")), right)
    assert launched[FORWARD] == 1


@pytest.mark.gpu
def test_reads_nothing_beyond_the_edges(launched: Counter[str]) -> None:
    """The operands lie among NaN: reading one element too many makes the result NaN."""
    rows, columns, depth = 200, 136, 1032

    def beside_nan(one: Tensor) -> Tensor:
        room = torch.full((one.shape[0] + 256, one.shape[1] + 256), float("nan"), device="cuda", dtype=one.dtype)
        return room[: one.shape[0], : one.shape[1]].copy_(one)

    x, gate_weight, up_weight, dy, weight = map(beside_nan, made(rows, columns, depth, torch.bfloat16, "cuda"))
    gate, up, hidden = products.forward(x, gate_weight, up_weight)
    found = products.backward(dy, weight, beside_nan(gate), beside_nan(up))
    assert all(bool(one.isfinite().all()) for one in (gate, up, hidden, *found))
    assert launched == {FORWARD: 1, BACKWARD: 1}


@pytest.mark.gpu
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e4, -3e4])
def test_special_values_match_separate_kernels(value: float, launched: Counter[str]) -> None:
    x, gate_weight, up_weight, dy, weight = made(130, 136, 1024, torch.bfloat16, "cuda")
    x[5, 7] = value
    gate, up, hidden = products.forward(x, gate_weight, up_weight)
    torch.testing.assert_close(hidden, swiglu(gate, up), equal_nan=True, rtol=0.01, atol=1e-6)
    ours = products.backward(dy, weight, gate, up)
    apart = backward_with_output(dy.matmul(weight), gate, up)
    torch.testing.assert_close(ours, apart, equal_nan=True, rtol=0.02, atol=0.02)
    assert launched[FORWARD] == launched[BACKWARD] == 1


@pytest.mark.gpu
def test_block_gradients_match_separate_kernels(launched: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    block = Block(1000, 1032, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(3, 111, 1032, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    cotangent = torch.randn_like(x)

    def found() -> list[Tensor]:
        y = feed_forward(block, x)
        return [y, *torch.autograd.grad(y, [x, *block.parameters()], cotangent)]

    ours = found()
    assert launched[FORWARD] == launched[BACKWARD] == 1
    monkeypatch.setattr(products, "suits_forward", lambda *_: False)
    monkeypatch.setattr(products, "suits_backward", lambda *_: False)
    for mine, apart in zip(ours, found(), strict=True):
        assert float((mine - apart).double().norm()) <= 0.01 * float(apart.double().norm())
