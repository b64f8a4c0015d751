"""Fit models to surveys, and choose among kinds of models by what they lose on left-out cases.

Every candidate predicts each case from the others (in `FOLDS` parts). Its margin is the smallest with which few of the
left-out cases would be slower than PyTorch. The candidate that then loses the least time against the better side wins.
Several averaged trees, which nobody reads, must be noticeably better than one tree or a line.

A tree may be cautious: it then predicts the mean of a leaf plus its standard deviation, so a leaf whose cases differ
promises less than one whose cases agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilesmith.ops.runtime.auto.features import Features
from tilesmith.ops.runtime.auto.model import NEVER, Model, Node

FOLDS = 10
FEWEST = 22  # cases; fewer say too little
WITHIN, FAR = math.log(1.03), math.log(1.08)  # behind PyTorch
# Shares of left-out cases that may be further behind, and one case of a few in any event. None at all would cost more
# than it saves: for products in half precision auto then takes 70 % more time than the better side, with these shares
# 12 %; for the backward of softmax in single precision, where one of 31 cases is behind, 18 %, with it 0.4 %.
MOST_BEHIND, MOST_FAR_BEHIND = 0.03, 0.02
MARGINS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.5)
SPARE = 0.01  # added to the margin: the next survey draws other cases
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)  # of the penalty on weights
DEPTHS = (0, 1, 2, 3, 4)
CAUTIONS = (0.0, 1.0)  # standard deviations that a leaf adds
SMALLEST_LEAF = 4
TREES = 8  # that are averaged
NOTICEABLE, SMALL_LOSS = 0.9, 0.001  # what several trees must gain over one
FARTHEST = 1.5  # beyond exp(1.5) = 4.5 times slower or faster, more says nothing

Floats = NDArray[np.float64]
Fit = Callable[[Floats, Floats], Model]


@dataclass(frozen=True)
class Sample:
    """One direction of one surveyed case."""

    features: Features
    ours_ms: float
    torch_ms: float


@dataclass(frozen=True)
class Fitted:
    """The chosen model, and how it did on left-out cases."""

    model: Model
    kind: str
    cases: int
    error: float  # root mean square of the predicted log(ours / PyTorch)
    behind: float  # share of cases more than 3 % slower than PyTorch
    lost: float  # mean share of time lost against the better side
    lost_by_ours: float  # the same, if our kernels computed everything
    lost_by_torch: float


def fit(samples: Sequence[Sample]) -> Fitted | None:
    """Return the best model for these cases; None where there are too few."""
    if len(samples) < FEWEST:
        return None
    names = tuple(samples[0].features)
    x = np.array([[one.features[name] for name in names] for one in samples], dtype=float)
    truth = np.log([one.ours_ms / one.torch_ms for one in samples])
    simple = [_tried(kind, one, x, truth) for kind, one in _candidates(names).items()]
    best = min(simple, key=lambda one: one.lost)
    kind = f"{TREES} cautious trees of depth {DEPTHS[-1]}"
    several = _tried(kind, _trees_fit(names, DEPTHS[-1], TREES, CAUTIONS[-1]), x, truth)
    return several if several.lost < NOTICEABLE * best.lost - SMALL_LOSS else best


def _candidates(names: tuple[str, ...]) -> dict[str, Fit]:
    trees: dict[str, Fit] = {
        f"{'cautious ' if caution else ''}tree of depth {depth}": _trees_fit(names, depth, 1, caution)
        for depth in DEPTHS
        for caution in CAUTIONS
    }
    return trees | {f"line with penalty {strength:g}": _line_fit(names, strength) for strength in STRENGTHS}


def _tried(kind: str, one: Fit, x: Floats, truth: Floats) -> Fitted:
    clipped = np.clip(truth, -FARTHEST, FARTHEST)
    folds = np.arange(len(x)) % min(FOLDS, len(x))
    predicted = np.empty(len(x))
    for fold in np.unique(folds):
        model = one(x[folds != fold], clipped[folds != fold])
        predicted[folds == fold] = [_predict(model, row) for row in x[folds == fold]]
    margin = _margin(predicted, truth)
    takes_ours = predicted <= -margin
    return Fitted(
        replace(one(x, clipped), margin=margin),
        kind,
        cases=len(x),
        error=float(np.sqrt(np.mean((predicted - clipped) ** 2))),
        behind=float(np.mean(takes_ours & (truth > WITHIN))),
        lost=_lost(np.where(takes_ours, truth, 0.0), truth),
        lost_by_ours=_lost(truth, truth),
        lost_by_torch=_lost(np.zeros(len(x)), truth),
    )


def _lost(taken: Floats, truth: Floats) -> float:
    """Return the mean share of time lost; `taken` are the logarithms of taken time / PyTorch's time."""
    return float(np.mean(np.expm1(taken - np.minimum(truth, 0.0))))


