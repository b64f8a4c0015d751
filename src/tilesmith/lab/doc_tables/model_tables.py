"""Tables of whole models for README and docs, from what `tilesmith compare` and the runs beside it stored.

A page asks for one by `<!-- figures: models.llama.float32 -->`: then the newest file of results for that model and that
dtype is shown. Without a dtype any will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilesmith.lab.report.number_format import duration, figure, memory

PREFIX = "models."
Result = Mapping[str, Any]


# Of one version of somebody else's model: what is shown of it, and what it has to have for that.
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "step": ("milliseconds", duration),
    "as a CUDA graph": ("graph_milliseconds", duration),
    "peak memory": ("peak_bytes", memory),
    "first loss": ("losses", lambda losses: f"{losses[0]:.3f}"),
    "tenth loss": ("losses", lambda losses: f"{losses[-1]:.3f}"),
}


def model_tables(model: str, stored: Mapping[str, Result]) -> str | None:
    """The newest result of a model, of `stored` by file name; None where there is none."""
    named, _, dtype = model.partition(".")
    found = {
        name: result
        for name, result in stored.items()
        if result.get("model") == named and dtype in ("", _dtype_of(result))
    }
    if not found:
        return None
    name = max(found, key=lambda name: (str(found[name].get("date")), name))
    result = found[name]
    lines = _of_versions(result["variants"]) if "variants" in result else _of_rows(result["rows"])
    return "\n".join([*lines, "", _provenance(name, result)])


def _of_versions(variants: Sequence[Result]) -> list[str]:
    """One column for each version, as `tilesmith compare` shows them."""
    rows = {
        "step": [duration(one["step_ms"]) for one in variants],
        "forward": [duration(one["forward_ms"]) for one in variants],
        "backward": [duration(one["backward_ms"]) for one in variants],
        "optimiser": [duration(one["optimizer_ms"]) for one in variants],
        "peak memory": [memory(one["peak_bytes"]) for one in variants],
        "samples a second": [figure(one["samples_per_s"]) for one in variants],
        "loss at the end": [f"{one['losses'][-1]:.4f}" for one in variants],
    }
    names = [one["variant"] for one in variants]
    return [_line(["", *names]), "|---|" + "---:|" * len(names), *(_line([name, *row]) for name, row in rows.items())]


def _of_rows(rows: Sequence[Result]) -> list[str]:
    """One line for each version of somebody else's model."""
    shown = {name: (key, show) for name, (key, show) in COLUMNS.items() if all(key in row for row in rows)}
    return [
        _line(["", *shown]),
        "|---|" + "---:|" * len(shown),
        *(_line([row["version"], *(show(row[key]) for key, show in shown.values())]) for row in rows),
    ]


def _dtype_of(result: Result) -> str | None:
    """What it computed in: a comparison of versions says so with each of them."""
    versions = result.get("variants")
    found: Result = versions[0].get("config", {}) if versions else result
    return found.get("dtype")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _provenance(name: str, result: Result) -> str:
    parts = [
        f"{result.get('device')}, driver {result.get('driver')}",
        f"PyTorch {result.get('torch')}, Triton {result.get('triton')}",
        f"commit {_short(str(result.get('commit')))}",
        str(result.get("date"))[:10],
        f"`benchmarks/results/models/{name}`",
    ]
    return f"<sub>Measured: {'; '.join(parts)}</sub>"


def _short(commit: str) -> str:
    """Twelve digits, and whether something was changed since."""
    return commit[:12] + (" and changes" if commit.endswith("-dirty") else "")
