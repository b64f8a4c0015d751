# mypy: disable-error-code="no-untyped-call"
# PyTorch types Tensor.backward not at all.
"""The embedding of a small table: PyTorch's result, and the same gradient at every run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilesmith as ts
from tilesmith.models.small_embedding import MOST_COMPARISONS, gradient, small_embedding
from tilesmith.ops import configured
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.toolchain.compiler import Target, compile_kernel

SHAPES = [((3, 5), 4, 7), ((2, 300), 20, 16), ((1,), 1, 1), ((9, 70), 65, 33)]


def made(shape: tuple[int, ...], rows: int, columns: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randint(rows, shape, device=device), torch.randn(rows, columns, device=device)


def gradients(indices: Tensor, table: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Return our gradient, and PyTorch's in double precision."""
    ours, exact = table.clone().requires_grad_(), table.double().requires_grad_()
    small_embedding(indices, ours).backward(dy)
    F.embedding(indices, exact).backward(dy.double())
    assert ours.grad is not None
    assert exact.grad is not None
    return ours.grad, exact.grad


@pytest.mark.parametrize(("shape", "rows", "columns"), SHAPES)
def test_rows_and_gradient_match_pytorch(shape: tuple[int, ...], rows: int, columns: int) -> None:
    indices, table = made(shape, rows, columns)
    with ts.use("interpret"):
        assert torch.equal(small_embedding(indices, table), table[indices])
        ours, exact = gradients(indices, table, torch.randn(*shape, columns))
    torch.testing.assert_close(ours, exact.float())


def test_parts_of_the_indices_are_summed() -> None:
    indices, table = made((3, 31), 4, 7)
    with ts.use("interpret"), configured(INDICES=16, programs_per_multiprocessor=1000):
        ours, exact = gradients(indices, table, torch.randn(3, 31, 7))
    torch.testing.assert_close(ours, exact.float())


def test_expanded_and_permuted_gradients_match() -> None:
    indices, table = made((6, 10), 4, 8)
    with ts.use("interpret"):
        for dy in (torch.randn(6, 1, 8).expand(6, 10, 8), torch.randn(8, 6, 10).permute(1, 2, 0)):
            ours, exact = gradients(indices, table, dy)
            torch.testing.assert_close(ours, exact.float())


def test_unused_row_has_zero_gradient() -> None:
    table = torch.randn(5, 6, requires_grad=True)
    with ts.use("interpret"):
        small_embedding(torch.tensor([1, 1, 3]), table).sum().backward()
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == [0.0, 2.0, 0.0, 1.0, 0.0]


def test_large_tables_and_cpu_tensors_use_pytorch() -> None:
    indices = torch.zeros(2, dtype=torch.long)
    with ts.use("interpret"):
        few = small_embedding(indices, torch.zeros(MOST_COMPARISONS // 2, 1, requires_grad=True))
        many = small_embedding(indices, torch.zeros(MOST_COMPARISONS // 2 + 1, 1, requires_grad=True))
    plain = small_embedding(indices, torch.zeros(3, 1, requires_grad=True))
    assert [type(one.grad_fn).__name__ for one in (few, many, plain)] == [
        "_SmallEmbeddingBackward", "EmbeddingBackward0", "EmbeddingBackward0",
    ]  # fmt: skip


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_kernel_compiles_without_spills(target: str, dtype: torch.dtype) -> None:
    with recorded_plans(target) as plans:
        gradient(
            torch.empty(4096, 64, dtype=dtype, device="meta"), torch.empty(4096, dtype=torch.long, device="meta"), 20
        )
    launches = [one for plan in plans for one in plan.launches]
    assert [one.kernel.__name__ for one in launches] == ["small_embedding_gradient_kernel", "sum_partials_kernel"]
    for one in launches:
        assert not compile_kernel(one.kernel, Target.parse(target), one.arguments, **one.options()).spill_bytes


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "rows", "columns"), [*SHAPES, ((4, 16, 64), 20, 64), ((64, 64), 65, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_on_a_gpu_is_right_and_deterministic(
    shape: tuple[int, ...], rows: int, columns: int, dtype: torch.dtype
) -> None:
    indices, table = made(shape, rows, columns, "cuda")
    dy = torch.randn(*shape, columns, device="cuda", dtype=dtype)
    ours, exact = gradients(indices, table.to(dtype), dy)
    torch.testing.assert_close(ours, exact.to(dtype))
    assert all(torch.equal(gradients(indices, table.to(dtype), dy)[0], ours) for _ in range(3))
