"""What belongs to one run of the user's code, so that only stock can give it: who refers to it stays where it is."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from fineflow.adapters.lookahead.scan import scan

LEFT_TO_STOCK: weakref.WeakSet[FunctionType] = weakref.WeakSet()
"""Declared functions whose results cannot be given to stock (``arguments.LOST``), so that it makes all calls itself."""

_OF_A_RUN = frozenset(
    {
        "langgraph.types.interrupt",
        *(f"langgraph.config.{name}" for name in ("get_config", "get_store", "get_stream_writer")),
        "langgraph.runtime.get_runtime",
        "langchain_core.runnables.config.ensure_config",
        *(f"langchain_core.callbacks.manager.{name}" for name in ("dispatch_custom_event", "adispatch_custom_event")),
        *(f"langsmith.run_helpers.{name}" for name in ("get_current_run_tree", "trace")),
    }
)
_TRACED = "__langsmith_traceable__"  # on what langsmith's ``traceable`` returns (langsmith 0.15)


def needs_its_run(functions: Sequence[Any]) -> str:
    """Returns the name of what functions refer to, also in helpers, that belongs to the run that calls them.

    Such as ``interrupt``, and what looks at the config. "" for nothing, as far as their code shows.
    """
    parts = (part for func in functions for part in scan(func, of_a_run, frozenset(), streams=True).components.values())
    return next((str(part.__name__) for part in parts), "")


def only_stocks(value: Any) -> bool:
    """Returns True for what belongs to a run, and for objects that belong to the thread that made them."""
    return of_a_run(value) or isinstance(value, threading.local) or type(value).__module__ == "sqlite3"


def of_a_run(value: Any) -> bool:
    """Returns True for a function or class of which ``needs_its_run`` speaks."""
    if not isinstance(value, FunctionType | type):
        return False
    return f"{value.__module__}.{value.__name__}" in _OF_A_RUN or _TRACED in vars(value)
