"""Fit models to surveys, and choose among kinds of models by what they lose on left-out cases.

Every candidate predicts each case from the others (in `FOLDS` parts, divided in several ways). Its margin is the
smallest with which few of the left-out cases would be slower than PyTorch. The candidate that then loses the least time
against the better side wins.
Many small trees, each fitted to what those before it leave (boosting), must be noticeably better than one tree or a
line, which can be read.

A tree may be cautious: it then predicts the mean of a leaf plus its standard deviation, so a leaf whose cases differ
promises less than one whose cases agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilesmith.ops.runtime.auto.features import Features
from tilesmith.ops.runtime.auto.model import NEVER, Model, Node

FOLDS, DIVISIONS = 10, 3  # parts of the cases, and how often they are divided
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
ROUNDS, RATE, SHARE = (
    80,
    0.08,
    0.7,
)  # of boosting: trees, the part of each that counts, the cases that each is fitted to
NOTICEABLE, SMALL_LOSS = 0.9, 0.001  # what many trees must gain over one
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
    if NOTICEABLE * best.lost <= SMALL_LOSS:
        return best
    many = _tried(f"{ROUNDS} trees of depth {DEPTHS[-1]}", _boosted_fit(names), x, truth)
    return many if many.lost < NOTICEABLE * best.lost - SMALL_LOSS else best


def _candidates(names: tuple[str, ...]) -> dict[str, Fit]:
    trees: dict[str, Fit] = {
        f"{'cautious ' if caution else ''}tree of depth {depth}": _tree_fit(names, depth, caution)
        for depth in DEPTHS
        for caution in CAUTIONS
    }
    return trees | {f"line with penalty {strength:g}": _line_fit(names, strength) for strength in STRENGTHS}


def _tried(kind: str, one: Fit, x: Floats, truth: Floats) -> Fitted:
    clipped = np.clip(truth, -FARTHEST, FARTHEST)
    predicted = np.concatenate([_left_out(one, x, clipped, seed) for seed in range(DIVISIONS)])
    truths = np.tile(truth, DIVISIONS)
    margin = _margin(predicted, truths)
    takes_ours = predicted <= -margin
    return Fitted(
        replace(one(x, clipped), margin=margin),
        kind,
        cases=len(x),
        error=float(np.sqrt(np.mean((predicted - np.tile(clipped, DIVISIONS)) ** 2))),
        behind=float(np.mean(takes_ours & (truths > WITHIN))),
        lost=_lost(np.where(takes_ours, truths, 0.0), truths),
        lost_by_ours=_lost(truth, truth),
        lost_by_torch=_lost(np.zeros(len(x)), truth),
    )


def _left_out(one: Fit, x: Floats, truth: Floats, seed: int) -> Floats:
    """Return what is predicted for each case from the cases of other folds, with folds drawn at random."""
    folds = np.random.default_rng(seed).permutation(len(x)) % min(FOLDS, len(x))
    predicted = np.empty(len(x))
    for fold in np.unique(folds):
        model = one(x[folds != fold], truth[folds != fold])
        predicted[folds == fold] = [_predict(model, row) for row in x[folds == fold]]
    return predicted


def _lost(taken: Floats, truth: Floats) -> float:
    """Return the mean share of time lost; `taken` are the logarithms of taken time / PyTorch's time."""
    return float(np.mean(np.expm1(taken - np.minimum(truth, 0.0))))


def _margin(predicted: Floats, truth: Floats) -> float:
    """Return the smallest margin with which our kernels are hardly ever chosen where they are slower."""
    for margin in MARGINS:
        behind = truth[predicted <= -margin]
        few = np.sum(behind > WITHIN) <= max(MOST_BEHIND * len(truth), DIVISIONS)
        if few and np.sum(behind > FAR) <= max(MOST_FAR_BEHIND * len(truth), DIVISIONS):
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


def _tree_fit(names: tuple[str, ...], depth: int, caution: float) -> Fit:
    def leaf(truth: Floats) -> float:
        return float(truth.mean() + caution * truth.std())

    def fit_tree(x: Floats, truth: Floats) -> Model:
        tree = _grown(x, truth, depth, leaf, lambda: range(len(names)))
        return Model(names, *_range(x), 0.0, trees=(_named(tree, names),))

    return fit_tree


def _boosted_fit(names: tuple[str, ...]) -> Fit:
    """Return the fit of many trees whose predictions add up. Each split chooses from half of the features."""

    def leaf(left: Floats) -> float:
        return float(RATE * left.sum() / (len(left) + 1))

    def fit_boosted(x: Floats, truth: Floats) -> Model:
        generator = np.random.default_rng(0)

        def half() -> list[int]:
            chosen: list[int] = generator.choice(len(names), (len(names) + 1) // 2, replace=False).tolist()
            return chosen

        trees: list[Node] = [float(truth.mean())]
        left = truth - truth.mean()
        for _ in range(ROUNDS):
            seen = generator.random(len(truth)) < SHARE
            tree = _grown(x[seen], left[seen], DEPTHS[-1], leaf, half)
            trees.append(_named(tree, names))
            left = left - _predicted(tree, x)
        return Model(names, *_range(x), 0.0, trees=tuple(trees))

    return fit_boosted


def _range(x: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the least and the largest value of each feature."""
    return tuple(x.min(axis=0).tolist()), tuple(x.max(axis=0).tolist())


def _grown(
    x: Floats, truth: Floats, depth: int, leaf: Callable[[Floats], float], features: Callable[[], Iterable[int]]
) -> Node:
    """Return a tree whose nodes have numbers of features; `features` returns those that a split may choose from."""
    split = _best_split(x, truth, features()) if depth > 0 else None
    if split is None:
        return leaf(truth)
    feature, threshold = split
    below = x[:, feature] <= threshold
    return [
        feature,
        threshold,
        _grown(x[below], truth[below], depth - 1, leaf, features),
        _grown(x[~below], truth[~below], depth - 1, leaf, features),
    ]


def _named(node: Node, names: tuple[str, ...]) -> Node:
    """Return a tree with the names of features."""
    if isinstance(node, list):
        return [names[node[0]], node[1], _named(node[2], names), _named(node[3], names)]
    return node


def _predicted(node: Node, x: Floats) -> Floats:
    """Return what a tree with numbers of features predicts for each row."""
    if not isinstance(node, list):
        return np.full(len(x), node)
    return np.where(x[:, node[0]] <= node[1], _predicted(node[2], x), _predicted(node[3], x))


def _best_split(x: Floats, truth: Floats, features: Iterable[int]) -> tuple[int, float] | None:
    """Return the feature and threshold that reduce the squared error most; None where no split leaves large leaves."""
    best, found = 1e-9, None
    count = len(truth)
    for feature in features:
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
