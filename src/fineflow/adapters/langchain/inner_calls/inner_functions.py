"""The functions behind components that user functions call: those of ``RunnableLambda``, of tools, and of chains."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.utils import accepts_config, accepts_run_manager
from langchain_core.tools import BaseTool

from fineflow.adapters.analysis import is_plain
from fineflow.adapters.analysis.pydantic_fields import stays
from fineflow.adapters.langchain.inner_calls.chain_calls import Inner, within
from fineflow.adapters.langchain.user_functions import functions_of_tool
from fineflow.adapters.lookahead import UNKNOWN, Stop

HIDDEN = ("run_manager", "callbacks", "config")
"""Parameters by which stock passes the callbacks and the config of a run."""


def inner_of(obj: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Inner | None:
    """Returns the function to walk through for a call of a component, with its arguments; None for other components.

    The user's, or what stands for a method of a chain. Raises Stop if the arguments are not certain.
    """
    if (found := within(obj, name, args, named)) is not None:
        return found
    if name not in ("invoke", "ainvoke") or "input" not in (given := _given(args, named)):
        return None
    if type(obj) is RunnableLambda:
        return _of_lambda(obj, name, given["input"])
    if isinstance(obj, BaseTool):
        return _of_tool(obj, name, given["input"])
    return None


def _given(args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(("input", "config"), args, strict=False)), **named}


def _of_lambda(step: RunnableLambda[Any, Any], name: str, value: Any) -> Inner:
    functions = [step.__dict__.get(each) for each in (("afunc", "func") if name == "ainvoke" else ("func",))]
    func = next((each for each in functions if each is not None), None)
    if func is None:
        raise Stop("calls an async function in a sync call")
    hidden = {}
    if accepts_config(func):
        hidden["config"] = UNKNOWN
    if accepts_run_manager(func):
        hidden["run_manager"] = UNKNOWN
    return func, [value], hidden


def _of_tool(tool: BaseTool, name: str, value: Any) -> Inner:
    functions = functions_of_tool(tool)
    order = ("coroutine", "_arun", "func", "_run") if name == "ainvoke" else ("func", "_run")
    func = next((functions[each] for each in order if each in functions), None)
    if func is None or tool.response_format != "content" or tool._injected_args_keys:
        raise Stop(f"calls the tool {tool.name}")
    if isinstance(value, dict) and value.get("type") == "tool_call":
        raise Stop(f"calls the tool {tool.name} by a tool call")
    takes = inspect.signature(func).parameters
    hidden = {each: UNKNOWN for each in HIDDEN if each in takes}
    return func, [], {**_checked(tool, value), **hidden}


def _checked(tool: BaseTool, value: Any) -> dict[str, Any]:
    """Returns the arguments that a tool makes of its input. Raises Stop if checking may run code, or change them."""
    schema = tool.args_schema
    fields = getattr(schema, "model_fields", None)
    if fields is None or not is_plain(value):
        raise Stop(f"calls the tool {tool.name} with arguments that are not certain")
    if isinstance(value, str) and len(fields) == 1:
        value = {next(iter(fields)): value}
    checks = schema.__pydantic_decorators__  # type: ignore[union-attr]
    if checks.validators or checks.field_validators or checks.root_validators or checks.model_validators:
        raise Stop(f"calls the tool {tool.name}, whose arguments have validators")
    if not isinstance(value, dict) or not value.keys() <= fields.keys():
        raise Stop(f"calls the tool {tool.name} with arguments that are not certain")
    given = {key: field.default for key, field in fields.items() if not field.is_required()} | value
    if given.keys() != fields.keys() or any(not stays(value[key], fields[key].annotation) for key in value):
        raise Stop(f"calls the tool {tool.name} with arguments that are not certain")
    return given
