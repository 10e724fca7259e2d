"""Decorators of packages that hand a call on to the function: ``tenacity.retry`` and ``langsmith.traceable``.

A retry is for the walk what any failure is: it goes on as if nothing failed, and what is called again is stock's own.
Seen with tenacity 9.2.1 and langsmith 0.15.1.
"""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType
from typing import Any

from fineflow.adapters.lookahead.values import Named
from fineflow.adapters.python.parts import closure

_OWN = frozenset({"langsmith_extra", "config"})  # arguments by name that such a decorator may keep


def handed_on(func: FunctionType, named: Named) -> FunctionType | None:
    """Returns the function in such a decorator that gets all arguments; None for any other function.

    named: the arguments by name. Nothing of the user's runs before it.
    """
    known = _KNOWN.get(func.__globals__.get("__name__", ""))
    found = None if known is None else vars(func).get("__wrapped__")
    if known is None or not isinstance(found, FunctionType) or not _OWN.isdisjoint(named):
        return None
    try:
        return found if known(func) else None
    except (AttributeError, KeyError):  # of another version
        return None


def _retries(func: Any) -> bool:
    """Returns True for what ``tenacity.retry`` makes, unless results decide whether it calls the function again."""
    kind = type(func.retry.retry)
    by_error = any(each.__name__ == "retry_if_exception" for each in kind.__mro__)
    logs = func.retry.before.__module__ == "tenacity.before"  # or does nothing
    return by_error and logs and kind.__module__.startswith("tenacity.")


def _traces(func: Any) -> bool:
    """Returns True for what ``langsmith.traceable`` makes, unless functions of the user's look at what it traces."""
    held = closure(func)
    ended: partial[Any] = held["_on_run_end"]
    plain = held["container_input"]["process_inputs"] is None and ended.keywords["outputs_processor"] is None
    return plain and func.__langsmith_traceable__ and "run_tree" not in inspect.signature(func.__wrapped__).parameters


_KNOWN = {"tenacity": _retries, "tenacity.asyncio": _retries, "langsmith.run_helpers": _traces}
