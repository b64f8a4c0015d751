"""Configurations, buckets of sizes, and neighbours in a search."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from tilesmith.ops.runtime.config import Config, bucket, neighbours, replaced


@dataclass(frozen=True)
class BlockConfig(Config):
    BLOCK_SIZE: int = 64
    FLAG: bool = True
    programs: int = 2


@pytest.mark.parametrize(
    ("size", "power"),
    [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (127, 128), (128, 128), (129, 256), (2**40 + 1, 2**41)],
)
def test_bucket_is_the_power_of_two_at_or_above(size: int, power: int) -> None:
    assert bucket(size) == power


def test_fields_in_capitals_are_kernel_constants() -> None:
    assert BlockConfig().constants() == {"BLOCK_SIZE": 64, "FLAG": True}
    assert BlockConfig().fields() == {"num_warps": 4, "num_stages": 2, "BLOCK_SIZE": 64, "FLAG": True, "programs": 2}


def test_replaced_ignores_unknown_fields() -> None:
    config = BlockConfig()
    assert replaced(config, {"BLOCK_SIZE": 8, "OTHER": 1}) == BlockConfig(BLOCK_SIZE=8)
    assert replaced(config, {"OTHER": 1}) is config


def differences(one: Config, other: Config) -> dict[str, object]:
    return {name: value for name, value in other.fields().items() if value != one.fields()[name]}


def test_neighbour_differs_in_one_field() -> None:
    config = BlockConfig()
    steps = [differences(config, neighbour) for neighbour in neighbours(config)]
    assert all(len(step) == 1 for step in steps)
    assert {(name, value) for step in steps for name, value in step.items()} == {
        ("num_warps", 2), ("num_warps", 8), ("num_stages", 1), ("num_stages", 3),
        ("BLOCK_SIZE", 32), ("BLOCK_SIZE", 128), ("programs", 1), ("programs", 4),
    }  # fmt: skip


def test_neighbours_stay_within_the_limits_of_a_gpu() -> None:
    smallest = BlockConfig(num_warps=1, num_stages=1, BLOCK_SIZE=1, programs=1)
    largest = BlockConfig(num_warps=32, num_stages=8, BLOCK_SIZE=1 << 16, programs=1 << 16)
    for config in (smallest, largest):
        for neighbour in neighbours(config):
            assert 1 <= neighbour.num_warps <= 32
            assert 1 <= neighbour.num_stages <= 8
            assert 1 <= neighbour.BLOCK_SIZE <= 1 << 16


def test_configuration_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BlockConfig().BLOCK_SIZE = 3  # type: ignore[misc]  # what is tested
