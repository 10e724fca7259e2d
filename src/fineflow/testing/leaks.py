"""What is left of calls that have ended: nothing, if all is well.

Counts what a query consists of, all over the process. A test takes ``settled()`` after its calls and asserts that it
is empty; a failed assertion shows the counts.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import astuple, dataclass

from fineflow.runtime.call.claims import Entry
from fineflow.runtime.call.query import Call
from fineflow.runtime.loop import runtime_loop
from fineflow.runtime.loop import workers as threads
from fineflow.runtime.queues import registry

_PAUSE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Left:
    """Counts; false when all of them are 0.

    tasks: on the runtime's loop and on the running one, but for the current task. works: what other threads have asked
    the runtime's loop for. timers: scheduled on these loops. threads: calls of components under way in worker threads.
    requests: items in the queues of engines. calls, entries: queries, and results that stock may claim, that somebody
    still holds.
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
        """What has come since ``before``."""
        return Left(*(max(now - then, 0) for now, then in zip(astuple(self), astuple(before), strict=True)))


NOTHING = Left()


def left(*, objects: bool = True) -> Left:
    """What there is now. objects: also looks for ``calls`` and ``entries``, which walks all objects of the process."""
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
    """What is left besides ``before``: once nothing is, as an aborted request needs a moment, or after ``timeout``.

    before: ``left()`` where other calls of the process may be alive, such as in the traceback of a test that failed.
    Blocks: for a plain thread.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and left(objects=False) - before:
        time.sleep(_PAUSE_SECONDS)
    while (found := left() - before) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return found
