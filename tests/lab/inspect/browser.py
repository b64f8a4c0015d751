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
PATIENCE = 200.0  # seconds


class Browser:
    """One page, or several tabs. `complaints` are console errors and requests to other places than `server`."""

    def __init__(
        self, folder: Path, width: int = 1400, height: int = 900, dark: bool = False, server: str | None = None
    ) -> None:
        assert CHROMIUM is not None
        self.complaints: list[str] = []
        self._own = ("file:", "about:", "data:", *([server] if server else []))
        self._number = 0
        self._unread = b""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--host-resolver-rules=MAP * ~NOTFOUND{', EXCLUDE 127.0.0.1' if server else ''}",
            "--remote-debugging-pipe",
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
        self._targets: dict[str, str] = {}
        self.new_tab()
        self.resize(width, height, dark)

    def new_tab(self) -> str:
        """Open a tab and go there. Return its name for `go_to`."""
        self._session = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        session: str = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._targets[session] = target
        self._session = session
        for domain in ("Runtime", "Log", "Page", "Network"):
            self._ask(f"{domain}.enable")
        self._ask("Emulation.setFocusEmulationEnabled", enabled=True)
        return session

    def go_to(self, tab: str) -> None:
        self._session = tab
        self._ask("Page.bringToFront")

    def close_tab(self, tab: str) -> None:
        self._ask("Target.closeTarget", targetId=self._targets.pop(tab))
        self._session = next(iter(self._targets))
        self._ask("Page.bringToFront")

    @property
    def tab(self) -> str:
        assert self._session is not None
        return self._session

    def resize(self, width: int, height: int, dark: bool = False) -> None:
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

    def open(self, page: Path | str) -> None:
        """Open a file or an address."""
        self._ask("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
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

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key. Modifiers: 1 Alt, 2 Control, 8 Shift."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Enter": 13}
        codes |= {"Escape": 27, "Backspace": 8, "Delete": 46, "Home": 36, "End": 35, "F1": 112, "F8": 119, " ": 32}
        codes |= {"PageUp": 33, "PageDown": 34}
        code = key if len(key) > 1 else "Space" if key == " " else f"{'Digit' if key.isdigit() else 'Key'}{key.upper()}"
        number = codes[key] if key in codes else ord(key.upper())
        commands = ["selectAll"] if (key, modifiers) == ("a", 2) else []
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self._ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=code, windowsVirtualKeyCode=number,
                modifiers=modifiers, **({} if kind == "keyUp" else {**text, "commands": commands}),
            )  # fmt: skip

    def type(self, text: str) -> None:
        """Type a text key by key into the focused element."""
        for letter in text:
            if letter == "\n":
                self.press("Enter")
            else:
                self._ask("Input.dispatchKeyEvent", type="keyDown", text=letter, key=letter)
                self._ask("Input.dispatchKeyEvent", type="keyUp", key=letter)

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
            case "Network.requestWillBeSent" if not details["request"]["url"].startswith(self._own):
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
