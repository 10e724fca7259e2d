"""Functions of the user's that a graph runs: those of its nodes, routers and tools, and of its subgraphs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langgraph._internal._runnable import RunnableCallable
from langgraph.func import _TaskFunction
from langgraph.graph._branch import BranchSpec
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel

from fineflow.adapters.core.recognition import called, of_package
from fineflow.adapters.langchain.user_functions import calls_of, entered, functions_of, functions_of_tool
from fineflow.adapters.lookahead.reachable import attributes_of as attributes_held
from fineflow.adapters.lookahead.scan import Found, codes
from fineflow.declare import undeclared

_DEPTH = 8  # of graphs inside graphs
_HELD_DEPTH, _MOST = 4, 500  # of functions and containers inside of each other, and of all that are looked at
_STARTING = frozenset(
    {
        *("create_task", "ensure_future", "gather", "TaskGroup", "start_soon", "to_thread", "run_in_executor"),
        *("submit", "Thread", "ThreadPoolExecutor", "ContextThreadPoolExecutor", "RunnableParallel"),
        *("Process", "ProcessPoolExecutor", "Popen", "Executor", "Pool", "Timer", "start", "start_new_thread"),
        *("as_completed", "call_soon", "call_soon_threadsafe", "call_later", "run_coroutine_threadsafe"),
        *("map_async", "starmap_async", "apply_async", "imap", "imap_unordered"),
    }
)
"""What functions refer to that let other code run at the same time, and classes of objects that they hold."""

_CALLING = frozenset({"invoke", "ainvoke", "batch", "abatch", "batch_as_completed", "abatch_as_completed"})
"""Methods of graphs whose calls run ahead inside of another graph."""

_HOLDING = frozenset({"langchain_core.tools.retriever", "langchain_core.tools.convert"})
"""Modules whose functions only call the user's component: those of ``create_retriever_tool``, ``as_tool`` of a dict."""


@dataclass(frozen=True, slots=True)
class Step:
    """One runnable of a graph: at a node, as the router behind it, or as a tool.

    name: for display; parts of a subgraph or of a node with tools follow a slash, a router an arrow. obj: a runnable,
    or a task of the functional API. functions: the user's, that stock calls when it runs the step.
    """

    name: str
    obj: Any
    functions: Sequence[Any]

    def found(self) -> Found | None:
        """Returns the components that its functions call, if running these calls ahead may gain."""
        return calls_of(self.functions)


def steps_of(graph: Pregel[Any, Any, Any, Any], outer: str = "", depth: int = 0) -> Iterator[Step]:
    """Yields what a graph runs, in the order of its nodes. outer: where it is, if it is in another graph."""
    for name, node in graph.nodes.items():
        here = f"{outer}{name}"
        for part in flat(node.bound):
            if name != "__start__" and not isinstance(part, Pregel):
                yield from _step(here, part)
            tools = getattr(part, "tools_by_name", None)  # of a ToolNode
            if isinstance(part, RunnableCallable) and isinstance(tools, dict):
                yield from (_of(f"{here}/{each}", tool) for each, tool in tools.items())
        for writer in node.writers:
            owner = getattr(getattr(writer, "func", None), "__self__", None)
            if isinstance(owner, BranchSpec):
                yield from _step(f"{here} → {owner.path.get_name()}", owner.path)
        for inner in node.subgraphs:
            if isinstance(inner, Pregel) and depth < _DEPTH:
                yield from steps_of(inner, f"{here}/", depth + 1)


def _of(name: str, runnable: Any) -> Step:
    return Step(name, runnable, user_functions(runnable))


def _step(name: str, runnable: Any) -> Iterator[Step]:
    """Yields a step, and the tasks that its functions refer to."""
    step = _of(name, runnable)
    yield step
    todo, seen = list(step.functions), set[int]()
    while todo:
        for task in _tasks(todo.pop()):
            if id(task) not in seen:
                seen.add(id(task))
                todo.append(task.func)
                own = getattr(task.func, "__name__", type(task.func).__name__)  # partials have no name
                yield Step(f"{name}/{own}", task, (task.func,) if _followed(task.func) else ())


def _tasks(func: Any) -> Iterator[Any]:
    """Yields the tasks among the globals and closure cells of a function."""
    func = called(func)
    func = getattr(func, "__func__", func)
    if isinstance(func, FunctionType):
        yield from (each for each in _held(func) if isinstance(each, _TaskFunction))


def flat(bound: Any) -> Sequence[Any]:
    """Returns the runnables of a node: LangGraph runs those of a sequence one by one."""
    steps = getattr(bound, "steps", None)
    return steps if isinstance(steps, list) else [bound]


def user_functions(runnable: Any) -> Sequence[Any]:
    """Returns the user's functions that stock calls when it runs a step of a graph, and those that hold a component."""
    found = functions_of_tool(runnable) if own_tool(runnable) else attributes_of(runnable)
    return tuple(filter(_looked_into, found.values()))


def _looked_into(func: Any) -> bool:
    module = _module(func)
    return not of_package(module) or module in _HOLDING or entered(func) is not None


