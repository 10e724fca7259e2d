"""Decorators of packages that hand a call on to the function: ``tenacity.retry`` and ``langsmith.traceable``.

A retry is for the walk what any failure is: it goes on as if nothing failed, and what is called again is stock's own.
Seen with tenacity 9.2.1 and langsmith 0.15.1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from fineflow.adapters.lookahead import harmless
from fineflow.adapters.lookahead.values import Named
from fineflow.adapters.python.parts import closure

_OWN = frozenset({"langsmith_extra", "config"})  # arguments by name that such a decorator may keep
_RETRYING = frozenset({"tenacity", "tenacity.asyncio"})


def handed_on(func: FunctionType, named: Named) -> FunctionType | None:
    """Returns the function in such a decorator that gets all arguments; None for any other function.

    named: the arguments by name. Nothing of the user's runs before it, or behind it if it does not fail.
    """
    known = _KNOWN.get(func.__globals__.get("__name__", ""))
    if known is None or not _OWN.isdisjoint(named):
        return None
    try:
        found = known(func, closure(func))
    except (AttributeError, KeyError):  # of another version
        return None
    return found if isinstance(found, FunctionType) else None


def _retries(func: Any, held: dict[str, Any]) -> Any:
    """Returns the function in what ``tenacity.retry`` makes, unless results decide whether it is called again."""
    retrying = held["self"]
    decides: Any = type(retrying.retry).__call__  # classes that derive from that of errors may ask for results, too
    by_error = decides.__qualname__ == "retry_if_exception.__call__" and decides.__module__.startswith("tenacity.")
    before = retrying.before
    logger = closure(before).get("logger") if before.__module__ == "tenacity.before" else retrying
    plain = logger is None or harmless.logs(logger, "log")
    if not (by_error and plain and type(retrying).__module__ in _RETRYING):
        return None
    return held["f"] if "f" in held else held["fn"]


def _traces(func: Any, held: dict[str, Any]) -> Any:
    """Returns the function in what ``langsmith.traceable`` makes, unless it does more than to hand on the result.

    That are functions of the user's that look at what it traces, and streams in place of results.
    """
    ended: partial[Any] = held["_on_run_end"]
    plain = held["container_input"]["process_inputs"] is None and ended.keywords["outputs_processor"] is None
    plain = plain and func.__langsmith_traceable__ and "run_tree" not in inspect.signature(held["func"]).parameters
    return held["func"] if plain and func.__code__.co_name in ("wrapper", "async_wrapper") else None


_KNOWN: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    **dict.fromkeys(_RETRYING, _retries),
    "langsmith.run_helpers": _traces,
}
