"""Middleware of ``create_agent`` that may stand between a model and its tools: known by what it does.

Other middleware may pause the run for a person, answer in place of a tool, or change what the tool reads, so that ends
the search. Known is the exact class, of a package.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from fineflow.adapters.core.recognition import of_package

_LANGCHAIN = "langchain.agents.middleware"
_KNOWN = {
    # Looks at the message, and answers calls that were written twice, or that are too many.
    "after_model": {
        (f"{_LANGCHAIN}.todo", "TodoListMiddleware"),
        (f"{_LANGCHAIN}.tool_call_limit", "ToolCallLimitMiddleware"),
        (f"{_LANGCHAIN}.model_call_limit", "ModelCallLimitMiddleware"),
    },
    # Calls the tool as it is asked to, and then looks at the result.
    "wrap_tool_call": {
        (f"{_LANGCHAIN}.tool_retry", "ToolRetryMiddleware"),
        (f"{_LANGCHAIN}.tool_error", "ToolErrorMiddleware"),
        ("deepagents.middleware.filesystem", "FilesystemMiddleware"),
    },
}
_STATE = {(f"{_LANGCHAIN}.todo", name) for name in ("_write_todos", "_awrite_todos")}
_DEPTH = 8  # of functions that hold functions


def is_after_model(step: Any) -> bool:
    """Returns True for a node that is the ``after_model`` of middleware."""
    return any(_is_method(func) and func.__name__ in ("after_model", "aafter_model") for func in _functions(step))


def passes_on(step: Any) -> bool:
    """Returns True for a node that is the ``after_model`` of known middleware."""
    return all(_is_known(func, "after_model") for func in _functions(step))


def calls_through(node: Any) -> bool:
    """Returns True if only known middleware is around the calls of a ``ToolNode``."""
    wrappers = [node._wrap_tool_call, node._awrap_tool_call]
    return all(func is None or _all_known(func) for func in wrappers)


def writes_state(func: Any) -> bool:
    """Returns True for a tool of known middleware that only returns what becomes a part of the state."""
    return (getattr(func, "__module__", ""), getattr(func, "__name__", "")) in _STATE


def _functions(step: Any) -> list[Any]:
    return [func for func in (getattr(step, "func", None), getattr(step, "afunc", None)) if func is not None]


def _is_method(func: Any) -> bool:
    return type(func) is MethodType and hasattr(type(func.__self__), "wrap_tool_call")


def _all_known(func: Any) -> bool:
    methods = list(_held(func, 0, set()))
    return bool(methods) and all(each is not None and _is_known(each, "wrap_tool_call") for each in methods)


def _is_known(func: Any, name: str) -> bool:
    if type(func) is not MethodType or func.__name__ not in (name, f"a{name}"):
        return False
    kind, own = type(func.__self__), getattr(func.__self__, "__dict__", ())
    return (kind.__module__, kind.__name__) in _KNOWN[name] and func.__name__ not in own


def _held(func: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Yields the methods of middleware in composed functions of packages; None for a function of the user's."""
    if id(func) in seen:
        return
    seen.add(id(func))
    if _is_method(func):
        yield func
    elif isinstance(func, functools.partial):
        yield from _held(func.func, depth + 1, seen)
    elif isinstance(func, FunctionType):
        if depth > _DEPTH or not of_package(func.__module__ or ""):
            yield None
            return
        cells = [cell.cell_contents for cell in func.__closure__ or () if _filled(cell)]
        parts = [part for each in cells for part in (each if isinstance(each, list | tuple) else [each])]
        for each in parts:
            if isinstance(each, FunctionType | MethodType | functools.partial):
                yield from _held(each, depth + 1, seen)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
