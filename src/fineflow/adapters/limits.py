"""How often a component of the user's may be called at once, and in which order those who wait come next."""

from __future__ import annotations

from typing import Any

from fineflow.adapters.registry import component_of
from fineflow.protocols import BatchEngine, LLMEngine
from fineflow.runtime import servers
from fineflow.runtime.queues import registry
from fineflow.runtime.queues.policy import Policy


def limit(obj: Any, *, at_once: int | None) -> None:
    """At most ``at_once`` calls of a component are at work at the same time, over all calls of the process.

    obj: a vector store (what two store objects share is one store, and a retriever or vector index of a store stands
    for it) or another retriever; of LangChain also a document compressor, a tool, or a function that is a step. Those
    who wait come next by the policies of ``set_policy``. at_once None: no limit any more. May be called at any time,
    from any thread.

    It bounds what optimized objects call, ahead of the framework or as the framework does. An optimized object that is
    called from inside of a component has the component's place given away until it has answered, and a sync call on the
    thread of a running event loop waits for nobody: so nobody can wait for himself.

    Raises: TypeError for an object that cannot be limited so, or if ``at_once`` is no whole number; ValueError if it
    is below 1.
    """
    if at_once is not None and (isinstance(at_once, bool) or not isinstance(at_once, int)):
        raise TypeError(f"limit(at_once=...) is a whole number or None, got {at_once!r}")
    if at_once is not None and at_once < 1:
        raise ValueError(f"limit(at_once=...) must be at least 1, got {at_once}")
    if _is_engine(obj):
        raise TypeError(f"{type(obj).__name__} is an engine, which has a queue of its own: set max_batch or capacity")
    component_of(obj).limit(at_once)


def set_policy(obj: Any, policy: Policy | str) -> None:
    """Has what waits for an engine, or for a component with a limit, served in another order from now on.

    obj: an engine (one on a server with ``max_requests`` stands for what waits for that server, of all its models), or
    what ``limit`` takes; a store of which searches of several queries are made together has a queue without a limit,
    too. policy: a name (``by_depth``, the default; ``by_path``, ``fifo``, ``app_fifo``, ``per_invocation``) or a
    function as ``runtime.queues.policy`` describes. It holds as long as the object exists. May be called from
    any thread.

    Raises: ValueError for a name that is not one of these; TypeError for what is no engine and cannot be limited,
    and for a policy that is neither.
    """
    registry.set_policy(obj if _is_engine(obj) else component_of(obj), policy)
    if _is_engine(obj) and (server := servers.component_of(obj)) is not None:
        registry.set_policy(server, policy)


def _is_engine(obj: Any) -> bool:
    return isinstance(obj, (BatchEngine, LLMEngine))
