"""Proxies of tools, agents and workflows. Stock runs them; the engines and retrievers that they call run ahead.

A tool runs as a copy whose engine or retriever is optimized. LlamaIndex's agents keep no state on themselves: they run
as a copy with optimized tools and a model that does not block the event loop. A user's workflow may keep state on
itself: it runs as a twin, an object of a generated subclass that shares the workflow's ``__dict__`` and returns query
engines, retrievers, synthesizers, chat engines and tools as optimized ones.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType, MethodType
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow, CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.tools import QueryEngineTool, RetrieverTool
from llama_index.core.workflow import Workflow
from pydantic import BaseModel
from workflows.plugins.basic import BasicRuntime
from workflows.runtime.verbose import VerboseDecorator

from fineflow.adapters.core.framework import Lowered
from fineflow.adapters.core.shadows import unclaimed
from fineflow.adapters.core.snapshot import Snapshot
from fineflow.adapters.inner_calls.functions import lower_function
from fineflow.adapters.llamaindex.agents.steps import looking, steps_of
from fineflow.adapters.llamaindex.builder import IndexBuilder, Way
from fineflow.adapters.llamaindex.methods import as_written
from fineflow.adapters.llamaindex.models.llms import model_known, shadow_llm
from fineflow.adapters.llamaindex.planning import snapshot
from fineflow.adapters.llamaindex.proxy import Optimized
from fineflow.adapters.llamaindex.reading import refused_by
from fineflow.adapters.llamaindex.thread_affinity import blocks, off_loop
from fineflow.adapters.llamaindex.user_functions import calls_in
from fineflow.ir import Graph, Ref
from fineflow.options import Options
from fineflow.runtime import events
from fineflow.runtime.call.claims import Summary
from fineflow.runtime.call.trace import Trace
from fineflow.runtime.loop.scopes import setting
from fineflow.runtime.queues import request_context

_TOOLS = {
    QueryEngineTool: ("_query_engine", ("call", "acall", "_get_query_str")),
    RetrieverTool: (
        "_retriever",
        ("call", "acall", "_apply_node_postprocessors", "_async_apply_node_postprocessors"),
    ),
}
_AGENTS = (FunctionAgent, ReActAgent, CodeActAgent)
_numbers = itertools.count(1)

Knows = Callable[[Any], bool]
"""Returns True if ``optimize`` takes an object."""


def flow_class(obj: Any) -> Any:
    """Returns the proxy class of a workflow, an agent, or a tool with an engine or a retriever; None for others."""
    if _called(obj):
        return OptimizedTool
    return OptimizedWorkflow if isinstance(obj, Workflow) else None


def flow_parts(obj: Any, knows: Knows) -> Mapping[str, Any]:
    """Returns the parts of a tool, an agent or a workflow that can run ahead, by readable names."""
    if name := _called(obj):
        return {name.lstrip("_").replace("_", " "): getattr(obj, name)}
    if type(obj) is AgentWorkflow:
        return {f"agent: {name}": agent for name, agent in obj.agents.items()}
    if type(obj) in _AGENTS:
        return {f"tool: {tool.metadata.name}": tool for tool in obj.tools or () if _called(tool)}
    if _twinned(obj):
        return {name: value for name, value in vars(obj).items() if _optimizable(value, knows)}
    return {}


def flow_ways(obj: Any) -> Sequence[Way]:
    """Returns the ways to call a tool or a workflow; none for others."""
    if _called(obj):
        return Way("call", sync=True), Way("call", sync=False)
    return (Way("run", sync=True),) if isinstance(obj, Workflow) else ()


def lower_flow(obj: Any, options: Options, way: Way, knows: Knows) -> tuple[Graph, Lowered]:
    """Returns what ``explain`` shows: the steps in which component calls run ahead, else one; stock runs them."""
    b = IndexBuilder((), options.assume_pure, options.trust == "interfaces", way=way, by_sync=way.sync)
    steps = [MethodType(func, obj) for func in steps_of(obj).values()] if _twinned(obj) else []
    if steps:
        ends = [lower_function(step, calls_in(step), b, refused_by(options), inside=True) for step in steps]
        return Graph(tuple(b.primitives), ends[-1], ("input",), tuple(b.notes)), Lowered(obj, way, options, b)
    why = (
        "stock runs it; what it calls runs ahead by itself" if flow_parts(obj, knows) else "its steps are run by stock"
    )
    made = b.left_to_stock(obj, {"query": Ref("input")}, why)
    return Graph(tuple(b.primitives), made.ref, ("input",), tuple(b.notes)), Lowered(obj, way, options, b)


def _called(tool: Any) -> str:
    """Returns the attribute of a tool that holds its engine or retriever; "" if it is not LlamaIndex's own tool."""
    return next((name for kind, (name, methods) in _TOOLS.items() if as_written(tool, kind, *methods)), "")


def _optimizable(value: Any, knows: Knows) -> bool:
    return not isinstance(value, Optimized | Workflow | type) and knows(value)


