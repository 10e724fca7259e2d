"""Python programs that tests run, each in a process of its own: forked from one that has imported the frameworks."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SERVER = Path(__file__).with_name("fork_server.py")
IMPORTING = 300.0  # seconds at most for the imports of the parent

# Set in the parent, as libraries read them when they are imported: no hub is asked, and no import starts a thread.
FIXED = {"HF_HUB_OFFLINE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Server:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **FIXED}
        )
        atexit.register(self.end)
        if self._line(IMPORTING) != "ready":
            raise RuntimeError(f"the parent of forked programs did not start: exit code {self._process.wait()}")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def run(self, request: Mapping[str, object], timeout: float) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        child = int(self._line(30.0))
        try:
            return int(self._line(timeout))
        except TimeoutError:
            os.killpg(child, signal.SIGKILL)
            self._line(30.0)
            raise

    def _line(self, timeout: float) -> str:
        """The next line of the server; TimeoutError if there is none in time. "" at its end."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise TimeoutError
        line = b""
        while not line.endswith(b"\n") and (byte := os.read(self._process.stdout.fileno(), 1)):
            line += byte
        return line.decode().strip()


_servers: list[_Server] = []


def run(
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 240.0,
    whole_exit: bool = False,
    virtual: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs ``python ARGUMENTS...`` (a file, -m MODULE or -c CODE) as ``subprocess.run`` would, with its output as text.

    The frameworks are imported already: for what depends on when they are, use a process that is not forked. env: the
    whole environment, by default this process's. whole_exit: with all that an interpreter does when it exits, not only
    up to the last of its ``atexit`` functions. virtual: in virtual time of threads, where sleeping takes no time;
    the program does not run in the main thread then. subprocess.TimeoutExpired after ``timeout`` seconds.
    """
    if not _servers:
        _servers.append(_Server())
    words = [str(argument) for argument in arguments]
    environment = {**(os.environ if env is None else env), **FIXED}
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        request = {"arguments": words, "cwd": str(cwd or Path.cwd()), "env": environment}
        request |= {"whole_exit": whole_exit, "virtual": virtual}
        try:
            code = _servers[0].run({**request, "stdout": out.name, "stderr": err.name}, timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(words, timeout, out.read(), err.read()) from None
        return subprocess.CompletedProcess(words, code, out.read(), err.read())
