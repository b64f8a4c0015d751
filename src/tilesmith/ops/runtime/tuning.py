"""Tables of measurements: the fastest configuration for each kernel and bucket of sizes, and where PyTorch is faster.

Only `tilesmith tune` measures; calls only look up. So no training step stalls, and no tuning starts inside a CUDA-graph
capture. The package ships tables for some devices in `shipped/`. Entries measured on this machine override them.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

import torch

from tilesmith import storage
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.config import Config, ConfigType, bucket, neighbours

SCHEMA = 2
NOTICEABLE = 0.98  # a candidate must take less than this fraction of the best time: smaller gains are noise
FURTHEST = 3  # doublings for each matrix: measurements of sizes further away do not count
_MATRIX = re.compile(r"\d+x\d+")
SHIPPED = Path(__file__).parent / "shipped"
Table = dict[str, Any]


def table_path(device: torch.device) -> Path:
    return storage.cache_directory() / "tuned" / f"{slug(torch.cuda.get_device_name(device))}.json"


def slug(device_name: str) -> str:
    return re.sub(r"\W+", "-", device_name).strip("-").lower()


@lru_cache
def _table(device: torch.device) -> Table:
    """Return the entries measured on this machine, joined with those that the package ships for this device."""
    shipped = storage.read_json(SHIPPED / table_path(device).name)
    return _joined(shipped if _is_table(shipped) else _new_table(), _own_table(device))


@lru_cache
def _own_table(device: torch.device) -> Table:
    """Return the entries measured on this machine."""
    table = storage.read_json(table_path(device))
    if table is not None and not _is_table(table):
        warnings.warn(f"{table_path(device)} is not a tuning table of this version and is ignored", stacklevel=2)
        table = None
    return table or _new_table()


def forget_tables() -> None:
    """Read all tables again at the next call."""
    _table.cache_clear()
    _own_table.cache_clear()


def _joined(under: Table, over: Table) -> Table:
    """Return the entries of both tables; where both have an entry, that of `over`."""
    return {
        "schema": SCHEMA,
        **{
            section: {
                name: under[section].get(name, {}) | over[section].get(name, {})
                for name in under[section].keys() | over[section].keys()
            }
            for section in ("configs", "winners")
        },
    }


def _is_table(table: Any) -> TypeGuard[Table]:
    """Whether a file's content has the structure that `keep` writes."""
    return (
        isinstance(table, dict)
        and table.get("schema") == SCHEMA
        and all(isinstance(table.get(section), dict) for section in ("configs", "winners"))
        and all(isinstance(entries, dict) for section in ("configs", "winners") for entries in table[section].values())
    )


def _new_table() -> Table:
    return {"schema": SCHEMA, "configs": {}, "winners": {}}


def stored(device: torch.device, kernels: str, sizes: str, default: ConfigType) -> ConfigType | None:
    """Return the configuration on trial or tuned for these kernels and sizes on this device, or None."""
    if (kernels, sizes) in _trials:
        return _trials[kernels, sizes]  # type: ignore[return-value]  # the type that these kernels use
    if device.type != "cuda":
        return None
    entry = _table(device)["configs"].get(kernels, {}).get(sizes)
    if entry is None:
        return None
    try:
        config = type(default)(**entry["config"])
        for name, value in config.fields().items():
            if type(value) is not type(default.fields()[name]):
                raise TypeError(f"{name} is {value!r}")
        return config
    except (TypeError, KeyError) as error:
        warnings.warn(f"the tuned configuration of {kernels} for {sizes} is damaged and ignored: {error}", stacklevel=2)
        return None


_trials: dict[tuple[str, str], Config] = {}


@contextmanager
def trying(kernels: str, sizes: str, config: Config) -> Iterator[None]:
    """Run these kernels with this configuration on these sizes, inside the context."""
    _trials[kernels, sizes] = config
    dispatch.forget()
    try:
        yield
    finally:
        del _trials[kernels, sizes]
        dispatch.forget()


def bucket_of(values: Iterable[object]) -> str:
    """Return the bucket that dispatch depends on: rows and columns of each matrix, the dtype of the first, and every
    argument that is a whole number or a string. A number such as eps changes no time."""
    values = list(values)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    matrices = [tensor for tensor in tensors if tensor.ndim > 1] or tensors[:1]
    parts = [_sizes_of(tensor) for tensor in matrices]
    parts += [str(tensors[0].dtype).removeprefix("torch.")] if tensors else []
    parts += [str(value) for value in values if isinstance(value, (int, str, tuple, list))]
    return " ".join(parts)


