"""Free mode: inspect, check, judge and bench of any kernel file, each in its own process."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilesmith.studio.events import Events

SECONDS = 600.0
LONGEST_TEXT = 40_000
MOST_KEPT = 20
PANELS = ("inspect", "check", "judge", "bench")
_WITH_PAGE = ("inspect", "judge", "bench")


@dataclass
class Run:
    """One run of a command. `status` is None while it runs."""

    number: int
    panel: str
    file: str
    status: int | None = None
    printed: str = ""
    result: Any = None
    page: str = field(default="", repr=False)

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.number, "panel": self.panel, "file": self.file, "status": self.status,
            "printed": self.printed, "page": bool(self.page),
        }  # fmt: skip


class Commands:
    """Runs our commands on a file. Results go to every tab as events."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._numbers = itertools.count(1)
        self._runs: dict[int, Run] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, panel: str, file: Path, shown: str) -> Run:
        """Start a command on a file; `shown` is the name of the file for the page."""
        run = Run(next(self._numbers), panel, shown)
        self._runs[run.number] = run
        for old in list(self._runs)[:-MOST_KEPT]:
            del self._runs[old]
        self._tasks[run.number] = asyncio.get_running_loop().create_task(self._run(run, file))
        return run

    def find(self, number: int) -> Run | None:
        return self._runs.get(number)

    def stop(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, run: Run, file: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="studio-") as scratch:
            page, result = Path(scratch) / "page.html", Path(scratch) / "result.json"
            command = [sys.executable, "-m", "tilesmith", run.panel, str(file), "--json", str(result)]
            command += ["--html", str(page)] if run.panel in _WITH_PAGE else []
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=file.parent,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "COLUMNS": "110", "NO_COLOR": "1"},
            )
            try:
                printed, _ = await asyncio.wait_for(process.communicate(), SECONDS)
                run.status, run.printed = process.returncode, printed.decode(errors="replace")[-LONGEST_TEXT:]
            except asyncio.TimeoutError:  # Python 3.10 has two of them
                run.status, run.printed = 124, f"still running after {SECONDS:g} s, so it was stopped"
            except asyncio.CancelledError:
                run.status, run.printed = 130, "stopped"
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                self._tasks.pop(run.number, None)
            with suppress(OSError, ValueError):
                run.result = json.loads(result.read_text())
            with suppress(OSError):
                run.page = page.read_text(encoding="utf-8")
        self._events.publish("run", **run.as_json())
