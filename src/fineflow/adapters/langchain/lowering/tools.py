"""Lowers tools: a ``@tool`` function whose reads are declared may be called ahead.

Stock's own ``run`` opens the run, checks the arguments and handles errors; only the function itself is claimed.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_core.tools import StructuredTool
from langchain_core.tools.base import _get_runnable_config_param  # private, guarded by the pinned major version

from fineflow.adapters.analysis.pydantic_fields import plain_model
from fineflow.adapters.core.builder import Leaf, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.claims import aclaim, claim
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current, plain
from fineflow.adapters.langchain.lowering.declared import declared_effects, place
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.adapters.langchain.run_recorder import RunRecorder, starts_runs
from fineflow.declare import Declaration, declaration
from fineflow.ir import Op, Primitive
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.work import Work
from fineflow.runtime.loop.workers import in_thread


def _lower_tool(tool: StructuredTool, value: Symbol, b: ChainBuilder) -> Symbol:
    if not isinstance(value, Leaf) and not all(isinstance(part, Leaf) for part in value.fields.values()):
        raise NotLowered("its input is a dict of dicts")
    if b.options:
        raise NotLowered("keyword arguments are bound to a tool")
    functions = _functions(tool)
    promises = [promise for func in functions if (promise := declaration(func)) is not None]
    if why := left_to_stock(tool):
        raise NotLowered(why)
    together = Declaration(reads=tuple(read for promise in promises for read in promise.reads))
    return b.add(
        Op.TOOL,
        {"value": b.whole(value).ref},
        component=tool,
        engine=tool.name,
        effects=declared_effects(together, b),
        where=place(functions[0]),
        claimed=True,
        foreign=True,
    )


def _functions(tool: StructuredTool) -> list[Any]:
    return [func for func in (tool.func, tool.coroutine) if func is not None]


def left_to_stock(tool: StructuredTool) -> str:
    """Returns why only stock may call a tool; "" if its function may be called as soon as its arguments are known."""
    functions = _functions(tool)
    promises = [promise for func in functions if (promise := declaration(func)) is not None]
    if len(promises) < len(functions) or not promises:
        return "a tool is your own code; see fineflow.effects if it only reads something"
    if why := declared_to_stock(tool, promises):
        return why
    return "" if tool.response_format == "content" else "stock splits the tool's result"


def declared_to_stock(
    tool: StructuredTool, promises: Sequence[Declaration], unread: frozenset[str] = frozenset()
) -> str:
    """Returns why only stock may call the function of a declared tool, as above, whatever is made of its result.

    unread: parameters that stock fills in and that the function does not read.
    """
    if any(promise.writes for promise in promises):
        return "the tool is declared to write, so only stock calls it"
    if starts_runs(tool):
        return "the tool started a run of its own, or changed its arguments, which only stock can place"
    if tool._injected_args_keys - unread:
        return "stock injects arguments into the tool's call"
    if type(tool.args_schema) is not dict and not plain_model(tool.args_schema):  # a JSON schema is not checked
        return "its arguments have validators, aliases, default factories or custom types, which are user code"
    for func in _functions(tool):
        if _get_runnable_config_param(func) or {"callbacks", "run_manager"} & set(tool.args):
            return "the tool takes the run's config"
    return ""


def call(p: Primitive, args: Args, run: Execution) -> Work:
    """Runs a TOOL primitive: calls the tool's function with the arguments that the tool makes of its input."""
    current(run)
    tool, value = p.component, args["value"]
    plain(value)
    if not isinstance(value, (str, dict)) or (isinstance(value, dict) and value.get("type") == "tool_call"):
        raise LeftToStock("its input is neither a text nor a dict of its arguments")
    try:
        positional, named = tool._to_args_and_kwargs(value, None)
    except Exception as error:  # stock raises it, or lets the tool answer it
        raise LeftToStock(f"the tool does not accept its input: {error}") from error

    async def start(entry: Entry) -> Any:
        entry.reports.silence()
        entry.running()
        if tool.coroutine is not None and not run.call.sync:
            return await tool.coroutine(*positional, **named)
        return await in_thread(lambda: tool.func(*positional, **named))

    if tool.func is None and run.call.sync:
        raise LeftToStock("an async tool in a sync call")
    entry = run.work(p, Arguments((positional, named)), start)
    if entry.reports is None:
        entry.reports = RunRecorder(tool)
    return Work(entry, lambda result: result)


def _shadow_tool(tool: StructuredTool, site: Site) -> Any:
    copy = tool.model_copy()

    def claiming(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def claimed(*args: Any, **kwargs: Any) -> Any:
            return claim(site, (args, kwargs), lambda: func(*args, **kwargs))[1]

        return claimed

    def aclaiming(coroutine: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(coroutine)
        async def claimed(*args: Any, **kwargs: Any) -> Any:
            return (await aclaim(site, (args, kwargs), lambda: coroutine(*args, **kwargs)))[1]

        return claimed

    if tool.func is not None:
        copy.__dict__["func"] = claiming(tool.func)
    if tool.coroutine is not None:
        copy.__dict__["coroutine"] = aclaiming(tool.coroutine)
    return copy


_METHODS = (*RUN, "run", "arun", "_run", "_arun", "_parse_input", "_to_args_and_kwargs", "_filter_injected_args")

ROWS = (
    Row(
        StructuredTool,
        _METHODS,
        _lower_tool,
        _shadow_tool,
        "tool",
        reads=("func", "coroutine", "args_schema", "response_format"),
    ),
)
