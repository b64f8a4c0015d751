"""Softmax beyond what every operator is tested for: every dimension, every form of its kernels, infinities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

import tilesmith as ts
from covering import covering
from tilesmith.ops.device import teams
from tilesmith.ops.runtime.kernels import recorded_plans
from tilesmith.ops.softmax import backward as softmax_backward
from tilesmith.ops.softmax import rows as softmax_rows
from tilesmith.ops.softmax import softmax
from tilesmith.toolchain.compiler import Target, compile_kernel

BOTH_WAYS = pytest.mark.parametrize("mode", ["auto", "interpret"])

# Each on rows of 300 columns; two multiprocessors are counted where there is no GPU.
FORMS: dict[str, dict[str, Any]] = {
    "in registers": {"form": "registers", "BLOCK_SIZE": 512},
    "in registers, taking turns": {
        "form": "registers", "BLOCK_SIZE": 512, "ROWS": 2, "PIPELINE": 2, "programs_per_multiprocessor": 1,
    },
    "in blocks": {"form": "blocks", "BLOCK_SIZE": 64},
    "in blocks, several rows": {"form": "blocks", "BLOCK_SIZE": 64, "ROWS": 4},
    "split": {"form": "split", "BLOCK_SIZE": 32, "programs_per_multiprocessor": 16},
    "split, several rows": {"form": "split", "BLOCK_SIZE": 32, "ROWS": 4, "programs_per_multiprocessor": 8},
    "split in one part": {"form": "split", "BLOCK_SIZE": 512},
}  # fmt: skip
FORMS |= {f"{name}, edges apart": {**config, "EDGES": True} for name, config in FORMS.items()}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with ts.use("interpret"):
        yield


def assert_as_torchs(x: Tensor, dim: int) -> None:
    """Result, layout and gradient."""
    ours, right = x.detach().requires_grad_(), x.detach().clone().requires_grad_()
    output, expected = softmax(ours, dim), torch.softmax(right, dim)
    torch.testing.assert_close(output, expected, equal_nan=True)
    assert output.stride() == torch.empty_like(x).stride()
    dy = torch.randn(expected.shape, dtype=x.dtype)
    for cotangent in (dy, dy.transpose(0, -1).contiguous().transpose(0, -1) if dy.ndim > 1 else dy):
        (gradient,) = torch.autograd.grad(output, ours, cotangent, retain_graph=True)
        (wanted,) = torch.autograd.grad(expected, right, cotangent, retain_graph=True)
        torch.testing.assert_close(gradient, wanted, equal_nan=True)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("dim", "kind", "words"),
    [
        (2, ValueError, "dim is 2, but must be from -2 to 1"),
        (-3, ValueError, "dim is -3, but must be from -2 to 1"),
        (None, TypeError, "dim is a NoneType, but must be an int"),
        (1.0, TypeError, "dim is a float, but must be an int"),
        (True, TypeError, "dim is a bool, but must be an int"),
        ((0, 1), TypeError, "dim is a tuple, but must be an int"),
    ],
)
def test_rejects(mode: Any, dim: Any, kind: type[Exception], words: str) -> None:
    with ts.use(mode), pytest.raises(kind, match=f"^softmax: {words}"):
        softmax(torch.ones(3, 8), dim)


def views() -> dict[str, Tensor]:
    made = torch.randn
    return {
        "contiguous": made(3, 5, 7),
        "channels last": made(2, 6, 5, 3).permute(0, 3, 1, 2),
        "all turned round": made(4, 3, 5, 2).permute(3, 2, 1, 0),
        "with gaps": made(6, 10, 14)[::2, ::2, ::2],
        "part of wider rows": made(5, 40)[:, 3:27],
        "expanded": made(5, 1, 7).expand(5, 4, 7),
        "one dimension": made(33),
        "one dimension with gaps": made(33)[::3],
        "size one dimensions": made(1, 5, 1, 6),
        "multiple of a vector": made(2, 9, 48),
        "more dimensions than are walked": made(4, 4, 4, 4, 4, 6)[::2, ::2, ::2, ::2, ::2],
        "overlapping windows": made(20).unfold(0, 6, 2),
    }


@pytest.mark.parametrize("name", views())
def test_every_dimension_of_any_layout(name: str) -> None:
    x = views()[name]
    for dim in (*range(x.ndim), -1):
        assert_as_torchs(x, dim)


@EVERY_FORM
@pytest.mark.parametrize("dim", [0, 1], ids=["columns apart", "columns together"])
def test_every_form(form: str, dim: int) -> None:
    with ts.ops.configured(**FORMS[form]):
        assert_as_torchs(torch.randn(300, 9) if dim == 0 else torch.randn(9, 300), dim)


@EVERY_FORM
def test_every_form_launches_its_own_kernels(form: str) -> None:
    with ts.ops.configured(**FORMS[form]), recorded_plans() as plans:
        softmax(torch.empty(9, 300, device="meta"))
    names = [launch.kernel.__name__ for plan in plans for launch in plan.launches]
    assert (
        names
        == {
            "registers": ["softmax_forward_kernel"],
            "blocks": ["softmax_forward_blocks_kernel"],
            "split": ["softmax_statistics_kernel", "softmax_forward_split_kernel"],
        }[FORMS[form]["form"]]
    )


@covering(form=list(FORMS), dtype=[torch.float32, torch.float64])
def test_infinities_and_extremes(form: str, dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    x = torch.randn(9, 300, dtype=dtype)
    x[0, ::2] = -torch.inf
    x[1] = -torch.inf  # gives NaN, as in PyTorch
    x[2, :299] = -torch.inf
    x[3, 7] = torch.inf
    x[4, [5, 250]] = torch.inf
    x[5, 33] = torch.nan
    x[6] = limits.min
    x[7, ::3], x[7, 1::3] = limits.max, limits.min
    x[8, 100] = limits.max
    with ts.ops.configured(**FORMS[form]):
        output = softmax(x, -1)
    torch.testing.assert_close(output, torch.softmax(x, -1), equal_nan=True)
    assert output[1].isnan().all()
    assert not output[[0, 2, 6, 7, 8]].isnan().any()


@EVERY_FORM
def test_gradient_of_masked_entries_is_zero(form: str) -> None:
    x = torch.randn(9, 300)
    x[:, ::2] = -torch.inf
    with ts.ops.configured(**FORMS[form]):
        assert_as_torchs(x, -1)


@covering(form=list(FORMS), dtype=[torch.bfloat16, torch.float16])
def test_low_precision_is_rounded_once(form: str, dtype: torch.dtype) -> None:
    x, limits = torch.randn(9, 300).to(dtype), torch.finfo(dtype)
    with ts.ops.configured(**FORMS[form]):
        output = softmax(x).double()
    half_a_step, smallest = 0.505 * limits.eps, limits.smallest_normal
    torch.testing.assert_close(output, torch.softmax(x.double(), -1), rtol=half_a_step, atol=half_a_step * smallest)


@pytest.mark.parametrize(("rows", "columns"), [(1, 262144), (2, 100003)])
def test_very_long_rows(rows: int, columns: int) -> None:
    assert_as_torchs(torch.randn(rows, columns), -1)


def test_few_long_rows_are_split_over_the_multiprocessors() -> None:
    for rows in (1, 16, 64):
        with recorded_plans("cuda:90") as plans:
            x = torch.empty(rows, 262144, dtype=torch.bfloat16, device="meta", requires_grad=True)
            softmax(x).sum().backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it so
        launches = [launch for plan in plans for launch in plan.launches]
        assert len(launches) == 4
        assert all(launch.grid[0] >= 128 for launch in launches)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (64, 4097), (64, 333), (512, 50257),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((4000, 109), (64, 5120))),
    ],
)  # fmt: skip
def test_rows_of_any_width_move_in_16_byte_vectors(rows: int, columns: int) -> None:
    with recorded_plans("cuda:90") as plans:
        x = torch.empty(rows, columns, dtype=torch.bfloat16, device="meta", requires_grad=True)
        torch.autograd.grad(softmax(x), x, torch.empty(rows, columns, dtype=torch.bfloat16, device="meta"))
    launches = [launch for plan in plans for launch in plan.launches if "softmax" in launch.kernel.__name__]
    assert launches
    for launch in launches:
        binary = compile_kernel(launch.kernel, Target.parse("cuda:90"), launch.arguments, **launch.options())
        widest = {access.kind: 0 for access in binary.accesses}
        for access in binary.accesses:
            widest[access.kind] = max(widest[access.kind], access.vector_bytes)
        assert widest["load"] == 16
        assert widest["store"] == 16


@pytest.mark.parametrize("narrower", [1, 3])
@pytest.mark.parametrize("columns", [4097, 9000, 50257])
def test_rows_aligned_unlike_the_result_are_not_told_to_be_aligned(columns: int, narrower: int) -> None:
    """A load that is told of an alignment that its row does not have faults on a GPU."""
    with recorded_plans("cuda:90") as plans:
        x = torch.empty(8, columns, dtype=torch.bfloat16, device="meta", requires_grad=True)
        wide = torch.empty(8, columns + narrower, dtype=torch.bfloat16, device="meta")
        softmax(wide[:, :columns])
        torch.autograd.grad(softmax(x), x, wide[:, :columns])
    launches = [plan.launches for plan in plans]
    assert [launch.config.EDGES for launch in launches[0]] == [False] * len(launches[0])  # type: ignore[attr-defined]  # RowConfig
    assert [launch.config.EDGES for launch in launches[2]] == [False] * len(launches[2])  # type: ignore[attr-defined]  # RowConfig


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0), (0,), (3, 0, 5)], ids=str)
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    for dim in range(len(shape)):
        assert_as_torchs(torch.randn(shape), dim)


@pytest.mark.parametrize("dim", [0, -1])
def test_a_single_number(dim: int) -> None:
    assert_as_torchs(torch.tensor(3.0), dim)


@covering(rows=(1, 9), columns=(600, 777, 1025, 2051), dtype=(torch.float32, torch.float16, torch.bfloat16))
def test_rows_in_chunks_match_float64(rows: int, columns: int, dtype: torch.dtype) -> None:
    """The last chunk of a row is part full, and rows start at any address."""
    torch.manual_seed(0)
    x, dy = torch.randn(rows, columns).mul(3).to(dtype).requires_grad_(), torch.randn(rows, columns).to(dtype)
    with ts.use("interpret"):
        y = softmax(x)
        (dx,) = torch.autograd.grad(y, x, dy)
    right = torch.softmax(x.detach().double(), -1)
    given = y.detach().double()  # the gradient is computed from the rounded result
    right_dx = given * (dy.double() - (given * dy.double()).sum(-1, keepdim=True))
    for ours, wanted in ((y, right), (dx, right_dx)):
        assert (ours.double() - wanted).norm() / wanted.norm() < 2 * torch.finfo(dtype).eps


@triton.jit
def _none_is_missing(words):  # type: ignore[no-untyped-def]
    return words[0].shape[0] == 0


@pytest.mark.parametrize("columns", [50000, 50003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_last_part_of_a_team_is_right(columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs the programs of a team one after the other. Without the wait, the last one has all parts."""
    monkeypatch.setattr(softmax_rows, "can_share", lambda plan, parts: True)
    monkeypatch.setattr(teams, "_is_missing", _none_is_missing)
    torch.manual_seed(0)
    x, dy = torch.randn(3, columns).to(dtype).requires_grad_(), torch.randn(3, columns).to(dtype)
    with ts.use("interpret"):
        y = softmax(x)
    right = torch.softmax(x.detach().double(), -1)
    last = slice(columns - 200, columns - 8)  # the edges of a row belong to the first part
    assert (y.double() - right)[:, last].norm() / right[:, last].norm() < 2 * torch.finfo(dtype).eps
    given = right.to(dtype).requires_grad_()
    with ts.use("interpret"):
        dx = softmax_backward.backward(dy, given.detach(), 1)
    exact = given.detach().double()
    right_dx = exact * (dy.double() - (exact * dy.double()).sum(-1, keepdim=True))
    assert (dx.double() - right_dx)[:, last].norm() / right_dx[:, last].norm() < 2 * torch.finfo(dtype).eps
    assert (dx.double() - right_dx)[:, :192].norm() > 1e-3 * right_dx[:, :192].norm()  # the first part did not wait
