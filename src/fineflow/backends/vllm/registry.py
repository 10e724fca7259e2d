"""Registry of the engines of this process: one per set of arguments, as long as it has users."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from fineflow.backends.vllm.host import Host
from fineflow.backends.vllm.shared import Shared

_engines: weakref.WeakValueDictionary[tuple[Any, ...], Shared] = weakref.WeakValueDictionary()
_all: weakref.WeakSet[Shared] = weakref.WeakSet()  # also earlier ones with equal arguments
_inherited: list[Host] = []  # of a parent process: collecting them here would end its engines
_registry = threading.RLock()


def shared(model: str, name: str, options: Mapping[str, Any], sessions: int = 0) -> Shared:
    """Returns the engine for these arguments; creates it unless it exists."""
    key = (model, name, sessions, *sorted((option, repr(value)) for option, value in options.items()))
    with _registry:
        found = _engines.get(key)
        if found is None:
            _engines[key] = found = Shared(model, name, options, sessions)
            _all.add(found)
        return found


def release(engine: Shared, user: int) -> None:
    """Removes a user of an engine. Blocks for the last one, until vLLM has ended."""
    with _registry:
        engine.users.discard(user)
        last = not engine.users
    if last:
        engine.stop(unused=True)


def _forked() -> None:
    global _registry
    _registry = threading.RLock()
    for engine in list(_all):
        if (host := engine.forget()) is not None:
            host.abandon()
            _inherited.append(host)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
