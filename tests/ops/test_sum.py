"""Sums beyond what every operator is tested for: which dimensions, in what layout, and what is launched for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import tilesmith as ts
from tilesmith.ops.runtime.dispatch import configured
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.runtime.plan import PlannedLaunch
from tilesmith.ops.sum import Dim
from tilesmith.ops.sum import sum as our_sum
from tilesmith.toolchain.compiler import Target, compile_kernel

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def assert_as_torchs(x: Tensor, dim: Dim, keepdim: bool = False) -> None:
    """Result and gradient; the result is contiguous."""
    ours, right = x.detach().requires_grad_(), x.detach().clone().requires_grad_()
    output, expected = our_sum(ours, dim, keepdim), torch.sum(right, dim, keepdim)
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-5)
    assert output.is_contiguous()
    dy = torch.randn(expected.shape, dtype=x.dtype)
    torch.testing.assert_close(torch.autograd.grad(output, ours, dy), torch.autograd.grad(expected, right, dy))


def every_dim(dimensions: int) -> Iterator[Dim]:
    yield None
    yield ()
    for count in range(1, dimensions + 1):
        yield from itertools.combinations(range(dimensions), count)
    yield from range(-dimensions, dimensions)
    yield [-1]
    if dimensions > 1:
        yield [-1, 0]


@BOTH_WAYS
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"dim": 2}, ValueError, "dim is 2, but must be from -2 to 1"),
        ({"dim": (0, -3)}, ValueError, r"dim is \(0, -3\), but must be from -2 to 1"),
        ({"dim": (0, -2)}, ValueError, r"dim is \(0, -2\), which names a dimension twice"),
        ({"dim": 1.0}, TypeError, "dim is 1.0, but must be an int, several of them, or None"),
        ({"dim": "last"}, TypeError, "dim is 'last', but must be an int, several of them, or None"),
        ({"dim": True}, TypeError, "dim is True, but must be an int, several of them, or None"),
        ({"dim": (0, True)}, TypeError, r"dim is \(0, True\), but must be an int, several of them, or None"),
        ({"keepdim": 1}, TypeError, "keepdim is a int, but must be a bool"),
    ],
)
def test_sum_rejects(mode: Any, arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^sum: {words}"):
        our_sum(torch.ones(3, 8), **arguments)


def views() -> dict[str, Tensor]:
    made = torch.randn
    return {
        "contiguous": made(3, 5, 34),
        "transposed": made(34, 5, 3).permute(2, 1, 0),
        "with gaps": made(6, 10, 14)[::2, ::2, ::2],
        "rows with gaps": made(5, 40)[:, 3:27],
        "short rows with gaps": made(200, 8)[:, :3],
        "expanded over the first": made(1, 5, 7).expand(4, 5, 7),
        "expanded over the last": made(4, 5, 1).expand(4, 5, 7),
        "one dimension": made(33),
        "one dimension with gaps": made(33)[::3],
        "size one dimensions": made(1, 5, 1, 6).permute(2, 1, 0, 3),
        "overlapping windows": made(20).unfold(0, 6, 2),
        "multiples of a vector": made(4, 16, 48),
    }


@pytest.mark.parametrize("name", views())
def test_sum_over_any_dimensions_of_any_layout(name: str) -> None:
    x = views()[name]
    for dim in every_dim(x.ndim):
        assert_as_torchs(x, dim)


@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2)], ids=str)
def test_sum_keeps_dimensions_with_keepdim(dim: Dim) -> None:
    assert_as_torchs(torch.randn(3, 5, 7), dim, keepdim=True)


@pytest.mark.parametrize("dim", [None, 0, 4, (0, 2, 4), (1, 3)], ids=str)
def test_sum_copies_more_dimensions_than_kernels_take(dim: Dim) -> None:
    assert_as_torchs(torch.randn(4, 4, 4, 4, 4, 4, 6)[::2, ::2, ::2, ::2, ::2, ::2], dim)


@pytest.mark.parametrize("dim", [None, 0, -1, ()], ids=str)
def test_sum_of_a_single_number(dim: Dim) -> None:
    assert_as_torchs(torch.tensor(3.0), dim)


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0,), (3, 0, 5)], ids=str)
def test_sum_of_empty_tensors_is_zero(shape: tuple[int, ...]) -> None:
    for dim in every_dim(len(shape)):
        assert_as_torchs(torch.randn(shape), dim)


@pytest.mark.parametrize("shape", [(3, 20000), (20000, 3), (60000,), (40, 9, 300)], ids=str)
def test_sum_of_split_sums_matches_pytorch(shape: tuple[int, ...]) -> None:
    """Sizes that are split even where few multiprocessors are counted."""
    x = 1 + torch.rand(shape)
    for dim in (None, 0, -1):
        torch.testing.assert_close(our_sum(x, dim), torch.sum(x.double(), dim).float(), rtol=1e-6, atol=0)


def test_split_sum_keeps_two_dimensions_that_do_not_merge() -> None:
    """The summed dimension lies between the kept ones, so each split has several runs of partial sums."""
    x = 1 + torch.rand(3, 20000, 5)
    torch.testing.assert_close(our_sum(x, 1), torch.sum(x.double(), 1).float(), rtol=1e-6, atol=0)


def launches(dim: Dim) -> list[PlannedLaunch]:
    with recorded_plans("cuda:90") as plans:
        our_sum(torch.empty(16384, 4096, dtype=torch.bfloat16, device="meta"), dim)
    return [launch for plan in plans for launch in plan.launches]


def test_sum_splits_few_long_sums_to_fill_the_gpu() -> None:
    for dim in (None, 0):
        first, second = launches(dim)
        assert first.grid[0] * first.grid[1] >= 256
        assert second.grid[1] == 1
    assert len(launches(-1)) == 1


def test_sum_tile_is_long_along_neighbours_in_memory() -> None:
    assert launches(-1)[0].arguments["REDUCED"] == 4096
    columns = launches(0)[0].arguments
    assert (columns["KEPT"], columns["REDUCED"]) == (256, 16)


def test_sum_accumulates_in_single_precision() -> None:
    """In bfloat16 itself, a sum of ones gets stuck at 256."""
    assert our_sum(torch.ones(3, 4992, dtype=torch.bfloat16), -1).tolist() == [4992.0] * 3
    assert our_sum(torch.ones(4992, 3, dtype=torch.bfloat16), 0).tolist() == [4992.0] * 3
    assert our_sum(torch.ones(156, 32, dtype=torch.bfloat16)).item() == 4992.0


def test_sum_keeps_partial_sums_in_single_precision() -> None:
    """In float16, 2048 + 1 is 2048."""
    x = torch.zeros(8, 16384, dtype=torch.float16)
    x[:4, 0], x[:4, 1], x[4:, 0] = 2048, 1, -2048
    assert our_sum(x).item() == 4


def test_sum_gradient_is_a_view_of_dy() -> None:
    x = torch.randn(5, 7, requires_grad=True)
    (gradient,) = torch.autograd.grad(our_sum(x), x, torch.tensor(2.0))
    assert gradient.stride() == (0, 0)
    (gradient,) = torch.autograd.grad(our_sum(x, 0), x, torch.arange(7.0))
    assert gradient.stride() == (0, 1)


@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), [1, -1]], ids=str)
def test_sum_compiles_with_dynamic_sizes(dim: Dim) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(our_sum, fullgraph=True, dynamic=True, backend="aot_eager")
    x = torch.randn(3, 5, 7)
    torch.testing.assert_close(compiled(x, dim), torch.sum(x, dim))


@pytest.mark.parametrize("name", views())
def test_sum_in_vectors_and_without_divisions_of_any_layout(name: str) -> None:
    x = views()[name]
    with configured(flat=True, KEPT=4, REDUCED=16):  # several pieces and several groups
        for dim in every_dim(x.ndim):
            assert_as_torchs(x, dim)


on_meta = partial(torch.empty, device="meta")


@pytest.mark.parametrize(
    ("x", "unit"),
    [
        (on_meta(5, 24, dtype=torch.bfloat16), 8),
        (on_meta(5, 20), 4),
        (on_meta(5, 20, dtype=torch.bfloat16), 1),  # rows of 40 bytes
        (on_meta(5, 31)[:, :24], 1),  # rows 31 elements apart
        (on_meta(24, 5).mT, 1),  # summed elements are not neighbours
    ],
    ids=["bf16", "fp32", "odd row", "gaps", "columns"],
)
def test_sum_knows_which_rows_are_whole_vectors(x: Tensor, unit: int) -> None:
    with configured(flat=True), recorded_plans("cuda:90") as plans:
        our_sum(x, -1)
    (launch,) = plans[0].launches
    assert launch.arguments["UNIT"] == unit
    assert launch.arguments["FLAT"]


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [
        (80, 24600, (1, 32768, 32)),
        (100, 40000, (1, 32768, 32)),
        (132, 5000, (1, 8192, 8)),
        (1, 40000, (1, 32768, 32)),
        (1, 1 << 20, (1, 4096, 4)),  # split
        (133, 40000, (1, 8192, 8)),
        (528, 4096, (1, 4096, 4)),
        (529, 5000, (4, 1024, 4)),
        (529, 4096, (1, 4096, 4)),
        (30000, 3584, (1, 4096, 4)),
        (30000, 600, (4, 1024, 4)),  # as wide as a row
    ],
    ids=str,
)
def test_sum_of_rows_takes_the_tile_that_was_fastest(rows: int, columns: int, tile: tuple[int, int, int]) -> None:
    with recorded_plans("cuda:90") as plans:
        our_sum(on_meta(rows, columns), -1)
    launch = plans[0].launches[0]
    assert (launch.arguments["KEPT"], launch.arguments["REDUCED"], launch.config.num_warps) == tile
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0


def test_sum_takes_as_many_threads_where_warps_have_64() -> None:
    with recorded_plans("hip:gfx942") as plans:
        our_sum(on_meta(80, 24600), -1)
    (launch,) = plans[0].launches
    assert launch.config.num_warps == 16
    binary = compile_kernel(launch.kernel, Target.parse("hip:gfx942"), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0


@pytest.mark.parametrize(("flat", "wide"), [(True, 16), (False, 2)])
def test_sum_reads_rows_of_a_multiple_of_16_bytes_in_vectors(flat: bool, wide: int) -> None:
    with configured(flat=flat), recorded_plans("cuda:90") as plans:
        our_sum(on_meta(80, 24600, dtype=torch.bfloat16), -1)
    (launch,) = plans[0].launches
    binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
    assert binary.vector_bytes == wide
