"""Runs a call with a time limit, in its own thread: without a running event loop, and without hanging the test."""

from __future__ import annotations

import threading
from collections.abc import Callable


def bounded(call: Callable[[], object], timeout: float) -> None:
    """Runs the call. Raises what it raises, and TimeoutError if it has not ended after ``timeout`` seconds."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="fineflow-observe", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise TimeoutError(f"the call has not ended after {timeout} s")
    if failure:
        raise failure[0]
