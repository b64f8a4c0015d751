"""Arithmetic in the interpreter against PyTorch: every operation in float32, rounded once to the kernel's format."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels are Triton's language, not Python: their parameters have no Python types.

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice
from triton.language.extra.libdevice import tanh

from tilesmith.toolchain import benchmarks
from tilesmith.toolchain.benchmarks import CublasLt, single_product
from tilesmith.toolchain.interpreter import interpret, numerics
from tilesmith.toolchain.interpreter.patches import Builder

NARROW = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
FLOAT8 = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38, -3e38, 2.0**-133, 65504.0, 448.0]


def samples(count: int, seed: int = 0) -> Tensor:
    """Return float32 values of every magnitude and sign, with zeros, infinities, NaN, subnormals and ties of bf16."""
    generator = torch.Generator().manual_seed(seed)
    magnitudes = torch.exp2(torch.empty(count).uniform_(-30, 30, generator=generator))
    values = magnitudes * torch.randn(count, generator=generator)
    values[: len(SPECIAL)] = torch.tensor(SPECIAL)
    ties = (values[-count // 4 :].view(torch.int32) & ~0xFFFF) | 0x8000
    values[-count // 4 :] = ties.view(torch.float32)
    return values


def moderate(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=0, equal_nan=True)


# The formats themselves


def test_bfloat16_rounds_like_torch_for_every_upper_half_and_many_lower_halves() -> None:
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (upper | np.uint32(lower)).view(np.float32)
        expected = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
        np.testing.assert_array_equal(numerics.widen(numerics.narrow(values, "bf16"), "bf16"), expected)


def test_a_double_is_rounded_once_to_bfloat16() -> None:
    just_above_a_tie = np.array([1 + 2.0**-8 + 2.0**-40, -(1 + 2.0**-8 + 2.0**-40)])
    np.testing.assert_array_equal(
        numerics.widen(numerics.narrow(just_above_a_tie, "bf16"), "bf16"), [1 + 2.0**-7, -(1 + 2.0**-7)]
    )


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_saturates_and_otherwise_rounds_like_torch(name: str) -> None:
    values = samples(4096)
    largest = torch.finfo(FLOAT8[name]).max
    expected = values.clamp(-largest, largest).to(FLOAT8[name]).float().numpy()
    actual = numerics.widen(numerics.narrow(values.numpy(), name), name)
    np.testing.assert_array_equal(actual, expected)
    assert actual[SPECIAL.index(math.inf)] == largest


def test_rounding_toward_zero_never_grows() -> None:
    values = samples(4096).numpy()
    values = values[np.isfinite(values)]
    cut = numerics.widen(numerics.narrow(values, "bf16", toward_zero=True), "bf16")
    np.testing.assert_array_equal(cut, (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))


# Casts and arithmetic in kernels


@triton.jit
def cast_kernel(x_ptr, y_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets).to(y_ptr.dtype.element_ty))


@triton.jit
def cast_toward_zero_kernel(x_ptr, y_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    x = tl.load(x_ptr + offsets)
    tl.store(y_ptr + offsets, x.to(y_ptr.dtype.element_ty, fp_downcast_rounding="rtz"))


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.float16, torch.int32, torch.int8, torch.bool])
def test_casts_to_bfloat16_round_to_nearest_even(source: torch.dtype) -> None:
    x = samples(512).to(source) if source.is_floating_point else torch.arange(-256, 256).mul(65537).to(source)
    y = torch.empty(512, dtype=torch.bfloat16)
    interpret(cast_kernel, (1,), {"x_ptr": x, "y_ptr": y, "SIZE": 512})
    assert_same(y, x.to(torch.bfloat16))


@pytest.mark.parametrize("target", [torch.float32, torch.float64, torch.float16, torch.int32])
def test_casts_from_bfloat16(target: torch.dtype) -> None:
    x = (samples(512) if target.is_floating_point else moderate(512) * 1000).to(torch.bfloat16)
    y = torch.empty(512, dtype=target)
    interpret(cast_kernel, (1,), {"x_ptr": x, "y_ptr": y, "SIZE": 512})
    assert_same(y, x.to(target))


@pytest.mark.parametrize("float8", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("other", [torch.float32, torch.float16, torch.bfloat16])
def test_casts_to_and_from_float8(float8: torch.dtype, other: torch.dtype) -> None:
    x = samples(512).to(other)
    y, back = torch.empty(512, dtype=float8), torch.empty(512, dtype=other)
    interpret(cast_kernel, (1,), {"x_ptr": x, "y_ptr": y, "SIZE": 512})
    interpret(cast_kernel, (1,), {"x_ptr": y, "y_ptr": back, "SIZE": 512})
    largest = torch.finfo(float8).max
    assert_same(y, x.float().clamp(-largest, largest).to(float8))
    assert_same(back, y.to(other))


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16])
def test_casts_toward_zero(target: torch.dtype) -> None:
    x = moderate(512) * 100
    y = torch.empty(512, dtype=target)
    interpret(cast_toward_zero_kernel, (1,), {"x_ptr": x, "y_ptr": y, "SIZE": 512})
    assert (y.float().abs() <= x.abs()).all()
    next_away_from_zero = (y.view(torch.int16) + 1).view(target)
    assert (next_away_from_zero.float().abs() > x.abs()).all()


@triton.jit
def binary_kernel(a_ptr, b_ptr, y_ptr, SIZE: tl.constexpr, OPERATION: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    a = tl.load(a_ptr + offsets)
    b = tl.load(b_ptr + offsets)
    if OPERATION == "add":
        y = a + b
    elif OPERATION == "subtract":
        y = a - b
    elif OPERATION == "multiply":
        y = a * b
    elif OPERATION == "divide":
        y = a / b
    elif OPERATION == "maximum":
        y = tl.maximum(a, b)
    elif OPERATION == "minimum":
        y = tl.minimum(a, b)
    elif OPERATION == "where":
        y = tl.where(a < b, a, b)
    elif OPERATION == "compare":
        y = (a >= b).to(y_ptr.dtype.element_ty)
    elif OPERATION == "negate":
        y = -a
    elif OPERATION == "abs":
        y = tl.abs(a)
    elif OPERATION == "constant":
        y = a * 1.1 + 0.3
    elif OPERATION == "clamp":
        y = tl.clamp(a, -2.0, 2.0)
    elif OPERATION == "exp":
        y = tl.exp(a.to(tl.float32))
    elif OPERATION == "log":
        y = tl.log(a.to(tl.float32))
    else:
        y = tl.sqrt(a.to(tl.float32))
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty))


def bfloat16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).float()


# All get the exact float32 values of bf16 operands; the result is then rounded to bf16.
EXPECTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": torch.fmax,
    "minimum": torch.fmin,
    "where": lambda a, b: torch.where(a < b, a, b),
    "compare": lambda a, b: (a >= b).float(),
    "negate": lambda a, b: -a,
    "abs": lambda a, b: a.abs(),
    "constant": lambda a, b: bfloat16(a * bfloat16(torch.tensor(1.1))) + bfloat16(torch.tensor(0.3)),
    "clamp": lambda a, b: torch.fmin(torch.fmax(a, torch.tensor(-2.0)), torch.tensor(2.0)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("operation", EXPECTED)
def test_bfloat16_arithmetic_is_float32_rounded_once(operation: str) -> None:
    a, b = samples(1024, seed=1).to(torch.bfloat16), samples(1024, seed=2).flip(0).to(torch.bfloat16)
    y = torch.empty_like(a)
    interpret(binary_kernel, (1,), {"a_ptr": a, "b_ptr": b, "y_ptr": y, "SIZE": 1024, "OPERATION": operation})
    assert_same(y, EXPECTED[operation](a.float(), b.float()).to(torch.bfloat16))


@pytest.mark.parametrize("operation", ["exp", "log", "sqrt"])
def test_functions_of_bfloat16_round_to_the_nearest_or_next_value(operation: str) -> None:
    a = moderate(256).abs().to(torch.bfloat16)
    y = torch.empty_like(a)
    interpret(binary_kernel, (1,), {"a_ptr": a, "b_ptr": a, "y_ptr": y, "SIZE": 256, "OPERATION": operation})
    torch.testing.assert_close(y, getattr(torch, operation)(a.double()).to(torch.bfloat16), rtol=2**-8, atol=0)


@triton.jit
def fma_kernel(x_ptr, y_ptr, z_ptr, out_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    x, y, z = tl.load(x_ptr + offsets), tl.load(y_ptr + offsets), tl.load(z_ptr + offsets)
    tl.store(out_ptr + offsets, tl.fma(x, y, z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fma_rounds_once(dtype: torch.dtype) -> None:
    x, y = moderate(512, seed=1).to(dtype), moderate(512, seed=2).to(dtype)
    z = -(x.double() * y.double()).to(dtype)  # the rest is the rounding error of the product
    out = torch.empty_like(x)
    interpret(fma_kernel, (1,), {"x_ptr": x, "y_ptr": y, "z_ptr": z, "out_ptr": out, "SIZE": 512})
    assert_same(out, (x.double() * y.double() + z.double()).to(dtype))
    assert out.abs().max() > 0


# Blocks: dot, reductions, scans, atomics


@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, SIZE: tl.constexpr):
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    a = tl.load(a_ptr + rows * SIZE + columns)
    b = tl.load(b_ptr + rows * SIZE + columns)
    tl.store(c_ptr + rows * SIZE + columns, tl.dot(a, b, input_precision="ieee").to(c_ptr.dtype.element_ty))


@pytest.mark.parametrize("dtype", [*NARROW, torch.float16, torch.float32, torch.float64])
def test_dot_is_exact_up_to_float32_accumulation(dtype: torch.dtype) -> None:
    a, b = moderate(32, 32, seed=1).to(dtype), moderate(32, 32, seed=2).to(dtype)
    c = torch.empty(32, 32, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    interpret(dot_kernel, (1,), {"a_ptr": a, "b_ptr": b, "c_ptr": c, "SIZE": 32})
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@triton.jit
def dot_scaled_kernel(a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, FORMAT: tl.constexpr, GROUP: tl.constexpr):
    rows = tl.arange(0, 16)[:, None]
    packed: tl.constexpr = 32 if FORMAT == "e2m1" else 64
    groups: tl.constexpr = 64 // GROUP
    a = tl.load(a_ptr + rows * packed + tl.arange(0, packed)[None, :])
    b = tl.load(b_ptr + rows * packed + tl.arange(0, packed)[None, :])
    scales = rows * groups + tl.arange(0, groups)[None, :]
    a_scale, b_scale = tl.load(a_scale_ptr + scales), tl.load(b_scale_ptr + scales)
    c = tl.dot_scaled(a, a_scale, FORMAT, b.trans(), b_scale, FORMAT)
    tl.store(c_ptr + rows * 16 + tl.arange(0, 16)[None, :], c)


@pytest.mark.parametrize(("scale_dtype", "group"), [(torch.float8_e4m3fn, 16), (torch.uint8, 32)])
@pytest.mark.parametrize("operand_format", ["e2m1", "e4m3"])
def test_scaled_dot_takes_scales_of_both_formats(operand_format: str, scale_dtype: torch.dtype, group: int) -> None:
    generator = torch.Generator().manual_seed(0)
    operands, scales, values = [], [], []
    for _ in range(2):
        if operand_format == "e2m1":
            halves = torch.randint(0, 16, (16, 64), generator=generator)
            sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
            exact = sizes[halves % 8] * (1 - 2 * (halves // 8))
            operands.append((halves[:, ::2] + 16 * halves[:, 1::2]).to(torch.uint8))
        else:
            operands.append(torch.randn(16, 64, generator=generator).to(torch.float8_e4m3fn))
            exact = operands[-1].float()
        if scale_dtype == torch.uint8:
            scales.append(torch.randint(120, 134, (16, 64 // group), generator=generator).to(torch.uint8))
            factors = torch.exp2(scales[-1].float() - 127)
        else:
            scales.append(torch.rand(16, 64 // group, generator=generator).to(scale_dtype))
            factors = scales[-1].float()
        values.append(exact * factors.repeat_interleave(group, 1))
    c = torch.empty(16, 16)
    arguments = {
        "a_ptr": operands[0],
        "a_scale_ptr": scales[0],
        "b_ptr": operands[1],
        "b_scale_ptr": scales[1],
        "c_ptr": c,
    }
    interpret(dot_scaled_kernel, (1,), {**arguments, "FORMAT": operand_format, "GROUP": group})
    torch.testing.assert_close(c, values[0] @ values[1].T)


@pytest.mark.parametrize("operand_format", ["nvfp4", "mxfp8"])
def test_stand_in_of_cublas_multiplies_scaled_blocks(operand_format: str) -> None:
    generator = torch.Generator().manual_seed(0)
    group = 16 if operand_format == "nvfp4" else 32
    operands, scales, values = [], [], []
    for rows in (128, 256):
        shape = (rows // 128, 256 // group // 4, 32, 16)
        if operand_format == "nvfp4":
            halves = torch.randint(0, 16, (rows, 256), generator=generator)
            exact = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[halves % 8] * (1 - 2 * (halves // 8))
            operands.append((halves[:, ::2] + 16 * halves[:, 1::2]).to(torch.uint8))
            scales.append(
                torch.rand(rows // 128, 256 // group // 4, 32, 16, generator=generator).to(torch.float8_e4m3fn)
            )
            factors = scales[-1].float()
        else:
            operands.append(torch.randn(rows, 256, generator=generator).to(torch.float8_e4m3fn))
            exact = operands[-1].float()
            scales.append(torch.randint(120, 130, shape, generator=generator).to(torch.uint8))
            factors = torch.exp2(scales[-1].float() - 127)
        row, column = torch.arange(rows)[:, None], torch.arange(256)[None, :] // group
        values.append(exact * factors[row // 128, column // 4, row % 32, row // 32 % 4 * 4 + column % 4])
    c = torch.zeros(128, 256, dtype=torch.float16)
    multiply = getattr(CublasLt(None), f"block_scaled_matmul_{operand_format}")
    multiply(*operands, c, *(scale.flatten() for scale in scales))
    torch.testing.assert_close(c.float(), values[0] @ values[1].T, rtol=1e-3, atol=1e-1)


def test_last_large_product_is_kept_until_an_operand_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "_LARGE_PRODUCT", 1)
    a, b = torch.randn(5, 7), torch.randn(3, 7)
    first = single_product(a, b.T)
    assert single_product(a.clone(), b.T.contiguous()) is first
    a[4, 6] += 1
    torch.testing.assert_close(single_product(a, b.T), a @ b.T)
    torch.testing.assert_close(single_product(b, a.T), b @ a.T)


@triton.jit
def reduce_kernel(x_ptr, y_ptr, index_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OPERATION: tl.constexpr):
    rows = tl.arange(0, ROWS)
    x = tl.load(x_ptr + rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    if OPERATION == "sum":
        y = tl.sum(x, axis=-1)
    elif OPERATION == "max":
        y = x.max(axis=1)
    elif OPERATION == "min":
        y = tl.min(x, axis=1)
    elif OPERATION == "argmax":
        y, index = tl.max(x, axis=1, return_indices=True)
        tl.store(index_ptr + rows, index)
    else:
        y, index = tl.min(x, axis=1, return_indices=True)
        tl.store(index_ptr + rows, index)
    tl.store(y_ptr + rows, y.to(y_ptr.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("operation", ["sum", "max", "min", "argmax", "argmin"])
def test_reductions(operation: str, dtype: torch.dtype) -> None:
    x = (moderate(16, 64) * 100).to(dtype)
    y, index = torch.empty(16, dtype=dtype), torch.full((16,), -1, dtype=torch.int32)
    arguments = {"x_ptr": x, "y_ptr": y, "index_ptr": index, "ROWS": 16, "COLUMNS": 64, "OPERATION": operation}
    interpret(reduce_kernel, (1,), arguments)
    if operation == "sum":
        expected = x.double().sum(1).to(dtype)
        rounding = torch.finfo(dtype).eps * 6 if dtype.is_floating_point else 0.0  # six levels of halving
        torch.testing.assert_close(y, expected, rtol=rounding, atol=rounding * 500)
        return
    smallest = operation in ("min", "argmin")
    assert_same(y, (x.amin(1) if smallest else x.amax(1)))
    if operation.startswith("arg"):
        assert (index == (x.argmin(1) if smallest else x.argmax(1))).all()


@triton.jit
def fast_argmax_kernel(x_ptr, index_ptr, COLUMNS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, COLUMNS))
    tl.store(index_ptr, tl.argmax(x, axis=0, tie_break_left=False))
    tl.store(index_ptr + 1, tl.argmin(x, axis=0, tie_break_left=False))


def test_fast_argmax_does_not_promise_the_first_of_equal_elements() -> None:
    index = torch.empty(2, dtype=torch.int32)
    x = torch.tensor([1.0, 3.0, 0.0, 3.0, 0.0, 2.0, 3.0, 1.0])
    interpret(fast_argmax_kernel, (1,), {"x_ptr": x, "index_ptr": index, "COLUMNS": 8})
    assert index.tolist() == [6, 4]


def test_max_passes_over_nan_and_argmax_finds_the_first_largest() -> None:
    x = torch.tensor([[math.nan, 1.0, 3.0, 3.0], [-math.inf, math.nan, -5.0, -math.inf]])
    y, index = torch.empty(2), torch.empty(2, dtype=torch.int32)
    arguments = {"x_ptr": x, "y_ptr": y, "index_ptr": index, "ROWS": 2, "COLUMNS": 4, "OPERATION": "argmax"}
    interpret(reduce_kernel, (1,), arguments)
    assert y.tolist() == [3.0, -5.0]
    assert index.tolist() == [2, 2]
    arguments["OPERATION"] = "max"
    interpret(reduce_kernel, (1,), arguments)
    assert y.tolist() == [3.0, -5.0]


@triton.jit
def scan_kernel(x_ptr, y_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(y_ptr + place, tl.cumsum(tl.load(x_ptr + place), axis=AXIS, reverse=REVERSE).to(y_ptr.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_sums(axis: int, reverse: bool, dtype: torch.dtype) -> None:
    x = (moderate(8, 16) * 10).to(dtype)
    y = torch.empty_like(x)
    interpret(scan_kernel, (1,), {"x_ptr": x, "y_ptr": y, "ROWS": 8, "COLUMNS": 16, "AXIS": axis, "REVERSE": reverse})
    expected = x.double().flip(axis).cumsum(axis).flip(axis) if reverse else x.double().cumsum(axis)
    rounding = torch.finfo(dtype).eps * 4 if dtype.is_floating_point else 0.0
    torch.testing.assert_close(y, expected.to(dtype), rtol=rounding, atol=rounding * 100)


@triton.jit
def atomic_kernel(x_ptr, total_ptr, before_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    before = tl.atomic_add(total_ptr + offsets % 4, tl.load(x_ptr + offsets), mask=offsets < SIZE - 1)
    tl.store(before_ptr + offsets, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_atomic_add_rounds_after_each_addition_and_returns_what_was_there(dtype: torch.dtype) -> None:
    x = moderate(32).to(dtype)
    total, before = torch.ones(4, dtype=dtype), torch.zeros(32, dtype=dtype)
    interpret(atomic_kernel, (1,), {"x_ptr": x, "total_ptr": total, "before_ptr": before, "SIZE": 32})
    expected = torch.ones(4, dtype=dtype)
    for lane in range(31):
        assert before[lane] == expected[lane % 4]
        expected[lane % 4] += x[lane]
    assert_same(total, expected)


# Other errors of the stock interpreter


@triton.jit
def wrapping_kernel(x_ptr, y_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    x = tl.load(x_ptr + offsets)
    tl.store(y_ptr + offsets, x + x)


def test_integers_wrap_as_on_hardware() -> None:
    x = torch.tensor([2**31 - 1, -(2**31), 5, 2**30], dtype=torch.int32)
    y = torch.empty_like(x)
    interpret(wrapping_kernel, (1,), {"x_ptr": x, "y_ptr": y, "SIZE": 4})
    assert torch.equal(y, x + x)


def test_does_not_pay_for_overflow_checks_that_hardware_does_not_make() -> None:
    assert not Builder().options.sanitize_overflow


@triton.jit
def inverting_kernel(x_ptr, y_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    tl.store(y_ptr + offsets, ~tl.load(x_ptr + offsets))


UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", [*UNSIGNED, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool])
def test_inverts_integers_with_and_without_a_sign(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 0, 77]).to(dtype)
    y = torch.empty_like(x)
    interpret(inverting_kernel, (1,), {"x_ptr": x, "y_ptr": y, "SIZE": 4})
    np.testing.assert_array_equal(y.numpy(), ~x.numpy())


@triton.jit
def slips_kernel(x_ptr, y_ptr, count_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    x = tl.load(x_ptr + offsets)
    inside = x > 0
    one_bit_sum = (inside + inside).to(tl.int32)
    shifted = x >> 1
    tl.store(y_ptr + offsets, one_bit_sum * 100 + shifted)
    tl.store(count_ptr + offsets, tl.histogram(x, SIZE))


def test_one_bit_sums_wrap_and_histograms_drop_what_is_outside() -> None:
    x = torch.tensor([0, 1, 1, 4, 7, 8, -3, 5], dtype=torch.int32)
    y, counts = torch.empty_like(x), torch.empty_like(x)
    interpret(slips_kernel, (1,), {"x_ptr": x, "y_ptr": y, "count_ptr": counts, "SIZE": 8})
    assert y.tolist() == (x >> 1).tolist()
    assert counts.tolist() == [1, 2, 0, 0, 1, 1, 0, 1]


@triton.jit
def scalars_kernel(x_ptr, y_ptr, large, factor, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    tl.store(y_ptr + offsets, (tl.load(x_ptr + offsets) * factor).to(tl.float64) + (large * 2).to(tl.float64))


def test_scalar_arguments_have_the_types_the_compiler_gives_them() -> None:
    x, y = moderate(8).half(), torch.empty(8, dtype=torch.float64)
    large, factor = 3_000_000_000, 1.0 / 3.0
    interpret(scalars_kernel, (1,), {"x_ptr": x, "y_ptr": y, "large": large, "factor": factor, "SIZE": 8})
    # A float argument is float32, so it lifts a block of float16; an integer beyond 31 bits is int64.
    product = (x.float() * torch.tensor(factor, dtype=torch.float32)).double()
    assert_same(y, product + float(2 * large))


@triton.jit
def quotient_kernel(x_ptr, y_ptr, z_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    tl.store(z_ptr + offsets, tl.load(x_ptr + offsets) / tl.load(y_ptr + offsets))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_quotient_of_two_half_types_is_single_precision(dtype: torch.dtype) -> None:
    x, y, z = torch.tensor([1.0, 2, 5, 7]).to(dtype), torch.tensor([3.0, 3, 7, 3]).to(dtype), torch.empty(4)
    interpret(quotient_kernel, (1,), {"x_ptr": x, "y_ptr": y, "z_ptr": z, "SIZE": 4})
    assert_same(z, x.float() / y.float())


@triton.jit
def libdevice_kernel(x_ptr, y_ptr, z_ptr, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    x = tl.load(x_ptr + offsets)
    tl.store(y_ptr + offsets, tanh(x))
    tl.store(z_ptr + offsets, libdevice.pow(x, 3.0))


def test_libdevice_functions_compute() -> None:
    x = moderate(16)
    y, z = torch.empty_like(x), torch.empty_like(x)
    interpret(libdevice_kernel, (1,), {"x_ptr": x, "y_ptr": y, "z_ptr": z, "SIZE": 16})
    torch.testing.assert_close(y, x.tanh())
    torch.testing.assert_close(z, x**3)


def test_floats_beyond_an_integer_saturate_as_on_a_gpu() -> None:
    values = np.array([np.nan, 1e20, -1e20, 2.9, -2.9, 2147483648.0, np.inf, -np.inf], np.float32)
    largest, smallest = 2**31 - 1, -(2**31)
    assert numerics.converted(values, np.int32).tolist() == [0, largest, smallest, 2, -2, largest, largest, smallest]
    assert numerics.converted(values, np.uint32).tolist() == [0, 2**32 - 1, 0, 2, 0, 2147483648, 2**32 - 1, 0]
