"""From the features of a call to the logarithm of our time over PyTorch's, by coefficients fitted to surveys.

Two kinds of models exist, because neither is better for every operator. A *line* is a weighted sum of the features and
their squares. *Trees* ask for one feature after the other and end at a number; the numbers add up. `margin` is what
the prediction must promise before our kernels compute: where the model erred on left-out cases, PyTorch computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilesmith import storage

SCHEMA = 2
SHIPPED = Path(__file__).parent.parent / "shipped" / "auto"
NEVER = 9.0  # a margin that no prediction reaches

Node = float | list[Any]
"""A prediction, or `[feature, threshold, below, above]`."""


@dataclass(frozen=True)
class Model:
    """One direction of one operator and class of dtypes. All numbers by feature are in the order of `names`."""

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    margin: float
    constant: float = 0.0
    linear: tuple[float, ...] = ()
    squared: tuple[float, ...] = ()
    trees: tuple[Node, ...] = ()

    def log_ratio(self, features: Mapping[str, float]) -> float:
        """Return the predicted log(ours / PyTorch): negative where ours is faster."""
        values = [
            min(max(features[name], low), high) for name, low, high in zip(self.names, self.low, self.high, strict=True)
        ]
        if self.trees:
            clamped = dict(zip(self.names, values, strict=True))
            return math.fsum(_follow(tree, clamped) for tree in self.trees)
        # Scaled to -1 … 1 over the range of the surveys.
        found = self.constant
        for value, low, high, one, two in zip(values, self.low, self.high, self.linear, self.squared, strict=True):
            scaled = (2 * value - low - high) / (high - low) if high > low else 0.0
            found += scaled * (one + two * scaled)
        return found

    def takes_torch(self, features: Mapping[str, float]) -> bool:
        """Return whether PyTorch should compute: our kernels are not predicted faster by more than the margin."""
        return self.log_ratio(features) > -self.margin

    def data(self) -> dict[str, Any]:
        """Return the model as JSON data, four digits a number."""
        ranges = {
            name: [_short(low), _short(high)] for name, low, high in zip(self.names, self.low, self.high, strict=True)
        }
        if self.trees:
            trees = [_short_tree(tree) for tree in self.trees]
            return {"kind": "trees", "margin": _short(self.margin), "range": ranges, "trees": trees}
        weights = {
            name: [_short(one), _short(two)]
            for name, one, two in zip(self.names, self.linear, self.squared, strict=True)
        }
        return {
            "kind": "line", "margin": _short(self.margin), "range": ranges, "constant": _short(self.constant),
            "weights": weights,
        }  # fmt: skip


def from_data(data: Mapping[str, Any]) -> Model:
    """Return the model of JSON data. Raises KeyError, TypeError or ValueError for damaged data."""
    names = tuple(data["range"])
    low, high = (tuple(float(data["range"][name][side]) for name in names) for side in (0, 1))
    margin = float(data["margin"])
    if data["kind"] == "trees":
        return Model(names, low, high, margin, trees=tuple(data["trees"]))
    linear, squared = (tuple(float(data["weights"][name][part]) for name in names) for part in (0, 1))
    return Model(names, low, high, margin, float(data["constant"]), linear, squared)


def _follow(node: Node, features: Mapping[str, float]) -> float:
    while isinstance(node, list):
        name, threshold, below, above = node
        node = below if features[name] <= threshold else above
    return node


def _short(value: float) -> float:
    return float(f"{value:.4g}") if math.isfinite(value) else NEVER


def _short_tree(node: Node) -> Node:
    if isinstance(node, list):
        return [node[0], _short(node[1]), _short_tree(node[2]), _short_tree(node[3])]
    return _short(node)


@lru_cache
def model_of(device: str, operator: str, dtypes: str, direction: str) -> Model | None:
    """Return the shipped model for a device (its slug), operator, class of dtypes and direction; None without one."""
    try:
        return from_data(_shipped(device)[operator][dtypes][direction])
    except (KeyError, TypeError, ValueError, IndexError):
        return None


@lru_cache
def _shipped(device: str) -> dict[str, Any]:
    content = storage.read_json(SHIPPED / f"{device}.json")
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        return {}
    return dict(content["models"])


def forget() -> None:
    """Read the shipped models again at the next call."""
    model_of.cache_clear()
    _shipped.cache_clear()
