"""The object that ``optimize`` returns for a compiled graph: the user's own graph, in whose nodes calls run ahead."""

from __future__ import annotations

import copy as copying
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.pregel import Pregel

from fineflow.adapters.langchain.calls import ChainCall, semaphore
from fineflow.adapters.langchain.proxy import Optimized

_BREAKPOINTS = ("interrupt_before", "interrupt_after")


class OptimizedGraph(Optimized):
    """A compiled graph. What does not run it (state, drawing, subgraphs, caches) is the user's graph's own."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._self_invoke(input, config, kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._self_ainvoke(input, config, kwargs)

    def batch(self, inputs: Any, config: Any = None, *, return_exceptions: bool = False, **kwargs: Any) -> Any:
        kind: Any = type(self.__wrapped__)
        runs: Any = _Inputs(self, config) if kind.batch is Runnable.batch else self.__wrapped__
        return kind.batch(runs, inputs, config, return_exceptions=return_exceptions, **kwargs)

    async def abatch(self, inputs: Any, config: Any = None, *, return_exceptions: bool = False, **kwargs: Any) -> Any:
        kind: Any = type(self.__wrapped__)
        runs: Any = _Inputs(self, config) if kind.abatch is Runnable.abatch else self.__wrapped__
        return await kind.abatch(runs, inputs, config, return_exceptions=return_exceptions, **kwargs)

    def stream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._self_third("stream_events", kwargs).stream_events(input, config, **kwargs)

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if (runs := self._self_third("astream_events", kwargs)) is not self.__wrapped__:
            return runs.astream_events(input, config, **kwargs)
        return super().astream_events(input, config, **kwargs)

    def _self_third(self, method: str, kwargs: Mapping[str, Any]) -> Any:
        """Returns what runs the third version of streaming: stock's, which reads ``stream`` or ``astream`` of this.

        The user's graph for other versions, and where its class has a method of its own.
        """
        graph = self.__wrapped__
        if kwargs.get("version") != "v3" or getattr(type(graph), method) is not getattr(Pregel, method):
            return graph
        runs = copying.copy(graph)
        runs.__dict__.update(stream=self.stream, astream=self.astream)
        return runs

    def copy(self, update: dict[str, Any] | None = None) -> Any:
        """Returns an optimized copy: servers of graphs put their checkpointer into one, and run that."""
        return self._self_optimized(self.__wrapped__.copy(update))

    def _self_invoke(self, input: Any, config: Any, kwargs: dict[str, Any], limit: Any = None) -> Any:
        if self._self_idle("invoke", True):
            return self.__wrapped__.invoke(input, config, **kwargs)
        return self._self_call(self._self_chain_call("invoke", input, config, kwargs, sync=True, limit=limit))

    async def _self_ainvoke(self, input: Any, config: Any, kwargs: dict[str, Any], limit: Any = None) -> Any:
        if self._self_idle("ainvoke", True):
            return await self.__wrapped__.ainvoke(input, config, **kwargs)
        return await self._self_acall(self._self_chain_call("ainvoke", input, config, kwargs, sync=False, limit=limit))

    def _self_chain_call(self, *args: Any, **settings: Any) -> ChainCall:
        call = super()._self_chain_call(*args, **settings)
        call.plannable, call.way = True, True  # keyword arguments are the graph's own
        call.stops = bool(args[3]) and any(args[3].get(name) for name in _BREAKPOINTS)
        return call

    def _self_way(self, input: Any, config: Any) -> bool:
        return True

    def _self_kind(self, input: Any) -> bool:
        return True


class _Inputs:
    """The graph in one batch, whose stock method calls it once per input.

    ``max_concurrency`` bounds the component calls of all inputs together; one bound per input would allow its square.
    """

    def __init__(self, graph: OptimizedGraph, config: Any) -> None:
        first = config[0] if isinstance(config, list | tuple) and config else config
        self._graph = graph
        self._limit = semaphore(first.get("max_concurrency") if isinstance(first, Mapping) else None)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._graph._self_invoke(input, config, kwargs, self._limit)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._graph._self_ainvoke(input, config, kwargs, self._limit)
