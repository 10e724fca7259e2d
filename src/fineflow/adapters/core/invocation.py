"""One call of an optimized object as its entry method describes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any


class Invocation:
    """One call.

    entry: name of the method that plans know the call by; method: the one that stock runs, if another. way: what its
    plan depends on besides the object. stock: calls the method on stock's side, given the user's object or its shadow.
    sync, streaming: of the method. plannable: False where the call has to run on the user's object.
    """

    __slots__ = ("entry", "method", "plannable", "stock", "streaming", "sync", "way")

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

    # Asked only for calls that follow a plan, or that are admitted.

    def inputs(self) -> Mapping[str, Any]:
        """Returns the values of the graph's inputs, by name."""
        return {}

    def facts(self) -> Any:
        """Returns what the framework's kernels need to know of the call."""
        return None

    def limit(self) -> asyncio.Semaphore | None:
        """Returns the bound on component calls at once; None for no bound."""
        return None

    def identity(self) -> tuple[str | None, int | None]:
        """Returns tenant and priority, None where the call says neither. Raises ValueError for invalid ones."""
        return None, None

    def prepare(self) -> None:
        """Makes the current context, a copy of the caller's, fit for components."""
