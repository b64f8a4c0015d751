"""The list of forms: which form computes a problem, and whose default configuration is chosen."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tilesmith.ops.runtime.config import Config
from tilesmith.ops.runtime.forms import first_default, first_form
from tilesmith.ops.runtime.plan import Plan


@dataclass(frozen=True)
class UpTo:
    """A form that can compute problems up to `most` and is the fastest up to `fastest`."""

    most: int
    fastest: int

    def takes(self, problem: int) -> bool:
        return problem <= self.most

    def suits(self, problem: int) -> bool:
        assert problem <= self.most, "a form is asked whether it suits a problem that it cannot compute"
        return problem <= self.fastest

    def default(self, problem: int) -> Config | None:
        return Config(num_warps=self.fastest) if problem <= self.fastest else None

    def plan(self, problem: int) -> int:
        return problem


FORMS = [UpTo(most=4, fastest=8), UpTo(most=16, fastest=8), UpTo(most=64, fastest=64)]


@pytest.mark.parametrize(("problem", "place"), [(4, 0), (5, 1), (8, 1), (9, 2), (64, 2)])
def test_first_form_takes_and_suits_the_problem(problem: int, place: int) -> None:
    assert first_form(FORMS, problem) is FORMS[place]


@pytest.mark.parametrize(("problem", "num_warps"), [(8, 8), (9, 64)])
def test_first_default_skips_forms_without_one(problem: int, num_warps: int) -> None:
    assert first_default(FORMS, problem) == Config(num_warps=num_warps)


def test_plan_records_a_repeated_choice_once() -> None:
    """A form chooses to say whether it suits and again to plan; `tilesmith tune` must measure the choice once."""
    plan = Plan("kernels", torch.device("meta"), ())
    assert plan.choose(Config(), "sizes") == plan.choose(Config(), "sizes")
    plan.choose(Config(), "other sizes")
    assert [choice.bucket for choice in plan.choices] == ["sizes", "other sizes"]
