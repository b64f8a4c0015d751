"""Fit the models that `auto` predicts with to the stored surveys, and write them where the package finds them.

Part of `make figures`. Prints what each model loses on left-out cases, beside always taking our kernels or PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilesmith import storage
from tilesmith.lab.bench.survey.subjects import subject
from tilesmith.lab.bench.survey.survey_result import SurveyError, read
from tilesmith.ops import SPECS
from tilesmith.ops.runtime import tuning
from tilesmith.ops.runtime.auto import model
from tilesmith.ops.runtime.auto.features import dtype_class, features
from tilesmith.ops.runtime.auto.fitting import Fitted, Sample, fit
from tilesmith.ops.runtime.operator import Operator

SURVEYS = Path("benchmarks/surveys")
PROVENANCE = ("device", "driver", "torch", "triton", "commit", "date")
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
Key = tuple[str, str, str]  # operator, class of dtypes, direction


def main() -> int:
    try:
        made = tables(SURVEYS)
    except SurveyError as error:
        print(f"tilesmith: {error}", file=sys.stderr)
        return 2
    for path, table in made.items():
        storage.write_atomically(path, as_json(table) + "\n")
        print(f"{path}: written")
        for line in described(table):
            print(line)
    return 0


def tables(surveys: Path) -> dict[Path, dict[str, Any]]:
    """Return the models of each surveyed device by the path of their file. Raises SurveyError."""
    by_device: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for path in sorted(surveys.glob("*.json")):
        survey = read(path)
        by_device[survey["device"]][path.name] = survey
    return {
        model.SHIPPED / f"{tuning.slug(device)}.json": _table(found, surveys) for device, found in by_device.items()
    }


def as_json(value: Any, indent: int = 0) -> str:
    """Return JSON with a line for each entry of a dictionary and for each tree."""
    before = "\n" + " " * (indent + 1)
    if isinstance(value, dict) and value:
        entries = (f"{json.dumps(name)}: {as_json(one, indent + 1)}" for name, one in value.items())
        return "{" + before + f",{before}".join(entries) + before[:-1] + "}"
    if isinstance(value, list) and value and isinstance(value[-1], list):
        return "[" + before + f",{before}".join(map(json.dumps, value)) + before[:-1] + "]"
    return json.dumps(value, ensure_ascii=False)


def digest(path: Path) -> str:
    """Return what identifies the content of a stored survey."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _table(surveys: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    gathered: dict[Key, list[Sample]] = defaultdict(list)
    for survey in surveys.values():
        for key, sample in samples(survey):
            gathered[key].append(sample)
    models: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for (op, dtypes, direction), found in sorted(gathered.items()):
        fitted = fit(found)
        if fitted is not None:
            models[op][dtypes][direction] = _data(fitted)
    newest = max(surveys.values(), key=lambda survey: str(survey["date"]))
    source = {name: newest[name] for name in PROVENANCE}
    return {
        "schema": model.SCHEMA,
        "source": {**source, "surveys": {name: digest(folder / name) for name in surveys}},
        "models": models,
    }


def samples(survey: Mapping[str, Any]) -> Iterator[tuple[Key, Sample]]:
    """Yield the directions of all cases in which both sides have a time."""
    for case in survey["cases"]:
        spec = SPECS.get(case["op"])
        if spec is None or case["file"] or case["wrong"]:
            continue
        assert isinstance(spec.op, Operator)
        one = subject(spec, case["drawn"])
        arguments = spec.op.named(**one.spec.inputs(one.case, one.dtype, "meta"))
        described, dtypes = features(spec.name, arguments, survey["sms"]), dtype_class(arguments)
        for mode, direction in case["directions"].items():
            ours, torchs = (direction["device_ms"].get(name) for name in ("tilesmith", "torch"))
            if described is not None and dtypes is not None and ours and torchs:
                yield (spec.name, dtypes, DIRECTIONS[mode]), Sample(described, ours, torchs)


def _data(fitted: Fitted) -> dict[str, Any]:
    left_out = {
        name: float(f"{getattr(fitted, name):.3g}")
        for name in ("error", "behind", "lost", "lost_by_ours", "lost_by_torch")
    }
    return {"fitted_by": fitted.kind, "cases": fitted.cases, "left_out": left_out, **fitted.model.data()}


def described(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line per model: its kind, its margin, and what it loses on left-out cases."""
    yield "operator, dtypes, direction: cases, model, margin; time lost by auto, by ours, by PyTorch; behind PyTorch"
    for op, of_op in table["models"].items():
        for dtypes, of_dtypes in of_op.items():
            for direction, one in of_dtypes.items():
                yield f"{op} {dtypes} {direction}: {_line(one)}"


def _line(one: Mapping[str, Any]) -> str:
    left_out = one["left_out"]
    lost: Sequence[float] = [left_out[name] for name in ("lost", "lost_by_ours", "lost_by_torch")]
    shares = ", ".join(f"{share:.1%}" for share in lost)
    return f"{one['cases']}, {one['fitted_by']}, {one['margin']:g}; {shares}; {left_out['behind']:.1%}"


if __name__ == "__main__":
    sys.exit(main())
