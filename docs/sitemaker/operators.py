"""One page per operator, from its spec and its docstring: formula, signature, shapes, errors, cost, measured times."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilesmith.lab.bench.output.contests import MODES, Contest
from tilesmith.lab.doc_tables.generate import Stored, newest
from tilesmith.lab.doc_tables.headline_chart import speed_ratios
from tilesmith.lab.doc_tables.survey_tables import survey_chart, surveyed
from tilesmith.lab.report.number_format import in_bytes, in_figures
from tilesmith.ops import SPECS
from tilesmith.spec import Case, Spec

FOLDER = "reference/operators"
LONGEST_LINE = 84  # of code on a page, before it must be scrolled
FAMILIES = {
    "Norms": ("rms_norm", "add_rms_norm", "rms_norm_relu", "rms_norm_rope", "layer_norm", "edge_norm"),
    "Elementwise": ("add", "silu", "gelu", "swiglu", "geglu", "gate", "rope", "transpose"),
    "Rows and losses": ("softmax", "sum", "cross_entropy", "linear_cross_entropy"),
    "GEMM and images": ("matmul", "conv2d", "max_pool2d", "avg_pool2d"),
}


def operator_pages(root: Path) -> dict[str, str]:
    """Return the pages of all operators and their index, by path."""
    stored = [Stored(path.name, json.loads(path.read_text())) for path in (root / "benchmarks/results").glob("*.json")]
    surveys = survey_images(root)
    pages = {
        f"{FOLDER}/{name}.md": operator_page(spec, root, stored, is_surveyed=_survey_image(name) in surveys)
        for name, spec in SPECS.items()
    }
    return {f"{FOLDER}/index.md": _index(), **pages}


def survey_images(root: Path) -> dict[str, str]:
    """Return the survey's curve of each operator that has one, by path."""
    found = surveyed(root)
    names = {op for op, _ in found.rows} if found else set()
    return {_survey_image(name): survey_chart(found, [name]) for name in sorted(names) if found}


def _survey_image(name: str) -> str:
    return f"images/survey/{name}.svg"


def family_of(name: str) -> str:
    return next((family for family, names in FAMILIES.items() if name in names), "Attention and Evoformer")


def operator_page(spec: Spec, root: Path, stored: list[Stored], *, is_surveyed: bool) -> str:
    return "\n".join(_parts(spec, root, stored, is_surveyed)) + "\n"


def _parts(spec: Spec, root: Path, stored: list[Stored], is_surveyed: bool) -> Iterator[str]:
    signature = _signature(f"ts.ops.{spec.name}", spec.op)
    yield f"# {spec.name}\n"
    yield f"**{_escaped(spec.formula)}**\n"
    yield f"```python\n{signature}\n```\n"
    yield f"{_escaped(inspect.getdoc(spec.op) or '')}\n"
    yield "## Measured\n"
    yield from _measured(spec.name, root, stored)
    if is_surveyed:
        yield "\n**On sizes drawn at random**: PyTorch's time divided by that of `auto`, every call, slowest first.\n"
        yield f"![{spec.name}: drawn calls beside PyTorch](../../{_survey_image(spec.name)})"
    yield "\n## Shapes\n"
    yield "The inputs of the cases on which Tilesmith checks and times this operator.\n"
    yield from _shapes(spec)
    yield "\n## Dtypes, layouts and gradient\n"
    dtypes = ", ".join(f"`{_dtype(one)}`" for one in (*spec.dtypes, torch.float64))
    yield f"- **Dtypes**: {dtypes}; accumulation in float32 or better."
    yield f"- **Layouts**: any strides. Checked: {', '.join(one.name for one in spec.layouts)}."
    yield f"- **Gradient**: {_gradient(spec)}\n"
    yield "## Errors\n"
    yield from _errors(spec)
    yield "\n## Cost\n"
    yield "The fewest bytes and flops, in bf16. A share of the limit refers to them.\n"
    yield from _cost(spec)
    yield "\n## Source\n"
    module = spec.op.__module__.split(".")
    folder = "/".join(["src", *module[:3]])
    place = folder if (root / folder).is_dir() else f"{folder}.py"
    yield f"`{place}`: the reference, the kernels, the operator and its `SPEC`, in that order.\n"
    yield f"Check it yourself: `tilesmith check {spec.name}`. Time it: `tilesmith bench {spec.name}`."


def _signature(name: str, function: Any) -> str:
    """Return the signature as an editor shows it; a long one has a line for each parameter."""
    text = str(inspect.signature(function))
    text = re.sub(r"torch\._?\w*\.?(Tensor|dtype)", r"\1", text).replace("typing.", "")
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    if len(name + text) <= LONGEST_LINE:
        return name + text
    inside, _, result = text[1:].rpartition(")")
    parameters = re.split(r", (?![^\[(]*[\])])", inside)  # not at a comma inside brackets
    return "\n".join([f"{name}(", *(f"    {one}," for one in parameters), f"){result}"])


def _shapes(spec: Spec) -> Iterator[str]:
    rows = [(case, _inputs(spec, case)) for case in spec.cases]
    found = [name for _, inputs in rows for name, value in inputs.items() if isinstance(value, Tensor)]
    names = list(dict.fromkeys(found))
    yield f"| case | {' | '.join(f'`{name}`' for name in names)} |"
    yield "|---|" + "---|" * len(names)
    for case, inputs in rows:
        cells = [_shape(inputs.get(name)) for name in names]
        yield f"| {case.name} | {' | '.join(cells)} |"


