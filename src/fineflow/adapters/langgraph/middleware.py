"""What middlewares do between a model's calls of tools and the tools: hooks after the model, and around each call.

A hook that makes every call, with the arguments that the model wrote, lets calls start early. The user's own hooks are
read (``analysis.hooks``); of some of packages it is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from langgraph._internal._runnable import RunnableCallable

from fineflow.adapters.analysis.hooks import Holds, hands_on, only_looks

_LANGCHAIN, _DEEP_AGENTS = "langchain.agents.middleware", "deepagents.middleware"
# They refuse no calls but those of tools that they bring along, or those above a limit, unless an attribute says so
# (langchain 1.5.2, deepagents 0.7.32).
_KNOWN = {
    f"{_LANGCHAIN}.todo.TodoListMiddleware.after_model": "",
    f"{_LANGCHAIN}.tool_call_limit.ToolCallLimitMiddleware.after_model": "",
    f"{_LANGCHAIN}.model_call_limit.ModelCallLimitMiddleware.after_model": "",
    f"{_LANGCHAIN}.pii.PIIMiddleware.after_model": "apply_to_output",
    f"{_LANGCHAIN}.tool_retry.ToolRetryMiddleware.wrap_tool_call": "",
    f"{_LANGCHAIN}.tool_error.ToolErrorMiddleware.wrap_tool_call": "",
    f"{_DEEP_AGENTS}.filesystem.FilesystemMiddleware.wrap_tool_call": "",
    f"{_DEEP_AGENTS}.skills.SkillsMiddleware.wrap_tool_call": "",
}
_TODO = f"{_LANGCHAIN}.todo"
_STATE = frozenset(
    {f"{_TODO}._write_todos", f"{_TODO}._awrite_todos", f"{_TODO}.TodoListMiddleware.__init__.<locals>.write_todos"}
)  # the last one: langchain 1.2
_FILES, _STATE_FILES = (
    f"{_DEEP_AGENTS}.filesystem.FilesystemMiddleware._create_",
    "deepagents.backends.state.StateBackend",
)
_DECORATORS = f"{_LANGCHAIN}.types"  # such as ``@after_model``, which make a class of a function
_NOT_THERE = frozenset({"AgentMiddleware.wrap_tool_call", "AgentMiddleware.awrap_tool_call"})  # raise an error
_COMPOSED = frozenset({"_chain_tool_call_wrappers", "_chain_async_tool_call_wrappers"})  # of langchain.agents.factory


def around_calls(*wrappers: Any) -> tuple[list[Holds], str]:
    """Returns checks that the hooks of a ``ToolNode`` still make each call, and a reason if one may not; else ""."""
    return _checked([each for wrapper in wrappers for each in _parts(wrapper)], hands_on, "wrap_tool_call")


def after_model(step: Any) -> tuple[list[Holds], str]:
    """Does the same for a node that a model's node leads to: a hook of middlewares."""
    if type(step) is not RunnableCallable:
        return [], f"a {type(step).__name__} runs between"
    functions = [part for func in (step.func, step.afunc) for part in _parts(func)]
    return _checked(functions, only_looks, "after_model")


def writes_state(func: Any) -> bool:
    """Returns True for a tool of known middleware that reads and changes no more than the state of its graph.

    Such are the file tools of deepagents if its files are kept there.
    """
    name = f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', '')}"
    if not (name.startswith(_FILES) and isinstance(func, FunctionType)):
        return name in _STATE
    kind = type(getattr(inspect.getclosurevars(func).nonlocals.get("self"), "backend", None))
    return f"{kind.__module__}.{kind.__qualname__}" == _STATE_FILES


def _checked(functions: list[Any], judge: Callable[[Any], Holds | str], hook: str) -> tuple[list[Holds], str]:
    found: list[Holds] = []
    for func in functions:
        holds = _known(func) or judge(func)
        if isinstance(holds, str):
            own = getattr(func, "__self__", None)
            name = func.__name__ if own is None else type(own).__name__
            return [], f"{hook} of {name} may leave calls out, or change them: {holds}"
        found.append(holds)
    return found, ""


def _known(func: Any) -> Holds | str:
    """Returns the check of a hook of a package; a reason if an attribute speaks against it; "" for other hooks."""
    own = getattr(func, "__func__", None)
    if not isinstance(own, FunctionType):
        return ""
    name = f"{own.__module__}.{own.__qualname__}".replace(".aafter_", ".after_").replace(".awrap_", ".wrap_")
    if (unless := _KNOWN.get(name)) is None:
        return ""
    middleware = func.__self__
    if unless and getattr(middleware, unless):
        return f"it has {unless}"
    return lambda: not (unless and getattr(middleware, unless))


def _parts(hook: Any) -> Iterator[Any]:
    """Yields the functions that a hook consists of, outermost first: the user's own behind those of LangChain."""
    if hook is None:
        return
    own = inspect.unwrap(hook) if isinstance(hook, FunctionType) else hook  # of LangSmith's ``traceable``
    func = getattr(own, "__func__", own)
    if not isinstance(func, FunctionType):
        yield own
        return
    held = inspect.getclosurevars(func).nonlocals
    if func.__module__ == _DECORATORS and func.__qualname__ in _NOT_THERE:
        return
    if func.__qualname__.split(".")[0] in _COMPOSED:
        yield from _parts(held.get("outer"))
        yield from _parts(held.get("inner"))
    elif func.__module__ == _DECORATORS and isinstance(held.get("func"), FunctionType):
        yield held["func"]
    else:
        yield own
