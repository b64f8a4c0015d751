"""A studio that runs in a thread of the tests, and requests to it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tilesmith.studio.app import Studio
from tilesmith.studio.server import Server
from tilesmith.workshop.course.catalogue import Catalogue
from tilesmith.workshop.learner.workshop_folder import Workshop

PATIENCE = 200.0  # seconds


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class RunningStudio:
    studio: Studio
    address: str

    @property
    def workshop(self) -> Workshop:
        return self.studio.workshop

    @property
    def origin(self) -> str:
        return f"http://{urlsplit(self.address).netloc}"

    def file(self, exercise: str) -> Path:
        return self.workshop.file_of(self.workshop.catalogue[exercise])

    def ask(self, path: str, body: Any = None, method: str = "", **headers: str) -> Answer:
        """Ask for a path below the token, or for an absolute one."""
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=PATIENCE)
        content = None if body is None else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        where = path if path.startswith("/") else parts.path + path
        connection.request(method or ("GET" if body is None else "POST"), where, content, named)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)


@contextmanager
def running_studio(folder: Path, *files: Path, class_folder: Path | None = None) -> Iterator[RunningStudio]:
    studio = Studio(Workshop(folder, Catalogue()), files, class_folder)
    server = Server(studio)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield RunningStudio(studio, server.address)
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not end"


def until(condition: Callable[[], Any], what: Callable[[], str] = lambda: "waited in vain") -> Any:
    """Wait until a condition holds, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)
    return found