def _inputs(spec: Spec, case: Case) -> dict[str, Any]:
    try:
        return spec.inputs(case, torch.bfloat16, "meta")
    except Exception:  # inputs with values, such as the targets of a loss
        return spec.inputs(case, torch.bfloat16, "cpu") if _is_small(spec, case) else {}


def _is_small(spec: Spec, case: Case) -> bool:
    return spec.cost is not None and spec.cost(case, torch.bfloat16).forward.bytes < 1 << 24


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "–"
    dtype = "" if value.dtype == torch.bfloat16 else f" {_dtype(value.dtype)}"
    return f"[{', '.join(map(str, value.shape))}]{dtype}"


def _gradient(spec: Spec) -> str:
    if not spec.differentiable:
        return "none."
    leaves = spec.leaves(_inputs(spec, spec.cases[0]))
    named = ", ".join(f"`{name}`" for name in leaves)
    return f"of {named}. The backward may run twice; a second derivative is an error."


def _errors(spec: Spec) -> Iterator[str]:
    """Yield what the operator answers to wrong calls; the messages are real."""
    messages = list(dict.fromkeys(_wrong_calls(spec)))
    yield "A `ValueError` or `TypeError` names the argument. For example:\n"
    yield "```text"
    yield from messages or ["no wrong call was tried"]
    yield "```"


def _wrong_calls(spec: Spec) -> Iterator[str]:
    inputs = dict(spec.inputs(spec.cases[0], torch.float32, "cpu"))
    tensors = [name for name, value in inputs.items() if isinstance(value, Tensor)]
    for name in tensors[:3]:
        value = inputs[name]
        extended = torch.cat([value, value[..., :1]], -1) if value.dim() else value
        for wrong in (value.to(torch.complex64), "a string", extended):
            try:
                spec.op(**{**inputs, name: wrong})
            except (ValueError, TypeError) as error:
                if str(error).startswith(spec.name):
                    yield f"{type(error).__name__}: {str(error).splitlines()[0]}"
            except Exception:  # PyTorch's own error, which a page need not show
                continue


def _cost(spec: Spec) -> Iterator[str]:
    assert spec.cost is not None
    yield "| case | forward | backward |"
    yield "|---|---|---|"
    for case in spec.cases:
        cost = spec.cost(case, torch.bfloat16)
        cells = [
            f"{in_bytes(work.bytes)}, {in_figures(work.flops)} flops" if work else "–"
            for work in (cost.forward, cost.backward)
        ]
        yield f"| {case.name} | {' | '.join(cells)} |"


def _measured(name: str, root: Path, stored: list[Stored]) -> Iterator[str]:
    found = list(newest(name, stored))
    contests = [contest for _, group in found for contest in group]
    if not contests:
        yield "There is no stored measurement of this operator."
        return
    devices = " and ".join(sorted({one.result["device"] for one, _ in found}))
    yield f"Each stored case on an {devices} beside its fastest rival; the vertical line is equal speed.\n"
    yield f"{_curve(contests)}\n"
    if (root / "docs" / "performance" / f"{name}.md").is_file():
        yield f"[All figures, and what decides the speed](../../performance/{name}.md)."


def _curve(contests: list[Contest]) -> str:
    """Return bars on a logarithmic scale, the rival's time divided by ours, as SVG."""
    met = [one for one in contests if one.ours is not None and one.best_rival is not None]
    pairs = sorted(zip(speed_ratios(met), met, strict=True), key=lambda pair: pair[0])
    height = 38 * len(pairs) + 8
    middle = _across(1.0)
    parts = [f'<svg class="ratios" viewBox="0 0 400 {height}" role="img" aria-label="Speed beside the fastest rival">']
    for number, (ratio, contest) in enumerate(pairs):
        y = 18 + 38 * number
        width = min(max(_across(ratio), 0.0), 220.0)
        left, right = sorted((width, middle))
        kind = "win" if ratio >= 1 else "loss"
        rival = contest.best_rival or {}
        parts += [
            f'<text x="0" y="{y - 5}">{contest.size} {MODES[contest.mode]}</text>',
            f'<rect class="{kind}" x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="13"/>',
            f'<text x="{8 + right:.1f}" y="{y + 11}">{ratio:.2f} × as fast as {rival.get("provider")}</text>',
            f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{y - 1}" y2="{y + 14}"/>',
        ]
    return "".join([*parts, "</svg>"])


def _across(ratio: float) -> float:
    """Return the place of a ratio between 0.4 and 8 on a logarithmic axis of 220 pixels."""
    return 220 * math.log(ratio / 0.4) / math.log(8 / 0.4)


def _index() -> str:
    lines = ["# Operators\n", "Every operator, by family. [Rules for every operator](../../operators.md).\n"]
    for family in (*FAMILIES, "Attention and Evoformer"):
        lines += [f"\n## {family}\n", "| operator | computes |", "|---|---|"]
        for name, spec in SPECS.items():
            if family_of(name) == family:
                lines.append(f"| [{name}]({name}.md) | {_escaped(spec.formula)} |")
    return "\n".join(lines) + "\n"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _escaped(text: str) -> str:
    """Return text in which Markdown sees no markup, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(one if one.startswith("`") else re.sub(r"([*_|<\[\]])", r"\\\1", one) for one in parts)
