"""A call of an optimized object of LangChain, as ``runtime.call.lifecycle`` has it: its tenant, and stock's
side of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from fineflow.adapters.langchain.claiming import Claiming, under_way
from fineflow.runtime.call import lifecycle
from fineflow.runtime.loop.bridge import AbandonableStream

TENANT, PRIORITY = "fineflow_tenant", "fineflow_priority"
"""Keys of ``config["metadata"]``."""


class Entered(lifecycle.Entered):
    """One call. claiming: stock's side of it, once there is one. Raises ValueError for metadata of no use."""

    __slots__ = ("_outer", "claiming")

    def __init__(self, config: Any, runnable: Any) -> None:
        super().__init__(*_metadata(config, runnable))
        self.claiming: Claiming | None = None
        self._outer: Claiming | None = None

    def __enter__(self) -> None:
        super().__enter__()
        if self.claiming is not None:
            self._outer = under_way.get()
            under_way.set(self.claiming)

    def __exit__(self, *_: object) -> None:
        if self.claiming is not None:
            if under_way.get() is not self.claiming:
                return  # a coroutine that Python collects, in whatever context: there is nothing to take back
            under_way.set(self._outer)
            self._outer = None
        super().__exit__()


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


class Steps(Iterator[Any]):
    """The chunks of a stream, each made under the marks of its call, which the reader's code does not see."""

    def __init__(self, chunks: AbandonableStream[Any], marks: Entered) -> None:
        self._chunks = chunks
        self._marks = marks

    def __next__(self) -> Any:
        with self._marks:
            return next(self._chunks)

    def throw(self, *error: Any) -> Any:
        with self._marks:
            return self._chunks.throw(*error)

    def close(self) -> None:
        with self._marks:
            self._chunks.close()
