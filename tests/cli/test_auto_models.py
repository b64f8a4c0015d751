"""The models of `auto`, as they follow from stored surveys."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from tilesmith.cli import auto_models
from tilesmith.lab.bench.survey.drawing import draw
from tilesmith.lab.bench.survey.survey_result import SurveyError, read
from tilesmith.ops import SPECS
from tilesmith.ops.runtime.auto import model
from tilesmith.ops.runtime.auto.features import features
from tilesmith.ops.runtime.auto.model import from_data
from tilesmith.ops.runtime.operator import Operator

PROJECT = Path(__file__).parents[2]


def survey(**more: Any) -> dict[str, Any]:
    """Return a made-up survey in which our softmax is slow for odd widths, forward alone."""
    cases = []
    for number, drawn in enumerate(draw("softmax", 0, 60)):
        odd = drawn["columns"] * (4 if drawn["dtype"] == "float32" else 2) % 16 != 0
        times = {"fwd": 1.5 if odd else 0.5, "bwd": 0.5}
        directions = {mode: {"device_ms": {"tilesmith": ms, "torch": 1.0}} for mode, ms in times.items()}
        cases.append(
            {"op": "softmax", "number": number, "drawn": drawn, "file": None, "wrong": None, "directions": directions}
        )
    about = dict.fromkeys(auto_models.PROVENANCE, "some")
    return {**about, "schema": 1, "kind": "survey", "device": "Some GPU", "sms": 132, "cases": cases, **more}


def stored(tmp_path: Path, **more: Any) -> dict[str, Any]:
    (tmp_path / "one.json").write_text(json.dumps(survey(**more)))
    ((path, table),) = auto_models.tables(tmp_path).items()
    assert path == model.SHIPPED / "some-gpu.json"
    return table


def test_planted_rule_is_in_the_shipped_model(tmp_path: Path) -> None:
    table = json.loads(json.dumps(stored(tmp_path)))
    softmax = SPECS["softmax"]
    assert isinstance(softmax.op, Operator)
    forward, backward = (from_data(table["models"]["softmax"]["half"][one]) for one in ("forward", "backward"))
    for drawn in draw("softmax", 5, 30):  # another seed than the surveyed one
        x = torch.empty(drawn["rows"], drawn["columns"], dtype=torch.bfloat16, device="meta")
        described = features("softmax", softmax.op.named(x=x), 132)
        assert described is not None
        assert forward.takes_torch(described) == (drawn["columns"] % 8 != 0)
        assert not backward.takes_torch(described)


def test_table_names_its_surveys_and_what_it_loses(tmp_path: Path) -> None:
    table = stored(tmp_path)
    assert table["source"]["surveys"] == {"one.json": auto_models.digest(tmp_path / "one.json")}
    lines = list(auto_models.described(table))
    assert len(lines) == 1 + sum(len(of_dtypes) for of_dtypes in table["models"]["softmax"].values())
    (line,) = [line for line in lines if line.startswith("softmax half forward: ")]
    assert "tree of depth 1" in line


def test_wrong_and_untimed_cases_do_not_count(tmp_path: Path) -> None:
    cases = survey()["cases"]
    cases[0]["wrong"] = "tilesmith: forward"
    cases[1]["directions"]["fwd"]["device_ms"] = {"torch": 1.0}
    found = list(auto_models.samples(survey(cases=cases[:3])))
    assert [key[2] for key, _ in found] == ["backward", "forward", "backward"]


def test_file_that_is_no_survey_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("{}")
    with pytest.raises(SurveyError, match="is not a survey of this version"):
        auto_models.tables(tmp_path)


def test_shipped_models_are_those_of_the_stored_surveys() -> None:
    """Compares digests: fitting again takes a minute."""
    folder = PROJECT / auto_models.SURVEYS
    known = {path.name: auto_models.digest(path) for path in folder.glob("*.json")}
    shipped = [json.loads(path.read_text()) for path in model.SHIPPED.glob("*.json")]
    assert {name: one for table in shipped for name, one in table["source"]["surveys"].items()} == known, (
        "run `make figures`"
    )


def test_shipped_models_choose_well_on_the_stored_surveys() -> None:
    """Left-out cases are judged when the models are fitted; this finds models that are read as something else."""
    found: dict[tuple[str, str, str], list[tuple[bool, float]]] = defaultdict(list)
    for path in sorted((PROJECT / auto_models.SURVEYS).glob("*.json")):
        for key, sample in auto_models.samples(read(path)):
            one = model.model_of("nvidia-h200", *key)
            if one is not None:
                found[key].append((not one.takes_torch(sample.features), sample.ours_ms / sample.torch_ms))
    shipped = json.loads((model.SHIPPED / "nvidia-h200.json").read_text())["models"]
    assert len(found) == 34
    for (op, dtypes, direction), cases in found.items():
        taken = [ratio if takes_ours else 1.0 for takes_ours, ratio in cases]
        assert sum(ratio > 1.03 for ratio in taken) <= max(0.04 * len(taken), 1), (op, dtypes, direction)
        assert sum(ratio > 1.08 for ratio in taken) <= max(0.02 * len(taken), 1), (op, dtypes, direction)
        lost = mean(one / min(ratio, 1.0) - 1 for one, (_, ratio) in zip(taken, cases, strict=True))
        assert lost <= 1.1 * shipped[op][dtypes][direction]["left_out"]["lost"] + 0.01, (op, dtypes, direction)


def test_shipped_file_has_a_line_for_each_tree() -> None:
    tree = ["bytes", 20.0, -0.5, ["columns", 4.0, 0.1, 0.2]]
    table = {
        "schema": 2,
        "models": {"softmax": {"range": {"bytes": [1.0, 2.0]}, "trees": [0.25, tree], "note": "ü"}},
        "none": {},
    }
    text = auto_models.as_json(table)
    assert json.loads(text) == table
    assert [line.strip() for line in text.splitlines() if "columns" in line] == [json.dumps(tree)]
