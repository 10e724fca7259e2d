"""What ``optimize`` returns for objects of LlamaIndex: the user's object, except that calling it runs ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine

from fineflow.adapters.core.framework import Planner
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.llamaindex.lowering.parts import CHAT, QUERY, RETRIEVE, STREAM_CHAT, SYNTHESIZE
from fineflow.adapters.llamaindex.lowering.synthesizers import is_synthesizer
from fineflow.adapters.llamaindex.models.embeddings import several
from fineflow.adapters.llamaindex.plan import Plan, Way
from fineflow.adapters.llamaindex.sessions import Session
from fineflow.options import Options
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.lifecycle import Entered, InThread
from fineflow.runtime.loop import deadline
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.queues.admission import limits_in_force


class Optimized(Planned):
    """An object that runs sooner. Everything except running is the user's object."""

    def __init__(self, wrapped: Any, options: Options, planner: Planner) -> None:
        super().__init__(wrapped, options, planner)
        self._self_parts: dict[int, Optimized] = {}
        self._self_last: Summary | None = None  # of the call that ended last: figures, no values

    def _self_run(self, part: str, name: str, query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = self._self_plan(part, query, sync=True)
        timeout = self._self_options.timeout
        if (plan is None and timeout is None and not limits_in_force()) or on_engine_loop():
            return getattr(self.__wrapped__, name)(*args, **kwargs)

        def call() -> Any:
            with InThread(Entered()) as marks, marks:
                if plan is None:
                    return getattr(self.__wrapped__, name)(*args, **kwargs)
                with self._self_session(plan).sync(name, query) as runs:
                    return getattr(runs, name)(*args, **kwargs)

        return call() if timeout is None else deadline.run(call, timeout)

    async def _self_arun(self, part: str, name: str, query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = self._self_plan(part, query, sync=False)
        timeout = self._self_options.timeout
        if plan is None and timeout is None and not limits_in_force():
            return await getattr(self.__wrapped__, name)(*args, **kwargs)

        async def call() -> Any:
            async with Entered() as marks:
                with marks:
                    if plan is None:
                        return await getattr(self.__wrapped__, name)(*args, **kwargs)
                    async with self._self_session(plan).on_loop(name, query) as runs:
                        return await getattr(runs, name)(*args, **kwargs)

        return await (call() if timeout is None else deadline.arun(call, timeout))

    def _self_session(self, plan: Plan) -> Session:
        def ended(summary: Summary) -> None:
            self._self_last = summary

        options = self._self_options
        return Session(self.__wrapped__, plan, plan.gain or options.eager, options.strict, self._self_part, ended)

    def _self_plan(self, part: str, query: Any, *, sync: bool) -> Plan | None:
        """The plan of a part, or None where the call goes to the user's object."""
        plan: Plan | None = self._self_current(Way(part, sync))
        used = plan is not None and (plan.used or self._self_options.eager or several(query))
        return plan if used else None

    def _self_part(self, obj: Any) -> Any:
        """A part of the object that is called by itself, optimized; the same one in every call."""
        found = self._self_parts.get(id(obj))
        if found is None or found.__wrapped__ is not obj:
            made = None if isinstance(obj, Optimized) else optimized_class(obj)
            if made is None:
                return obj
            found = self._self_parts[id(obj)] = made(obj, self._self_options, self._self_planner)
        return found


class OptimizedRetriever(Optimized):
    """A retriever that runs sooner."""

    def retrieve(self, str_or_query_bundle: Any) -> Any:
        return self._self_run(RETRIEVE, "retrieve", str_or_query_bundle, (str_or_query_bundle,), {})

    async def aretrieve(self, str_or_query_bundle: Any) -> Any:
        return await self._self_arun(RETRIEVE, "aretrieve", str_or_query_bundle, (str_or_query_bundle,), {})


class OptimizedSynthesizer(Optimized):
    """A response synthesizer that runs sooner."""

    def synthesize(self, query: Any, nodes: Any, additional_source_nodes: Any = None, **response_kwargs: Any) -> Any:
        args = (query, nodes, additional_source_nodes)
        return self._self_run(SYNTHESIZE, "synthesize", query, args, response_kwargs)

    async def asynthesize(
        self, query: Any, nodes: Any, additional_source_nodes: Any = None, **response_kwargs: Any
    ) -> Any:
        args = (query, nodes, additional_source_nodes)
        return await self._self_arun(SYNTHESIZE, "asynthesize", query, args, response_kwargs)


class OptimizedQueryEngine(Optimized):
    """A query engine that runs sooner."""

    def query(self, str_or_query_bundle: Any) -> Any:
        return self._self_run(QUERY, "query", str_or_query_bundle, (str_or_query_bundle,), {})

    async def aquery(self, str_or_query_bundle: Any) -> Any:
        return await self._self_arun(QUERY, "aquery", str_or_query_bundle, (str_or_query_bundle,), {})

    def _query(self, query_bundle: Any) -> Any:  # which engines that retry call of theirs
        return self._self_run(QUERY, "_query", query_bundle, (query_bundle,), {})

    def retrieve(self, query_bundle: Any) -> Any:
        return self._self_run(RETRIEVE, "retrieve", query_bundle, (query_bundle,), {})

    async def aretrieve(self, query_bundle: Any) -> Any:
        return await self._self_arun(RETRIEVE, "aretrieve", query_bundle, (query_bundle,), {})

    def synthesize(self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None) -> Any:
        args = (query_bundle, nodes, additional_source_nodes)
        return self._self_run(SYNTHESIZE, "synthesize", query_bundle, args, {})

    async def asynthesize(self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None) -> Any:
        args = (query_bundle, nodes, additional_source_nodes)
        return await self._self_arun(SYNTHESIZE, "asynthesize", query_bundle, args, {})


class OptimizedChatEngine(Optimized):
    """A chat engine that runs sooner. What it remembers is with the user's object."""

    def chat(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        return self._self_run(CHAT, "chat", message, (message, *args), kwargs)

    async def achat(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._self_arun(CHAT, "achat", message, (message, *args), kwargs)

    def stream_chat(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        return self._self_run(STREAM_CHAT, "stream_chat", message, (message, *args), kwargs)

    async def astream_chat(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._self_arun(STREAM_CHAT, "astream_chat", message, (message, *args), kwargs)


def optimized_class(obj: Any) -> Callable[[Any, Options, Planner], Optimized] | None:
    """What stands for an object of LlamaIndex; None for one that has nothing to run."""
    if isinstance(obj, BaseQueryEngine):
        return OptimizedQueryEngine
    if isinstance(obj, BaseRetriever):
        return OptimizedRetriever
    if isinstance(obj, BaseChatEngine):
        return OptimizedChatEngine
    if is_synthesizer(obj):
        return OptimizedSynthesizer
    from fineflow.adapters.llamaindex.agents.workflows import flow_class  # which are made of what is here
    from fineflow.adapters.llamaindex.ingestion.proxies import ingesting_class

    made: Callable[[Any, Options, Planner], Optimized] | None = ingesting_class(obj) or flow_class(obj)
    return made
