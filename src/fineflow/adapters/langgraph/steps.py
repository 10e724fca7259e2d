"""Functions of the user's that a graph runs: those of its nodes, routers and tools, and of its subgraphs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langgraph._internal._runnable import RunnableCallable
from langgraph.func import _TaskFunction
from langgraph.graph._branch import BranchSpec
from langgraph.pregel import Pregel

from fineflow.adapters.core.installers import of_package
from fineflow.adapters.core.trust import called
from fineflow.adapters.langchain.user_functions import calls_of, entered, functions_of, functions_of_tool
from fineflow.adapters.lookahead.scan import Found
from fineflow.adapters.python.functions import codes
from fineflow.declare import undeclared

_DEPTH = 8  # of graphs inside graphs
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
        yield from (each for each in referred_by(func) if isinstance(each, _TaskFunction))


def referred_by(func: FunctionType) -> list[Any]:
    """Returns what is in the closure and the named globals of a function."""
    return [
        *closed_over(func),
        *(func.__globals__.get(name) for code in codes(func.__code__) for name in code.co_names),
    ]


def closed_over(func: FunctionType) -> list[Any]:
    """Returns what is in the closure of a function."""
    return [cell.cell_contents for cell in func.__closure__ or () if cell != CellType()]


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
