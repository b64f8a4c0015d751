"""Control a headless Chromium over a pipe, without further packages."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium")
PATIENCE = 60.0  # seconds


class Browser:
    """One page. `complaints` are its console errors and its network requests."""

    def __init__(self, folder: Path, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        assert CHROMIUM is not None
        self.complaints: list[str] = []
        self._number = 0
        self._unread = b""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
            f"--user-data-dir={folder / 'profile'}", "about:blank",
        ]  # fmt: skip
        # Chromium reads from descriptor 3 and writes to 4. Copies from 10 upwards are not overwritten.
        here, there = (fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (to_browser, from_browser))
        script = f'exec "$@" 3<&{here} 4>&{there}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(here, there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for each in (to_browser, from_browser, here, there):
            os.close(each)
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            self._ask(f"{domain}.enable")
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._write)
        os.close(self._read)

    def open(self, page: Path) -> None:
        self._ask("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + PATIENCE
        while self.ask("document.readyState") != "complete" or self.ask("location.href") == "about:blank":
            assert time.monotonic() < deadline, "the page does not load"

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        return str(self.ask(f"document.querySelector({json.dumps(selector)}).textContent"))

    def point(self, selector: str, across: float = 0.5, down: float = 0.5, click: bool = False) -> None:
        """Move the pointer into an element, at a share of its width and height."""
        where = self.ask(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const box = one.getBoundingClientRect();"
            f"return [box.x + {across} * box.width, box.y + {down} * box.height] }})()"
        )
        kinds = ["mouseMoved", "mousePressed", "mouseReleased"] if click else ["mouseMoved"]
        for kind in kinds:
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self._ask("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], **button)

    def click(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        self.point(selector, across, down, click=True)

    def press(self, key: str) -> None:
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Enter": 13}
        for kind in ("rawKeyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def picture(self, path: Path, whole: bool = False) -> None:
        """Return the visible part or the whole page as a PNG."""
        taken = self._ask("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        details = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(details["exceptionDetails"].get("exception", details)))
            case "Runtime.consoleAPICalled" if details["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(details["args"]))
            case "Log.entryAdded" if details["entry"]["level"] in ("error", "warning"):
                self.complaints.append(details["entry"]["text"])
            case "Network.requestWillBeSent" if not details["request"]["url"].startswith(("file:", "about:", "data:")):
                self.complaints.append(f"asked for {details['request']['url']}")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            read = os.read(self._read, 1 << 20)
            assert read, "the browser has gone"
            self._unread += read
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)  # type: ignore[no-any-return]
