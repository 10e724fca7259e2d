"""Context variables that describe the current query to the queues of engines, and the record built from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

from fineflow.ir import Op
from fineflow.ir.objectives import LATENCY
from fineflow.runtime import events
from fineflow.runtime.queues.policy import Waiting
from fineflow.runtime.queues.prompts import Part

depth: ContextVar[int] = ContextVar("fineflow_depth", default=0)
"""Depth of the current primitive: deeper ones go first in the queues of engines."""

query: ContextVar[str] = ContextVar("fineflow_query", default="")
"""Id of the current query; "" makes every submitted request its own query."""

started: ContextVar[float | None] = ContextVar("fineflow_started", default=None)
"""Time at which that query began (``events.now``); None outside of a query."""

path: ContextVar[float] = ContextVar("fineflow_path", default=0.0)
"""Predicted seconds from the start of the current primitive to the end of its query."""

tenant: ContextVar[str] = ContextVar("fineflow_tenant", default="")
"""Tenant of the call: waiting tenants share engines by weight."""

salt: ContextVar[str] = ContextVar("fineflow_salt", default="")
"""Requests share KV caches of prefixes with those of the same salt only: the tenant, unless tenants share."""

weight: ContextVar[float] = ContextVar("fineflow_weight", default=1.0)
"""Weight of that tenant relative to others, above 0."""

priority: ContextVar[int] = ContextVar("fineflow_priority", default=0)
"""Priority of the call among those of its tenant: higher first."""

session: ContextVar[str] = ContextVar("fineflow_session", default="")
"""Conversation of the call, as its caller named it; "" makes every call a session of its own."""

parent: ContextVar[str] = ContextVar("fineflow_parent", default="")
"""Id of the program around that conversation, if it was named inside of one (``programs.program``)."""

objective: ContextVar[str] = ContextVar("fineflow_objective", default=LATENCY)
"""Performance objective of the call, one of ``OBJECTIVES``."""

parts: ContextVar[Sequence[Part]] = ContextVar("fineflow_parts", default=())
"""Parts of the prompt that the current primitive decodes from, if the one that wrote it has said so."""

must_not_wait: ContextVar[bool] = ContextVar("fineflow_must_not_wait", default=False)
"""True while the current code blocks an event loop: callers that hold a permit may need that loop to finish."""


_open: dict[str, set[int]] = {}  # queries whose calls have begun and not ended -> engines that they use, by id
_at_end: dict[str, Callable[[], object]] = {}  # query -> what to do when its call ends

watchers: list[Callable[[str], None]] = []
"""Called with each query when its call ends, on the thread where it does. Append only."""


def query_began(query: str) -> None:
    """Notes that the call of a query has been admitted."""
    _open[query] = set()


def uses(engine: object) -> None:
    """Notes that the current query has used an engine or is going to, until its call ends. From any thread."""
    if (found := _open.get(query.get())) is not None:
        found.add(id(engine))


def others_use(engine: object) -> bool:
    """Returns True if another query whose call is under way has used an engine or is going to."""
    own = query.get()
    return any(id(engine) in engines for name, engines in tuple(_open.items()) if name != own)


def when_ended(query: str, call: Callable[[], object]) -> None:
    """Calls ``call`` when the call of a query ends, on the thread where it does; the latest for each query counts."""
    _at_end[query] = call


def forget_end(query: str) -> None:
    """Drops what ``when_ended`` was told of a query."""
    _at_end.pop(query, None)


def query_ended(query: str) -> None:
    """Notes that the call of a query has ended."""
    _open.pop(query, None)
    if _at_end and (call := _at_end.pop(query, None)) is not None:
        call()
    for watcher in watchers:
        watcher(query)


def waiting_record(number: int, op: Op, items: int) -> Waiting:
    """Returns the record of a request of the current query, as policies see it."""
    since = started.get()
    return Waiting(
        number,
        query.get() or f"request {number}",
        depth.get(),
        op,
        items,
        primitive=events.subject(""),
        started=events.now() if since is None else since,
        path=path.get(),
        tenant=tenant.get(),
        weight=weight.get(),
        priority=priority.get(),
        objective=objective.get(),
    )
