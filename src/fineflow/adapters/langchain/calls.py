"""One call of an optimized runnable: what planning, kernels and queues need from its input and config."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT, ensure_config, var_child_runnable_config
from langchain_core.tracers import _streaming

from fineflow.adapters.core.invocation import Again, Invocation, copied
from fineflow.adapters.langchain.repeating import settings_of, sync_method
from fineflow.ir.objectives import wrong_objective
from fineflow.runtime.call.identity import UNKNOWN, Identity

TENANT, PRIORITY, OBJECTIVE, SESSION = "fineflow_tenant", "fineflow_priority", "fineflow_objective", "fineflow_session"
"""Keys of ``config["metadata"]``."""

_CONSTANT = (str, int, float, bool, bytes, type(None))


Streams = Literal["", "chunks", "events"]
"""How a handler makes stock stream chat models in ``invoke``. events: of the third version of streaming, for which the
model's own stream reports its tokens, and the answer is made of the events.
"""


class Facts(NamedTuple):
    """Facts of a call that kernels need. stops: a graph was called with breakpoints."""

    streams_models: Streams
    stops: bool = False


class ChainCall(Invocation):
    """One call of a runnable. limit: the bound of its batch. way: if it depends on more than the input.

    stops: it has breakpoints.
    """

    __slots__ = ("_config", "_input", "_limit", "_runnable", "_streams_models", "stops")

    def __init__(
        self,
        entry: str,
        runnable: Any,
        input: Any,
        config: Any,
        stock: Callable[[Any], Any],
        *,
        sync: bool,
        streaming: bool = False,
        streams_models: Streams = "",
        method: str = "",
        limit: asyncio.Semaphore | None = None,
        plannable: bool = True,
        way: Any = None,
    ) -> None:
        way = is_constant(input) if way is None else way
        super().__init__(entry, way, stock, sync=sync, streaming=streaming, method=method, plannable=plannable)
        self._runnable = runnable
        self._input = input
        self._config = config
        self._limit = limit
        self._streams_models = streams_models
        self.stops = False

    def inputs(self) -> Mapping[str, Any]:
        return {"input": dict(self._input) if type(self._input) is dict else self._input}

    def facts(self) -> Facts:
        return Facts(streaming_handlers(self._config) or self._streams_models, self.stops)

    def limit(self) -> asyncio.Semaphore | None:
        return self._limit or semaphore(_max_concurrency(self._runnable, self._config))

    def identity(self) -> Identity:
        return identity(self._config, self._runnable)

    def again(self) -> Again:
        method = sync_method(self.entry, self.method)
        given = copied(self._input, "input"), settings_of(self._config)
        return method, lambda runs: getattr(runs, method)(copied(given[0], "input"), given[1]), lambda: given

    def prepare(self) -> None:
        var_child_runnable_config.set(_visible(self._config))


def identity(config: Any, runnable: Any) -> Identity:
    """Returns what a config, or one around it, says of a call. Raises ValueError if it is invalid."""
    tenant: Any = None
    priority: Any = None
    objective: Any = None
    session: Any = None
    first = config[0] if isinstance(config, list) and config else config
    for found in _configs(first, runnable):
        metadata = found.get("metadata")
        if metadata:
            tenant = metadata.get(TENANT) if tenant is None else tenant
            priority = metadata.get(PRIORITY) if priority is None else priority
            objective = metadata.get(OBJECTIVE) if objective is None else objective
            session = metadata.get(SESSION) if session is None else session
    if tenant is priority is objective is session is None:
        return UNKNOWN
    if tenant is not None and not isinstance(tenant, str):
        raise ValueError(f"metadata[{TENANT!r}] must be a string, the name of the tenant; got {tenant!r}")
    if session is not None and not isinstance(session, str):
        raise ValueError(f"metadata[{SESSION!r}] must be a string, the id of the conversation; got {session!r}")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise ValueError(f"metadata[{PRIORITY!r}] must be an int, higher ones are served first; got {priority!r}")
    if wrong := wrong_objective(objective):
        raise ValueError(f"metadata[{OBJECTIVE!r}] must be {wrong}")
    return Identity(tenant, priority, objective, session)


def is_constant(value: Any) -> bool:
    """Returns True for text, numbers, or a dict of these: values that user code cannot change under a reader."""
    if isinstance(value, _CONSTANT):
        return True
    return type(value) is dict and all(isinstance(part, _CONSTANT) for part in value.values())


def semaphore(limit: int | None) -> asyncio.Semaphore | None:
    """Returns the bound for a ``max_concurrency``; it belongs to the event loop that first waits for it."""
    return asyncio.Semaphore(limit) if limit else None


def _visible(config: RunnableConfig | None) -> RunnableConfig:
    """Returns the config as components see it: without handlers, which are stock's only."""
    if not config and not var_child_runnable_config.get():
        # The result of ``ensure_config`` in this case, without its cost.
        limit = DEFAULT_RECURSION_LIMIT
        return {"tags": [], "metadata": {}, "callbacks": None, "recursion_limit": limit, "configurable": {}}
    return {**ensure_config(config), "callbacks": None}


def _max_concurrency(runnable: Any, config: RunnableConfig | None) -> int | None:
    for found in _configs(config, runnable):
        if limit := found.get("max_concurrency"):
            return int(limit)
    return None


def _configs(config: Any, runnable: Any) -> Sequence[Mapping[str, Any]]:
    """Returns what may say something of a call: its config, that of the runnable, that around it."""
    found = (config, getattr(runnable, "config", None), var_child_runnable_config.get())
    return [each for each in found if each and isinstance(each, Mapping)]


def streaming_handlers(config: RunnableConfig | None) -> Streams:
    """Returns how a handler, in a config or around, makes chat models stream inside ``invoke``."""
    found: Streams = ""
    for each in (config, var_child_runnable_config.get()):
        callbacks: Any = each.get("callbacks") if each else None
        for handler in getattr(callbacks, "handlers", callbacks) or ():
            if isinstance(handler, _streaming._V2StreamingCallbackHandler):
                return "events"
            if isinstance(handler, _streaming._StreamingCallbackHandler):
                found = "chunks"
    return found