class OptimizedTool(Optimized):
    """Tool whose engine or retriever runs ahead."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_copy()(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_copy().call(*args, **kwargs)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        made = self._self_copy()
        if isinstance(made, RetrieverTool):
            made._node_postprocessors = [
                off_loop(each, "_apostprocess_nodes", self._self_options.trusting) for each in made._node_postprocessors
            ]
        return await made.acall(*args, **kwargs)

    def _self_copy(self) -> Any:
        self._self_last = _begun("call")
        tool = self.__wrapped__
        name, made = _called(tool), copy.copy(tool)
        if name:  # else the user has changed it
            made.__dict__[name] = self._self_part(getattr(tool, name))
        return made if name else tool


class OptimizedWorkflow(Optimized):
    """Workflow or agent. Engines see each of its runs as one query; its parts run ahead.

    Raises ValueError for a ``timeout``: a workflow has one of its own, which ends its streams as well.
    """

    def __init__(self, wrapped: Any, options: Options, *made_of: Any) -> None:
        if options.timeout is not None:
            raise ValueError(
                f"timeout={options.timeout:g} is not for workflows, which have one of their own: "
                f"{type(wrapped).__name__}(timeout=...)"
            )
        super().__init__(wrapped, options, *made_of)
        self._self_twin: Any = None
        self._self_agents: tuple[Snapshot, Any] | None = None
        self._self_held: dict[str, Any] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self._self_last = _begun("run")
        with _known_as_query():
            return self._self_runs().run(*args, **kwargs)

    def _self_runs(self) -> Any:
        """Returns the object that stock runs: a twin or a copy, kept until something changes, or the user's own."""
        obj = self.__wrapped__
        # Runtimes look workflows up by identity, and count the runs of each.
        if obj._num_concurrent_runs is not None or not _in_this_process(obj):
            return obj
        if _twinned(obj):
            if self._self_twin is None:
                steps = looking(obj, self._self_options, self._self_part)
                if steps or any(_optimizable(value, self._self_framework.knows) for value in vars(obj).values()):
                    self._self_twin = twin(obj, self._self_attribute, self._self_own, steps)
            return obj if self._self_twin is None else self._self_twin
        if type(obj) is not AgentWorkflow and type(obj) not in _AGENTS:
            return obj
        if self._self_agents is None or not self._self_agents[0].holds():
            seen, made = snapshot(_read(obj)), self._self_agent(obj)
            if type(obj) is AgentWorkflow:
                made = copy.copy(obj)
                made.agents = {name: self._self_part(agent)._self_agent(agent) for name, agent in obj.agents.items()}
            self._self_agents = seen, made
        return self._self_agents[1]

    def _self_agent(self, agent: Any) -> Any:
        if type(agent) not in _AGENTS:
            return agent
        changed: dict[str, Any] = {}
        if agent.tools:
            changed["tools"] = [self._self_part(tool) if _called(tool) else tool for tool in agent.tools]
        if model_known(agent.llm) and any(blocks(type(agent.llm), name) for name in ("achat", "astream_chat")):
            changed["llm"] = shadow_llm(agent.llm, unclaimed(sync=False))
        return agent.model_copy(update=changed)

    def _self_attribute(self, name: str, value: Any) -> Any:
        """Returns an attribute as steps see it: an optimized one where possible."""
        held = self._self_held.get(name)
        if held is None or held.__wrapped__ is not value:
            if not _optimizable(value, self._self_framework.knows):
                return value
            held = self._self_held[name] = self._self_optimized(value)
        return held

    def _self_part(self, obj: Any) -> Any:
        """Returns a part of the workflow as its steps see it."""
        held = next((each for each in self._self_held.values() if each.__wrapped__ is obj), None)
        return super()._self_part(obj) if held is None else held

    def _self_own(self, value: Any) -> Any:
        """Returns a value that a step sets, as the workflow is to hold it: without our proxy."""
        return value.__wrapped__ if any(value is held for held in self._self_held.values()) else value


def _begun(entry: str) -> Summary:
    """Returns the start time of a call that stock runs, so that ``explain`` can assign the calls of its parts to it."""
    now = events.now()
    return Summary(trace=Trace(entry, now, now, ()))


def _known_as_query() -> AbstractContextManager[None]:
    """Assigns the engine requests of tasks started in the block to one query that begins now."""
    if request_context.query.get():
        return nullcontext()
    return setting((request_context.query, f"run-{next(_numbers)}"), (request_context.started, events.now()))


def _in_this_process(workflow: Any) -> bool:
    runtime = workflow._runtime
    return type(runtime._decorated if type(runtime) is VerboseDecorator else runtime) is BasicRuntime


def _read(obj: Any) -> Iterator[Any]:
    """Yields the objects that copies of an agent were made from."""
    yield obj
    for agent in obj.agents.values() if type(obj) is AgentWorkflow else (obj,):
        yield from (agent, agent.llm)


def _twinned(obj: Any) -> bool:
    """Returns True if a workflow can have a twin: a plain object with ordinary attribute lookup."""
    if not isinstance(obj, Workflow) or isinstance(obj, BaseModel | AgentWorkflow):
        return False
    own = [each for each in type(obj).__mro__ if each is not object]
    unusual = {"__getattribute__", "__setattr__", "__slots__", "__init_subclass__", "__set_name__"}
    return all(unusual.isdisjoint(vars(each)) for each in own)


def twin(
    workflow: Any,
    attribute: Callable[[str, Any], Any],
    own: Callable[[Any], Any],
    steps: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Returns an object that shares the ``__dict__`` of a workflow.

    attribute: maps a name and value to what reading returns. own: maps an assigned value to what is stored. steps: that
    replace the workflow's.
    """
    kind = type(workflow)
    state = vars(workflow)

    def get(self: Any, name: str) -> Any:
        value = object.__getattribute__(self, name)
        return attribute(name, value) if state.get(name) is value and value is not None else value

    def put(self: Any, name: str, value: Any) -> None:
        object.__setattr__(self, name, own(value))

    names = {
        **steps,
        "__getattribute__": get,
        "__setattr__": put,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    metaclass: Any = type(kind)
    made: Any = object.__new__(metaclass(kind.__name__, (kind,), {**names, "__doc__": kind.__doc__}))
    type(made)._step_functions = kind._step_functions
    object.__setattr__(made, "__dict__", state)
    return made
