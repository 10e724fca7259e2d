"""What stands for objects of the user's, whatever their framework: kept as long as one of the objects exists.

Two ways to the same contents are one resource, also across frameworks: a store of LangChain's and one of LlamaIndex's
over one Chroma collection have one queue, and one limit.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fineflow.adapters.core.batched_search import Outcome, Search, Together
from fineflow.ir import Op
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.batch_queue import BatchQueue, batch_queue_of
from fineflow.runtime.queues.component_calls import LimitedComponent, permit_block
from fineflow.runtime.queues.request_context import must_not_wait

C = TypeVar("C", bound=LimitedComponent)

MAX_BATCH = 64
"""Searches that are made together at most. The gain is reached with 16; a larger batch keeps the next one waiting."""


class StoreEngine(LimitedComponent):
    """Serves SEARCH for one store: a batch at a time, in a thread. Items ``Search``, results ``Outcome``."""

    ops = frozenset({Op.SEARCH})
    max_batch = MAX_BATCH

    def __init__(self, name: str, together: Together) -> None:
        super().__init__(name)
        self._together = together
        self.queue: BatchQueue = batch_queue_of(self)  # which would be made anew for every search else

    async def execute(self, op: Op, items: Sequence[Search]) -> list[Outcome]:
        """The outcomes of the searches. A store with a limit is asked under one of its permits."""
        async with permit_block(self):
            return await in_thread(lambda: self._together.run(items))

    @property
    def waits(self) -> bool:
        """True if the current code may wait for it: where it has a limit, holders of permits may need its loop."""
        return self.permits is None or not must_not_wait.get()

    async def aclose(self) -> None:
        """There is nothing to close: the store is the user's."""


_of: dict[
    int, LimitedComponent
] = {}  # by the id of each of the user's objects that something stands for, while it exists
_by_contents: weakref.WeakValueDictionary[Any, LimitedComponent] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # Python may collect an abandoned stream inside, whose end may ask what stands for something


def _forget() -> None:
    # In a forked child a thread that holds the lock does not exist.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def any_stand() -> bool:
    """Whether anything stands for any object."""
    return bool(_of)


def standing_for(obj: Any, contents: Callable[[Any], Any] | None = None) -> LimitedComponent | None:
    """What stands for an object; for a store also what stands for another way to the same ``contents(obj)``."""
    found = _of.get(id(obj))
    if found is None and contents is not None and _of:
        found = _by_contents.get(_key(contents(obj)))
        if found is not None:
            _keep(obj, found)
    return found


def stand(
    obj: Any, make: Callable[[], LimitedComponent], contents: Callable[[Any], Any] | None = None
) -> LimitedComponent:
    """What stands for an object, made when it is first asked for.

    Raises TypeError for an object that cannot be referred to weakly.
    """
    with _lock:
        found = standing_for(obj, contents)
        if found is None:
            found = make()
            if contents is not None and (what := contents(obj)) is not obj:
                found.keeps_alive = what  # its id may not become that of another one
                _by_contents[_key(what)] = found
            _keep(obj, found)
        return found


def pooled(engine: Any) -> int | None:
    """The connections of SQLAlchemy's pool: who waits for one longer than its timeout gets an error. None: no limit."""
    size, overflow = getattr(engine.pool, "size", None), getattr(engine.pool, "_max_overflow", None)
    if not callable(size) or not isinstance(overflow, int) or overflow < 0 or size() < 1:
        return None  # no pool, or one without a limit
    return int(size()) + overflow


def _key(what: Any) -> Any:
    return what if isinstance(what, str) else id(what)


def _keep(obj: Any, component: LimitedComponent) -> None:
    try:
        weakref.finalize(obj, _of.pop, id(obj), None).atexit = False
    except TypeError:
        raise TypeError(
            f"{type(obj).__name__} cannot be referred to weakly: wrap it in a function of your own"
        ) from None
    _of[id(obj)] = component
