"""Messages to all open tabs, and the watch for files that change outside the studio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tilesmith.workshop.learner.save_or_key import file_stamp

POLL_SECONDS = 0.25
SECONDS_BETWEEN_SIGNS = 10.0
MOST_WAITING = 1000


class Events:
    """A channel from the server to every tab. `publish` may be called from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tabs: set[asyncio.Queue[str]] = set()

    def attach(self) -> None:
        """Use the running event loop."""
        self._loop = asyncio.get_running_loop()

    def publish(self, kind: str, **content: Any) -> None:
        text = json.dumps({"kind": kind, **content})
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, text)

    def _deliver(self, text: str) -> None:
        for tab in self._tabs:
            if tab.qsize() < MOST_WAITING:
                tab.put_nowait(text)

    async def stream(self) -> AsyncIterator[str]:
        """Yield the messages to one tab as server-sent events, and a sign of life where there are none."""
        tab: asyncio.Queue[str] = asyncio.Queue()
        self._tabs.add(tab)
        try:
            yield ": connected\n\n"
            while True:
                try:
                    text = await asyncio.wait_for(tab.get(), SECONDS_BETWEEN_SIGNS)
                    yield f"data: {text}\n\n"
                except asyncio.TimeoutError:  # Python 3.10 has two of them
                    yield ": alive\n\n"
        finally:
            self._tabs.discard(tab)


class Watch:
    """Calls `changed` with every watched file that is saved, by whomever."""

    def __init__(self, changed: Callable[[Path], None]) -> None:
        self._changed = changed
        self._stamps: dict[Path, tuple[int, int]] = {}

    def add(self, file: Path) -> None:
        self._stamps.setdefault(file, file_stamp(file))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for file, before in list(self._stamps.items()):
                now = file_stamp(file)
                if now != before and now != (0, 0):
                    self._stamps[file] = now
                    self._changed(file)
