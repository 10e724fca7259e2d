"""One call of an optimized object, as its entry method describes it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from typing import Any

from fineflow.runtime.call.identity import UNKNOWN, Identity

_SYNC = frozenset({"apply", "apply_and_parse"})  # of chains


def is_async(name: str) -> bool:
    """Returns True for the name of an async method: the frameworks put an ``a`` before that of the sync one."""
    bare = name.lstrip("_")
    return bare.startswith("a") and bare not in _SYNC


def async_name(name: str) -> str:
    """Returns the name of the async method that does the same as a sync one."""
    bare = name.lstrip("_")
    return f"{name.removesuffix(bare)}a{bare}"


def sync_name(name: str) -> str:
    """Returns the name of the sync method that does the same as an async one; that of a sync one as it is."""
    bare = name.lstrip("_")
    return f"{name.removesuffix(bare)}{bare[1:]}" if is_async(name) else name


class Unrepeatable(Exception):
    """A call cannot be made once more on stock. The text says why."""


Again = tuple[str, Callable[[Any], Any], Callable[[], tuple[Any, ...]]]
"""How a call is made once more: stock's sync method, a function that calls it on the user's object, and one that
returns the arguments."""


class Invocation:
    """One call.

    entry: name of the method in plans; method: name of the method that stock runs, if different. way: everything that
    its plan depends on besides the object. stock: calls the method on stock's side, given the user's object or its
    shadow. sync, streaming: kind of the method. plannable: False if the call has to run on the user's object. chosen:
    True once the call was chosen to be verified.
    """

    __slots__ = ("_made", "chosen", "entry", "method", "plannable", "stock", "streaming", "sync", "way")

    def __init__(
        self,
        entry: str,
        way: Any,
        stock: Callable[[Any], Any],
        *,
        sync: bool,
        streaming: bool = False,
        method: str = "",
        plannable: bool = True,
    ) -> None:
        self.entry = entry
        self.method = method or entry
        self.way = way
        self.stock = stock
        self.sync = sync
        self.streaming = streaming
        self.plannable = plannable
        self.chosen = False
        self._made: Any = None

    def make_now(self, obj: Any) -> Any:
        """Returns the stream that stock makes of the user's object, made once. Raises what stock raises at the call."""
        if self._made is None:
            self._made, stock = self.stock(obj), self.stock
            self.stock = lambda runs: self._made if runs is obj else stock(runs)
        return self._made

    # Used only for calls that follow a plan, or that are admitted.

    def inputs(self) -> Mapping[str, Any]:
        """Returns the values of the graph's inputs, by name."""
        return {}

    def facts(self) -> Any:
        """Returns facts of the call for the framework's kernels."""
        return None

    def limit(self) -> asyncio.Semaphore | None:
        """Returns the bound on concurrent component calls; None for no bound."""
        return None

    def identity(self) -> Identity:
        """Returns what the call says of itself. Raises ValueError for invalid values."""
        return UNKNOWN

    def prepare(self) -> None:
        """Prepares the current context, a copy of the caller's, for components."""

    def again(self) -> Again:
        """Returns how the call is made once more, with copies of its arguments as they are now.

        Raises: Unrepeatable if it cannot be.
        """
        raise Unrepeatable(f"{self.method} is not repeated")


def copied(value: Any, what: str) -> Any:
    """Returns a deep copy. what: says what it is. Raises Unrepeatable if it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise Unrepeatable(f"its {what} cannot be copied ({type(error).__name__})") from error
