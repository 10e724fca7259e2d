"""Writes that a session lets go on while its caller continues."""

from __future__ import annotations

import concurrent.futures.thread  # what it registers for forks has to be run after ``_before_fork``
import os
import threading
from contextvars import ContextVar

from fineflow.adapters.core import unfinished
from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.core.unfinished import Unfinished, writing
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.reruns import repeating


class Writes:
    """The writes of one session. over: True once its block has been left."""

    def __init__(self) -> None:
        self.over = False
        self._all: list[Unfinished] = []

    def add(self, write: Unfinished) -> None:
        """Makes the end of the session wait for a write."""
        self._all.append(write)

    def ended(self) -> list[BaseException]:
        """Waits until every write has ended; returns the errors that nobody has got."""
        found = [error for write in self._all if (error := write.untold()) is not None]
        self._all.clear()
        return found

    async def aended(self) -> None:
        """Waits until every write has ended, from any event loop."""
        for write in list(self._all):
            await write.ended()


in_force: ContextVar[Writes | None] = ContextVar("fineflow_session", default=None)
"""The innermost session of the current context."""


def session_here() -> Writes | None:
    """Returns the session in which a write of the user's code may be deferred; None if it has to be done now."""
    found = in_force.get()
    if found is None or found.over or writing():
        return None
    inside = under_way.get() is not None or repeating.get()  # an optimized call, whose order of steps is its plan's
    return None if inside else found


def _before_fork() -> None:
    """Waits for all writes if the session's code forks, or the main thread: stock's writes had ended by then.

    Other threads may do something for a write, which would not end.
    """
    ours = in_force.get() is not None or threading.current_thread() is threading.main_thread()
    if ours and not writing() and not on_engine_loop():
        concurrent.futures.wait([write.outcome for write in unfinished.under_way()])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
