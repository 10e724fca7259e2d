"""Which engines there are in this process: one for each set of arguments, while somebody uses it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from fineflow.backends.vllm.host import Host
from fineflow.backends.vllm.shared import Shared

_engines: weakref.WeakValueDictionary[tuple[Any, ...], Shared] = weakref.WeakValueDictionary()
_all: weakref.WeakSet[Shared] = weakref.WeakSet()  # also those with equal arguments, one after the other
_inherited: list[Host] = []  # of a parent process; if they were collected here, they would end its engines
_registry = threading.RLock()


def shared(model: str, name: str, options: Mapping[str, Any], sessions: int = 0) -> Shared:
    """The engine for these arguments: one, as long as somebody has it."""
    key = (model, name, sessions, *sorted((option, repr(value)) for option, value in options.items()))
    with _registry:
        found = _engines.get(key)
        if found is None:
            _engines[key] = found = Shared(model, name, options, sessions)
            _all.add(found)
        return found


def release(engine: Shared, user: int) -> None:
    """``user`` does not need it any longer. Blocks where that was the last one, until vLLM has ended."""
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
