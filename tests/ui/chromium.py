"""A real browser for tests: Chromium without a screen, spoken to over two pipes.

Its own protocol needs no further package: messages are JSON, and end with a zero byte.
Everything that its console says is kept, and so is every address that a page asks for.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_S: Final = 30.0


def chromium() -> str | None:
    """Return the browser of this machine, if there is one."""
    named = os.environ.get("FLUSS_TEST_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


def _pipe() -> tuple[int, int]:
    """Return a pipe whose ends are none of those that the browser reads and writes."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


class Browser:
    """Chromium with one page."""

    def __init__(self, width: int = 1600, height: int = 1000, dark: bool = False) -> None:
        program = chromium()
        assert program is not None
        self._folder = tempfile.TemporaryDirectory(
            prefix="fluss-chromium-", ignore_cleanup_errors=True
        )
        to_child, self._out = _pipe()
        self._in, from_child = _pipe()
        os.set_inheritable(to_child, True)
        os.set_inheritable(from_child, True)
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}',
                program,
                "--headless=new",
                "--remote-debugging-pipe",
                f"--user-data-dir={self._folder.name}",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--ignore-certificate-errors",
                "--enable-precise-memory-info",
                "--js-flags=--expose-gc",
                "about:blank",
            ],
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        #: What the console of the browser says, and errors of scripts.
        self.console: list[str] = []
        #: Every address that was asked for.
        self.asked: list[str] = []
        self._loads = 0
        target = self._target()
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.look(width, height, dark)

    def _target(self) -> str:
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            for found in self._send("Target.getTargets")["targetInfos"]:
                if found["type"] == "page":
                    target: str = found["targetId"]
                    return target
        raise TimeoutError("Chromium has no page")

    # ---- messages

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Have the page do something."""
        return self._send(method, self._session, **params)

    def _send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        number = self._number
        self._until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _until(self, reached: Callable[[], bool], seconds: float = _TIMEOUT_S) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("Chromium did not answer")
            self._receive(left)

    def _receive(self, seconds: float) -> None:
        if not select.select([self._in], [], [], seconds)[0]:
            return
        read = os.read(self._in, 1 << 20)
        if not read:
            raise RuntimeError("Chromium ended")
        self._buffer += read
        while (end := self._buffer.find(b"\0")) >= 0:
            message = json.loads(self._buffer[:end])
            self._buffer = self._buffer[end + 1 :]
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._noted(message["method"], message.get("params", {}))

    def _noted(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(a.get("value")) for a in params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Log.entryAdded":
            entry = params["entry"]
            self.console.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loads += 1

    # ---- what a visitor does

    def open(self, url: str) -> None:
        """Open an address, and wait until its page is there."""
        loads = self._loads
        self.send("Page.navigate", url=url)
        self._until(lambda: self._loads > loads)

    def script(self, text: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.send(
            "Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:800])
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = _TIMEOUT_S) -> Any:
        """Wait until an expression in the page is true, and return its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if found := self.script(condition):
                    return found
            except RuntimeError:
                pass  # between two pages
            self._receive(0.05)
        raise TimeoutError(f"never true: {condition}; the page: {self.text()[:500]}")

    def text(self) -> str:
        """Return what a reader sees of the page."""
        found: str = self.script("document.body.innerText")
        return found

    def submit(self, selector: str, **values: str) -> None:
        """Fill the fields of a form, and send it by its first button."""
        for name, value in values.items():
            self.script(
                f"document.querySelector({json.dumps(selector)}).elements[{json.dumps(name)}].value"
                f" = {json.dumps(value)}"
            )
        loads = self._loads
        self.script(f"document.querySelector({json.dumps(selector)}).requestSubmit() || 1")
        self._until(lambda: self._loads > loads)

    def click(self, selector: str, leads_on: bool = True) -> None:
        """Click, and wait for the page that follows."""
        loads = self._loads
        self.script(f"document.querySelector({json.dumps(selector)}).click() || 1")
        if leads_on:
            self._until(lambda: self._loads > loads)

    def key(self, key: str, ctrl: bool = False) -> None:
        """Press a key where the focus is."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowDown": 40, " ": 32}
        pressed: dict[str, Any] = {
            "key": key,
            "code": {" ": "Space"}.get(key, key),
            "windowsVirtualKeyCode": codes.get(key, 0),
            "modifiers": 2 if ctrl else 0,
        }
        text = {"Enter": "\r", " ": " "}.get(key, "" if len(key) > 1 else key)
        if text and not ctrl:
            pressed["text"] = text
        self.send("Input.dispatchKeyEvent", type="keyDown", **pressed)
        self.send("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def write(self, text: str) -> None:
        """Write where the focus is."""
        for letter in text:
            self.send("Input.dispatchKeyEvent", type="keyDown", key=letter, text=letter)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=letter)

    def look(self, width: int, height: int, dark: bool) -> None:
        """Set the size of the window, and the theme of the system."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, file: Path) -> None:
        """Keep what is seen as a PNG file."""
        found = self.send("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(found["data"]))

    def heap(self) -> int:
        """Return the bytes that scripts hold, without garbage."""
        self.send("HeapProfiler.collectGarbage")
        found: int = self.send("Runtime.getHeapUsage")["usedSize"]
        return found

    def close(self) -> None:
        """End the browser."""
        try:
            self._send("Browser.close")
        except (RuntimeError, TimeoutError, OSError):
            self._process.kill()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
