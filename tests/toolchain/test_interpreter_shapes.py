"""The interpreter's cached shapes equal those that Triton's front end computes."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels are Triton's language, not Python: their parameters have no Python types.

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import TensorHandle

from tilesmith.toolchain.interpreter import KernelError, interpret
from tilesmith.toolchain.interpreter.language import Language
from tilesmith.toolchain.interpreter.numerics import handle_of
from tilesmith.toolchain.interpreter.shapes import Shapes, quick_operators

# Triton 3.6 makes every constant that equals zero a zero without sign.
LOSES_SIGN_OF_ZERO = "if value == 0:" in inspect.getsource(TritonSemantic.scalar_constant)


@triton.jit
def ones_kernel(y_ptr, LENGTH: tl.constexpr, OTHER: tl.constexpr):
    ones = tl.full([LENGTH], 1.0, tl.float32) + tl.zeros([OTHER], tl.float32)
    tl.store(y_ptr + tl.arange(0, 4), ones)


@triton.jit
def numbers_kernel(x_ptr, y_ptr, NUMBER: tl.constexpr):
    places = tl.arange(0, 4)
    tl.store(y_ptr + places, tl.load(x_ptr + places) * NUMBER)


@triton.jit
def product_kernel(x_ptr, y_ptr, product_ptr, bits_ptr):
    product = tl.load(x_ptr) * tl.load(y_ptr)
    tl.store(product_ptr, product.to(tl.float64))
    tl.store(bits_ptr, product.dtype.primitive_bitwidth)


@triton.jit
def outer_kernel(x_ptr, y_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    for _ in range(2):
        sums = tl.load(x_ptr + rows)[:, None] + tl.load(x_ptr + columns)[None, :]
        tl.store(y_ptr + rows[:, None] * COLUMNS + columns[None, :], sums)


def attributes(value: Any) -> dict[str, str]:
    """Return the fields as text, without the one that the interpreter adds: Triton's values overload comparison."""
    return {name: repr(value) for name, value in vars(value).items() if name != "of_tensor"}


@pytest.mark.parametrize("element", [tl.float32, tl.pointer_type(tl.bfloat16)], ids=str)
@pytest.mark.parametrize("lengths", [[4], [2, 8], [tl.constexpr(2), 8], tl.tuple([1, 1, 16])], ids=str)
def test_types_and_tensors_are_as_triton_makes_them_the_first_time_and_later(element: Any, lengths: Any) -> None:
    make_type, make_tensor = Shapes().constructors()
    right = tl.block_type(element, lengths)
    for _ in range(2):
        made = object.__new__(tl.block_type)
        make_type(made, element, lengths)
        assert made == right
        assert attributes(made) == attributes(right)
        for kind in (made, element):
            tensor = object.__new__(tl.tensor)
            make_tensor(tensor, "handle", kind)
            assert attributes(tensor) == attributes(tl.tensor("handle", kind))


@pytest.mark.parametrize(
    ("length", "other", "said"),
    [(4.0, 4, "must have type `constexpr"), (3, 4, "must be a power of 2"), (4, 8, "incompatible dimensions")],
)
def test_invalid_shape_raises_also_after_a_valid_one(length: Any, other: int, said: str) -> None:
    y = torch.zeros(4)
    interpret(ones_kernel, (1,), {"y_ptr": y, "LENGTH": 4, "OTHER": 4})
    torch.testing.assert_close(y, torch.ones(4))
    with pytest.raises(KernelError, match=said):
        interpret(ones_kernel, (1,), {"y_ptr": y, "LENGTH": length, "OTHER": other})


def test_fractional_length_raises_also_after_its_equal() -> None:
    make_type, _ = Shapes().constructors()
    make_type(object.__new__(tl.block_type), tl.float32, [4])
    with pytest.raises(TypeError, match="must have type"):
        make_type(object.__new__(tl.block_type), tl.float32, [4.0])


def test_same_number_of_another_dtype_type_or_sign_is_another_constant() -> None:
    """Every combination runs twice: the second time, the interpreter knows the constant."""
    for _ in range(2):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64):
            for number in (3, 3.0, 0.0, -0.0, 0, -1):
                if not dtype.is_floating_point and isinstance(number, float):
                    continue
                x, y = torch.tensor([1, 2, 3, 5]).to(dtype), torch.full([4], 7).to(dtype)
                interpret(numbers_kernel, (1,), {"x_ptr": x, "y_ptr": y, "NUMBER": number})
                torch.testing.assert_close(y, x * number, rtol=0, atol=0)
                if dtype.is_floating_point and (number or not LOSES_SIGN_OF_ZERO):
                    assert torch.equal(torch.signbit(y), torch.signbit(x * number)), (dtype, number)


