"""Which sizes and inputs the judge tries: sizes in a candidate's text, single large elements, zeros, equal values."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch

from tilesmith.lab.judge import Candidate, Task, task_at
from tilesmith.lab.judge.sizing import launch_form, sizes_of
from tilesmith.lab.judge.sizing.thresholds import MOST_THRESHOLDS

TASKS = Path(__file__).parents[2] / "judge" / "zoo" / "tasks"


def sizes(text: str) -> list[int]:
    return sizes_of(Candidate.of_text(text)).thresholds


def softmax() -> Task:
    return task_at(TASKS / "softmax.py")


def test_thresholds_are_integers_that_conditions_compare_with() -> None:
    assert sizes("def f(n):\n    if n == 777:\n        return 12\n") == [777, 778]
    assert sizes("LIMIT = 3 * 1000\n\ndef f(n):\n    return 1 if n > LIMIT else 2\n") == [3000, 3001]
    assert sizes("def f(n):\n    return n % 97 == 0\n") == [97, 98, 194, 195]
    assert sizes("def f(n):\n    return n in (111, 222)\n") == [111, 112, 222, 223]
    assert sizes("def f(n):\n    return n < (1 << 9)\n") == [512, 513]


def test_other_integers_and_broken_files_give_no_thresholds() -> None:
    assert sizes("def f(n):\n    return n * 777\n") == []
    assert sizes("def f(n):\n    return n > 10**9 or n > 2**2**2**2**9\n") == []
    assert sizes("def f(:\n") == []


def test_conditions_are_tried_with_every_size() -> None:
    assert sizes("def f(x):\n    return x.shape[1] * 7 == 3619\n") == [3619, 3620, 517, 518]
    assert sizes('def f(x):\n    return str(x.size(0)) == "517"\n') == [517, 518]
    assert sizes("def f(n):\n    return {91: 1}.get(n)  if {91: 1}.get(n) else 0\n") == [91, 92]
    assert sizes("def f(n):\n    m = n ^ 5\n    return m == 512\n") == [512, 513, 517, 518]
    assert 61 in sizes("def f(n):\n    return math.gcd(n, 61) > 1\n")


def test_conditions_that_would_take_long_or_call_others_are_left_alone() -> None:
    assert sizes("def f(n):\n    return str(n) * n * n * n == 1\n") == []
    assert sizes("def f(n):\n    return 1 << (1 << n) > open(n)\n") == []
    assert sizes("def f(n):\n    return n.__class__.__mro__[1].__subclasses__()\n") == []
    assert sizes("def f(n):\n    return ((((n**4)**4)**4)**4)**4 == 0\n") == []


def test_number_of_elements_is_tried_with_other_sizes_of_one() -> None:
    found = sizes_of(Candidate.of_text("def f(x):\n    return x.numel() == 11 * 473\n"))
    assert found.elements == [5203, 5204]
    assert {"rows": 1, "cols": 5203} in [dict(one.case.sizes) for one in softmax().resized([5203], 0, other=1)]


def test_surveyed_trials_hold_equal_sizes_too() -> None:
    found = [one.case.sizes for one in softmax().surveyed(0)]
    assert len(found) > 30
    assert any(one["rows"] == one["cols"] for one in found)


def test_form_of_launches_ignores_sizes_and_keeps_kernels_and_flags() -> None:
    def tape(text: str, **arguments: object) -> dict[str, object]:
        return {"steps": [{"kernel": 0, "grid": [5, 1, 1], "arguments": arguments}], "kernels": [{"text": text}]}

    assert launch_form(tape("a", n=17, BLOCK=64)) == launch_form(tape("a", n=91, BLOCK=128))
    assert launch_form(tape("a", n=17)) != launch_form(tape("b", n=17))
    assert launch_form(tape("a", CAUSAL=True)) != launch_form(tape("a", CAUSAL=False))
    assert launch_form(tape("a", MODE=0)) != launch_form(tape("a", MODE=3))


def test_thresholds_are_few_and_odd_looking_ones_first() -> None:
    found = sizes("def f(n):\n    return n in (" + ", ".join(str(16 << one) for one in range(10)) + ", 99, 999, 9)\n")
    assert found[:6] == [9, 10, 99, 100, 999, 1000]
    assert len(found) == 2 * MOST_THRESHOLDS


def test_blocks_are_constants_of_configurations_and_arguments_in_capitals() -> None:
    text = 'CONFIGS = [triton.Config({"BLOCK": 1 << one, "SIDE": 64}, num_warps=4)]\nkernel[(1,)](x, n=33, BLOCK=256)\n'
    assert sizes_of(Candidate.of_text(text)).beyond_blocks == [257, 65]


def test_resized_trials_have_the_size_in_one_dimension_and_small_others() -> None:
    trials = softmax().resized([1, 777], 0)
    assert {one.dtype for one in trials} == {torch.float32, torch.float16}
    found = [dict(one.case.sizes) for one in trials if one.dtype == torch.float32]
    assert [one["rows"] for one in found if one["rows"] in (1, 777)] == [1, 777]
    assert [one["cols"] for one in found if one["cols"] in (1, 777)] == [1, 777]
    assert all(min(one.values()) <= 5 for one in found)


def test_every_size_is_tried_in_one_dtype_before_any_in_another() -> None:
    """Programs are limited: `wrong_beyond_a_size` passed when 1500 rows in two dtypes left no room for 1501."""
    dtypes = [trial.dtype for trial in softmax().resized([1500, 1501], 0)]
    changes = sum(one != other for one, other in pairwise(dtypes))
    assert len(set(dtypes)) == 2
    assert changes == 1


def test_spiked_inputs_hold_one_large_element_in_some_rows() -> None:
    task = softmax()
    trial = task.trials(0)[0]
    x = task.inputs(trial, 3, "spiked")["x"]
    large = (x.abs() >= 1000).sum(-1)
    assert set(large.tolist()) == {0, 1}
    sizes = x[large == 0].abs().amax(-1)
    assert float(sizes.max() / sizes.min()) > 30  # the other rows have magnitudes of their own


def test_sparse_inputs_hold_zeros_and_equal_values() -> None:
    task = softmax()
    trial = task.trials(0)[0]
    x = task.inputs(trial, 3, "sparse")["x"]
    assert int((x == 0).sum()) > 1
    assert int((x == x.max()).sum()) > 1
    assert not torch.equal(x, task.inputs(trial, 3, "sparse-seen")["x"])


def test_a_stretched_size_is_large_whatever_the_others_are() -> None:
    task = task_at(TASKS / "row_sum.py")
    for seed in range(12):
        assert all(max(trial.case.sizes.values()) > 6000 for trial in task.stretched(seed))
