# mypy: disable-error-code="no-untyped-call"
# PyTorch types its rarer functions not at all.
"""`hopper/half`: when it is chosen, how it compiles, and on Hopper that its results are right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from on_hopper import names_launched, only_on_hopper
from torch import Tensor

import tilesmith as ts
from tilesmith.ops import configured
from tilesmith.ops.matmul import matmul
from tilesmith.ops.matmul.backward import backward as matmul_backward
from tilesmith.ops.matmul.forward import forward as matmul_forward
from tilesmith.ops.matmul.hopper import half as hopper_half
from tilesmith.ops.matmul.internal import product_into_memory
from tilesmith.ops.matmul.internal import sum_of_products as sums
from tilesmith.ops.matmul.internal.product_into_memory import product_into
from tilesmith.ops.matmul.internal.sum_of_products import suits_one_kernel, sum_of_products, summed_products
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import Plan, PlannedLaunch
from tilesmith.toolchain.compiler import Target, compile_kernel

KERNEL, BEFORE = "matmul_hopper_kernel", "matmul_descriptors_kernel"
ROWS, COLUMNS, DEPTH = 8192, 2048, 2048
LAYOUTS = ("NT", "NN", "TN", "TT")
"""a and b: "N" row-major, "T" transposed. x·Wᵀ, dy·W, dyᵀ·x, and the fourth combination."""


def laid_out(rows: int, columns: int, transposed: bool, dtype: torch.dtype, device: str = "meta") -> Tensor:
    made = torch.empty((columns, rows) if transposed else (rows, columns), dtype=dtype, device=device)
    return made.t() if transposed else made


def factors(
    layout: str = "NN", rows: int = ROWS, columns: int = COLUMNS, depths: tuple[int, ...] = (DEPTH,),
    dtype: torch.dtype = torch.bfloat16, device: str = "meta",
) -> list[Tensor]:  # fmt: skip
    """Return a and b of each product in turn."""
    return [
        one
        for depth in depths
        for one in (
            laid_out(rows, depth, layout[0] == "T", dtype, device),
            laid_out(depth, columns, layout[1] == "T", dtype, device),
        )
    ]


def batch(layout: str, matrices: int, rows: int, columns: int, depth: int, device: str = "meta") -> list[Tensor]:
    """Return a and b of a batch."""
    shapes = (rows, depth, layout[0] == "T"), (depth, columns, layout[1] == "T")
    made = [
        torch.empty(matrices, *((second, first) if turned else (first, second)), dtype=torch.bfloat16, device=device)
        for first, second, turned in shapes
    ]
    return [one.mT if turned else one for one, (_, _, turned) in zip(made, shapes, strict=True)]


def names_of(plans: list[Plan]) -> list[str]:
    return [launch.kernel.__name__ for plan in plans for launch in plan.launches]


def launched_by_matmul(*operands: Any, target: str = "cuda:90", **options: Any) -> list[str]:
    with recorded_plans(target) as plans:
        matmul(*operands, **options)
    return names_of(plans)


class TestChoiceOfMatmul:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_large_half_precision_products_run_this_kernel(self, layout: str, dtype: torch.dtype) -> None:
        assert launched_by_matmul(*factors(layout, dtype=dtype)) == [KERNEL]

    def test_forward_and_backward_run_this_kernel(self) -> None:
        a, b = (one.requires_grad_() for one in factors("NT", columns=4096))
        with recorded_plans() as plans:
            matmul(a, b).backward(torch.empty(ROWS, 4096, dtype=a.dtype, device="meta"))
        assert names_of(plans) == [KERNEL] * 3

    def test_batch_that_shares_a_weight_is_one_product(self) -> None:
        x = torch.empty(4, ROWS // 4, DEPTH, dtype=torch.bfloat16, device="meta")
        assert launched_by_matmul(x, factors("NT")[1]) == [KERNEL]

    @pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
    def test_other_gpus_never_run_this_kernel(self, target: str) -> None:
        assert KERNEL not in launched_by_matmul(*factors(), target=target)

    @pytest.mark.parametrize(
        "other",
        [
            {"dtype": torch.float32}, {"rows": 512}, {"depths": (hopper_half.LEAST_DEPTH - 8,)}, {"columns": 2052},
        ],
        ids=str,
    )  # fmt: skip
    def test_other_problems_run_other_forms(self, other: dict[str, Any]) -> None:
        assert KERNEL not in launched_by_matmul(*factors(**other))

    def test_rows_that_tma_cannot_walk_are_copied_first(self) -> None:
        assert launched_by_matmul(*factors("NT", depths=(2052,))) == ["realign_kernel", KERNEL]

    def test_other_epilogues_run_the_tma_form(self) -> None:
        a, b = factors()
        bias = a.new_empty(COLUMNS)
        assert launched_by_matmul(a, b, bias) == [BEFORE]
        assert launched_by_matmul(a, b, None, "relu") == [BEFORE]
        assert launched_by_matmul(a, b, out_dtype=torch.float32) == [BEFORE]
        assert launched_by_matmul(a.expand(2, -1, -1), b.expand(2, -1, -1)) == [BEFORE]  # a shared matrix

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_batch_of_matrices_runs_this_kernel(self, layout: str) -> None:
        assert launched_by_matmul(*batch(layout, 128, 384, 384, 384)) == [KERNEL]

    @pytest.mark.parametrize(
        "sizes", [(128, 384, 384, 192), (128, 512, 96, 512), (4, 384, 384, 384), (128, 384, 380, 384)], ids=str
    )
    def test_batches_of_little_depth_or_half_empty_tiles_run_the_tma_form(
        self, sizes: tuple[int, int, int, int]
    ) -> None:
        """Results of 380 columns have rows that TMA cannot store."""
        assert launched_by_matmul(*batch("NT", *sizes)) == [BEFORE]

    @pytest.mark.parametrize(
        "fields",
        [
            {"form": "tma"}, {"BLOCK_N": 128}, {"form": "tma", "num_warps": 4}, {"form": "tma", "GROUP": 4},
            {"form": "pointers"},
        ],
        ids=str,
    )  # fmt: skip
    def test_sweep_reaches_the_other_forms_with_its_values(self, fields: dict[str, Any]) -> None:
        with configured(**fields), recorded_plans() as plans:
            a, b = factors()
            matmul(a, b)
        (launch,) = plans[0].launches
        assert launch.kernel.__name__ != KERNEL
        assert all(launch.config.fields()[name] == value for name, value in fields.items())

    def test_sweep_reaches_this_kernel(self) -> None:
        with configured(STAGES=3, PLACES=4, TOGETHER=8), recorded_plans() as plans:
            a, b = factors()
            matmul(a, b)
        arguments = plans[0].launches[0].arguments
        assert (arguments["STAGES"], arguments["PLACES"], arguments["TOGETHER"]) == (3, 4, 8)


class TestChoiceOfSums:
    @pytest.mark.parametrize("depths", [(2048,), (8192, 8192), (2048, 512, 512), (2040, 8)], ids=str)
    def test_one_kernel_adds_up_to_three_products(self, depths: tuple[int, ...]) -> None:
        given = factors(depths=depths)
        with recorded_plans() as plans:
            sum_of_products(list(zip(given[::2], given[1::2], strict=True)))
        assert names_of(plans) == [KERNEL]

    def test_four_products_go_to_the_blas(self) -> None:
        assert not suits_one_kernel(*factors(depths=(2048,) * 4))

    def test_all_pairs_must_have_one_layout(self) -> None:
        assert suits_one_kernel(*factors("NN"), *factors("NN"))
        assert not suits_one_kernel(*factors("NN"), *factors("NT"))

    def test_columns_of_a_larger_matrix_suit(self) -> None:
        wide = torch.empty(ROWS, 3072, dtype=torch.bfloat16, device="meta")
        assert suits_one_kernel(wide[:, :2048], factors()[1])
        assert not suits_one_kernel(wide.expand(2, -1, -1)[0][:, ::2], factors()[1][:1536])

    @pytest.mark.parametrize(
        ("rows", "suits"), [(2048, False), (3072, False), (3456, False), (3968, True), (4096, True)]
    )
    def test_sizes_suit_where_few_multiprocessors_idle(self, rows: int, suits: bool) -> None:
        """On average over waves, of 132 multiprocessors so many have a tile: 128 in a single wave; 96, 108, 124 and 128
        in two."""
        assert suits_one_kernel(*factors("TN", rows=rows)) is suits

    def test_answers_for_meta_tensors_depend_on_the_recorded_gpu(self) -> None:
        assert suits_one_kernel(*factors())
        with recorded_plans("cuda:80"):
            assert not suits_one_kernel(*factors())


class TestChoiceIntoMemory:
    def logits(self, row_length: int, classes: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        hidden, weight = factors("NT", rows=2048, columns=classes)
        return product_into_memory.kernel_suits(
            torch.empty(2048, row_length, dtype=dtype, device="meta")[:, :classes], hidden, weight
        )

    def test_rows_may_have_gaps(self) -> None:
        assert self.logits(128256, 128256)
        assert self.logits(50304, 50257)

    def test_rows_must_start_at_addresses_that_tma_takes(self) -> None:
        assert not self.logits(50257, 50257)

    def test_result_must_have_the_dtype_of_the_factors(self) -> None:
        assert not self.logits(50304, 50257, torch.float32)


class TestOnOtherGpus:
    """One product after the other, by our kernels or by the BLAS."""

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_interpreted_sum_matches_the_reference(self, count: int) -> None:
        torch.manual_seed(0)
        given = [torch.randn(shape) for _ in range(count) for shape in ((7, 33), (33, 9))]
        with ts.use("interpret"):
            ours = summed_products(*given, *(None,) * (6 - 2 * count))
        torch.testing.assert_close(ours, sum_of(given))

    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_sum_by_the_blas_matches_the_reference(self, count: int) -> None:
        torch.manual_seed(0)
        given = [torch.randn(shape) for _ in range(count) for shape in ((7, 33), (33, 9))]
        assert not suits_one_kernel(*given)
        ours = sum_of_products(list(zip(given[::2], given[1::2], strict=True)))
        torch.testing.assert_close(ours, sum_of(given))

    def test_product_into_memory_by_the_blas_leaves_the_gaps(self) -> None:
        torch.manual_seed(0)
        a, b, memory = torch.randn(7, 33), torch.randn(33, 9), torch.zeros(7, 16)
        assert product_into(memory[:, :9], a, b).data_ptr() == memory.data_ptr()
        torch.testing.assert_close(memory[:, :9], a @ b)
        assert not memory[:, 9:].any()

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_opcheck_accepts_the_torch_operator(self, count: int) -> None:
        given = [torch.randn(shape) for _ in range(count) for shape in ((3, 5), (5, 4))]
        torch.library.opcheck(torch.ops.tilesmith.summed_products, (*given, *(None,) * (6 - 2 * count)))


def sum_of(given: list[Tensor]) -> Tensor:
    return torch.stack([a @ b for a, b in zip(given[::2], given[1::2], strict=True)]).sum(0)


def planned(layout: str, depths: tuple[int, ...], dtype: torch.dtype) -> PlannedLaunch:
    given = factors(layout, depths=depths, dtype=dtype)
    with recorded_plans() as plans:
        summed_products(*given, *(None,) * (6 - len(given)))
    (launch,) = plans[0].launches
    return launch


slow = pytest.mark.slow
FEW_STAGES = {"STAGES": 3, "PLACES": 4}


@pytest.mark.parametrize(
    ("layout", "depths", "dtype", "fields"),
    [
        pytest.param("NT", (2048,), torch.bfloat16, {}, marks=slow),
        pytest.param("TN", (2048,), torch.bfloat16, {}, marks=slow),
        ("NN", (2048, 512, 512), torch.bfloat16, {}),
        pytest.param("NN", (2048,), torch.bfloat16, {}, marks=slow),
        pytest.param("NN", (2048, 512), torch.bfloat16, {}, marks=slow),
        pytest.param("TT", (2048,), torch.bfloat16, {}, marks=slow),
        pytest.param("NT", (2048,), torch.float16, {}, marks=slow),
        pytest.param("TN", (2048,), torch.float16, {}, marks=slow),
        pytest.param("NT", (2048,), torch.bfloat16, FEW_STAGES, marks=slow),
    ],
    ids=str,
)
def test_compiles_without_spilling_or_waiting(
    layout: str, depths: tuple[int, ...], dtype: torch.dtype, fields: dict[str, int]
) -> None:
    """Where anything else touches the sums' registers, ptxas serialises the wgmmas: a wait follows each of them."""
    with configured(**fields):
        launch = planned(layout, depths, dtype)
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0
    assert binary.shared_bytes <= 227 * 1024
    assert binary.num_warps == launch.config.all_warps
    assert "convert_layout" not in binary.assembly["ttgir"], "sums are split without leaving their registers"
    products_made = [line for line in binary.assembly["ptx"].splitlines() if "wgmma.mma_async" in line]
    assert len(products_made) == 2 * (4 + 1) * 4  # the unrolled first steps of a tile, and one in a loop
    assert all(".m64n256k16." in line for line in products_made)
    waits = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)", binary.assembly["sass"])
    assert waits.count("0") == 2, "nothing is in flight only at the end of a tile"
    assert waits.count("1") == len(waits) - 2 == 2 * (3 + 1)  # at all steps but the first of a tile


