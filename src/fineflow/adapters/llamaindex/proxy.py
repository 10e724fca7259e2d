"""What ``optimize`` returns for objects of LlamaIndex: the user's object, except that calling it runs ahead."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import wrapt
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever

from fineflow.adapters.llamaindex.plan import QUERY, RETRIEVE, SYNTHESIZE, Plan, Planner
from fineflow.adapters.llamaindex.sessions import Session, aentered, entered
from fineflow.adapters.llamaindex.synthesis import is_synthesizer
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.options import Options
from fineflow.runtime import deadline
from fineflow.runtime.claims import Summary
from fineflow.runtime.limits import governed
from fineflow.runtime.loop import on_engine_loop


class Optimized(wrapt.ObjectProxy[Any]):
    """An object that runs sooner. Everything except running is the user's object."""

    def __init__(self, wrapped: Any, options: Options, planner: Planner) -> None:
        super().__init__(wrapped)
        self._self_options = options
        self._self_planner = planner
        self._self_plans: dict[tuple[str, bool], Plan | None] = {}
        self._self_parts: dict[int, Optimized] = {}
        self._self_last: Summary | None = None  # of the call that ended last: figures, no values

    def _self_run(self, part: str, name: str, query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = self._self_plan(part, sync=True)
        timeout = self._self_options.timeout
        if (plan is None and timeout is None and not governed()) or on_engine_loop():
            return getattr(self.__wrapped__, name)(*args, **kwargs)

        def call() -> Any:
            with entered():
                if plan is None:
                    return getattr(self.__wrapped__, name)(*args, **kwargs)
                with self._self_session(plan).sync(query) as runs:
                    return getattr(runs, name)(*args, **kwargs)

        return call() if timeout is None else deadline.run(call, timeout)

    async def _self_arun(self, part: str, name: str, query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = self._self_plan(part, sync=False)
        timeout = self._self_options.timeout
        if plan is None and timeout is None and not governed():
            return await getattr(self.__wrapped__, name)(*args, **kwargs)

        async def call() -> Any:
            async with aentered():
                if plan is None:
                    return await getattr(self.__wrapped__, name)(*args, **kwargs)
                async with self._self_session(plan).on_loop(query) as runs:
                    return await getattr(runs, name)(*args, **kwargs)

        return await (call() if timeout is None else deadline.arun(call, timeout))

    def _self_session(self, plan: Plan) -> Session:
        def ended(summary: Summary) -> None:
            self._self_last = summary

        options = self._self_options
        return Session(self.__wrapped__, plan, plan.gain or options.eager, options.strict, self._self_part, ended)

    def _self_plan(self, part: str, *, sync: bool) -> Plan | None:
        """The plan of a part, or None where the call goes to the user's object."""
        plans, key = self._self_plans, (part, sync)
        plan = plans[key] if key in plans else plans.setdefault(key, self._self_planned(part, sync))
        if plan is not None and not plan.snapshot.holds():  # the user has changed the object since
            plan = plans[key] = self._self_planned(part, sync)
        return plan if plan is not None and (plan.used or self._self_options.eager) else None

    def _self_part(self, obj: Any) -> Any:
        """A part of the object that is called by itself, optimized; the same one in every call."""
        found = self._self_parts.get(id(obj))
        if found is None or found.__wrapped__ is not obj:
            made = None if isinstance(obj, Optimized) else optimized_class(obj)
            if made is None:
                return obj
            found = self._self_parts[id(obj)] = made(obj, self._self_options, self._self_planner)
        return found

    def _self_planned(self, part: str, sync: bool) -> Plan | None:
        try:
            return self._self_planner(self.__wrapped__, part, sync, self._self_options)
        except Exception as error:
            own = isinstance(error, PlanningError)  # a pass of the user's, and the message says so
            what = str(error) if own else f"{type(error).__name__}: {error}"
            text = f"{type(self.__wrapped__).__name__} could not be planned ({what})"
            if self._self_options.strict:
                raise PlanningError(f"{text}; without strict=True it runs as stock") from error
            report = "" if own else " Please report this."
            warnings.warn(f"{text}; it runs as stock.{report}", FineflowWarning, stacklevel=4)
            return None

    def __repr__(self) -> str:
        return f"fineflow.optimize({self.__wrapped__!r})"

    # A proxy cannot be copied as what it stands for; its copies are optimized copies.

    def __copy__(self) -> Any:
        return type(self)(copy.copy(self.__wrapped__), self._self_options, self._self_planner)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(copy.deepcopy(self.__wrapped__, memo), self._self_options, self._self_planner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (self.__wrapped__, self._self_options, self._self_planner)


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


def optimized_class(obj: Any) -> Callable[[Any, Options, Planner], Optimized] | None:
    """What stands for an object of LlamaIndex; None for one that has nothing to run."""
    if isinstance(obj, BaseQueryEngine):
        return OptimizedQueryEngine
    if isinstance(obj, BaseRetriever):
        return OptimizedRetriever
    return OptimizedSynthesizer if is_synthesizer(obj) else None
