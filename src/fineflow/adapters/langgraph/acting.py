"""What may change something beside a node: in graphs of packages only their tools, whose runs are counted.

Agents that run at the same time, such as those that a planner asks together, may change what a tool of another one
reads. If everything else that their graphs run is of packages, only tools may, and a result is claimed only if none
that acts has run since its tool has started.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.tools import BaseTool
from langgraph._internal._runnable import RunnableCallable
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel

from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.recognition import of_package
from fineflow.adapters.langgraph.asking import only_asks
from fineflow.adapters.langgraph.inner_graphs import held_by
from fineflow.adapters.langgraph.middleware import around_calls
from fineflow.adapters.langgraph.steps import Step, attributes_of, flat
from fineflow.adapters.langgraph.turns import looked_at, offered, reduced_by_packages, routed_by_packages


class Acting:
    """Of one outermost call: the tools that run, and may change something. begun: their number so far."""

    def __init__(self) -> None:
        self.begun = 0
        self._running = set[object]()

    @property
    def idle(self) -> bool:
        """True if none runs but those that the current code is a part of."""
        return self._running <= _around.get()

    @contextmanager
    def run(self) -> Iterator[None]:
        """Is the run of such a tool."""
        mine = object()
        self._running.add(mine)
        self.begun += 1
        before = _around.set(_around.get() | {mine})
        try:
            yield
        finally:
            _around.reset(before)
            self._running.discard(mine)


_around: ContextVar[frozenset[object]] = ContextVar("fineflow_acting", default=frozenset())
"""The runs of tools that the current code is a part of."""


def acting_of(here: Claiming) -> Acting | None:
    """Returns what acts in the outermost call; None if more than tools may."""
    while here.outer is not None:
        here = here.outer
    return here.call.memory(Acting) if getattr(here.shadows, "by_tools", False) else None


def by_tools(graph: Any, trust: Any = None, known: dict[int, bool] | None = None) -> bool:
    """Returns True if all that a graph runs is of packages, but for its tools.

    trust: the option ``trust_tools``. known: of graphs that have been looked at already.
    """
    known = {} if known is None else known
    if id(graph) not in known:
        known[id(graph)] = True  # while it is looked at: graphs may call each other
        known[id(graph)] = _by_tools(graph, trust, known)
    return known[id(graph)]


def _by_tools(graph: Any, trust: Any, known: dict[int, bool]) -> bool:
    builder = getattr(graph, "builder", None)
    if builder is None or not reduced_by_packages(builder):
        return False
    if not all(routed_by_packages(builder, name) for name in (*builder.nodes, *builder.branches)):
        return False
    parts = [part for name, node in graph.nodes.items() if name != "__start__" for part in flat(node.bound)]
    return all(_is_known(part, trust, known) for part in parts)


def _is_known(part: Any, trust: Any, known: dict[int, bool]) -> bool:
    if isinstance(part, Pregel):
        return by_tools(part, trust, known)
    if type(part) is ToolNode:
        tools = part.tools_by_name.values()
        inside = (inner for tool in tools for inner in held_by(Step("", tool, ())))
        hooks = around_calls(part._wrap_tool_call, part._awrap_tool_call)
        return not hooks[1] and all(by_tools(inner, trust, known) for inner in inside)
    if type(part) is not RunnableCallable or not looked_at(part, ())[0]:
        return False
    return all(by_tools(inner, trust, known) for inner in held_by(Step("", part, ())))


def quiet(tool: BaseTool, trust: Any = None) -> bool:
    """Returns True if running a tool changes nothing: it reads, or it only asks graphs."""
    found = offered(tool, trust)
    if not (found.guards or found.writes):
        return True
    functions = list(attributes_of(tool).values())
    only = (of_package(func.__module__ or "") or only_asks(func, graphs=True) for func in functions)
    return bool(held_by(Step("", tool, ()))) and all(only)
