"""Selecting cases, dtypes, modes, rivals and sweep points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tilesmith.lab.bench.running.bench_units import Source
from tilesmith.lab.bench.selection import Selection, SelectionError, units
from tilesmith.lab.bench.sweeps import SweepError, parse, points
from tilesmith.spec import Case, Cost, Spec, SpecError, Work


def double(x: Tensor, block_size: int = 64) -> Tensor:
    return 2 * x


SPEC = Spec(
    name="double",
    op=double,
    reference=lambda x: 2 * x,
    cases=[Case("tiny", rows=2, cols=2), Case("large", rows=4096, cols=4096), Case("wide", rows=4, cols=1 << 20)],
    make_inputs=lambda case, dtype, device: {"x": torch.randn(case.rows, case.cols, dtype=dtype, device=device)},
    cost=lambda case, dtype: Cost(Work(2 * case.rows * case.cols * dtype.itemsize, case.rows * case.cols)),
    rivals={"torch": lambda x: 2 * x, "liger": lambda x: 2 * x},
)
SOURCE = Source(lambda: SPEC)


def chosen(selection: Selection) -> list[tuple[str, str, str, str]]:
    dtypes = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    return [(unit.case.name, dtypes[unit.dtype], unit.mode, unit.provider) for unit in units(SPEC, SOURCE, selection)]


def test_default_is_large_cases_bf16_and_all_rivals() -> None:
    everyone = chosen(Selection())
    assert [unit[0] for unit in everyone if unit[2:] == ("fwd", "tilesmith")] == ["large", "wide"]
    assert {unit[1] for unit in everyone} == {"bf16"}
    assert {unit[2] for unit in everyone} == {"fwd", "bwd"}
    assert [unit[3] for unit in everyone][:4] == ["tilesmith", "torch", "compile", "liger"]


def test_prediction_uses_all_cases() -> None:
    assert {unit[0] for unit in chosen(Selection(predicting=True))} == {"tiny", "large", "wide"}


def test_predicted_sweep_uses_the_largest_case_by_default() -> None:
    compiled = Source(lambda: SPEC, planned=lambda *_: [], fields=lambda *_: ["block_size"])

    def names(source: Source, **chosen: Any) -> set[str]:
        return {unit.case.name for unit in units(SPEC, source, Selection(sweep={"block_size": [32, 64]}, **chosen))}

    assert names(compiled, predicting=True) == {"large"}
    assert names(compiled, predicting=True, cases=["all"]) == {"tiny", "large", "wide"}
    assert names(compiled, predicting=True, sizes={"cols": 8}) == {"large", "wide"}
    assert names(compiled) == {"large", "wide"}, "on a GPU"
    assert names(SOURCE, predicting=True) == {"large"}, "a file's operator too"
    without_cost = units(replace(SPEC, cost=None), SOURCE, Selection(sweep={"block_size": [32]}, predicting=True))
    assert {unit.case.name for unit in without_cost} == {"large"}


def test_names_select_cases_dtypes_modes_and_rivals() -> None:
    selection = Selection(cases=["tiny"], dtypes=["fp32", "float16"], modes=["both"], rivals=["liger"])
    assert chosen(selection) == [
        ("tiny", dtype, "both", provider) for dtype in ("fp32", "fp16") for provider in ("tilesmith", "liger")
    ]


def test_all_sizes_give_one_case_and_some_sizes_change_each_case() -> None:
    whole = units(SPEC, SOURCE, Selection(sizes={"rows": 3, "cols": 5}, modes=["fwd"], rivals=[]))
    assert [(unit.case.name, unit.case.sizes) for unit in whole] == [("custom", {"rows": 3, "cols": 5})]
    part = units(SPEC, SOURCE, Selection(cases=["all"], sizes={"cols": 5}, modes=["fwd"], rivals=[]))
    assert [(unit.case.name, unit.case.cols) for unit in part] == [("tiny", 5), ("large", 5), ("wide", 5)]


@pytest.mark.parametrize(
    ("selection", "complaint"),
    [
        (Selection(cases=["huge"]), "double has no case 'huge'"),
        (Selection(sizes={"depth": 3}), "not depth"),
        (Selection(dtypes=["int8"]), "double has no dtype int8; it has float32, float16, bfloat16"),
        (Selection(modes=["sideways"]), "--mode: sideways is not one of fwd, bwd, both"),
        (Selection(sweep={"BLOCK": [1]}), "--sweep: double has no argument of its operator BLOCK; it has block_size"),
    ],
)
def test_unknown_names_are_errors(selection: Selection, complaint: str) -> None:
    with pytest.raises((SelectionError, SpecError), match=complaint.replace("[", r"\[")):
        units(SPEC, SOURCE, selection)


def test_sweep_covers_all_combinations_without_rivals() -> None:
    swept = units(SPEC, SOURCE, Selection(cases=["tiny"], modes=["fwd"], sweep={"block_size": [64, 128]}))
    assert [(unit.provider, unit.config) for unit in swept] == [
        ("tilesmith", {"block_size": 64}),
        ("tilesmith", {"block_size": 128}),
    ]


def test_sweep_values_become_numbers() -> None:
    fields = parse(["BLOCK_SIZE=64,128", "flag=true", "scale=0.5", "order=rows"])
    assert fields == {"BLOCK_SIZE": [64, 128], "flag": [True], "scale": [0.5], "order": ["rows"]}
    assert len(points({"a": [1, 2], "b": [3, 4, 5]})) == 6
    assert points({}) == [{}]


@pytest.mark.parametrize("text", ["BLOCK_SIZE", "=1", "BLOCK_SIZE=", "BLOCK_SIZE=1,,2"])
def test_a_sweep_without_values_is_refused(text: str) -> None:
    with pytest.raises(SweepError, match="expected FIELD=VALUE"):
        parse([text])


def test_a_field_swept_twice_is_refused() -> None:
    with pytest.raises(SweepError, match="given twice"):
        parse(["a=1", "a=2"])