def test_programs_are_as_many_as_stay_busy_to_the_last_wave() -> None:
    """512 tiles are four waves with 132 programs, and with 128."""
    assert planned("NT", (2048,), torch.bfloat16).grid == (128, 1, 1)


@pytest.fixture
def small_sizes_suit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, this kernel also takes sizes that do not fill a GPU, which else go to the BLAS."""
    monkeypatch.setattr(hopper_half, "LEAST_BUSY", 0)
    monkeypatch.setattr(hopper_half, "LEAST_WAVES", 0)
    forget_plans()
    yield
    forget_plans()


class TestChoiceOfLinear:
    @staticmethod
    def planned(*shape: int, rows_apart: bool = False) -> Plan | None:
        x, weight = (torch.empty(size, dtype=torch.bfloat16, device="meta") for size in (shape, (COLUMNS, DEPTH)))
        x = torch.empty(*shape[:-1], 2 * DEPTH, dtype=x.dtype, device="meta")[..., :DEPTH] if rows_apart else x
        return sums.planned_linear(Plan("linear", x.device, (x, weight)))

    @pytest.mark.parametrize("shape", [(ROWS, DEPTH), (4, ROWS // 4, DEPTH)], ids=str)
    def test_large_layer_runs_this_kernel_and_keeps_the_dimensions_of_x(self, shape: tuple[int, ...]) -> None:
        plan = self.planned(*shape)
        assert plan is not None
        assert names_of([plan]) == [KERNEL]
        assert [one.shape for one in plan.outputs] == [(*shape[:-1], COLUMNS)]

    def test_blas_computes_few_rows_and_rows_apart(self) -> None:
        assert self.planned(512, DEPTH) is None
        assert self.planned(4, ROWS // 4, DEPTH, rows_apart=True) is None

    def test_blas_result_is_that_of_pytorch(self) -> None:
        x, weight = torch.randn(2, 3, 4), torch.randn(5, 4)
        for given in (x, x.transpose(0, 1), x[..., ::2].repeat(1, 1, 2)):
            torch.testing.assert_close(sums.linear_product(given, weight), torch.nn.functional.linear(given, weight))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, small_sizes_suit: None) -> list[str]:
    """On a Hopper GPU: the names of kernels as they are launched."""
    only_on_hopper()
    return names_launched(monkeypatch)


def forget_plans() -> None:
    """Forget all that was chosen with other thresholds."""
    sums.kernel_suits.forget()
    product_into_memory.kernel_suits.forget()
    sums._linear_plans.clear()
    summed_products._plans.clear()
    matmul_forward._plans.clear()
    matmul_backward._plans.clear()


def filled(given: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(0)
    for a, b in zip(given[::2], given[1::2], strict=True):
        a.copy_(torch.randn(a.shape, device=a.device))
        b.copy_(torch.randn(b.shape, device=b.device) * a.shape[1] ** -0.5)
    return given


def assert_as_right(ours: Tensor, given: list[Tensor]) -> None:
    """Assert that the error is at most the BLAS's, which adds in float32 and rounds once."""
    right = sum_of([one.double() for one in given])
    theirs = torch.cat(given[::2], 1) @ torch.cat(given[1::2])
    error, other = ((one.double() - right).norm() for one in (ours, theirs))
    assert error <= 1.02 * other


