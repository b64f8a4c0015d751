# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels have Triton's types, not Python's.
"""TMA descriptors in plans: which layouts they support, and how tensors replace operands in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

import tilesmith as ts
from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.kernels import Kernels, recorded_plans
from tilesmith.ops.runtime.plan import Operand, Plan
from tilesmith.toolchain.compiler import Target, compile_kernel

ROWS, COLUMNS = 16, 32


@triton.jit
def double_kernel(x, y, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    for column in range(0, n_columns, COLUMNS):
        y.store([row, column], x.load([row, column]) * 2)


def double(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def plan_double(plan: Plan, x: Operand) -> Operand:
    y = plan.empty(x.shape, x.dtype)
    block = (ROWS, COLUMNS)
    plan.launch(
        double_kernel, (triton.cdiv(x.shape[0], ROWS),), Config(),
        x=x.descriptor(block), y=y.descriptor(block), n_columns=x.shape[1], ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip
    return y


DOUBLE = Kernels("double_by_descriptors", double)
DOUBLE.plan(plan_double)


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with ts.use("interpret"):
        yield


@pytest.mark.parametrize("shape", [(16, 32), (37, 68), (1, 4), (50, 4)], ids=str)
def test_kernel_with_descriptors_is_right_at_every_edge(shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(DOUBLE(x), 2 * x)


def test_descriptor_of_a_view_needs_no_copy() -> None:
    x = torch.randn(40, 128)[::2, :36]
    torch.testing.assert_close(DOUBLE(x), 2 * x)


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_descriptors_compile_for_gpus_with_and_without_tma(target: str) -> None:
    with recorded_plans(target) as plans:
        DOUBLE(torch.empty(64, 64, device="meta"))
    (launch,) = plans[0].launches
    binary = compile_kernel(launch.kernel, Target.parse(target), launch.arguments, **launch.options())
    assert binary.spill_bytes == 0
    assert ("cp.async.bulk.tensor" in binary.assembly.get("ptx", "")) is (target == "cuda:90")


def test_launch_knows_the_operands_of_its_descriptors() -> None:
    with recorded_plans() as plans:
        DOUBLE(torch.empty(64, 64, device="meta"))
    (launch,) = plans[0].launches
    x, y = launch.operands()
    assert [x.slot, y.slot] == [0, 1]
    tensors = [torch.zeros(64, 64), torch.ones(64, 64)]
    arguments = launch.on(tensors)
    assert isinstance(arguments["y"], TensorDescriptor)
    assert arguments["y"].base is tensors[1]
    assert arguments["y"].block_shape == [ROWS, COLUMNS]
    assert arguments["n_columns"] == 64


@pytest.mark.parametrize(
    ("shape", "strides", "aligned", "expected"),
    [
        ((64, 64), (64, 1), True, True),
        ((64, 64), (64, 1), False, False),
        ((64, 60), (60, 1), True, False),  # 120 bytes from row to row
        ((64, 56), (56, 1), True, True),
        ((64, 64), (1, 64), True, False),
        ((64, 64), (0, 1), True, False),
        ((0, 64), (64, 1), True, False),
        ((4, 64, 64), (4096, 64, 1), True, True),
        ((64,), (1,), True, True),
        ((2, 2, 2, 2, 2, 64), (1024, 512, 256, 128, 64, 1), True, False),  # five dimensions at most
    ],
)
def test_describable_follows_the_limits_of_tma(
    shape: tuple[int, ...], strides: tuple[int, ...], aligned: bool, expected: bool
) -> None:
    assert Operand(0, shape, strides, torch.bfloat16, aligned).describable() is expected
