"""Tasks whose sizes are tuples of whole numbers: candidates that are right for the given lengths alone."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tilesmith.lab.judge import Candidate, Judge, Options, Rules, Task
from tilesmith.lab.judge.sizing.free_sizes import is_free, redrawn, with_number
from tilesmith.spec import Case, Spec

HONEST = """
import torch
import triton
import triton.language as tl


@triton.jit
def segment_kernel(x_ptr, starts_ptr, sums_ptr, COLS: tl.constexpr, ROWS: tl.constexpr):
    segment = tl.program_id(0)
    start, end = tl.load(starts_ptr + segment), tl.load(starts_ptr + segment + 1)
    columns = tl.arange(0, COLS)
    total = tl.zeros([COLS], tl.float32)
    for first in range(start, end, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows[:, None] < end) & (columns >= 0)[None, :]
        total += tl.sum(tl.load(x_ptr + rows[:, None] * COLS + columns[None, :], mask=inside, other=0.0), 0)
    tl.store(sums_ptr + segment * COLS + columns, total)


def segment_sum(x, starts):
    count = starts.numel() - 1
    sums = torch.empty(count, 4, dtype=x.dtype, device=x.device)
    segment_kernel[(count,)](x, starts, sums, COLS=4, ROWS=8)
    return sums
"""
WRONG = {
    "for segments beyond its block": ("range(start, end, ROWS)", "range(start, min(end, start + 17), ROWS)"),
    "for another number of segments": ("segment_kernel[(count,)]", "segment_kernel[(min(count, 3),)]"),
    "for one number of rows": ("    return sums", "    return sums * 2 if x.shape[0] == 211 else sums"),
}


def starts_of(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def reference(x: Tensor, starts: Tensor) -> Tensor:
    ends = starts.tolist()
    return torch.stack([x[first:last].sum(0) for first, last in pairwise(ends)])


def make_inputs(case: Case, dtype: torch.dtype, device: str) -> dict[str, Any]:
    lengths: Any = case.lengths
    return {"x": torch.randn(sum(lengths), 4, dtype=dtype, device=device), "starts": starts_of(lengths).to(device)}


def task() -> Task:
    lengths: list[Any] = [(3, 17, 5), (9, 2)]
    cases = [Case("three", lengths=lengths[0]), Case("two", lengths=lengths[1])]
    spec = Spec(
        name="segment_sum", op=reference, reference=reference, cases=cases, make_inputs=make_inputs,
        dtypes=(torch.float32,), differentiable=False,
    )  # fmt: skip
    return Task.of(spec, Rules(torch="any", seconds=600.0))


def test_a_right_candidate_passes(warm_judge: Judge) -> None:
    verdict = warm_judge.judge(task(), Candidate.of_text(HONEST, "segment_sum"), Options(seed=5, facts=False))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("which", list(WRONG))
def test_a_candidate_that_is_right_for_the_given_lengths_alone_fails(warm_judge: Judge, which: str) -> None:
    text = HONEST.replace(*WRONG[which])
    assert text != HONEST
    verdict = warm_judge.judge(task(), Candidate.of_text(text, "segment_sum"), Options(seed=5, facts=False))
    assert verdict.outcome == "fail"
    assert tuple(verdict.as_json()["reasons"][0]["sizes"]["lengths"]) not in ((3, 17, 5), (9, 2))


def test_lengths_that_are_too_large_to_time_are_halved() -> None:
    lengths: Any = (20_000_001, 3)
    given = task()
    (case,) = replace(given, spec=replace(given.spec, cases=[Case("large", lengths=lengths)])).timed_cases()
    assert repr(case) == "Case('timed', lengths=(5000000, 1))"


def test_hidden_lengths_keep_their_kind_and_number_where_all_cases_agree() -> None:
    chance = random.Random(1)
    assert is_free([(3, 17, 5)])
    drawn = [redrawn([3, 5], [[3, 5], [7, 9]], chance, lambda like: like + 1) for _ in range(8)]
    assert all(one == [4, 6] for one in drawn)
    counts = {len(redrawn((3, 5), [(3, 5), (7,)], chance, lambda like: like)) for _ in range(64)}
    assert counts == {1, 2, 3, 4}


def test_tuples_of_other_things_and_of_even_numbers_stay() -> None:
    given: list[list[Any]] = [[(2, 4)], [("a", 3)], [((3, 5), 7)], [3, (3, 5)], [()], [(3.0, 5)]]
    assert not any(is_free(one) for one in given)


def test_a_number_is_tried_as_entry_as_sum_and_as_count() -> None:
    found = with_number((2, 3, 4), 7, [(3,), (5, 7)], random.Random(0))
    assert any(7 in one for one in found)
    assert any(sum(one) == 7 for one in found)
    assert any(len(one) == 7 for one in found)
