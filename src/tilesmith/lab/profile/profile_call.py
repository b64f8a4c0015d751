"""`ts.lab.profile`: run a command under a profiler, from Python."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tilesmith import __version__
from tilesmith.arguments import TEXT, TEXTS, Rule, require
from tilesmith.lab.profile.session import choose, discard_if_empty, fresh_folder, run
from tilesmith.lab.profile.summary import ProfileError, Summary, blocks
from tilesmith.toolchain.machine import examine

SCHEMA = 1


@dataclass(frozen=True, repr=False)
class Profile:
    """The summary of a recording. `to_json()` is what `tilesmith profile --json` writes."""

    summary: Summary
    tool: str
    command: tuple[str, ...]
    status: int

    def to_json(self) -> dict[str, Any]:
        facts = {"tool": self.tool, "command": list(self.command), "status": self.status}
        return {"tilesmith": __version__, "schema": SCHEMA, **facts, **asdict(self.summary)}

    def __str__(self) -> str:
        from tilesmith.lab.report.terminal import as_text, show_block

        def show(console: Console) -> None:
            for block in blocks(self.summary):
                show_block(console, block)
            for path, how in self.summary.files:
                console.print(f"{path}\n  {how}", soft_wrap=True, markup=False)

        return as_text(show)

    __repr__ = __str__

    def html(self) -> str:
        """Return the summary as one HTML file without external resources."""
        from tilesmith.lab.report.content import Facts, Section
        from tilesmith.lab.report.page import render

        return render(
            "base.html",
            title=f"Profile of {shlex.join(self.command)}",
            summary="Where the time goes.",
            sections=[
                Section("Summary", f"Recorded by {self.tool}.", blocks(self.summary)),
                Section("Recordings", "The files, and how to open them.", [Facts(dict(self.summary.files))]),
            ],
            provenance={"Made": time.strftime("%Y-%m-%d %H:%M %Z"), "By": f"tilesmith profile, version {__version__}"},
        )

    def _repr_html_(self) -> str:
        from tilesmith.lab.report.page import in_notebook

        return in_notebook(self.html(), "Profile", height=600)


COMMAND: Rule = (lambda value: TEXT[0](value) or TEXTS[0](value), "a command: a string or a list of strings")


def profile(command: str | Sequence[str], *, tool: str = "auto", out: str | Path = "tilesmith-profile") -> Profile:
    """Run a command such as "python train.py" under an installed profiler and return where the time goes.

    The recordings go to a new folder in `out`. Raises ProfileError where the command or the profiler is missing, or
    where the command recorded nothing.
    """
    require("profile", "command", command, COMMAND)
    require("profile", "tool", tool, TEXT)
    require("profile", "out", out, (lambda value: isinstance(value, (str, Path)), "the path of a folder"))
    words = shlex.split(command) if isinstance(command, str) else list(command)
    if not words:
        raise ProfileError("the command is empty; pass one such as 'python train.py'")
    chosen = choose(tool, words, examine())
    folder = fresh_folder(Path(out), chosen)
    status = run(chosen.command(words, folder))
    try:
        summary = chosen.read(folder)
    except ProfileError:
        discard_if_empty(folder)
        raise
    return Profile(summary, chosen.name, tuple(words), status)
