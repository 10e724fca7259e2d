"""A headless Chromium for tests that look at a page, driven through a pipe; nothing but the browser is needed."""

from __future__ import annotations

import base64
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

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
_QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-pipe"
)
_SECONDS = 60.0


class Browser:
    """One page of a browser."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._sent, self._rest = 0, b""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Page.enable")

    def send(self, method: str, **params: Any) -> Any:
        """Calls a method of the DevTools protocol and returns its result."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            assert ready, f"the browser did not answer within {_SECONDS} s"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        first, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        return found

    def show(self, page: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Loads a file in a window of this size, with this preferred colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=page.as_uri())
        self.run("new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))")

    def run(self, script: str) -> Any:
        """Returns the value of a JavaScript expression; waits for a promise."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, file: Path, *, whole: bool = False) -> Path:
        """Writes what the window shows, or the whole page, as PNG."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))
        return file


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Runs a browser. profile: an empty folder for it."""
    assert FOUND is not None
    to_read, write = os.pipe()
    read, to_write = os.pipe()

    def pipes() -> None:  # the protocol's own numbers
        low, high = os.dup(to_read), os.dup(to_write)
        os.dup2(low, 3)
        os.dup2(high, 4)

    done = subprocess.Popen(
        [FOUND, *_QUIET.split(), f"--user-data-dir={profile}"],
        preexec_fn=pipes,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Browser(write, read)
    finally:
        done.kill()
        done.wait()
        os.close(write)
        os.close(read)