EDGES = (200, 136, (520, 72, 8))
SPECIAL = (136, 136, (1024,))
BOTH_WAYS = (4136, 8200, (4104,))
COLUMNS_WITH_GAPS = [1000, 1001, 1063]
BATCHES = {  # matrices, rows, columns, depth
    "whole-tiles": (70, 256, 256, 256),
    "edges": (40, 304, 296, 216),
    "many-rounds": (130, 384, 392, 512),
}
SIZES = {  # rows, columns, depths
    "whole-tiles": (1024, 512, (1024,)),
    "an-edge-everywhere": (1000, 1000, (1032,)),
    "less-than-a-tile": (8, 8, (512,)),
    "many-rounds": (4000, 4104, (1088,)),
    "two": (1000, 1000, (520, 8)),
    "three": (1160, 2056, (1032, 264, 72)),
    "three-in-many-rounds": (4000, 4104, (72, 264, 1000)),
}


@pytest.mark.usefixtures("small_sizes_suit")
class TestSizesOfTheGpuTests:
    """Their plans, which need no GPU: if dispatch changes, these tests say that the GPU tests test another kernel."""

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("sizes", [*SIZES.values(), EDGES, SPECIAL], ids=str)
    def test_sum_is_planned_for_this_kernel(self, sizes: tuple[int, int, tuple[int, ...]], layout: str) -> None:
        given = factors(layout, *sizes)
        assert suits_one_kernel(*given)
        with recorded_plans() as plans:
            sum_of_products(list(zip(given[::2], given[1::2], strict=True)))
        assert names_of(plans) == [KERNEL]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_matmul_is_planned_for_this_kernel_both_ways(self, layout: str) -> None:
        a, b = (one.detach().requires_grad_() for one in factors(layout, *BOTH_WAYS))
        with recorded_plans() as plans:
            matmul(a, b).backward(torch.empty(4136, 8200, dtype=a.dtype, device="meta"))
        assert names_of(plans) == [KERNEL] * 3

    @pytest.mark.parametrize("columns", COLUMNS_WITH_GAPS)
    def test_product_into_memory_is_planned_for_this_kernel(self, columns: int) -> None:
        a, b = factors("NT", 1000, columns, (1032,))
        memory = torch.empty(1000, 1088, dtype=a.dtype, device="meta")
        assert product_into_memory.kernel_suits(memory[:, :columns], a, b)

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
    def test_batch_is_planned_for_this_kernel(self, sizes: tuple[int, int, int, int], layout: str) -> None:
        assert launched_by_matmul(*batch(layout, *sizes)) == [KERNEL]

    def test_small_sizes_go_to_the_blas_otherwise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        assert not suits_one_kernel(*factors("NN", *SIZES["whole-tiles"]))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_error_is_at_most_the_blas_and_every_run_is_equal(
    sizes: tuple[int, int, tuple[int, ...]], layout: str, dtype: torch.dtype, launched: list[str]
) -> None:
    given = filled(factors(layout, *sizes, dtype=dtype, device="cuda"))
    pairs = list(zip(given[::2], given[1::2], strict=True))
    ours = sum_of_products(pairs)
    assert_as_right(ours, given)
    assert all(torch.equal(sum_of_products(pairs), ours) for _ in range(5))
    assert launched == [KERNEL] * 6


