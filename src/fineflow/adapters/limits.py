"""Limits and policies: concurrent calls of a user's component, and the order in which waiting ones are served."""

from __future__ import annotations

from typing import Any

from fineflow.adapters.registry import component_of
from fineflow.protocols import BatchEngine, LLMEngine
from fineflow.runtime import servers
from fineflow.runtime.queues import registry
from fineflow.runtime.queues.policy import Policy


def limit(obj: Any, *, at_once: int | None) -> None:
    """Limits the concurrent calls of a component to ``at_once``, over all calls of the process.

    obj: a vector store (store objects with the same contents count as one store, and a retriever or vector index of a
    store as the store) or another retriever; in LangChain also a chat model or LLM that does not run on an engine, a
    document compressor, a tool, or a function that is a step. Waiting calls are ordered by the policies of
    ``set_policy``. at_once None: no limit. May be called at any time, from any thread.

    The limit bounds what optimized objects call, ahead of the framework or as the framework does. To avoid deadlock, a
    component that calls an optimized object gives its permit away until the answer, and a sync call on the thread of a
    running event loop does not wait.

    Raises: TypeError for an object that cannot be limited, or if ``at_once`` is not a whole number; ValueError if it
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
    """Sets the order in which requests waiting for an engine, or for a limited component, are served from now on.

    obj: an engine (on a server with ``max_requests``, this sets the order for all requests that wait for the server,
    of all its models), or anything that ``limit`` takes. A store with batched search has a queue even without a limit.
    policy: a name (``by_start``, the default; ``by_depth``, ``by_path``, ``fifo``, ``app_fifo``, ``per_invocation``) or
    a function as described in ``runtime.queues.policy``. It holds as long as the object exists. May be called from any
    thread.

    Raises: ValueError for an unknown name; TypeError for an object that is not an engine and cannot be limited, and for
    a policy that is neither a name nor a function.
    """
    registry.set_policy(obj if _is_engine(obj) else component_of(obj), policy)
    if _is_engine(obj) and (server := servers.limited_server(obj)) is not None:
        registry.set_policy(server, policy)


def _is_engine(obj: Any) -> bool:
    return isinstance(obj, (BatchEngine, LLMEngine))
