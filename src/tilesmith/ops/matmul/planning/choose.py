"""Choose the form of a product: the first of a list that takes the problem and suits it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilesmith.ops.matmul.planning.by_pointers import Pointers, SplitInTile, StoredByPointers
from tilesmith.ops.matmul.planning.by_tma import StoredByTma, Tma
from tilesmith.ops.matmul.planning.exact_on_hopper import ExactRegisters, ExactShared
from tilesmith.ops.matmul.planning.form import Form, TileConfig, with_split_k
from tilesmith.ops.matmul.planning.half_on_hopper import Half
from tilesmith.ops.matmul.planning.problem import Problem
from tilesmith.ops.runtime import dispatch
from tilesmith.ops.runtime.config import Config

FORMS: tuple[Form[Any], ...] = (
    Half(), ExactRegisters(), ExactShared(), SplitInTile(), StoredByTma(), StoredByPointers(), Tma(), Pointers(),
)  # fmt: skip
"""In the order in which the planner asks them. The last one takes and suits every problem."""

_BY_NAME = {form.name: form for form in FORMS}
_TILE_SIZES = frozenset({"BLOCK_M", "BLOCK_N", "BLOCK_K"})


def choose(problem: Problem) -> tuple[Form[Any], Config]:
    """Return the form that computes the problem, and its config."""
    form = _first_choice(problem)
    config = problem.plan.choose(form.config(problem), form.name, *problem.key)
    config = replace(config, form=form.name)  # a sweep over forms may have left the name of one that cannot
    if isinstance(config, TileConfig):
        config = with_split_k(config, problem)
    config = form.settled(problem, config)
    while (other := _form_of(config)) is not form:
        form, config = other, other.settled(problem, config)
    return form, config


def _form_of(config: Config) -> Form[Any]:
    return _BY_NAME[config.fields()["form"]]


def _first_choice(problem: Problem) -> Form[Any]:
    """Return the form that a sweep names, if it takes the problem; else the first that suits.

    A sweep over tile sizes leaves out forms that have none.
    """
    swept = dict(dispatch.state().overrides)
    sizes = _TILE_SIZES & swept.keys()
    forms = [form for form in FORMS if form.takes(problem) and sizes <= form.config_type().fields().keys()]
    named = [form for form in forms if form.name == swept.get("form")]
    return next(iter(named), None) or next(form for form in forms if form.suits(problem))
