"""Graphs that run inside of a graph: as nodes, or called by functions of nodes and tools.

Each of their calls runs ahead by itself, nested in the call around it, from the moment stock makes it. The methods by
which stock calls a graph have a wrapper, as those of components have (``entry_wrappers``). So do those that run the
nodes of a superstep: code that runs at the same time may change what a tool reads, so tools only start early where
nothing else of the outermost call runs (``Around``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.func import _TaskFunction
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.pregel._runner import PregelRunner

from fineflow.adapters.core.claiming import Claiming, under_way
from fineflow.adapters.core.recognition import has_as, of_package
from fineflow.adapters.inner_calls.entry_wrappers import wrap_method
from fineflow.adapters.langgraph.steps import Step, attributes_of, steps_of
from fineflow.adapters.langgraph.turns import Turns, turns_of
from fineflow.adapters.lookahead.reachable import attributes_of as held_attributes
from fineflow.adapters.lookahead.scan import codes

_DEPTH, _MOST = 6, 500  # of functions and containers inside of each other, and of all that are looked at


class Around:
    """What runs at the same time as a node: others of its superstep, and tools and graphs that it or a tool calls.

    alone: whether nothing else of the outermost call does. Once something has, it stays False.
    """

    __slots__ = ("_alone", "_calls", "_outer")

    def __init__(self, *, alone: bool) -> None:
        self._alone, self._outer = alone, around.get()
        self._calls = set[object]()

    @property
    def alone(self) -> bool:
        return self._alone and (self._outer is None or self._outer.alone)

    def shared(self) -> None:
        """Notes that something else runs here."""
        self._alone = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Is the call of a graph or a tool here: a second one at the same time is beside it."""
        mine = object()
        self._calls.add(mine)  # in one step: they may be called in several threads
        if len(self._calls) > 1:
            self._alone = False
        try:
            yield
        finally:
            self._calls.discard(mine)


around: ContextVar[Around | None] = ContextVar("fineflow_around", default=None)
"""What runs at the same time as the node that the current context is in; None outside of nodes."""


def install() -> bool:
    """Looks at calls of graphs, and at what runs beside each other in them. Returns False if others' methods do."""
    found = [
        wrap_method(PregelRunner, "tick", _running),
        wrap_method(PregelRunner, "atick", _arunning),
        wrap_method(_TaskFunction, "__call__", _beginning_a_task),
        wrap_method(BaseTool, "run", _in_a_tool, _ain_a_tool),
        wrap_method(BaseTool, "arun", _in_a_tool, _ain_a_tool),
        wrap_method(Pregel, "invoke", _inside, _ainside),
        wrap_method(Pregel, "ainvoke", _inside, _ainside),
    ]
    return None not in found


@contextmanager
def _set(found: Around) -> Iterator[None]:
    before = around.set(found)
    try:
        yield
    finally:
        around.reset(before)


def _running(own: Any, name: str) -> Any:
    def method(runner: Any, tasks: Any, **named: Any) -> Iterator[None]:
        tasks = tuple(tasks)
        here = Around(alone=len(tasks) == 1)
        with closing(own.__get__(runner, type(runner))(tasks, **named)) as steps:
            while True:  # the reader of a stream runs between two steps
                with _set(here):
                    if next(steps, _END) is _END:
                        return
                yield

    return method


def _arunning(own: Any, name: str) -> Any:
    async def method(runner: Any, tasks: Any, **named: Any) -> AsyncIterator[None]:
        tasks = tuple(tasks)
        here = Around(alone=len(tasks) == 1)
        async with aclosing(own.__get__(runner, type(runner))(tasks, **named)) as steps:
            while True:
                with _set(here):
                    if await anext(steps, _END) is _END:
                        return
                yield

    return method


_END: Any = object()


def _beginning_a_task(own: Any, name: str) -> Any:
    def method(task: Any, /, *args: Any, **named: Any) -> Any:
        if (here := around.get()) is not None:  # the function that has called it goes on
            here.shared()
        return own.__get__(task, type(task))(*args, **named)

    return method


