"""The HTML page of one verdict, of two side by side, or of a series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilesmith import __version__
from tilesmith.lab.judge.output.content import comparison, headline, sections, series_table
from tilesmith.lab.report.content import Section
from tilesmith.lab.report.page import render


def page(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return a self-contained page about one or more verdicts on one task."""
    first = verdicts[0]
    if len(verdicts) == 1:
        found, summary = sections(first), headline(first)
    elif len(verdicts) == 2:
        found = comparison(first, verdicts[1])
        summary = f"{headline(first)}; {headline(verdicts[1])}"
    else:
        passed = sum(one["outcome"] == "pass" for one in verdicts)
        summary = f"{passed} of {len(verdicts)} candidates pass"
        found = [Section("Candidates", "Ordered by reward.", [series_table(verdicts)])]
    provenance = {"tilesmith": __version__, **first["versions"], "seed": str(first["seed"])}
    return render("base.html", title=f"Judged: {first['task']}", summary=summary, sections=found, provenance=provenance)
