"""A learner's walk through ten exercises in the studio: typical mistakes, then the solution.

As a program it also measures the time from each save to its verdict, and takes a picture of every verdict:

    python tests/studio/walk.py --json FILE --pictures FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "lab" / "inspect"))

from browser import Browser
from running_studio import RunningStudio, running_studio, until

from tilesmith import storage
from tilesmith.workshop.isolation.worker_process import descendants

BEGINNER = "beginner"


@dataclass(frozen=True)
class Mistake:
    """A part of the solution, what a beginner writes in its place, and words of the message."""

    right: str
    wrong: str
    says: str


@dataclass(frozen=True)
class Saved:
    """One save: what the page said, the seconds until it said so, and the CPU time of the check."""

    exercise: str
    track: str
    mistake: str  # "" for the solution
    passed: bool
    message: str
    seconds: float
    cpu_seconds: float


WALK: dict[str, tuple[Mistake, ...]] = {
    "vector-add": (
        Mistake("tl.load(x_ptr + offsets)", "x_ptr[offsets]", "A pointer has no elements to index"),
        Mistake("tl.load(y_ptr + offsets)", "y_ptr + offsets", "Is a tl.load missing"),
        Mistake("add_kernel[(programs,)]", "add_kernel[programs]", "with a comma"),
    ),
    "masks": (
        Mistake("x * factor, mask=mask", "x * factor", "out-of-bounds store"),
        Mistake("mask = offsets < n_elements", "mask = offsets <= n_elements", "out-of-bounds load"),
        Mistake("triton.cdiv(x.numel(), BLOCK_SIZE)", "x.numel() // BLOCK_SIZE", "not written by any program"),
    ),
    "block-size": (Mistake("BLOCK_SIZE = 512", "BLOCK_SIZE = 500", "power of 2"),),
    "two-dimensional-tiles": (
        Mistake("scale[:, None]", "scale", "Rows need [:, None]"),
        Mistake("row[:, None] * x_row_stride", "row[:, None] * columns", "The NaN is born on"),
    ),
    "strides": (Mistake("column * x_column_stride", "column", "must be"),),
    "three-dimensions": (Mistake("batch = tl.program_id(2)", "batch = tl.program_id(0)", "program"),),
    "vector-width": (Mistake("x * factor, mask=mask", "x + factor, mask=mask", "must be"),),
    "rms-norm": (
        Mistake("/ columns + eps)", "/ columns)", "must be"),
        Mistake("mask=mask, other=0.0)", "mask=mask)", "no value"),
    ),
    "reduction": (
        Mistake("out_ptr + tl.program_id(0)", "out_ptr", "tl.atomic_add"),
        Mistake("tl.sum(x, axis=0)", "sum(x)", "tl.sum(x, axis=0)"),
    ),
    "softmax": (Mistake("tl.exp(x - tl.max(x, axis=0))", "tl.exp(x)", "The NaN is born on"),),
}


def _shows(browser: Browser, title: str) -> bool:
    """Return whether the studio shows the lesson of this title."""
    return bool(browser.ask("document.querySelector('.lesson h1')?.textContent") == title)


def walk(studio: RunningStudio, browser: Browser, pictures: Path | None = None) -> Iterator[Saved]:
    """Yield every save of the walk, in order."""
    for name, mistakes in WALK.items():
        exercise = studio.workshop.catalogue[name]
        solution = exercise.solution.read_text()
        browser.open(f"{studio.address}#exercise/{name}")
        until(lambda: browser.ask("!!document.querySelector('.editor textarea')"))
        until(partial(_shows, browser, exercise.title))
        for number, mistake in enumerate((*mistakes, None)):
            source = solution
            if mistake is not None:
                assert mistake.right in source, (name, mistake)
                source = source.replace(mistake.right, mistake.wrong, 1)
            shown, seconds, cpu_seconds = _saved(studio, browser, source)
            if pictures is not None:
                browser.picture(pictures / f"{name}-{number}.png")
            yield Saved(
                name, exercise.track, mistake.wrong if mistake else "", shown["passed"], shown["text"],
                round(seconds, 3), round(cpu_seconds, 2),
            )  # fmt: skip


def _saved(studio: RunningStudio, browser: Browser, source: str) -> tuple[dict[str, Any], float, float]:
    """Write a text into the editor and save it by key. Return what the page shows, and how long the check took."""
    browser.ask(
        "(() => { const area = document.querySelector('.editor textarea'); area.focus();"
        "document.querySelectorAll('.verdict *').forEach((one) => (one.dataset.old = 1));"
        f"area.value = {json.dumps(source)}; area.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
    )
    before, start = _cpu_seconds(studio), time.monotonic()
    browser.press("s", 2)
    script = (
        "(() => { const message = document.querySelector('.verdict .message:not([data-old])');"
        "const solved = document.querySelector('.verdict .solved:not([data-old])');"
        "return message || solved ? { passed: !message, text: (message || solved).textContent } : null; })()"
    )
    shown = until(lambda: browser.ask(script), lambda: str(browser.ask("document.body.innerText"))[:2000])
    return shown, time.monotonic() - start, _cpu_seconds(studio) - before


def _cpu_seconds(studio: RunningStudio) -> float:
    """Return the CPU time of the worker and of all that it started."""
    worker = studio.studio.checks._worker.process_id
    if worker is None:
        return 0.0
    ticks = 0
    for process in (worker, *descendants(worker)):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def summary(saves: list[Saved]) -> dict[str, Any]:
    """Return the medians of the beginner's track and of all saves."""
    tracks = {"beginner's track": [one for one in saves if one.track == BEGINNER], "all": saves}
    return {
        name: {
            "saves": len(chosen),
            "median_seconds": round(statistics.median(one.seconds for one in chosen), 2),
            # A mean: the time of a process is known when it is reaped, which may be after the next save.
            "mean_cpu_seconds": round(statistics.fmean(one.cpu_seconds for one in chosen), 2),
            "slowest_seconds": max(one.seconds for one in chosen),
        }
        for name, chosen in tracks.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_studio(Path(folder) / "workshop") as studio,
        Browser(Path(folder), server=studio.origin) as browser,
    ):
        until(lambda: studio.studio.checks._worker.process_id)
        saves = list(walk(studio, browser, options.pictures))
    result = {
        "what": "seconds from a save in the studio to its verdict on the page",
        "machine": f"{os.cpu_count()} cores of {platform.machine()}",
        "load_average": [round(one, 1) for one in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__,
        "summary": summary(saves), "saves": [asdict(one) for one in saves],
    }  # fmt: skip
    storage.write_atomically(options.json, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
