"""Products inside other operators: our kernels where float32 must be exact, the BLAS everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest
import torch
from on_hopper import names_launched
from test_matmul import EVERY_FORM, FORMS
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.matmul.forward import forward_with_addend
from tilesmith.ops.matmul.internal.exact_or_blas import product, product_with_addend, product_with_relu
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.toolchain.compiler import Target, compile_kernel


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def small_numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return whole numbers: their sums have no rounding error."""
    return torch.randint(-4, 5, shape).to(dtype)


def over_rows(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a, b, c = (small_numbers(*shape, dtype=dtype) for shape in ((200, 3), (200, 5), (5,)))
    right = a.double().t() @ b.double()
    assert torch.equal(product(a.t(), b, c).double(), right + c.double())
    return product(a.t(), b), right


def of_a_batch(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a, b = small_numbers(3, 7, 9, dtype=dtype), small_numbers(3, 5, 9, dtype=dtype).mT
    return product(a, b), a.double() @ b.double()


def with_a_rectifier(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a, b, c = (small_numbers(*shape, dtype=dtype) for shape in ((7, 9), (9, 5), (5,)))
    return product_with_relu(a, b, c), (a.double() @ b.double() + c.double()).relu()


EVERY_KIND = pytest.mark.parametrize("kind", [over_rows, of_a_batch, with_a_rectifier])


@EVERY_KIND
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_product_matches_float64(kind: Callable[[torch.dtype], tuple[Tensor, Tensor]], dtype: torch.dtype) -> None:
    ours, right = kind(dtype)
    assert torch.equal(ours.double(), right.to(dtype).double())


@EVERY_KIND
def test_exact_float32_never_runs_the_blas(
    kind: Callable[[torch.dtype], tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("by the BLAS")

    for name in ("mm", "bmm", "addmm", "_addmm_activation"):
        monkeypatch.setattr(torch, name, refused)
    kind(torch.float32)
    with pytest.raises(AssertionError, match="by the BLAS"):
        kind(torch.bfloat16)
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(AssertionError, match="by the BLAS"):
            kind(torch.float32)
    finally:
        torch.set_float32_matmul_precision("highest")


ON_HOPPER = {  # rows, columns, depth: what computes them in float32
    (16384, 128, 128): ["matmul_hopper_exact_kernel"],
    (4096, 64, 256): ["matmul_hopper_rows_kernel"],
    (64, 64, 4096): ["matmul_hopper_exact_kernel", "sum_partial_products_kernel"],
    (1000, 100, 84): ["matmul_hopper_exact_kernel"],
}


class TestAddend:
    @EVERY_FORM
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_addend_matches_float64_in_every_form(self, form: str, dtype: torch.dtype) -> None:
        a, b, bias, addend = (small_numbers(*shape, dtype=dtype) for shape in ((24, 40), (40, 32), (32,), (24, 32)))
        with ts.ops.configured(**FORMS[form]):
            found = forward_with_addend(a, b, bias, addend, False)
        right = addend.double() + a.double() @ b.double() + bias.double()
        assert torch.equal(found.double(), right.to(dtype).double())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_addend_may_have_any_strides(self, dtype: torch.dtype) -> None:
        a, b, addend = (small_numbers(*shape, dtype=dtype) for shape in ((7, 9), (9, 5), (5, 7)))
        right = a.double() @ b.double() + addend.double().t()
        assert torch.equal(product_with_addend(addend.t(), a, b).double(), right)

    def test_addend_is_added_after_the_split_k_sum(self) -> None:
        tensors = [torch.empty(shape, device="meta") for shape in ((64, 64), (64, 16384), (16384, 64))]
        with recorded_plans("cuda:90") as plans:
            product_with_addend(*tensors)
        tiles, total = [launch for plan in plans for launch in plan.launches]
        assert tiles.arguments["addend_ptr"] is None
        assert total.arguments["addend_ptr"] is not None

    @pytest.mark.parametrize(
        "sizes",
        [(1000, 100, 84), *(pytest.param(one, marks=pytest.mark.slow) for one in ((4096, 64, 64), (16384, 128, 512)))],
        ids=str,
    )
    def test_addend_does_not_make_hopper_kernels_spill(self, sizes: tuple[int, int, int]) -> None:
        rows, columns, depth = sizes
        tensors = [torch.empty(shape, device="meta") for shape in ((rows, columns), (rows, depth), (columns, depth))]
        with recorded_plans("cuda:90") as plans:
            product_with_addend(tensors[0], tensors[1], tensors[2].t())
        (launch,) = (launch for plan in plans for launch in plan.launches)
        assert launch.arguments["addend_ptr"] is not None
        binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
        assert binary.spill_bytes == 0

    @pytest.mark.parametrize("sizes", ON_HOPPER, ids=str)
    def test_sizes_of_the_gpu_test_are_planned_for_the_named_kernels(self, sizes: tuple[int, int, int]) -> None:
        with recorded_plans("cuda:90") as plans:
            product_with_addend(*self.operands(sizes, torch.float32, "meta"))
        assert [launch.kernel.__name__ for plan in plans for launch in plan.launches] == ON_HOPPER[sizes]

    @pytest.mark.gpu
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("sizes", ON_HOPPER, ids=str)
    def test_product_with_addend_matches_float64_on_a_gpu(
        self, sizes: tuple[int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        addend, a, b, bias = self.operands(sizes, dtype, "cuda")
        launched = names_launched(monkeypatch)
        with ts.use("triton"):
            found = product_with_addend(addend, a, b, bias)
        if torch.cuda.get_device_capability() == (9, 0):
            assert launched == (ON_HOPPER[sizes] if dtype == torch.float32 else [])  # the BLAS multiplies bf16
        right = addend.double() + a.double() @ b.double() + bias.double()
        assert float((found.double() - right).norm() / right.norm()) < (5e-7 if dtype == torch.float32 else 3e-3)

    def operands(self, sizes: tuple[int, int, int], dtype: torch.dtype, device: str) -> list[Tensor]:
        """addend, a, b and bias."""
        rows, columns, depth = sizes
        shapes = ((rows, columns), (rows, depth), (columns, depth), (columns,))
        addend, a, b, bias = (torch.randn(shape, device=device).to(dtype) for shape in shapes)
        return [addend, a, b.t(), bias]


def test_sum_over_very_many_rows_is_split() -> None:
    """16,384 rows: a weight's gradient over every pair of 64 residues in 4 chains."""
    a, b = (torch.empty(16384, columns, device="meta") for columns in (640, 128))
    with recorded_plans("cuda:90") as plans:
        product(a.t(), b)
    tiles, total = [launch for plan in plans for launch in plan.launches]
    steps, block = (cast(int, tiles.arguments[name]) for name in ("steps_per_split", "BLOCK_K"))
    assert total.kernel.__name__ == "sum_partial_products_kernel"
    assert steps * block <= 4096
