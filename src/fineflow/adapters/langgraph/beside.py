"""Tracks what runs at the same time as a node, and may change what a tool reads.

The supersteps of all graphs note the tasks that they run. A tool starts early where nothing else of the outermost call
runs, or where no more than tools may change anything: if the nodes beside it are those of agents, say, all of whose
code is of packages. Runs of tools that are not known to do no more than to read are counted, and what started before
one of them has begun is not claimed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, closing, contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableParallel
from langchain_core.runnables.base import RunnableEach
from langchain_core.tools import BaseTool
from langgraph._internal._runnable import RunnableCallable
from langgraph.func import _TaskFunction
from langgraph.graph._branch import BranchSpec
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel._runner import PregelRunner
from langgraph.pregel._write import ChannelWrite

from fineflow.adapters.core.claiming import Claiming, under_way
from fineflow.adapters.core.installers import module_of, of_package
from fineflow.adapters.core.shadows import Shadows
from fineflow.adapters.inner_calls.entry_wrappers import wrap_method
from fineflow.adapters.langchain.lowering.list_functions import judged
from fineflow.adapters.langgraph import started
from fineflow.adapters.langgraph.asking import only_asks
from fineflow.adapters.langgraph.held_graphs import graphs_held
from fineflow.adapters.langgraph.middleware import around_calls
from fineflow.adapters.langgraph.steps import attributes_of, flat
from fineflow.adapters.langgraph.tool_runs import ToolRun, tool_runs_of
from fineflow.adapters.langgraph.turns import Offered, looked_at, offered
from fineflow.ir import Effect, Graph
from fineflow.ir.spec import everything
from fineflow.runtime.loop.scopes import setting

_END: Any = object()


class Around:
    """A superstep, or the run of a tool, and what it calls: all that may run at the same time there.

    tasks: those of the nodes. alone: False where code that nobody knows runs beside what it calls.
    """

    __slots__ = ("_alone", "_calls", "_here", "_known", "_nodes", "_outer", "_shared")

    def __init__(self, tasks: Sequence[Any] = (), *, alone: bool = True) -> None:
        self._outer, self._here = around.get(), under_way.get()
        self._nodes = [task.proc for task in tasks]  # a task would keep its state alive, in each context that is kept
        self._alone = alone and len(tasks) <= 1
        self._known: bool | None = None if tasks else False
        self._shared = False
        self._calls = set[object]()

    @property
    def alone(self) -> bool:
        """True if nothing else of the outermost call runs. Once something has, it stays False."""
        return self._alone and not self._shared and (self._outer is None or self._outer.alone)

    @property
    def by_tools(self) -> bool:
        """True if nothing beside the current code changes anything, but for tools."""
        if self._known is None:
            self._known = all(_is_known(part) for node in self._nodes for part in _parts(node))
        known = (self._alone or self._known) and not self._shared
        return known and (self._outer is None or self._outer.by_tools)

    def shared(self) -> None:
        """Notes that code which nobody knows goes on here."""
        self._shared = True

    @contextmanager
    def call(self) -> Iterator[None]:
        """Is the call of a graph or of a tool here: a second one at the same time is beside it."""
        mine = object()
        self._calls.add(mine)  # in one step: they may be called in several threads
        if len(self._calls) > 1:
            self._alone = False
        try:
            yield
        finally:
            self._calls.discard(mine)


around: ContextVar[Around | None] = ContextVar("fineflow_around", default=None)
"""The innermost superstep that the current context is in; None outside of nodes."""


def known_around(here: Claiming, *, inside: bool) -> bool:
    """Returns True if all that runs around a call of a graph is looked at, in its own supersteps.

    Not around an optimized graph in one that is stock's, nor where a graph runs again in the same call of ours, nor
    where steps of a chain, or what a function starts, may run beside it. inside: of another graph, as stock says.
    """
    outer = here.outer
    while outer is not None:
        if not _one_by_one(outer.shadows):
            return False
        outer = outer.outer
    runs = tool_runs_of(here)
    runs.unseen = not started.looks_here() or runs.unseen
    if runs.unseen:
        return False
    step = around.get()
    if step is None or step._outer is None:
        return not inside
    return step._outer._here not in (None, here)


def one_by_one(graph: Graph, objects: Mapping[str, Any]) -> bool:
    """Returns False for a chain that may run steps which nobody knows beside a graph that is one of them.

    graph, objects: its p-graph, and its objects by path.
    """
    parts = objects.values()
    acting = [p for p in everything(graph) if p.effects.kind is Effect.OPAQUE or p.effects.writes]
    several = len(acting) > 1 and any(isinstance(each, RunnableParallel) for each in parts)
    return not (several or any(isinstance(each, RunnableEach) for each in parts))


def _one_by_one(shadows: Shadows) -> bool:
    if shadows not in _known:
        _known[shadows] = one_by_one(shadows.plan.p_graph, shadows.plan.objects)
    return _known[shadows]


_known: WeakKeyDictionary[Shadows, bool] = WeakKeyDictionary()


def install() -> None:
    """Looks at what runs beside each other in graphs, from now on."""
    started.install()
    wrap_method(PregelRunner, "tick", _running)
    wrap_method(PregelRunner, "atick", _arunning)
    wrap_method(_TaskFunction, "__call__", _beginning_a_task)


def inside(found: Around) -> AbstractContextManager[None]:
    """Is what runs there."""
    return setting((around, found))


def _running(own: Any, name: str) -> Any:
    def method(runner: Any, tasks: Any, **named: Any) -> Iterator[None]:
        tasks = tuple(tasks)
        here = Around(tasks)
        with closing(own.__get__(runner, type(runner))(tasks, **named)) as steps:
            while True:  # the reader of a stream runs between two steps
                with inside(here):
                    if next(steps, _END) is _END:
                        return
                yield

    return method


def _arunning(own: Any, name: str) -> Any:
    async def method(runner: Any, tasks: Any, **named: Any) -> AsyncIterator[None]:
        tasks = tuple(tasks)
        here = Around(tasks)
        async with aclosing(own.__get__(runner, type(runner))(tasks, **named)) as steps:
            while True:
                with inside(here):
                    if await anext(steps, _END) is _END:
                        return
                yield

    return method


def _beginning_a_task(own: Any, name: str) -> Any:
    def method(task: Any, /, *args: Any, **named: Any) -> Any:
        if (here := around.get()) is not None:  # the function that has called it goes on
            here.shared()
        return own.__get__(task, type(task))(*args, **named)

    return method


@contextmanager
def running(here: Claiming, tool: BaseTool, turn: object, *, reads: bool) -> Iterator[None]:
    """Is the run of a tool. turn: that of the model which has called it. reads: this run is known to do no more."""
    if (step := around.get()) is None:
        yield
        return
    known = getattr(here.shadows, "known_tools", {})
    reads = reads or (id(tool) in known and known[id(tool)] is None)
    run = ToolRun(known.get(id(tool)), turn, reads=reads)
    with step.call(), inside(Around()), tool_runs_of(here).run(run):
        yield


def _parts(runnable: Any) -> Iterator[Any]:
    for part in flat(runnable):
        yield from [part] if part is runnable else _parts(part)


def _is_known(part: Any, seen: frozenset[int] = frozenset()) -> bool:
    """Returns True if a step of a node changes nothing, but for the tools that it runs. seen: graphs around it."""
    if isinstance(part, CompiledStateGraph):
        inner = [each for node in part.nodes.values() for each in (*flat(node.bound), *node.writers)]
        return id(part) in seen or all(_is_known(each, seen | {id(part)}) for each in inner)
    if type(part) is ToolNode:
        held = [graph for tool in part.tools_by_name.values() for graph in graphs_held(tool)]
        known = not around_calls(part._wrap_tool_call, part._awrap_tool_call)[1]
    elif type(part) is RunnableCallable:
        owner, held = getattr(part.func, "__self__", None), graphs_held(part)
        path = owner.path if isinstance(owner, BranchSpec) else None
        known = looked_at(part, ())[0] if path is None else all(map(_only_decides, attributes_of(path).values()))
        known = known or (bool(held) and all(map(_only_asks_graphs, attributes_of(part).values())))
    else:
        return type(part) is ChannelWrite
    return known and all(_is_known(graph, seen) for graph in held)


def _only_decides(func: Any) -> bool:
    return of_package(module_of(func)) or judged(func).pure


def _only_asks_graphs(func: Any) -> bool:
    return of_package(module_of(func)) or only_asks(func, graphs=True)


def may_act(tool: BaseTool, trust: Any = None) -> Offered | None:
    """Returns what is known of a tool; None if running it changes nothing: it reads, or it only asks graphs.

    trust: the option ``trust_tools``.
    """
    found = offered(tool, trust)
    asks = bool(graphs_held(tool)) and all(map(_only_asks_graphs, attributes_of(tool).values()))
    return found if (found.guards or found.writes) and not asks else None
