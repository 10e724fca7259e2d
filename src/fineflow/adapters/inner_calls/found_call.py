"""A component call that a user function is going to make, or has made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fineflow.adapters.inner_calls.calls_ahead import CallAhead
from fineflow.adapters.lookahead import UNKNOWN
from fineflow.runtime.events import now, processor_time


class FoundCall:
    """One component call that the function is going to make.

    met: in the current walk. begun: it was started ahead. taken: stock is making it. since, ended: when it began, and
    when it had its result (0: not yet), in seconds. processor: processor time of the process when it began.
    whole: walks do not meet the calls that it makes of other components. walked: a walk has met it.
    """

    __slots__ = (
        *(
            "ahead",
            "args",
            "begun",
            "component",
            "ended",
            "failed",
            "key",
            "met",
            "name",
            "named",
            "processor",
            "since",
            "taken",
            "value",
            *("walked", "whole"),
        ),
    )

    def __init__(self, component: Any, name: str, key: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        self.component, self.name, self.key, self.args, self.named = component, name, key, args, named
        self.value: Any = UNKNOWN
        self.ahead: CallAhead | None = None
        self.met = self.walked = True
        self.begun = self.taken = self.failed = False
        self.whole = True
        self.since = self.ended = self.processor = 0.0

    def begins(self) -> None:
        """Notes when it begins."""
        self.since, self.processor = now(), processor_time()

    @property
    def opened(self) -> bool:
        """True if stock runs it by the calls that it makes."""
        return self.ahead is None and not self.whole

    @property
    def under_way(self) -> bool:
        return self.value is UNKNOWN and not self.failed
