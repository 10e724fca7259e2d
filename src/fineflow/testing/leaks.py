"""Counts what ended calls have left behind: nothing, if all is well.

Counts the parts of queries in the whole process. A test takes ``settled()`` after its calls and asserts that it is
empty; a failed assertion shows the counts.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import astuple, dataclass

from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.query import Call
from fineflow.runtime.loop import runtime_loop
from fineflow.runtime.loop import workers as threads
from fineflow.runtime.queues import registry

_PAUSE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Left:
    """Counts; false if all of them are 0.

    tasks: on the runtime's loop and on the running one, except the current task. works: submissions of other threads to
    the runtime's loop. timers: scheduled on these loops. threads: calls of components running in worker threads.
    requests: items in the queues of engines. calls, entries: queries, and results that stock may claim, that are still
    referenced.
    """

    tasks: int = 0
    works: int = 0
    timers: int = 0
    threads: int = 0
    requests: int = 0
    calls: int = 0
    entries: int = 0

    def __bool__(self) -> bool:
        return any(astuple(self))

    def __sub__(self, before: Left) -> Left:
        """Returns the increase since ``before``."""
        return Left(*(max(now - then, 0) for now, then in zip(astuple(self), astuple(before), strict=True)))


NOTHING = Left()


def left(*, objects: bool = True) -> Left:
    """Returns the current counts. objects: also counts ``calls`` and ``entries``, by walking all live objects."""
    runtime = runtime_loop._runtime
    running, current = asyncio._get_running_loop(), None
    loops = [] if runtime is None else [runtime.loop]
    if running is not None:
        current = asyncio.current_task()
        loops += [running] if running not in loops else []
    tasks = [task for each in loops for task in asyncio.all_tasks(each) if task is not current]
    timers = [handle for each in loops for handle in tuple(getattr(each, "_scheduled", ())) if not handle.cancelled()]
    if objects:
        gc.collect()
    found = [type(each) for each in gc.get_objects()] if objects else []
    return Left(
        tasks=len(tasks),
        works=0 if runtime is None else len(runtime.submissions),
        timers=len(timers),
        threads=len(threads._pool._busy),
        requests=sum(queue.waiting for queue in registry.queues()),
        calls=found.count(Call),
        entries=found.count(Entry),
    )


def settled(timeout: float = 5.0, *, before: Left = NOTHING) -> Left:
    """Returns what is left besides ``before``: waits up to ``timeout`` seconds until nothing is.

    An aborted request takes a moment to end. before: ``left()`` if other calls of the process may be
    alive, such as in the traceback of a failed test. Blocks: for a plain thread.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and left(objects=False) - before:
        time.sleep(_PAUSE_SECONDS)
    while (found := left() - before) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return found
