"""Launch configurations: each kernel has one function that chooses; sweeps and `tilesmith tune` replace the choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

ConfigType = TypeVar("ConfigType", bound="Config")


@dataclass(frozen=True)
class Config:
    """How one kernel is launched. Fields in capitals are the kernel's compile-time constants, others launch options.

    Defaults count warps of 32 threads. `for_warps_of` converts them for GPUs whose warps have 64.
    """

    num_warps: int = 4
    num_stages: int = 2

    def constants(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if name.isupper()}

    @property
    def all_warps(self) -> int:
        """Return the warps of a program: more than num_warps where load warps are separate (warp specialisation)."""
        return self.num_warps

    @property
    def registers_at_launch(self) -> int | None:
        """Return the most registers that a thread may have at launch; None where the compiler decides."""
        return None

    def for_warps_of(self: ConfigType, threads: int) -> ConfigType:
        return dataclasses.replace(self, num_warps=max(self.num_warps * 32 // threads, 1))

    def fields(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def replaced(config: ConfigType, fields: dict[str, Any]) -> ConfigType:
    """Return the config with these values for the fields that it has."""
    known = {name: value for name, value in fields.items() if name in config.fields()}
    return dataclasses.replace(config, **known) if known else config


def bucket(size: int) -> int:
    """Return the power of two at or above. Sizes of one bucket share compiled code and tuning."""
    return 1 << max(size - 1, 0).bit_length()


def cdiv(size: int, unit: int) -> int:
    """Return size / unit, rounded up. Triton's function takes 8 µs: too long where hundreds of tiles are compared."""
    return -(-size // unit)


def neighbours(config: ConfigType) -> Iterator[ConfigType]:
    """Yield the configs one step away: one field halved or doubled, or one pipeline stage less or more."""
    for name, value in config.fields().items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        limit = 32 if name == "num_warps" else 8 if name == "num_stages" else 1 << 16
        for candidate in (value // 2, value * 2) if name != "num_stages" else (value - 1, value + 1):
            if 1 <= candidate <= limit:
                yield dataclasses.replace(config, **{name: candidate})
