"""Configurations of autotuners keep their numbers, whatever a launch offers."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tilesmith.toolchain.configurations import Configurations


def tuned(blocks: list[int]) -> tuple[Any, list[Any]]:
    """Return a new kernel and its configurations, as a function that defines them in each call does."""

    @triton.jit  # type: ignore[untyped-decorator]  # Triton leaves it so
    def kernel(x_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # a kernel has Triton's types
        tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)

    return kernel, [triton.Config({"BLOCK": block}, pre_hook=lambda given: None) for block in blocks]


def test_number_stands_for_one_configuration_whatever_pruning_leaves() -> None:
    configurations = Configurations(1)
    kernel, (first, second, third) = tuned([16, 32, 64])
    taken = [
        (configurations.chosen(offered, kernel), configurations.is_pruned)
        for offered in ([second, third], [first, second, third], [first, second])
    ]
    assert taken == [(third, False), (third, False), (first, True)]
    assert [name.split(",")[0] for name in configurations.names()] == [f"kernel: BLOCK: {n}" for n in (32, 64, 16)]
    configurations.take(2)
    assert configurations.chosen([first, second, third], kernel) is first
    assert not configurations.is_pruned


def test_kernel_that_is_defined_again_offers_nothing_new() -> None:
    configurations = Configurations(1)
    for _ in range(2):
        kernel, offered = tuned([16, 32])
        assert configurations.chosen(offered, kernel) is offered[1]
    assert len(configurations.names()) == 2
    assert configurations.different() == [0, 1]
