"""How a call of an optimized object begins and ends for the runtime: admitted, counted, known by its tenant."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from fineflow.runtime import scheduler, scope
from fineflow.runtime.bridge import Chunks
from fineflow.runtime.events import now
from fineflow.runtime.limits import Ticket, door, enter, enter_sync, inside, log

TENANT, PRIORITY = "fineflow_tenant", "fineflow_priority"
"""Keys of ``config["metadata"]``."""


class Marks:
    """What the code of one call finds in its context variables."""

    def __init__(self, values: Sequence[tuple[ContextVar[Any], Any]]) -> None:
        self._values = values

    def apply(self) -> None:
        """Sets them for good: in a context that was copied for the call."""
        for var, value in self._values:
            var.set(value)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Sets them for the block."""
        tokens = [(var, var.set(value)) for var, value in self._values]
        try:
            yield
        finally:
            for var, token in tokens:
                var.reset(token)


UNMARKED = Marks(())


@contextmanager
def entered(config: Any, runnable: Any) -> Iterator[Marks]:
    """One call from a plain thread, or a part of the call that it is made in. Raises Overloaded."""
    ticket, marks = _begin(config, runnable)
    if ticket is None:
        yield marks
        return
    enter_sync(ticket)
    with _counted(ticket):
        yield marks


@asynccontextmanager
async def aentered(config: Any, runnable: Any) -> AsyncIterator[Marks]:
    """The same from a coroutine."""
    ticket, marks = _begin(config, runnable)
    if ticket is None:
        yield marks
        return
    await enter(ticket)
    with _counted(ticket):
        yield marks


def _begin(config: Any, runnable: Any) -> tuple[Ticket | None, Marks]:
    """The call at the door, or None inside of another one, and its marks. Raises ValueError for metadata of no use."""
    scope.check()
    tenant, priority = _metadata(config, runnable)
    within = inside.get()
    ticket = None if within else Ticket(tenant or "", priority or 0)
    values: list[tuple[ContextVar[Any], Any]] = [] if within else [(inside, True)]
    if tenant is not None:
        values += [(scheduler.tenant, tenant), (scheduler.weight, door().limits.weight(tenant))]
    if priority is not None:
        values.append((scheduler.priority, priority))
    return ticket, Marks(values)


def _metadata(config: Any, runnable: Any) -> tuple[str | None, int | None]:
    tenant: Any = None
    priority: Any = None
    first = config[0] if isinstance(config, list) and config else config
    for found in (first, getattr(runnable, "config", None), var_child_runnable_config.get()):
        metadata = found.get("metadata") if isinstance(found, Mapping) else None
        if metadata:
            tenant = metadata.get(TENANT) if tenant is None else tenant
            priority = metadata.get(PRIORITY) if priority is None else priority
    if tenant is not None and not isinstance(tenant, str):
        raise ValueError(f"metadata[{TENANT!r}] is the name of a tenant, a string; got {tenant!r}")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise ValueError(f"metadata[{PRIORITY!r}] is a whole number, higher ones first; got {priority!r}")
    return tenant, priority


@contextmanager
def _counted(ticket: Ticket) -> Iterator[None]:
    error: BaseException | None = None
    try:
        yield
    except BaseException as caught:
        error = caught
        raise
    finally:
        ticket.door.leave(ticket, error)
        if log.isEnabledFor(logging.DEBUG):
            told = {
                "event": "call",
                "call": ticket.number,
                "tenant": ticket.tenant,
                "waited": ticket.began - ticket.queued,
                "ran": now() - ticket.began,
                "error": None if error is None else type(error).__name__,
            }
            log.debug("call ended", extra=told)


class Steps(Iterator[Any]):
    """The chunks of a stream, each made under the marks of its call, which the reader's code does not see."""

    def __init__(self, chunks: Chunks[Any], marks: Marks) -> None:
        self._chunks = chunks
        self._marks = marks

    def __next__(self) -> Any:
        with self._marks.applied():
            return next(self._chunks)

    def throw(self, *error: Any) -> Any:
        with self._marks.applied():
            return self._chunks.throw(*error)

    def close(self) -> None:
        with self._marks.applied():
            self._chunks.close()
