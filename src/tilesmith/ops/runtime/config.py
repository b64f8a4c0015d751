"""Block sizes: a frozen choice made by one readable function per kernel, which a sweep or a tuning run may replace."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

ConfigType = TypeVar("ConfigType", bound="Config")


@dataclass(frozen=True)
class Config:
    """How one kernel is launched. Fields in capitals go to the kernel as compile-time constants; others are options.

    A default counts warps of 32 threads; `for_warps_of` makes them fewer where a warp has 64.
    """

    num_warps: int = 4
    num_stages: int = 2

    def constants(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if name.isupper()}

    @property
    def all_warps(self) -> int:
        """Of a program: more than compute, where some do nothing but fetch."""
        return self.num_warps

    def for_warps_of(self: ConfigType, threads: int) -> ConfigType:
        return dataclasses.replace(self, num_warps=max(self.num_warps * 32 // threads, 1))

    def fields(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def replaced(config: ConfigType, fields: dict[str, Any]) -> ConfigType:
    """The config with those of the fields that it has."""
    known = {name: value for name, value in fields.items() if name in config.fields()}
    return dataclasses.replace(config, **known) if known else config


def bucket(size: int) -> int:
    """The power of two at or above: sizes of one bucket share compiled code and tuning."""
    return 1 << max(size - 1, 0).bit_length()


def neighbours(config: ConfigType) -> Iterator[ConfigType]:
    """The configs one step away: each field halved or doubled."""
    for name, value in config.fields().items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        limit = 32 if name == "num_warps" else 8 if name == "num_stages" else 1 << 16
        for candidate in (value // 2, value * 2) if name != "num_stages" else (value - 1, value + 1):
            if 1 <= candidate <= limit:
                yield dataclasses.replace(config, **{name: candidate})
