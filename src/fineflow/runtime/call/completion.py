"""How calls end: those from a plain thread, whose graph is on another thread's event loop; and what is told then."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

from fineflow.errors import FineflowWarning, PlanningError
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.query import Call
from fineflow.runtime.loop.runtime_loop import on_engine_loop


def stop(call: Call) -> None:
    """Ends what runs ahead of a call whose deadline has passed. From any thread."""
    call.claims.closed = True
    post(call.loop, call.stop)


def close(call: Call) -> Summary:
    """Ends a call from a plain thread, and waits for that where there is anything to wait for."""
    call.claims.closed = True  # from here on the loop starts nothing more, see Call.spawn
    if on_engine_loop():  # an abandoned stream may be collected on any thread, also on that one
        return call.close()
    if not call.tasks:
        summary = call.summary()
        post(call.loop, call.close)
        return summary
    ended = call.aclose()
    try:
        return asyncio.run_coroutine_threadsafe(ended, call.loop).result()
    except CancelledError:  # the loop was shut down meanwhile
        return call.summary()
    except RuntimeError:  # the loop has ended with the interpreter, and everything on it
        ended.close()
        return call.summary()


def report(summary: Summary, obj: Any, strict: bool) -> None:
    """Warns, after a call that succeeded, of what fineflow failed at meanwhile and stock then did itself.

    Raises PlanningError with ``strict``.
    """
    if summary.broken:
        text = f"{type(obj).__name__}: while running ahead, {summary.broken[0]}"
        if strict:
            raise PlanningError(f"{text}; without strict=True this is a warning")
        warnings.warn(f"{text}; stock did it. Please report this.", FineflowWarning, stacklevel=6)


def post(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> None:
    """Calls a function on a loop, if that is still there."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        pass