def test_two_dtypes_are_promoted_as_in_torch_the_first_time_and_later() -> None:
    largest = {
        torch.int32: -3,
        torch.int64: 1 << 33,
        torch.float16: 0.5,
        torch.float32: 1 + 2**-20,
    }
    product, bits = torch.empty(1, dtype=torch.float64), torch.empty(1, dtype=torch.int32)
    for _ in range(2):
        for left, right in itertools.product(largest, repeat=2):
            x, y = torch.tensor([largest[left]], dtype=left), torch.tensor([largest[right]], dtype=right)
            tensors = {"x_ptr": x, "y_ptr": y, "product_ptr": product, "bits_ptr": bits}
            interpret(product_kernel, (1,), tensors)
            assert bits.item() == 8 * torch.promote_types(left, right).itemsize
            assert product.item() == (x * y).double().item()


def test_number_out_of_range_raises_also_after_one_in_range() -> None:
    x = torch.ones(4, dtype=torch.int8)
    for _ in range(2):
        interpret(numbers_kernel, (1,), {"x_ptr": x, "y_ptr": x.clone(), "NUMBER": 100})
        with pytest.raises(KernelError, match="out of range"):
            interpret(numbers_kernel, (1,), {"x_ptr": x, "y_ptr": x.clone(), "NUMBER": 300})


@pytest.mark.parametrize(("rows", "columns"), [(4, 8), (8, 4), (4, 1), (1, 4), (1, 1)])
def test_blocks_of_two_shapes_are_broadcast_the_first_time_and_later(rows: int, columns: int) -> None:
    x, y = torch.randn(8), torch.zeros(rows, columns)
    interpret(outer_kernel, (1,), {"x_ptr": x, "y_ptr": y, "ROWS": rows, "COLUMNS": columns})
    torch.testing.assert_close(y, x[:rows, None] + x[None, :columns], rtol=0, atol=0)


def operands(dtype: Any) -> list[Any]:
    """Return a scalar, and blocks of equal and of other shapes, also without the order of C."""
    numbers = np.array([3, -2, 1, 0, 5, -7, 2, 4] * 4)
    made = []
    for shape in ((4, 8), (4, 8), (4, 1), (1, 8), (8, 4)):
        data = numbers[: int(np.prod(shape))].reshape(shape)
        block = tl.tensor(handle_of(data, dtype), tl.block_type(dtype, [*shape]))
        made.append(tl.trans(block) if shape == (8, 4) else block)
    column = tl.tensor(handle_of(numbers[:4], dtype), tl.block_type(dtype, [4]))
    return [*made, column[:, None], tl.tensor(handle_of(numbers[:1], dtype), dtype)]


@contextmanager
def followed(language: Language) -> Iterator[None]:
    """Let the builder look as if somebody follows its operations."""
    language.builder.create_add = language.builder.create_add
    try:
        yield
    finally:
        del language.builder.create_add


def found(name: str, left: Any, right: Any) -> object:
    """Return all there is to see of a result; of an error, its text."""
    try:
        made = getattr(left, name)(right)
    except Exception as error:
        return type(error), str(error)
    if not isinstance(made, tl.tensor):
        return made
    data, rest = made.handle.data, {key: value for key, value in vars(made.handle).items() if key != "data"}
    return attributes(made) | {"handle": ""}, str(rest), data.dtype, data.shape, data.strides, data.tobytes()


@pytest.mark.parametrize("name", [name for name, _ in quick_operators(Language().semantic, lambda name: print)])
def test_quick_operator_gives_what_tritons_front_end_gives(name: str) -> None:
    """Both ways are tried twice, since the first call with a number or a shape fills the caches."""
    language = Language()
    pointer = tl.pointer_type(tl.float32)
    compared = 0
    with language.in_place(), np.errstate(all="ignore"):
        floats, halves, integers = (operands(dtype) for dtype in (tl.float32, tl.bfloat16, tl.int32))
        truths = [one > 0 for one in integers]
        copies = operands(tl.dtype("fp32"))  # as from libdevice: equal to tl.float32, and another object
        pointers = [tl.tensor(TensorHandle(np.array([1 << 20], np.uint64), pointer), pointer)]
        pointers += [pointers[0] + one for one in integers]
        longs = [integers[0].to(tl.int64), integers[-1].to(tl.int64)]
        others = [floats[0], floats[-1], truths[0], *longs, copies[0], copies[-1], 2, 0.5, 0.0, tl.constexpr(3), None]
        for lefts in (floats, halves, integers, truths, copies, pointers):
            for left, right in itertools.product(lefts, [*others, *(integers if lefts is pointers else lefts)]):
                for _ in range(2):
                    quick = found(name, left, right)
                    with followed(language):
                        assert quick == found(name, left, right)
                    compared += isinstance(quick, tuple) and len(quick) > 2
    assert compared > 200