def _in_a_tool(own: Any, name: str) -> Any:
    def method(tool: Any, /, *args: Any, **named: Any) -> Any:
        with _tool_here():
            return own.__get__(tool, type(tool))(*args, **named)

    return method


def _ain_a_tool(own: Any, name: str) -> Any:
    async def method(tool: Any, /, *args: Any, **named: Any) -> Any:
        with _tool_here():
            return await own.__get__(tool, type(tool))(*args, **named)

    return method


@contextmanager
def _tool_here() -> Iterator[None]:
    """Is the call of a tool: one ``ToolNode`` may make several at the same time."""
    if (here := around.get()) is None:
        yield
        return
    with here.call(), _set(Around(alone=True)):
        yield


def _inside(own: Any, name: str) -> Any:
    def method(graph: Any, /, *args: Any, **named: Any) -> Any:
        with _entered(graph, name, own) as call:
            return call(*args, **named)

    return method


def _ainside(own: Any, name: str) -> Any:
    async def method(graph: Any, /, *args: Any, **named: Any) -> Any:
        with _entered(graph, name, own) as call:
            return await call(*args, **named)

    return method


_entering: ContextVar[Any] = ContextVar("fineflow_entering", default=None)
"""The graph whose call here is already that of an optimized one."""


@contextmanager
def _entered(graph: Any, name: str, own: Any) -> Iterator[Any]:
    """Yields the method that stock's call of a graph goes to: of the optimized graph, if there is one."""
    stock = own.__get__(graph, type(graph))
    if _entering.get() is graph:
        yield stock
        return
    here = around.get()
    with nullcontext() if here is None else here.call():
        if (fast := _nested(graph, name, stock)) is None:
            with _set(Around(alone=False)) if _is_beside(graph) else nullcontext():
                yield stock
            return
        before = _entering.set(graph)
        try:
            yield getattr(fast, name)
        finally:
            _entering.reset(before)


def _is_beside(graph: Any) -> bool:
    """Returns True if code of the user's may run beside a call of a graph here."""
    here: Claiming | None = under_way.get()
    while here is not None and id(graph) not in getattr(here.shadows, "beside", ()):
        here = here.outer
    return here is not None


def _nested(graph: Any, name: str, stock: Any) -> Any:
    """Returns the optimized graph that stock's call of a graph goes to; None for stock's own."""
    here: Claiming | None = under_way.get()
    if here is None or id(graph) not in getattr(here.shadows, "graphs", ()):
        return None
    if not has_as(graph, name, stock) or here.call.limit is not None:
        return None
    return here.shadows.nested(graph)


def gains(graph: Any, trust: Any = None, known: dict[int, bool] | None = None) -> bool:
    """Returns True if calls in some function of a graph may run ahead, or a tool may start early.

    trust: the option ``trust_tools``. known: of graphs that have been looked at already.
    """
    known = {} if known is None else known
    if id(graph) not in known:
        known[id(graph)] = False  # while it is looked at: graphs may call each other
        inside = any(step.found() is not None for step in steps_of(graph))
        inside = inside or any(turns.gains for turns in turns_of(graph, trust))
        known[id(graph)] = inside or bool(graphs_inside(graph, trust, known))
    return known[id(graph)]


def graphs_inside(graph: Any, trust: Any = None, known: dict[int, bool] | None = None) -> list[Any]:
    """Returns the graphs that run inside of a graph, and whose calls gain by themselves. For the rest see ``gains``."""
    known = {id(graph): False} if known is None else known
    held = [inner for step in steps_of(graph) for inner in held_by(step)]
    found = {id(inner): inner for inner in (*_nodes(graph), *held) if inner is not graph}
    beside = graphs_beside(graph)
    return [inner for inner in found.values() if id(inner) not in beside and gains(inner, trust, known)]


