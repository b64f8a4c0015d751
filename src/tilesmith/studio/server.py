"""The studio's server: a socket on 127.0.0.1, the address with its token, and the browser."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable

import uvicorn

from tilesmith.studio.app import Studio
from tilesmith.studio.guard import Guard, new_token

HOST = "127.0.0.1"
SECONDS_TO_END = 2


class Server:
    """A studio on a port of this machine. `address` holds the token."""

    def __init__(self, studio: Studio, port: int = 0) -> None:
        self.studio = studio
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, port))
        self._socket.listen()  # requests wait until the server runs
        token, port = new_token(), self._socket.getsockname()[1]
        self.address = f"http://{HOST}:{port}/{token}/"
        config = uvicorn.Config(
            Guard(studio.app(), token, port), log_level="warning", access_log=False, server_header=False,
            timeout_graceful_shutdown=SECONDS_TO_END, ws="none",
        )  # fmt: skip
        self._server = uvicorn.Server(config)

    def run(self, ready: Callable[[str], None] = lambda address: None, *, browser: bool = False) -> None:
        """Serve until `stop` or Ctrl-C. Calls `ready` with the address before the first request."""
        ready(self.address)
        if browser:
            webbrowser.open(self.address)
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True
