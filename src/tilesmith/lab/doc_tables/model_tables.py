"""Tables of whole models: results of `tilesmith compare`, of `tilesmith prove` and of `benchmarks/hugging_face.py`.

`<!-- figures: models.llama.float32 -->` in a page asks for the newest result of that model and dtype; the dtype is
optional.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilesmith.lab.report.number_format import duration, figure, memory

PREFIX = "models."
PROOFS = "benchmarks/proofs"
Result = Mapping[str, Any]


# Columns for a third-party model: the key in the result, and how to format it.
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "step": ("milliseconds", duration),
    "host": ("host_milliseconds", duration),
    "as a CUDA graph": ("graph_milliseconds", duration),
    "peak memory": ("peak_bytes", memory),
    "first loss": ("losses", lambda losses: f"{losses[0]:.3f}"),
    "tenth loss": ("losses", lambda losses: f"{losses[-1]:.3f}"),
}


def model_tables(model: str, stored: Mapping[str, Result]) -> str | None:
    """Return the table of a model's newest result; None where there is none. `stored` is by file name."""
    found = {
        name: result
        for name, result in stored.items()
        if model in (result.get("model"), f"{result.get('model')}.{_dtype_of(result)}")
    }
    if not found:
        return None
    name = max(found, key=lambda name: (str(found[name].get("date")), name))
    result = found[name]
    lines = _of_versions(result["variants"]) if "variants" in result else _of_rows(result["rows"])
    return "\n".join([*lines, "", _provenance(name, result)])


def _of_versions(variants: Sequence[Result]) -> list[str]:
    """Return a table with one column per version, as `tilesmith compare` shows them."""
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
    """Return a table with one row per version of a third-party model."""
    shown = {name: (key, show) for name, (key, show) in COLUMNS.items() if all(key in row for row in rows)}
    return [
        _line(["", *shown]),
        "|---|" + "---:|" * len(shown),
        *(_line([row["version"], *(show(row[key]) for key, show in shown.values())]) for row in rows),
    ]


def proof_table(proofs: Mapping[str, Result]) -> str | None:
    """Return a table with one row per stored proof, by file name; None where there is none."""
    if not proofs:
        return None
    heads = ["model", "parameters", "training", "gradients of the first step", "loss", "last loss", "difference"]
    lines = [_line(heads), "|---|---:|---|---:|---:|---:|---|"]
    for result in proofs.values():
        of, runs, settings = (
            {one["what"]: one for one in result["differences"]},
            {one["name"]: one for one in result["runs"]},
            result["settings"],
        )
        tokens = f"{settings['batch_size']} × {settings['seq_len']}"
        lines.append(_line([
            result["model"],
            f"{result['parameters'] / 1e6:.0f} million",
            f"{settings['steps']} steps of {tokens} tokens, {settings['dtype']}",
            *(f"{of[what]['patched']:.1e}; {of[what]['other_rounding']:.1e}" for what in ("gradients", "loss")),
            "; ".join(f"{one['losses'][-1]:.3f}" for one in (runs["patched"], runs["unpatched"])),
            "rounding" if result["is_rounding"] else "more than rounding",
        ]))  # fmt: skip
    return "\n".join([*lines, "", *(_provenance(name, result, PROOFS) for name, result in proofs.items())])


def _dtype_of(result: Result) -> str | None:
    """Return the dtype of a result; a comparison stores the dtype with each version."""
    versions = result.get("variants")
    found: Result = versions[0].get("config", {}) if versions else result
    return found.get("dtype")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _provenance(name: str, result: Result, folder: str = "benchmarks/results/models") -> str:
    parts = [
        f"{result.get('device')}, driver {result.get('driver')}",
        f"PyTorch {result.get('torch')}, Triton {result.get('triton')}",
        f"commit {_short(str(result.get('commit')))}",
        str(result.get("date"))[:10],
        f"`{folder}/{name}`",
    ]
    return f"<sub>Measured: {'; '.join(parts)}</sub>"


def _short(commit: str) -> str:
    """Return twelve digits of the commit, and whether files were changed."""
    return commit[:12] + (" and changes" if commit.endswith("-dirty") else "")
