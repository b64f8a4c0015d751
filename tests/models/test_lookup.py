# mypy: disable-error-code="no-untyped-call"
# PyTorch types Tensor.backward not at all.
"""Rows of a table by number: as PyTorch's embedding, with the same gradient at every run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilesmith as ts
from tilesmith.models.lookup import MOST_COMPARISONS, gradient, lookup
from tilesmith.ops import configured
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.toolchain.compiler import Target, compile_kernel

SHAPES = [((3, 5), 4, 7), ((2, 300), 20, 16), ((1,), 1, 1), ((9, 70), 65, 33)]


def made(shape: tuple[int, ...], rows: int, columns: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randint(rows, shape, device=device), torch.randn(rows, columns, device=device)


def gradients(numbers: Tensor, table: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Ours and PyTorch's, in double precision."""
    ours, exact = table.clone().requires_grad_(), table.double().requires_grad_()
    lookup(numbers, ours).backward(dy)
    F.embedding(numbers, exact).backward(dy.double())
    assert ours.grad is not None
    assert exact.grad is not None
    return ours.grad, exact.grad


@pytest.mark.parametrize(("shape", "rows", "columns"), SHAPES)
def test_gives_rows_and_their_gradient(shape: tuple[int, ...], rows: int, columns: int) -> None:
    numbers, table = made(shape, rows, columns)
    with ts.use("interpret"):
        assert torch.equal(lookup(numbers, table), table[numbers])
        ours, exact = gradients(numbers, table, torch.randn(*shape, columns))
    torch.testing.assert_close(ours, exact.float())


def test_shares_of_the_numbers_add_up() -> None:
    numbers, table = made((3, 31), 4, 7)
    with ts.use("interpret"), configured(NUMBERS=16, programs_per_multiprocessor=1000):
        ours, exact = gradients(numbers, table, torch.randn(3, 31, 7))
    torch.testing.assert_close(ours, exact.float())


def test_a_gradient_that_is_expanded_or_turned_is_read_where_it_lies() -> None:
    numbers, table = made((6, 10), 4, 8)
    with ts.use("interpret"):
        for dy in (torch.randn(6, 1, 8).expand(6, 10, 8), torch.randn(8, 6, 10).permute(1, 2, 0)):
            ours, exact = gradients(numbers, table, dy)
            torch.testing.assert_close(ours, exact.float())


def test_a_row_that_does_not_come_up_has_a_gradient_of_zero() -> None:
    table = torch.randn(5, 6, requires_grad=True)
    with ts.use("interpret"):
        lookup(torch.tensor([1, 1, 3]), table).sum().backward()
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == [0.0, 2.0, 0.0, 1.0, 0.0]


def test_large_tables_and_other_tensors_are_left_to_pytorch() -> None:
    numbers = torch.zeros(2, dtype=torch.long)
    with ts.use("interpret"):
        few = lookup(numbers, torch.zeros(MOST_COMPARISONS // 2, 1, requires_grad=True))
        many = lookup(numbers, torch.zeros(MOST_COMPARISONS // 2 + 1, 1, requires_grad=True))
    plain = lookup(numbers, torch.zeros(3, 1, requires_grad=True))
    assert [type(one.grad_fn).__name__ for one in (few, many, plain)] == [
        "_LookupBackward", "EmbeddingBackward0", "EmbeddingBackward0",
    ]  # fmt: skip


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiles(target: str, dtype: torch.dtype) -> None:
    with recorded_plans(target) as plans:
        gradient(
            torch.empty(4096, 64, dtype=dtype, device="meta"), torch.empty(4096, dtype=torch.long, device="meta"), 20
        )
    launches = [one for plan in plans for one in plan.launches]
    assert [one.kernel.__name__ for one in launches] == ["lookup_gradient_kernel", "sum_partials_kernel"]
    for one in launches:
        assert not compile_kernel(one.kernel, Target.parse(target), one.arguments, **one.options()).spill_bytes


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "rows", "columns"), [*SHAPES, ((4, 16, 64), 20, 64), ((64, 64), 65, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_it_is_right_and_the_same_at_every_run(
    shape: tuple[int, ...], rows: int, columns: int, dtype: torch.dtype
) -> None:
    numbers, table = made(shape, rows, columns, "cuda")
    dy = torch.randn(*shape, columns, device="cuda", dtype=dtype)
    ours, exact = gradients(numbers, table.to(dtype), dy)
    torch.testing.assert_close(ours, exact.to(dtype))
    assert all(torch.equal(gradients(numbers, table.to(dtype), dy)[0], ours) for _ in range(3))
