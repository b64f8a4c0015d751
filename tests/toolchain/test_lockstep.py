# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels carry no types: Triton reads their annotations as its own.
"""Programs performed together give what they give one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tilesmith.toolchain.interpreter import (
    Access,
    Launched,
    Observer,
    OutOfBounds,
    interpret,
    interpret_together,
    numerics,
    patches,
    tiles,
)

Program = tuple[int, int, int]


@triton.jit
def norm_kernel(x_ptr, w_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, mask=columns < n)
    scale = tl.rsqrt(tl.sum(x * x, 0) / n + 1e-6)
    tl.store(y_ptr + row * n + columns, (x * scale * w).to(tl.bfloat16), mask=columns < n)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.program_id(1)
    rows, columns = row * BLOCK + tl.arange(0, BLOCK), column * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(tl.cdiv(K, BLOCK)):
        depth = k * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * K + depth[None, :], mask=(rows[:, None] < M) & (depth < K), other=0.0)
        b = tl.load(b_ptr + depth[:, None] * N + columns[None, :], mask=(depth[:, None] < K) & (columns < N), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + columns, total, mask=(rows[:, None] < M) & (columns < N))


@triton.jit
def branches_kernel(x_ptr, lengths_ptr, y_ptr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    length = tl.load(lengths_ptr + row)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(length):
        total += tl.load(x_ptr + row * BLOCK + tl.arange(0, BLOCK)) * start
    if row % 3 == 1:
        total = -total
    tl.store(y_ptr + row * BLOCK + tl.arange(0, BLOCK), total)


@triton.jit
def order_kernel(x_ptr, i_ptr, s_ptr, m_ptr, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes)
    best, where = tl.max(x, 0, return_indices=True)
    tl.store(m_ptr + tl.program_id(0), best)
    tl.store(i_ptr + tl.program_id(0), where)
    left, right = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
    mixed = tl.reshape(tl.join(right, left), (BLOCK,))
    tl.store(s_ptr + lanes, tl.cumsum(tl.sort(mixed), 0, reverse=True))


@triton.jit
def atomics_kernel(x_ptr, sum_ptr, count_ptr, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(sum_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + lanes))
    tl.atomic_add(count_ptr, 1)


@triton.jit
def in_place_kernel(x_ptr, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + lanes, tl.load(x_ptr + lanes) * 2)
    tl.debug_barrier()
    tl.store(x_ptr + lanes, tl.load(x_ptr + lanes) + 1)


@triton.jit
def persistent_kernel(a, b, c_ptr, M, N, K, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    columns = tl.cdiv(N, BLOCK)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK) * columns, PROGRAMS):
        row, column = tile // columns * BLOCK, tile % columns * BLOCK
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, K, BLOCK):
            total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
        c.store([row, column], total)


@triton.jit
def scaled_kernel(a_ptr, scale_ptr, c_ptr, SIZE: tl.constexpr):
    rows = tl.program_id(0) * SIZE + tl.arange(0, SIZE)[:, None]
    a = tl.load(a_ptr + rows * 32 + tl.arange(0, 32)[None, :])
    scale = tl.load(scale_ptr + rows * 2 + tl.arange(0, 2)[None, :])
    c = tl.dot_scaled(a, scale, "e2m1", a.trans(), None, "e2m1")
    tl.store(c_ptr + rows * SIZE + tl.arange(0, SIZE)[None, :], c)


@triton.jit
def shared_kernel(a_ptr, scale_ptr, b_ptr, c_ptr, n, COLUMNS: tl.constexpr, SIZE: tl.constexpr):
    row, column = tl.program_id(0) // COLUMNS, tl.program_id(0) % COLUMNS
    rows, columns = row * SIZE + tl.arange(0, SIZE), column * SIZE + tl.arange(0, SIZE)
    depth = tl.arange(0, 32)
    a = tl.load(a_ptr + rows[:, None] * 32 + depth[None, :], mask=rows[:, None] < n, other=0)
    b = tl.load(b_ptr + columns[None, :] * 32 + depth[:, None])
    scale = tl.load(scale_ptr + rows[:, None] * 2 + tl.arange(0, 2)[None, :])
    other_scale = tl.load(scale_ptr + columns[:, None] * 2 + tl.arange(0, 2)[None, :])  # a product of both groups
    c = tl.dot_scaled(a, scale, "e2m1", b, other_scale, "e2m1")
    c = tl.dot_scaled(a, other_scale, "e2m1", b, None, "e2m1", c)
    c = tl.dot(c, tl.sum(b.to(tl.float32), 0)[:, None] + tl.zeros((SIZE, SIZE), tl.float32), c) + row
    tl.store(c_ptr + rows[:, None] * COLUMNS * SIZE + columns[None, :], c)


@triton.jit
def random_kernel(y_ptr, seed, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + lanes, tl.where(tl.rand(seed, lanes) > 0.5, tl.erf(tl.exp(lanes / 64.0)), float("nan")))


@triton.jit
def ticket_kernel(x_ptr, ticket_ptr, y_ptr, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + lanes, lanes)
    if tl.atomic_add(ticket_ptr, 1) == tl.num_programs(0) - 1:
        tl.store(y_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK)), 0))


def _integers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


def _norm() -> tuple[Any, Program, dict[str, Any]]:
    x = torch.randn(40, 50).half()
    return (
        norm_kernel,
        (40, 1, 1),
        {"x_ptr": x, "w_ptr": torch.randn(50), "y_ptr": torch.zeros(40, 50).bfloat16(), "n": 50, "BLOCK": 64},
    )


def _matmul() -> tuple[Any, Program, dict[str, Any]]:
    a, b, c = torch.randn(70, 40), torch.randn(40, 90), torch.zeros(70, 90)
    return matmul_kernel, (5, 6, 1), {"a_ptr": a, "b_ptr": b, "c_ptr": c, "M": 70, "N": 90, "K": 40, "BLOCK": 16}


def _persistent() -> tuple[Any, Program, dict[str, Any]]:
    a, b = (TensorDescriptor.from_tensor(torch.randn(rows, 40).half(), [16, 16]) for rows in (70, 88))
    sizes = {"M": 70, "N": 88, "K": 40, "BLOCK": 16, "PROGRAMS": 20}  # 30 tiles: half of the programs have one more
    return persistent_kernel, (20, 1, 1), {"a": a, "b": b, "c_ptr": torch.zeros(70, 88), **sizes}


def _scaled() -> tuple[Any, Program, dict[str, Any]]:
    a = torch.randint(0, 256, (320, 32), dtype=torch.uint8)
    scale = torch.randint(120, 134, (320, 2), dtype=torch.uint8)
    return scaled_kernel, (20, 1, 1), {"a_ptr": a, "scale_ptr": scale, "c_ptr": torch.zeros(320, 16), "SIZE": 16}


def _shared() -> tuple[Any, Program, dict[str, Any]]:
    a, b = (torch.randint(0, 256, (128, 32), dtype=torch.uint8) for _ in range(2))
    scale = torch.randint(125, 129, (128, 2), dtype=torch.uint8)
    tensors = {"a_ptr": a, "scale_ptr": scale, "b_ptr": b, "c_ptr": torch.zeros(128, 128)}
    return shared_kernel, (64, 1, 1), {**tensors, "n": 120, "COLUMNS": 8, "SIZE": 16}


def _branches() -> tuple[Any, Program, dict[str, Any]]:
    lengths = torch.arange(60, dtype=torch.int32) % 2 + 1
    return (
        branches_kernel,
        (60, 1, 1),
        {"x_ptr": torch.randn(60, 8), "lengths_ptr": lengths, "y_ptr": torch.zeros(60, 8), "BLOCK": 8},
    )


def _order() -> tuple[Any, Program, dict[str, Any]]:
    shape = torch.zeros(20, 16)
    return (
        order_kernel,
        (20, 1, 1),
        {
            "x_ptr": torch.randn(20, 16),
            "i_ptr": torch.zeros(20).int(),
            "s_ptr": shape,
            "m_ptr": torch.zeros(20),
            "BLOCK": 16,
        },
    )


def _atomics() -> tuple[Any, Program, dict[str, Any]]:
    # Whole numbers: their sum does not depend on the order.
    return (
        atomics_kernel,
        (24, 1, 1),
        {
            "x_ptr": _integers(24 * 8),
            "sum_ptr": torch.zeros(8),
            "count_ptr": torch.zeros(1, dtype=torch.int32),
            "BLOCK": 8,
        },
    )


def _in_place() -> tuple[Any, Program, dict[str, Any]]:
    return in_place_kernel, (24, 1, 1), {"x_ptr": _integers(24 * 8), "BLOCK": 8}


def _random() -> tuple[Any, Program, dict[str, Any]]:
    return random_kernel, (24, 1, 1), {"y_ptr": torch.zeros(24 * 8), "seed": 7, "BLOCK": 8}


def _ticket() -> tuple[Any, Program, dict[str, Any]]:
    return (
        ticket_kernel,
        (24, 1, 1),
        {
            "x_ptr": torch.zeros(24 * 8),
            "ticket_ptr": torch.zeros(1, dtype=torch.int32),
            "y_ptr": torch.zeros(1),
            "BLOCK": 8,
        },
    )


def _programs(grid: Program) -> list[Program]:
    return [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]


def _copied(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: one.clone() if isinstance(one, torch.Tensor) else one for name, one in arguments.items()}


@pytest.mark.parametrize(
    "case", [_norm, _matmul, _persistent, _scaled, _shared, _branches, _order, _atomics, _in_place, _random]
)
def test_programs_together_give_what_they_give_one_by_one(case: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    kernel, grid, arguments = case()
    alone, together = _copied(arguments), _copied(arguments)
    interpret(kernel, grid, alone)
    left = interpret_together(Launched(kernel, grid, together, {}), None, _programs(grid))
    assert left == []
    for name, expected in alone.items():
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(together[name], expected, rtol=0, atol=0, equal_nan=True)


def test_kernel_that_branches_on_a_ticket_runs_one_by_one() -> None:
    kernel, grid, arguments = _ticket()
    before = _copied(arguments)
    left = interpret_together(Launched(kernel, grid, arguments, {}), None, _programs(grid))
    assert left == _programs(grid)
    for name, value in before.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(arguments[name], value, rtol=0, atol=0)


@triton.jit
def far_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + lanes, tl.load(x_ptr + lanes, mask=lanes < n, other=0.0))


class _Seen(Observer):
    def __init__(self) -> None:
        self.errors: list[OutOfBounds] = []
        self.stored = 0

    def store(self, access: Access) -> None:
        self.stored += int(np.count_nonzero(access.mask))

    def out_of_bounds(self, error: OutOfBounds) -> None:
        self.errors.append(error)


def test_out_of_bounds_store_names_its_program_and_line() -> None:
    x, y = torch.randn(150), torch.zeros(150)
    seen, grid = _Seen(), (20, 1, 1)
    launched = Launched(far_kernel, grid, {"x_ptr": x, "y_ptr": y, "n": 150, "BLOCK": 8}, {})
    assert interpret_together(launched, seen, _programs(grid)) == []
    torch.testing.assert_close(y, x, rtol=0, atol=0)
    assert {error.access.program for error in seen.errors} == {(18, 0, 0), (19, 0, 0)}
    line = far_kernel.fn.__code__.co_firstlineno + 3
    assert {(error.access.file, error.access.line) for error in seen.errors} == {(__file__, line)}
    assert seen.stored == 160


class _OnlyWrites(_Seen):
    only_writes = True

    def load(self, access: Access) -> None:
        raise AssertionError("a load is shown")


def test_out_of_bounds_load_that_programs_share_names_each_program() -> None:
    kernel, grid, arguments = _shared()
    arguments["a_ptr"] = arguments["a_ptr"][:112].clone()  # without the rows of the last 8 programs
    seen = _Seen()
    seen.only_writes = True
    assert interpret_together(Launched(kernel, grid, arguments, {}), seen, _programs(grid)) == []
    assert {error.access.program[0] for error in seen.errors} == set(range(56, 64))


def test_programs_load_and_convert_a_shared_operand_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, grid, arguments = _shared()
    converted: list[int] = []

    def counted(values: Any, *rest: Any) -> Any:
        converted.append(len(values) if values.ndim == 3 else 0)
        return numerics.scaled_operand(values, *rest)

    monkeypatch.setattr(patches, "scaled_operand", counted)
    assert interpret_together(Launched(kernel, grid, arguments, {}), None, _programs(grid)) == []
    assert converted[-4:] == [8, 8, 64, 8]  # rows, columns, rows with the scales of columns, columns


@pytest.mark.parametrize("together", [False, True])
def test_tiles_copied_row_by_row_are_those_at_their_addresses(together: bool) -> None:
    torch.manual_seed(0)
    kernel, grid, arguments = _persistent()
    expected, found = _copied(arguments), _copied(arguments)
    interpret(kernel, grid, expected, Observer())  # sees every address
    quiet = _OnlyWrites()
    if together:
        assert interpret_together(Launched(kernel, grid, found, {}), quiet, _programs(grid)) == []
    else:
        interpret(kernel, grid, found, quiet)
    torch.testing.assert_close(found["c_ptr"], expected["c_ptr"], rtol=0, atol=0)
    assert quiet.stored == 70 * 88


def test_loads_of_tiles_inside_their_tensor_need_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _, arguments = _persistent()
    whole = TensorDescriptor.from_tensor(torch.randn(80, 48).half(), [16, 16])
    arguments |= {"a": whole, "b": whole, "c_ptr": torch.zeros(80, 80), "M": 80, "N": 80, "K": 48, "PROGRAMS": 25}
    made: set[str] = set()  # arguments whose addresses are made for several programs
    addresses_of = tiles.addresses_of

    def noting(block: Any, base: Any, *fields: Any) -> Any:
        if max(np.size(one.data) for one in fields) > 1:
            made.add(base.dtype.argument)
        return addresses_of(block, base, *fields)

    monkeypatch.setattr(tiles, "addresses_of", noting)
    assert interpret_together(Launched(kernel, (25, 1, 1), arguments, {}), None, _programs((25, 1, 1))) == []
    assert made == {"c_ptr"}
    product = whole.base.float() @ whole.base.float().T
    torch.testing.assert_close(arguments["c_ptr"], product, rtol=1e-3, atol=1e-3)
