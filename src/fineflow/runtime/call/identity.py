"""Identity of calls at the queues of engines: what a caller says of its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from fineflow.ir.objectives import wrong_objective
from fineflow.runtime.loop.scopes import setting
from fineflow.runtime.queues import programs, request_context
from fineflow.runtime.queues.admission import process_admission

Marks = tuple[tuple[ContextVar[Any], Any], ...]


class Identity(NamedTuple):
    """Tenant, priority, objective and session that a caller gives a call; None: as around it."""

    tenant: str | None = None
    priority: int | None = None
    objective: str | None = None
    session: str | None = None

    def marks(self) -> Marks:
        """Returns context variables and their values: tenant (and what follows from it), priority, objective."""
        marks: Marks = ()
        if self.tenant is not None:
            limits = process_admission().limits
            marks += (
                (request_context.tenant, self.tenant),
                (request_context.weight, limits.weight(self.tenant)),
                (request_context.salt, "" if limits.share_prefixes else self.tenant),
            )
        if self.priority is not None:
            marks += ((request_context.priority, self.priority),)
        if self.session is not None:
            around = programs.program()
            outer = request_context.parent.get() if around == self.session else around
            marks += ((request_context.session, self.session), (request_context.parent, outer))
        return marks if self.objective is None else (*marks, (request_context.objective, self.objective))


UNKNOWN = Identity()


@contextmanager
def identity(
    *,
    tenant: str | None = None,
    priority: int | None = None,
    objective: str | None = None,
    session: str | None = None,
) -> Iterator[None]:
    """Sets tenant, priority, objective and session of all calls in the block, of any framework; None: as around it.

    Calls of LangChain objects may set their own in their metadata (``fineflow_tenant``, ``fineflow_priority``,
    ``fineflow_objective``, ``fineflow_session``), which counts before this. Use it around whole calls: a stream reads
    it where its first chunk is read.

    tenant: waiting tenants share engines by weight, and do not share prefixes in their caches (``Runtime``). priority:
    higher ones are served first; 0 by default. objective: what the answer is wanted for (Parrot, section
    5.2); it matters where requests wait for an engine, and on engines with a ``latency_capacity``:

    - ``"latency"`` (the default): the end of the whole call. Requests of one call that run concurrently are a task
      group: all of them count, so they may fill an engine. One that the call waits for alone has to be quick.
    - ``"throughput"``: of all such calls. Its requests may fill an engine, and come after others.
    - ``"ttft"``: time to the first token. Its requests come before others.
    - ``"tpot"``: time per output token. Its requests have to be quick, also in groups.

    session: id of the conversation that the calls continue, unique among all users. Engines behind a router send it
    (``fineflow.engine(url, router=...)``), so that the requests of a conversation meet on one replica. One that is
    named inside of another one, or of a call, is its child: the outer one waits for it, as for a subagent.

    Raises: TypeError if ``tenant`` or ``session`` is not a string or ``priority`` not an int; ValueError for another
    objective.
    """
    if tenant is not None and not isinstance(tenant, str):
        raise TypeError(f"identity(tenant=...) is the name of a tenant, a string; got {tenant!r}")
    if session is not None and not isinstance(session, str):
        raise TypeError(f"identity(session=...) is the id of a conversation, a string; got {session!r}")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise TypeError(f"identity(priority=...) is an int, higher ones are served first; got {priority!r}")
    if wrong := wrong_objective(objective):
        raise ValueError(f"identity(objective=...) is {wrong}")
    with setting(*Identity(tenant, priority, objective, session).marks()):
        yield
