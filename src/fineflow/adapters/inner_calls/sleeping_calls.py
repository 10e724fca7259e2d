"""Component calls of a run that is likely to make none: nothing is prepared for them before the first one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.inner_calls.run_figures import RunFigures
from fineflow.adapters.inner_calls.vectors_ahead import VectorsAhead
from fineflow.adapters.lookahead.values import Args, Named

_waking = threading.RLock()  # reentrant: what the collector ends inside may call a component


class SleepingCalls:
    """Stands for the ``InnerCalls`` of a run, which are made when stock makes the first call. Thread-safe.

    make: makes them, in the context in which the function began; None if that failed.
    """

    __slots__ = ("_awake", "_context", "_figures", "_loop", "_make", "vectors")

    def __init__(self, figures: RunFigures, make: Callable[[VectorsAhead], InnerCalls | None]) -> None:
        self._figures, self._make = figures, make
        self._context, self._loop = copy_context(), asyncio._get_running_loop()
        self.vectors = VectorsAhead(self._context)
        self._awake: tuple[InnerCalls | None] | None = None

    def _calls(self) -> InnerCalls | None:
        with _waking:
            if self._awake is None:
                made = self._context.run(self._make, self.vectors)
                if made is not None:
                    made.awaited_on(self._loop)
                    made.begin(late=True)
                self._awake = (made,)
            return self._awake[0]

    @property
    def claims(self) -> bool:
        """See ``InnerCalls``."""
        calls = self._calls()
        return calls is not None and calls.claims

    def begin(self) -> None:
        """Waits for the first call."""

    def take(self, own: Any, component: Any, name: str, args: Args, named: Named) -> FoundCall | None:
        """See ``InnerCalls``."""
        calls = self._calls()
        return None if calls is None else calls.take(own, component, name, args, named)

    def stock(self, own: Callable[..., Any], call: FoundCall, args: Args, named: Named) -> Any:
        """See ``InnerCalls``."""
        calls = self._calls()
        return own(*args, **named) if calls is None else calls.stock(own, call, args, named)

    async def astock(self, own: Callable[..., Any], call: FoundCall, args: Args, named: Named) -> Any:
        """See ``InnerCalls``."""
        calls = self._calls()
        return await (own(*args, **named) if calls is None else calls.astock(own, call, args, named))

    def close(self) -> None:
        """See ``InnerCalls``."""
        if (calls := self._ended()) is not None:
            calls.close()

    async def aclose(self) -> None:
        """See ``InnerCalls``."""
        if (calls := self._ended()) is not None:
            await calls.aclose()

    def _ended(self) -> InnerCalls | None:
        with _waking:
            awake = self._awake
            if awake is None:  # what the function leaves behind makes its calls as stock does
                self._awake = (None,)
        if awake is None:
            self._figures.undisturbed()
            self.vectors.close()
            return None
        return awake[0]
