# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Kernels have no type annotations, since Triton interprets annotations itself.
"""The store log finds the program and line that stored an element."""

from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tilesmith.lab import store_log as stores
from tilesmith.lab.store_log import StoreLog
from tilesmith.toolchain.interpreter import Access, interpret

BLOCK_SIZE = 16


@triton.jit
def numbers_kernel(x_ptr, n_elements, first, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(x_ptr + offsets, offsets + first, mask=offsets < n_elements)  # numbers


@triton.jit
def even_numbers_kernel(x_ptr, BLOCK_SIZE: tl.constexpr):
    offsets = tl.arange(0, BLOCK_SIZE)
    tl.store(x_ptr + offsets, offsets + 1, mask=offsets % 2 == 0)


@triton.jit
def count_kernel(x_ptr, BLOCK_SIZE: tl.constexpr):
    tl.atomic_add(x_ptr + tl.arange(0, BLOCK_SIZE), 1.0)  # counts


def line_of(comment: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith(f"  # {comment}"))


def numbered(log: StoreLog, tensor: torch.Tensor, elements: int, first: int = 1) -> torch.Tensor:
    arguments = {"x_ptr": tensor, "n_elements": elements, "first": first, "BLOCK_SIZE": BLOCK_SIZE}
    interpret(numbers_kernel, (triton.cdiv(elements, BLOCK_SIZE),), arguments, log)
    return tensor


def test_writer_names_program_and_line() -> None:
    log = StoreLog()
    x = numbered(log, torch.zeros(5, 7), elements=35)
    writer = log.writer_of(x, (2, 3))
    assert writer is not None
    assert (writer.kernel, writer.program, writer.line) == ("numbers_kernel", (1, 0, 0), line_of("numbers"))
    assert str(writer) == f"program (1, 0, 0) of numbers_kernel, test_store_log.py:{writer.line}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8], ids=str)
def test_writer_is_found_in_every_dtype(dtype: torch.dtype) -> None:
    log = StoreLog()
    x = numbered(log, torch.zeros(20, dtype=dtype), elements=20)
    assert str(log.writer_of(x, [17])).startswith("program (1, 0, 0)")


def test_writer_is_found_through_a_strided_view() -> None:
    log = StoreLog()
    x = numbered(log, torch.zeros(6, 6), elements=36)
    assert str(log.writer_of(x.t()[::2], (2, 5))).startswith("program (2, 0, 0)")  # the element [5, 4], number 34


def test_writer_is_the_last_of_two_stores() -> None:
    log = StoreLog()
    x = torch.zeros(BLOCK_SIZE)
    numbered(log, x, elements=16)
    interpret(count_kernel, (1,), {"x_ptr": x, "BLOCK_SIZE": BLOCK_SIZE}, log)
    writer = log.writer_of(x, [3])
    assert writer is not None
    assert (writer.kernel, writer.line) == ("count_kernel", line_of("counts"))


def test_writer_of_sees_stores_of_later_launches() -> None:
    log = StoreLog()
    x, y = torch.zeros(8), torch.zeros(8)
    numbered(log, x, elements=8)
    assert log.writer_of(x, [3]) is not None
    assert log.writer_of(y, [3]) is None
    numbered(log, y, elements=8)
    assert log.writer_of(y, [3]) is not None


def test_masked_lanes_write_nothing() -> None:
    log = StoreLog()
    x = torch.arange(1.0, BLOCK_SIZE + 1)  # memory already holds what a masked lane would store
    interpret(even_numbers_kernel, (1,), {"x_ptr": x, "BLOCK_SIZE": BLOCK_SIZE}, log)
    assert log.writer_of(x, [8]) is not None
    assert log.writer_of(x, [9]) is None
    assert log.writer_of(x, [15]) is None


def test_store_overwritten_by_torch_is_not_the_writer() -> None:
    log = StoreLog()
    x = numbered(log, torch.zeros(10), elements=10)
    x[4] = 100
    assert log.writer_of(x, [3]) is not None
    assert log.writer_of(x, [4]) is None


def test_writer_of_stored_nan_is_found() -> None:
    @triton.jit
    def nan_kernel(x_ptr):
        tl.store(x_ptr, float("nan"))

    log = StoreLog()
    x = torch.zeros(2)
    interpret(nan_kernel, (1,), {"x_ptr": x}, log)
    assert log.writer_of(x, [0]) is not None


def test_wrote_into_is_true_only_for_tensors_a_kernel_stored_into() -> None:
    log = StoreLog()
    x = numbered(log, torch.zeros(BLOCK_SIZE), elements=10)
    assert log.wrote_into(x)
    assert log.wrote_into(x[12:])  # a part of the same memory
    assert not log.wrote_into(torch.zeros(BLOCK_SIZE))


def test_wrote_into_ignores_stores_to_an_earlier_tensor_at_the_address() -> None:
    log = StoreLog()
    x = numbered(log, torch.zeros(BLOCK_SIZE), elements=10)
    x.fill_(0)  # as if another tensor reused the memory
    assert not log.wrote_into(x)


def test_empty_log_has_no_writer() -> None:
    assert StoreLog().writer_of(torch.zeros(3), [0]) is None
    assert not StoreLog().wrote_into(torch.zeros(3))


def test_writer_of_searches_few_of_many_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    log = StoreLog()
    x = torch.arange(64.0 * BLOCK_SIZE)
    addresses = x.data_ptr() + np.arange(64 * BLOCK_SIZE, dtype=np.uint64) * np.uint64(4)
    for program, lanes in enumerate(addresses.reshape(64, BLOCK_SIZE)):
        values = x[program * BLOCK_SIZE : (program + 1) * BLOCK_SIZE].numpy()
        log.store(Access("store", (program, 0, 0), "kernel", "f.py", 1, lanes, np.ones(BLOCK_SIZE, bool), 4, values))
    looked_at = []

    def counted(access: Access, start: int, end: int) -> np.ndarray:
        looked_at.append(access.program)
        return lanes_between(access, start, end)

    lanes_between = stores._lanes_between
    monkeypatch.setattr(stores, "_lanes_between", counted)
    assert str(log.writer_of(x, [5 * BLOCK_SIZE + 3])).startswith("program (5, 0, 0)")
    assert looked_at == [(5, 0, 0)]