def graphs_beside(graph: Any) -> dict[int, str]:
    """Returns the graphs whose tools start late in calls by functions, by id, and why."""
    return {id(inner): why for step in steps_of(graph) if (why := _why_late(step)) for inner in held_by(step)}


def turns_within(graph: Any, trust: Any = None, depth: int = 0) -> Iterator[Turns]:
    """Yields the ``turns_of`` a graph and of its nodes that are graphs, except for ``graphs_beside``."""
    yield from turns_of(graph, trust)
    beside = graphs_beside(graph)
    for inner in _nodes(graph) if depth < _DEPTH else ():
        if id(inner) not in beside:
            yield from turns_within(inner, trust, depth + 1)


def _nodes(graph: Any) -> list[Any]:
    return [inner for node in graph.nodes.values() for inner in node.subgraphs if isinstance(inner, CompiledStateGraph)]


def held_by(step: Step) -> list[Any]:
    """Returns the graphs that a step refers to: by closures, globals, defaults and attributes of its functions."""
    return [obj for obj in _referred(step) if isinstance(obj, CompiledStateGraph)]


def _why_late(step: Step) -> str:
    """Returns why tools of graphs that a step calls start late; "" if they need not."""
    referred = _referred(step)
    functions = [obj for obj in referred if type(obj) is FunctionType]
    own = [func for func in functions if not of_package(func.__module__)]
    if not _named(own).isdisjoint(_STARTING) or any(isinstance(obj, _TaskFunction) for obj in referred):
        return "a function that calls it starts tasks or threads, which may change what they read"
    return "" if not _named(functions).isdisjoint(_CALLING) else "the function that calls it asks for a stream"


def _named(functions: Sequence[FunctionType]) -> set[str]:
    return {name for func in functions for code in codes(func.__code__) for name in code.co_names}


def _referred(step: Step) -> list[Any]:
    """Returns graphs, functions and containers that a step refers to, directly or by each other."""
    found: list[Any] = []
    seen, todo = set[int](), [(func, 0) for func in attributes_of(step.obj).values()]
    while todo and len(seen) < _MOST:
        obj, depth = todo.pop()
        if id(obj) in seen or depth > _DEPTH:
            continue
        seen.add(id(obj))
        found.append(obj)
        if not isinstance(obj, CompiledStateGraph):
            todo += [(part, depth + 1) for part in _parts(obj)]
    return found


def _parts(obj: Any) -> Sequence[Any]:
    kind = type(obj)
    if kind is FunctionType:
        cells = [cell.cell_contents for cell in obj.__closure__ or () if cell != CellType()]
        named = [obj.__globals__.get(name) for code in codes(obj.__code__) for name in code.co_names]
        return [*cells, *(each for each in named if isinstance(each, _HOLDING)), *(obj.__defaults__ or ())]
    if kind is MethodType:
        return [obj.__func__, *held_attributes(obj.__self__).values()]
    if kind is partial:
        return [obj.func, *obj.args, *obj.keywords.values()]
    if kind is dict:
        return list(obj.values())
    if isinstance(obj, _TaskFunction):
        return [obj.func]
    return obj if kind in (list, tuple) else ()


_STARTING = frozenset(
    {
        *("create_task", "ensure_future", "gather", "TaskGroup", "start_soon", "to_thread", "run_in_executor"),
        *("submit", "Thread", "ThreadPoolExecutor", "ContextThreadPoolExecutor", "RunnableParallel"),
        *("Process", "ProcessPoolExecutor", "Popen"),
    }
)
"""What functions refer to that let other code run at the same time."""

_CALLING = frozenset({"invoke", "ainvoke", "batch", "abatch", "batch_as_completed", "abatch_as_completed"})
"""Methods of graphs whose calls run ahead inside of another graph."""

_HOLDING = (Pregel, _TaskFunction, FunctionType, MethodType, partial, dict, list, tuple)