def _margin(predicted: Floats, truth: Floats) -> float:
    """Return the smallest margin with which our kernels are hardly ever chosen where they are slower."""
    for margin in MARGINS:
        behind = truth[predicted <= -margin]
        few = np.sum(behind > WITHIN) <= max(MOST_BEHIND * len(truth), 1)
        if few and np.sum(behind > FAR) <= max(MOST_FAR_BEHIND * len(truth), 1):
            return margin + SPARE
    return NEVER


def _predict(model: Model, row: Floats) -> float:
    return model.log_ratio(dict(zip(model.names, row.tolist(), strict=True)))


def _line_fit(names: tuple[str, ...], strength: float) -> Fit:
    def fit_line(x: Floats, truth: Floats) -> Model:
        low, high = x.min(axis=0), x.max(axis=0)
        width = np.where(high > low, high - low, 1.0)
        scaled = np.where(high > low, (2 * x - low - high) / width, 0.0)
        columns = np.hstack([np.ones((len(x), 1)), scaled, scaled**2])
        penalty = strength * np.eye(columns.shape[1])
        penalty[0, 0] = 0.0
        weights = np.linalg.solve(columns.T @ columns + penalty, columns.T @ truth)
        linear, squared = np.split(weights[1:], 2)
        return Model(
            names, tuple(low.tolist()), tuple(high.tolist()), 0.0, float(weights[0]), tuple(linear.tolist()),
            tuple(squared.tolist()),
        )  # fmt: skip

    return fit_line


def _trees_fit(names: tuple[str, ...], depth: int, count: int, caution: float) -> Fit:
    """Return the fit of one tree to all cases, or of several to random draws of as many cases."""

    def fit_trees(x: Floats, truth: Floats) -> Model:
        low, high = tuple(x.min(axis=0).tolist()), tuple(x.max(axis=0).tolist())
        generator = np.random.default_rng(0)
        draws = [np.arange(len(x))] if count == 1 else generator.integers(0, len(x), (count, len(x)))
        trees = tuple(_grown(names, x[drawn], truth[drawn], depth, caution) for drawn in draws)
        return Model(names, low, high, 0.0, trees=trees)

    return fit_trees


def _grown(names: tuple[str, ...], x: Floats, truth: Floats, depth: int, caution: float) -> Node:
    split = _best_split(x, truth) if depth > 0 else None
    if split is None:
        return float(truth.mean() + caution * truth.std())
    feature, threshold = split
    below = x[:, feature] <= threshold
    return [
        names[feature],
        threshold,
        _grown(names, x[below], truth[below], depth - 1, caution),
        _grown(names, x[~below], truth[~below], depth - 1, caution),
    ]


def _best_split(x: Floats, truth: Floats) -> tuple[int, float] | None:
    """Return the feature and threshold that reduce the squared error most; None where no split leaves large leaves."""
    best, found = 1e-9, None
    count = len(truth)
    for feature in range(x.shape[1]):
        order = np.argsort(x[:, feature], kind="stable")
        values, sums = x[order, feature], np.cumsum(truth[order])
        left = np.arange(1, count)
        gain = sums[:-1] ** 2 / left + (sums[-1] - sums[:-1]) ** 2 / (count - left) - sums[-1] ** 2 / count
        allowed = (values[1:] > values[:-1]) & (left >= SMALLEST_LEAF) & (count - left >= SMALLEST_LEAF)
        gain = np.where(allowed, gain, 0.0)
        place = int(np.argmax(gain)) if count > 1 else 0
        if count > 1 and gain[place] > best:
            best, found = float(gain[place]), (feature, float(values[place] + values[place + 1]) / 2)
    return found