def _sizes_of(tensor: torch.Tensor) -> str:
    columns = tensor.shape[-1] if tensor.ndim else 1
    rows = tensor.numel() // columns if columns else 0
    return f"{bucket(rows)}x{bucket(columns)}"


def prefers_torch(device: torch.device, operator: str, sizes: str, *, training: bool) -> bool:
    """Whether PyTorch was measured faster for this operator on this device, for these sizes or the nearest measured.

    With `training` the backward counts too; otherwise only the forward.
    """
    if device.type != "cuda":
        return False
    mode = "training" if training else "forward"
    winners = _table(device)["winners"].get(operator, {})
    measured = {one: entry[mode] for one, entry in winners.items() if isinstance(entry, dict) and mode in entry}
    return _of_nearest(measured, sizes) == "torch"


def _of_nearest(measured: dict[str, str], sizes: str) -> str | None:
    """Return the winner for the measured sizes that are the fewest doublings away, all else equal; None where these
    are too far."""
    matrices, rest = _parted(sizes)
    found: list[tuple[float, str]] = []
    for other, winner in measured.items():
        other_matrices, other_rest = _parted(other)
        if other_rest == rest and len(other_matrices) == len(matrices):
            pairs = zip(matrices, other_matrices, strict=True)
            doublings = sum(
                abs(math.log2(max(one, 1) / max(another, 1)))
                for pair in pairs
                for one, another in zip(*pair, strict=True)
            )
            found.append((doublings, winner))
    nearest = min(found, default=None)
    return nearest[1] if nearest is not None and nearest[0] <= FURTHEST * len(matrices) else None


def _parted(sizes: str) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return the matrix sizes in a bucket's name, and its other parts."""
    parts = sizes.split(" ")
    matrices = [tuple(map(int, part.split("x"))) for part in parts if _MATRIX.fullmatch(part)]
    return matrices, [part for part in parts if not _MATRIX.fullmatch(part)]


def keep(device: torch.device, section: str, name: str, sizes: str, value: Any) -> bool:
    """Write one result into the device's table; entries that other processes wrote meanwhile stay."""
    refuse_during_capture()

    def with_result(table: Table | None) -> Table:
        if not _is_table(table):
            table = _new_table()
        table.setdefault(section, {}).setdefault(name, {})[sizes] = value
        return table

    kept = storage.update_json(table_path(device), with_result)
    forget_tables()
    dispatch.forget()
    return kept


_measured_here: dict[tuple[str, str, str, str], str] = {}


def measured(device: torch.device, operator: str, signature: str, direction: str) -> str | None:
    """Return who was measured faster on this machine for calls of this very signature, or None."""
    if (str(device), operator, direction, signature) in _measured_here:
        return _measured_here[str(device), operator, direction, signature]
    known = _own_table(device).get("measured")
    entry = known.get(operator, {}).get(f"{direction} {signature}") if isinstance(known, dict) else None
    return entry if entry in ("tilesmith", "torch") else None


def keep_measured(device: torch.device, operator: str, signature: str, direction: str, winner: str) -> bool:
    """Store who was measured faster for calls of this very signature. This process knows it even if no file can."""
    _measured_here[str(device), operator, direction, signature] = winner
    return keep(device, "measured", operator, f"{direction} {signature}", winner)


def tuned_winner(device: torch.device, operator: str, sizes: str, direction: str) -> str | None:
    """Return who `tilesmith tune` measured faster on this machine for this bucket of sizes, or None."""
    entry = _own_table(device)["winners"].get(operator, {}).get(sizes)
    if not isinstance(entry, dict):
        return None
    winner = entry.get(direction)
    return entry.get("training") if winner is None and direction == "backward" else winner


def is_capturing() -> bool:
    """Whether the current stream records a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def refuse_during_capture() -> None:
    if is_capturing():
        raise RuntimeError("tuning is not possible inside a CUDA-graph capture: run `tilesmith tune` beforehand")


def search(start: ConfigType, measure: Callable[[ConfigType], float], most: int = 40) -> tuple[ConfigType, float]:
    """Return the fastest configuration that a walk from `start` to faster neighbours finds, and its time.

    `measure` returns milliseconds, or infinity where a configuration does not compile or does not fit.
    """
    refuse_during_capture()
    times: dict[Config, float] = {start: measure(start)}
    best = start
    improved = True
    while improved and len(times) < most:
        improved = False
        for candidate in neighbours(best):
            if candidate in times or len(times) >= most:
                continue
            times[candidate] = measure(candidate)
            if times[candidate] < times[best] * NOTICEABLE:
                best, improved = candidate, True
                break
    return best, times[best]
