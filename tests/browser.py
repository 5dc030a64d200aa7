"""A real browser, driven over a pair of pipes with the DevTools protocol: no driver, no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
)
_CODES = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
_TEXTS = {"Enter": "\r"}
_PATIENCE = 60.0  # seconds until an answer that does not come is a failure


def installed_browser() -> str | None:
    """The path of a Chromium or Chrome: ATTNFLOW_BROWSER, or one on the PATH."""
    named = os.environ.get("ATTNFLOW_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab: what it logged, what it threw, and what can be done in it."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, parameters, self._session)

    def close(self) -> None:
        """What stays open goes on being drawn."""
        self._browser.call("Target.closeTarget", {"targetId": self._target})

    def go(self, address: str) -> None:
        self.run("globalThis.before = true")  # gone when the new page is there
        self.call("Page.navigate", url=address)
        self.wait("!globalThis.before && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression; an exception in the page is one here."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']['exception']}")
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = _PATIENCE) -> None:
        """Until an expression is true; the error tells what the page showed instead."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.run(f"Boolean({condition})"):
                    return
            except AssertionError as error:  # asked of a page that gives way to the next
                if "navigated" not in str(error):
                    raise
            time.sleep(0.02)
        shown = self.run("document.body.innerText.slice(0, 600)")
        raise AssertionError(f"never true: {condition}\nthe page shows: {shown}")

    def size(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def place(self, script: str) -> tuple[float, float]:
        """The centre of the element an expression gives."""
        box = self.run(
            f"(() => {{ const e = {script}; e.scrollIntoView({{block: 'nearest'}}); "
            "const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def mouse(self, kind: str, x: float, y: float) -> None:
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def click(self, script: str) -> None:
        x, y = self.place(script)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def key(self, name: str, *, shift: bool = False, control: bool = False) -> None:
        """A key, with what the browser itself does at it: Tab moves on, Enter presses a button."""
        text = {"text": _TEXTS.get(name, name)} if len(name) == 1 or name in _TEXTS else {}
        about: dict[str, Any] = {"key": name, "modifiers": 8 * shift + 2 * control}
        if name in _CODES:
            about |= {"code": name, "windowsVirtualKeyCode": _CODES[name]}
        for kind in ("keyDown", "keyUp"):
            down = text if kind == "keyDown" and not control else {}
            self.call("Input.dispatchKeyEvent", type=kind, **about, **down)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def hear(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url')}")


class Browser:
    """A running browser; messages are JSON, each ended by a zero byte."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer = b""
        self._last = 0
        self._pages: dict[str, Page] = {}

    def new_page(self, downloads: Path | None = None) -> Page:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attach = {"targetId": target, "flatten": True}
        session = self.call("Target.attachToTarget", attach)["sessionId"]
        if downloads is not None:
            allow = {"behavior": "allow", "downloadPath": str(downloads)}
            self.call("Browser.setDownloadBehavior", allow)
        page = Page(self, target, session)
        self._pages[session] = page
        return page

    def call(self, method: str, parameters: dict[str, Any], session: str | None = None) -> Any:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._last:
                if "error" in found:
                    raise AssertionError(f"{method}: {found['error']}")
                return found["result"]
            page = self._pages.get(found.get("sessionId", ""))
            if page is not None and "method" in found:
                page.hear(found["method"], found["params"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], _PATIENCE)
            piece = os.read(self._receive, 1 << 20) if ready else b""
            if not piece:
                raise AssertionError("the browser does not answer")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def running_browser(program: str, folder: Path) -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]
    # The browser reads from descriptor 3 and writes to 4; the shell puts our pipes there.
    shell = f'exec "$@" 3<&{high[0]} 4>&{high[1]}'
    arguments = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", shell, "browser", *arguments],
        pass_fds=high,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for fd in (theirs_in, theirs_out, *high):
        os.close(fd)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        for fd in (ours_out, ours_in):
            os.close(fd)
        process.terminate()
        process.wait(30)
