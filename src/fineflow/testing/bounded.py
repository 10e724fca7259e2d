"""A call that must end: in a thread of its own, so that it neither meets a running event loop nor hangs a test."""

from __future__ import annotations

import threading
from collections.abc import Callable


def bounded(call: Callable[[], object], timeout: float) -> None:
    """Makes the call. Raises what it raises, and TimeoutError when it has not ended after ``timeout`` seconds."""
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