@pytest.mark.gpu
def test_layer_of_a_batch_is_the_product_of_its_rows(launched: list[str]) -> None:
    rows, weight = filled(factors("NT", *SIZES["whole-tiles"], device="cuda"))[:2]
    y = sums.linear_product(rows.view(2, -1, rows.shape[-1]), weight.t())
    assert torch.equal(y.flatten(0, 1), sum_of_products([(rows, weight)]))
    assert launched == [KERNEL] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matmul_error_is_at_most_the_blas_both_ways(layout: str, launched: list[str]) -> None:
    a, b = filled(factors(layout, *BOTH_WAYS, device="cuda"))
    dy = torch.randn(4136, 8200, dtype=a.dtype, device="cuda")
    with ts.use("triton"):
        y = matmul(a.requires_grad_(), b.requires_grad_())
        da, db = torch.autograd.grad(y, (a, b), dy)
    a, b = a.detach(), b.detach()
    assert_as_right(y.detach(), [a, b])
    assert_as_right(da, [dy, b.t()])
    assert_as_right(db, [a.t(), dy])
    assert launched == [KERNEL] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
def test_batch_error_is_at_most_the_blas_and_no_matrix_takes_the_place_of_another(
    sizes: tuple[int, int, int, int], layout: str, launched: list[str]
) -> None:
    torch.manual_seed(0)
    a, b = (one.copy_(torch.randn(one.shape, device="cuda")) for one in batch(layout, *sizes, device="cuda"))
    with ts.use("triton"):
        ours = matmul(a, b)
    for which in (0, 1, sizes[0] // 2, sizes[0] - 1):
        assert_as_right(ours[which], [a[which], b[which]])
    right = a.double() @ b.double()
    assert (ours.double() - right).norm() <= 1.02 * ((a @ b).double() - right).norm()
    assert launched == [KERNEL]


@pytest.mark.gpu
@pytest.mark.parametrize("columns", COLUMNS_WITH_GAPS)
def test_product_into_memory_writes_nothing_into_the_gaps(columns: int, launched: list[str]) -> None:
    a, b = filled(factors("NT", 1000, columns, (1032,), device="cuda"))
    memory = torch.zeros(1000, 1088, dtype=a.dtype, device="cuda")
    assert_as_right(product_into(memory[:, :columns], a, b), [a, b])
    assert not memory[:, columns:].any()
    assert launched == [KERNEL]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_nothing_beyond_the_edges(layout: str, launched: list[str]) -> None:
    """The operands lie among NaN: reading one element too many makes the result NaN."""

    def beside_nan(one: Tensor) -> Tensor:
        rows, columns = one.shape
        room = laid_out(rows + 256, columns + 256, one.stride(0) == 1, one.dtype, "cuda").fill_(float("nan"))
        return room[:rows, :columns].copy_(one)

    given = [beside_nan(one) for one in filled(factors(layout, *EDGES, device="cuda"))]
    assert bool(sum_of_products(list(zip(given[::2], given[1::2], strict=True))).isfinite().all())
    assert launched == [KERNEL]


@pytest.mark.gpu
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38])
def test_special_values_match_the_blas(value: float, launched: list[str]) -> None:
    a, b = filled(factors("NT", *SPECIAL, device="cuda"))
    a[5, 7] = value
    torch.testing.assert_close(sum_of_products([(a, b)]), a @ b, equal_nan=True)
    assert launched == [KERNEL]
