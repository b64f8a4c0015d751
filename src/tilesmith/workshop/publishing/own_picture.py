"""The inspect page of a learner's own file: the verdict, the goals beside what was measured, and the kernels.

The lines that the verdict names are marked in the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from markupsafe import Markup, escape

from tilesmith.lab.inspect.output.page import write_html
from tilesmith.workshop.checking.goals import measure
from tilesmith.workshop.checking.triton_check import TritonCheck
from tilesmith.workshop.checking.verdict import GoalResult, Verdict
from tilesmith.workshop.course.exercise import Goal

RUNG_METRICS = ("sector_efficiency", "loads_per_element", "vector_bytes", "bank_conflicts", "registers")


def picture_of_check(check: TritonCheck, verdict: Verdict) -> str:
    """Return the page of the call that failed, else of the call that the goals measure; "" where no kernel ran."""
    measures = verdict.passed or verdict.stage == "goals"
    call = check.measured() if measures else check.latest
    if call is None or call.inspection is None or not call.kernels:
        return ""
    return write_html(call.inspection, preface(verdict, check.file.name))


def figures_of_check(check: TritonCheck) -> dict[str, float]:
    """Return the figures that the rungs of a ladder are compared by, as far as the measured call has them."""
    figures = {}
    for metric in RUNG_METRICS:
        with suppress(LookupError):
            figures[metric] = float(measure(Goal(metric, ""), check.measured()).value)
    return figures


def preface(verdict: Verdict, file_name: str) -> Markup:
    """Return what a picture opens with: the verdict, the goals beside what was measured, and the marked lines."""
    if verdict.passed:
        said = Markup('<p class="good">Every stage passed.</p>')
    else:
        said = Markup('<p class="bad">Failed at the stage “{}”.</p><pre class="verdict">{}</pre>').format(
            verdict.stage, verdict.message
        )
    lines = verdict.lines(file_name)
    return _style(lines) + said + _goals(verdict.goals)


def _style(lines: Sequence[int]) -> Markup:
    marked = ", ".join(f'.code tr[id$="-line-{line}"]' for line in lines)
    rule = f"{marked} {{ background: var(--bad-paper); box-shadow: inset 4px 0 var(--bad); }}" if marked else ""
    fixed = ".verdict { white-space: pre-wrap; } .goals :is(td, th) { padding-right: 0.8rem; }"
    return Markup("<style>{} {}</style>").format(Markup(fixed), Markup(rule))


def _goals(goals: Sequence[GoalResult]) -> Markup:
    if not goals:
        return Markup("")
    rows = Markup("").join(
        Markup('<tr><td>{}</td><td class="number">{}</td><td class="number {}">{:.4g}</td><td>{}</td></tr>').format(
            goal.name, goal.wanted, "good" if goal.met else "bad", goal.value, "reached" if goal.met else "missed"
        )
        for goal in goals
    )
    head = Markup('<tr><th>goal</th><th class="number">wanted</th><th class="number">measured</th><th></th></tr>')
    return Markup('<table class="goals"><thead>{}</thead><tbody>{}</tbody></table>').format(head, escape(rows))
