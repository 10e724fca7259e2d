"""Registry of the queues, one per engine, and of the policies that users have set."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from fineflow.runtime.loop.forks import in_forked_children
from fineflow.runtime.queues.policy import POLICIES, Policy, by_start


class _Queue(Protocol):
    engine: Any
    policy: Policy


Q = TypeVar("Q", bound=_Queue)

_queues: weakref.WeakValueDictionary[tuple[type, int], Any] = weakref.WeakValueDictionary()
_policies: dict[int, Policy] = {}  # those that users set, by the id of the engine
_in_use = False
_lock = threading.RLock()  # reentrant: Python may collect an abandoned stream inside, and its end may use queues


@in_forked_children
def _reset() -> None:
    # In a forked child the thread that holds the lock does not exist.
    global _lock
    _lock = threading.RLock()


def expect_queues() -> None:
    """Notes that a component may submit requests to queues from now on."""
    global _in_use
    _in_use = True


def queues_in_use() -> bool:
    """Returns True if anything in this process may have submitted requests to a queue, or is going to."""
    return _in_use


def shared_queue(kind: Callable[[Any, Policy], Q], engine: Any) -> Q:
    """Returns the queue of one kind for an engine, created on first use. Kept as long as something refers to it.

    The queue refers to its engine, so no other object can take over the engine's id while its queue exists. An engine
    whose requests wait in another process brings its queue: ``remote_queue`` (``runtime.cluster.remote``).
    """
    expect_queues()
    engine = _queued_engine(engine)
    if (elsewhere := getattr(engine, "remote_queue", None)) is not None:
        own: Q = elsewhere
        return own
    key: Any = (kind, id(engine))
    with _lock:
        found = _queues.get(key) or kind(engine, _policies.get(id(engine), by_start))
        kept: Q = _queues.setdefault(key, found)
        return kept


def queues() -> list[Any]:
    """Returns all queues in use: ``BatchQueue``, ``LLMQueue`` and ``ComponentPermits``."""
    with _lock:
        return list(_queues.values())


def set_policy(engine: Any, policy: Policy | str) -> None:
    """Sets the policy of an engine or a ``LimitedComponent``, see ``fineflow.engines.set_policy``."""
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"expected a policy function or one of {', '.join(POLICIES)}; got {policy!r}")
        policy = POLICIES[policy]
    if not callable(policy):
        raise TypeError(f"expected a policy function or one of {', '.join(POLICIES)}; got {policy!r}")
    engine = _queued_engine(engine)
    if (elsewhere := getattr(engine, "remote_queue", None)) is not None:
        elsewhere.change_policy(policy)
        return
    with _lock:
        if id(engine) not in _policies:
            weakref.finalize(engine, _policies.pop, id(engine), None)
        _policies[id(engine)] = policy
        for queue in queues():
            if queue.engine is engine:
                queue.policy = policy


def _queued_engine(engine: Any) -> Any:
    """Returns the engine whose queue an object uses (``protocols.Shares``): by default its own."""
    return getattr(engine, "shared", engine)
