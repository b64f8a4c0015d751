"""`tilesmith ops`: the operators with formula, dtypes and cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilesmith import __version__
from tilesmith.cli.terminal import console, operators, write_json

if TYPE_CHECKING:
    from tilesmith.spec import Spec

_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def ops(
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as JSON.")] = None,
) -> None:
    """List the operators: formula, dtypes, gradient, bytes and flops per element."""
    from rich.table import Table
    from rich.text import Text

    rows = [_row(spec) for spec in operators().values()]
    if json:
        write_json(json, {"tilesmith": __version__, "operators": rows})
    table = Table(box=None, pad_edge=False)
    table.add_column("operator")  # the only column that wraps: formulas are long, and terminals have 80 columns
    for heading in ("dtypes", "gradient"):
        table.add_column(heading, no_wrap=True)
    for heading in ("bytes", "flops"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            Text.assemble(row["name"], "\n", (row["formula"], "dim")),
            " ".join(_SHORT.get(dtype, dtype) for dtype in row["dtypes"]),
            "yes" if row["differentiable"] else "no",
            _forward_and_backward(row, "bytes"),
            _forward_and_backward(row, "flops"),
        )
    console.print(table)
    console.print("\nBytes and flops, forward / backward: the minimum per element of")
    console.print("the first input, in bf16, for the largest case.")


def _row(spec: Spec) -> dict[str, Any]:
    import inspect

    import torch

    return {
        "name": spec.name,
        "formula": spec.formula,
        "signature": f"{spec.name}{inspect.signature(spec.op)}",
        "dtypes": [str(dtype).removeprefix("torch.") for dtype in spec.dtypes],
        "differentiable": spec.differentiable,
        "per_element": _per_element(spec, torch.bfloat16),
    }


def _per_element(spec: Spec, dtype: Any) -> dict[str, dict[str, float]]:
    """Return bytes and flops of the largest case per element of the first input."""
    assert spec.cost is not None, "every operator of this package declares its cost"
    case = spec.cases[-1]
    cost = spec.cost(case, dtype)
    elements = next(iter(spec.inputs(case, dtype, "meta").values())).numel()
    return {
        direction: {"bytes": round(work.bytes / elements, 2), "flops": round(work.flops / elements, 2)}
        for direction, work in (("forward", cost.forward), ("backward", cost.backward))
        if work is not None
    }


def _forward_and_backward(row: dict[str, Any], what: str) -> str:
    return " / ".join(_short_number(work[what]) for work in row["per_element"].values())


def _short_number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value / 1000:.3g}k"
