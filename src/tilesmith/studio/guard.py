"""Who may ask the studio: requests with the token in the path, from this machine's own pages only."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
PICTURE_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; frame-ancestors 'self'"
)
"""The policy of generated pages. They are self-contained, and run apart from the studio's own page."""


def new_token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """Refuses requests without the token, and requests that another site or another host name caused."""

    def __init__(self, app: Any, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                message["headers"] = headers.raw
                headers.setdefault("Content-Security-Policy", POLICY)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cache-Control"] = "no-store"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
            await send(message)

        problem = self._problem(scope)
        if problem:
            await PlainTextResponse(problem, status_code=403)(scope, receive, with_headers)
            return
        root = f"/{self._token}"
        inner = {**scope, "path": scope["path"][len(root) :] or "/", "raw_path": None}
        await self._app(inner, receive, with_headers)

    def _problem(self, scope: Message) -> str:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host not in self._hosts:
            return "This server answers only requests for 127.0.0.1."
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return "This server answers only its own pages."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "This server answers only its own pages."
        given = scope["path"].split("/", 2)[1]
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            return "The address lacks the token. Open the address that `tilesmith studio` printed."
        return ""
