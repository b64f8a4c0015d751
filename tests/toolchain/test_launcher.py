"""What a fast launch passes to a compiled kernel: addresses for pointers, and a descriptor for each address."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.runtime import _allocation
from triton.tools.tensor_descriptor import TensorDescriptor

from tilesmith.toolchain import launcher


@dataclass
class Pointer:
    slot: int
    dtype: torch.dtype = torch.float16

    def data_ptr(self) -> int:
        return 0


def described(slot: int) -> TensorDescriptor:
    return TensorDescriptor(Pointer(slot), [24, 48], [64, 1], [16, 16])


def filler(arguments: list[Any]) -> launcher.Filled:
    placed = [launcher._placed(one) for one in arguments if isinstance(one, TensorDescriptor)]
    return launcher._filler(arguments, placed)


@pytest.mark.parametrize("arguments", [[Pointer(1), Pointer(0), 7, None], [7, Pointer(1), None, Pointer(0)]])
def test_addresses_go_where_the_pointers_are(arguments: list[Any]) -> None:
    expected = [{1: 320, 0: 160}[one.slot] if isinstance(one, Pointer) else one for one in arguments]
    assert list(filler(arguments)([160, 320])) == expected


def test_a_descriptor_has_the_address_of_the_call_and_all_else_of_the_plan() -> None:
    fill = filler([Pointer(0), described(1), 5])
    pointer, first, number = fill([160, 320])
    assert (pointer, number) == (160, 5)
    assert first.base.data_ptr() == 320
    assert (first.shape, first.strides, first.block_shape, first.base.dtype) == (
        [24, 48], [64, 1], [16, 16], torch.float16,
    )  # fmt: skip
    assert fill([160, 640])[1].base.data_ptr() == 640


def test_a_descriptor_is_made_once_for_each_address() -> None:
    fill = filler([described(0)])
    assert fill([320])[0] is fill([320])[0]


def test_number_of_cached_descriptors_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "MOST_ADDRESSES", 4)
    placed = launcher._placed(described(0))
    for address in range(0, 16 * 20, 16):
        assert placed[address].base.data_ptr() == address
        assert len(placed) <= 4


@pytest.mark.parametrize("uses_copy_engine", [True, False])
def test_descriptor_is_expanded_without_tritons_wrapper(
    monkeypatch: pytest.MonkeyPatch, uses_copy_engine: bool
) -> None:
    """Pass arguments as Triton 3.6 does; count encodings, which must not repeat."""
    encoded: list[int] = []

    def encode(descriptor: Any, fact: Any) -> list[Any]:
        encoded.append(descriptor.base.data_ptr())
        return [f"encoded at {descriptor.base.data_ptr()}" if fact else descriptor.base]

    def wrapped(launcher: Any) -> Any:
        return lambda *arguments: launcher("by the wrapper", *arguments)

    def entry(*arguments: Any) -> Any:
        return arguments

    monkeypatch.setattr("triton.backends.nvidia.driver.make_tensordesc_arg", encode)
    arguments = [Pointer(0), described(1), 5]
    metadata = SimpleNamespace(tensordesc_meta=[{"swizzle": 3}] if uses_copy_engine else [])
    launch, fill = launcher._without_wrapper(wrapped(entry), metadata, arguments, filler(arguments))
    assert launch is entry
    for _ in range(2):
        address, first, *rest = fill([160, 320])
        assert address == 160
        walk = [24, 48, 64, 1]
        assert rest == ([*walk, 5] if uses_copy_engine else [*walk, False, *walk, 5])
        assert first == "encoded at 320" if uses_copy_engine else first.data_ptr() == 320
    assert encoded == [320]


def test_without_descriptors_nothing_is_unwrapped() -> None:
    arguments = [Pointer(0), 5]
    fill = filler(arguments)
    assert launcher._without_wrapper(print, SimpleNamespace(), arguments, fill) == (print, fill)


def test_scratch_memory_is_there_for_the_launch_only() -> None:
    before = _allocation._allocator.get()
    with launcher.scratch_memory():
        assert _allocation._allocator.get() is launcher._allocate
    assert _allocation._allocator.get() is before
