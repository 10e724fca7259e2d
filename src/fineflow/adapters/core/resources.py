"""Limited components of user objects, for all frameworks; each is kept as long as one of its objects exists.

Objects with the same contents share one, also across frameworks: a LangChain store and a LlamaIndex store over one
Chroma collection have one queue, and one limit.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fineflow.adapters.core.batched_search import Outcome, Search, Together
from fineflow.ir import Op
from fineflow.runtime.loop.forks import in_forked_children
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues.batch_queue import BatchQueue, batch_queue_of
from fineflow.runtime.queues.component_calls import LimitedComponent, permit_block
from fineflow.runtime.queues.request_context import must_not_wait

C = TypeVar("C", bound=LimitedComponent)

MAX_BATCH = 64
"""Maximum searches per batch. 16 give nearly all of the gain; a larger batch delays the next one."""


class StoreEngine(LimitedComponent):
    """Serves SEARCH for one store: one batch at a time, in a thread. Items ``Search``, results ``Outcome``."""

    ops = frozenset({Op.SEARCH})
    max_batch = MAX_BATCH

    def __init__(self, name: str, together: Together) -> None:
        super().__init__(name)
        self._together = together
        self.queue: BatchQueue = batch_queue_of(self)  # kept, else every search would create a new one

    async def execute(self, op: Op, items: Sequence[Search]) -> list[Outcome]:
        """Returns the outcomes of the searches. Uses one permit of a store with a limit."""
        async with permit_block(self):
            return await in_thread(lambda: self._together.run(items))

    @property
    def waits(self) -> bool:
        """True if the current code may wait: with a limit, holders of permits may need its loop."""
        return self.permits is None or not must_not_wait.get()

    async def aclose(self) -> None:
        """Closes nothing: the store is the user's."""


_of: dict[int, LimitedComponent] = {}  # by the id of each registered user object, while it exists
_by_contents: weakref.WeakValueDictionary[Any, LimitedComponent] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # reentrant: GC inside may collect an abandoned stream, whose end may look up a component


@in_forked_children
def _forget() -> None:
    # In a forked child the thread that may hold the lock does not exist.
    global _lock
    _lock = threading.RLock()


def any_stand() -> bool:
    """Returns True if any component is registered."""
    return bool(_of)


def standing_for(obj: Any, contents: Callable[[Any], Any] | None = None) -> LimitedComponent | None:
    """Returns the component of an object; for a store also that of another store with the same ``contents(obj)``."""
    found = _of.get(id(obj))
    if found is None and contents is not None and _of:
        found = _by_contents.get(_key(contents(obj)))
        if found is not None:
            _keep(obj, found)
    return found


def stand(
    obj: Any, make: Callable[[], LimitedComponent], contents: Callable[[Any], Any] | None = None
) -> LimitedComponent:
    """Returns the component of an object, made on first use.

    Raises TypeError for an object that cannot be weakly referenced.
    """
    with _lock:
        found = standing_for(obj, contents)
        if found is None:
            found = make()
            if contents is not None and (what := contents(obj)) is not obj:
                found.keeps_alive = what  # so that its id is not reused
                _by_contents[_key(what)] = found
            _keep(obj, found)
        return found


def pooled(engine: Any) -> int | None:
    """Returns the capacity of SQLAlchemy's connection pool, beyond which callers wait; None: no limit."""
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
            f"{type(obj).__name__} cannot be weakly referenced: wrap it in a function of your own"
        ) from None
    _of[id(obj)] = component
