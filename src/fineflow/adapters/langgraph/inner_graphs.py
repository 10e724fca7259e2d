"""Graphs that run inside of a graph: as nodes, or called by functions of nodes and tools.

Each of their calls runs ahead by itself, nested in the call around it, from the moment stock makes it. The methods by
which stock calls a graph have a wrapper, as those of components have (``entry_wrappers``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.runnables.base import RunnableBindingBase
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel

from fineflow.adapters.core.claiming import Claiming, under_way
from fineflow.adapters.core.shadows import Shadows
from fineflow.adapters.core.trust import has_as
from fineflow.adapters.inner_calls.entry_wrappers import in_block, wrap_method
from fineflow.adapters.langgraph import beside
from fineflow.adapters.langgraph.beside import Around, around, inside
from fineflow.adapters.langgraph.held_graphs import graphs_held, why_late
from fineflow.adapters.langgraph.steps import flat, steps_of
from fineflow.adapters.langgraph.turns import Turns, turns_of
from fineflow.runtime.loop.scopes import setting

_DEPTH = 8  # of graphs inside graphs


def install() -> None:
    """Looks at calls of graphs, and at what runs beside each other in them, from now on."""
    beside.install()
    for name in ("invoke", "ainvoke"):
        wrap_method(Pregel, name, *_INSIDE)


_entering: ContextVar[Any] = ContextVar("fineflow_entering", default=None)
"""The graph whose call here is already that of an optimized one."""


@contextmanager
def _entered(stock: Any, graph: Any, name: str, named: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the method that stock's call of a graph goes to: of the optimized graph, if there is one."""
    if _entering.get() is graph:
        with setting((_entering, None)):  # the graph may call itself
            yield stock
        return
    with _counted(graph):
        if (fast := _nested(graph, name, stock)) is None:
            with inside(Around(alone=False)) if _is_beside(graph) else nullcontext():
                yield stock
            return
        with setting((_entering, graph)):
            yield getattr(fast, name)


_INSIDE = in_block(_entered)

_under_way: ContextVar[tuple[Around, Any] | None] = ContextVar("fineflow_graph_under_way", default=None)
"""The innermost call of a graph that the current context is in: where it is made, and the graph."""


@contextmanager
def _counted(graph: Any) -> Iterator[None]:
    """Is a call of a graph, which counts once, also where it passes two wrappers on its way to stock."""
    here, known = around.get(), _under_way.get()
    if here is None or (known is not None and known[0] is here and known[1] is graph):
        yield
        return
    with here.call(), setting((_under_way, (here, graph))):
        yield


def _is_beside(graph: Any) -> bool:
    """Returns True if code of the user's may run beside a call of a graph here."""
    here: Claiming | None = under_way.get()
    while here is not None and id(graph) not in getattr(here.shadows, "beside", ()):
        here = here.outer
    return here is not None


def _nested(graph: Any, name: str, stock: Any) -> Any:
    """Returns the optimized graph that stock's call of a graph goes to; None for stock's own."""
    here: Claiming | None = under_way.get()
    if here is None or id(graph) not in _graphs_in(here.shadows):
        return None
    if not has_as(graph, name, stock) or here.call.limit is not None:
        return None
    return here.shadows.nested(graph)


def _graphs_in(shadows: Shadows) -> Mapping[int, Any]:
    """Returns the graphs that run ahead inside of a call, by id: of a graph, or the steps of a chain."""
    own: Mapping[int, Any] | None = getattr(shadows, "graphs", None)
    if own is None and (own := _steps.get(shadows)) is None:
        trust, parts = shadows.options.trust_tools, shadows.plan.objects.values()
        own = {id(each): each for each in parts if isinstance(each, CompiledStateGraph) and gains(each, trust)}
        _steps[shadows] = own
    return own


_steps: WeakKeyDictionary[Shadows, Mapping[int, Any]] = WeakKeyDictionary()


def gains(graph: Any, trust: Any = None, known: dict[int, bool] | None = None) -> bool:
    """Returns True if calls in some function of a graph may run ahead, or a tool may start early.

    trust: the option ``trust_tools``. known: of graphs that have been looked at already.
    """
    known = {} if known is None else known
    if id(graph) not in known:
        known[id(graph)] = False  # while it is looked at: graphs may call each other
        own = any(step.found() is not None for step in steps_of(graph))
        own = own or any(turns.gains for turns in turns_of(graph, trust))
        known[id(graph)] = own or bool(graphs_inside(graph, trust, known))
    return known[id(graph)]


def graphs_inside(graph: Any, trust: Any = None, known: dict[int, bool] | None = None) -> list[Any]:
    """Returns the graphs that run inside of a graph, and whose calls gain by themselves. For the rest see ``gains``."""
    known = {id(graph): False} if known is None else known
    late = graphs_beside(graph)
    return [inner for inner in graphs_within(graph) if id(inner) not in late and gains(inner, trust, known)]


def graphs_within(graph: Any) -> list[Any]:
    """Returns the graphs that are nodes of a graph, or that functions of its steps refer to."""
    held = [inner for step in steps_of(graph) for inner in graphs_held(step.obj)]
    return list({id(inner): inner for inner in (*_nodes(graph), *held) if inner is not graph}.values())


def graphs_beside(graph: Any) -> dict[int, str]:
    """Returns the graphs whose tools start late in calls by functions, by id, and why."""
    found = ((step.obj, held) for step in steps_of(graph) if (held := graphs_held(step.obj)))
    return {id(inner): why for step, held in found if (why := why_late(step)) for inner in held}


def turns_within(graph: Any, trust: Any = None, depth: int = 0) -> Iterator[Turns]:
    """Yields the ``turns_of`` a graph and of its nodes that are graphs, except for ``graphs_beside``."""
    yield from turns_of(graph, trust)
    late = graphs_beside(graph)
    for inner in _nodes(graph) if depth < _DEPTH else ():
        if id(inner) not in late:
            yield from turns_within(inner, trust, depth + 1)


def _nodes(graph: Any) -> list[Any]:
    """Returns the graphs that are nodes themselves, or steps of one. LangGraph also counts what functions refer to."""
    return [inner for node in graph.nodes.values() for part in flat(node.bound) for inner in _bound(part)]


def _bound(part: Any) -> list[Any]:
    if isinstance(part, RunnableBindingBase):
        return _bound(part.bound)
    if isinstance(part, CompiledStateGraph):
        return [part]
    return [inner for step in flat(part) if step is not part for inner in _bound(step)]