def own_tool(runnable: Any) -> bool:
    """Returns True for a tool whose class defines what it does; others hold functions."""
    return isinstance(runnable, BaseTool) and type(runnable) not in (StructuredTool, Tool)


def attributes_of(runnable: Any) -> dict[str, Any]:
    """Returns the functions of a step, by the attribute that holds them. {} for steps that are no such functions."""
    kind = type(runnable)
    if kind is RunnableCallable:
        found = {name: getattr(runnable, name) for name in ("func", "afunc")}
        if in_executor(found["afunc"], found["func"]):
            del found["afunc"]
    elif kind is RunnableLambda or isinstance(runnable, BaseTool):
        found = {name: func for name, func in functions_of(runnable).items() if name in runnable.__dict__}
    else:
        found = {}
    return {name: undeclared(func) for name, func in found.items() if _followed(func)}


def in_executor(afunc: Any, func: Any) -> bool:
    """Returns True for the async function that LangGraph makes of a sync one: it runs that in a thread."""
    return type(afunc) is partial and afunc.args == (None, func) and not afunc.keywords


def _followed(func: Any) -> bool:
    """Returns True for functions, methods, partials of them, and objects with a ``__call__`` in Python.

    Calls of others end when nobody knows.
    """
    func = called(func)
    generates = inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func)
    return isinstance(func, FunctionType | MethodType) and not generates


def _module(func: Any) -> str:
    return getattr(called(func), "__module__", None) or ""


def graphs_held(runnable: Any) -> list[Any]:
    """Returns the graphs that a step refers to: by closures, globals, defaults and attributes of its functions."""
    return [obj for obj in _referred(runnable) if isinstance(obj, CompiledStateGraph)]


def why_late(runnable: Any) -> str:
    """Returns why tools of graphs that a step calls start late; "" if they need not."""
    referred = _referred(runnable)
    functions = [obj for obj in referred if type(obj) is FunctionType]
    if not _reached(referred).isdisjoint(_STARTING) or any(isinstance(obj, _TaskFunction) for obj in referred):
        return "a function that calls it starts tasks or threads, which may change what they read"
    return "" if not _named(functions).isdisjoint(_CALLING) else "the function that calls it asks for a stream"


def _reached(referred: Sequence[Any]) -> set[str]:
    """Returns the names in the user's functions that a step refers to, and those of the classes of what they hold.

    Also in functions that their code may find, by one of these names, in modules, classes and objects of the user's.
    """
    names, seen, holders = set[str](), set[int](), set[Any]()
    todo = [*referred, *(each.__self__ for each in referred if type(each) is MethodType)]
    while todo:
        for obj in todo:
            holder = obj if isinstance(obj, ModuleType | type) else type(obj)
            names.update(each.__name__ for each in getattr(holder, "__mro__", ()))
            if not of_package(holder.__name__ if isinstance(holder, ModuleType) else holder.__module__):
                holders.add(holder)
        new = [obj for obj in todo if type(obj) is FunctionType and id(obj) not in seen]
        seen.update(map(id, new))
        functions = [func for func in new if not of_package(func.__module__ or "")]
        names |= _named(functions)
        members = [
            vars(each).get(name) for one in holders for each in getattr(one, "__mro__", (one,)) for name in names
        ]
        members = [getattr(each, "__func__", each) for each in members]  # static methods and those of classes
        held = [obj for func in functions for obj in _held(func)]
        todo = [*held, *(each for each in members if type(each) is FunctionType and id(each) not in seen)]
    return names


def _held(func: FunctionType) -> list[Any]:
    """Returns what is in the closure and the named globals of a function."""
    cells = [cell.cell_contents for cell in func.__closure__ or () if cell != CellType()]
    return [*cells, *(func.__globals__.get(name) for code in codes(func.__code__) for name in code.co_names)]


def _named(functions: Sequence[FunctionType]) -> set[str]:
    return {name for func in functions for code in codes(func.__code__) for name in code.co_names}


def _referred(runnable: Any) -> list[Any]:
    """Returns graphs, functions and containers that a step refers to, directly or by each other."""
    found: list[Any] = []
    seen, todo = set[int](), [(func, 0) for func in attributes_of(runnable).values()]
    while todo and len(seen) < _MOST:
        obj, depth = todo.pop()
        if id(obj) in seen or depth > _HELD_DEPTH:
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
        own = () if of_package(obj.__module__ or "") else codes(obj.__code__)  # packages' have no graphs in globals
        named = [obj.__globals__.get(name) for code in own for name in code.co_names]
        return [*cells, *(each for each in named if isinstance(each, _MAY_HOLD)), *(obj.__defaults__ or ())]
    if kind is MethodType:
        return [obj.__func__, *attributes_held(obj.__self__).values()]
    if kind is partial:
        return [obj.func, *obj.args, *obj.keywords.values()]
    if kind is dict:
        return list(obj.values())
    if isinstance(obj, _TaskFunction):
        return [obj.func]
    return obj if kind in (list, tuple) else ()


_MAY_HOLD = (Pregel, _TaskFunction, FunctionType, MethodType, partial, dict, list, tuple)
