"""What ``instrument()`` has routed, what gained, and what was left."""

from __future__ import annotations

import json
import textwrap
import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from fineflow.adapters.registry import is_optimized
from fineflow.ir.text import WIDTH, duration, name_of, printable, wrap
from fineflow.observe.gain import saved_by

_NAMED = 64  # kinds of objects
_LATEST = 32  # calls of each kind, whose gains are looked at
_ONE_OF = 16  # of further calls the gain is computed, which takes some 0.2 ms
_LEAST = 0.001  # seconds that are told
_COMPUTED = "computed from the calls' traces (less where models share a device)"
_NOTHING = "Nothing was gained: no step in them started earlier than in stock."
_UNKNOWN = "What they gained is not known."
_NONE_AHEAD = "nothing to gain, see fineflow.explain"
_LEFT = f"the others: {_NONE_AHEAD}"


@dataclass(frozen=True)
class Routed:
    """Calls of the objects of one class. ahead: calls with steps that may run ahead. left: why the others have none.

    saved_s: seconds of waiting that a call saved, in the mean of the latest ones; computed from what their traces tell
    (``observe.gain``), not measured against stock. 0: none, or not known. looked: the number of these latest calls.
    gained: how many of them saved anything.
    """

    name: str
    calls: int
    ahead: int
    left: str = ""
    saved_s: float = 0.0
    looked: int = 0
    gained: int = 0

    @property
    def told(self) -> tuple[str, ...]:
        """What the calls gained, and why others did not, for people."""
        if not self.ahead:
            return (self.left,)
        if not self.looked:
            return tuple(filter(None, ("what they gained is not known", self.left)))
        if not self.gained:
            return tuple(filter(None, ("gained nothing: no step started earlier than in stock", self.left)))
        some = "" if self.gained == self.looked else f" in the mean, by {self.gained} of {self.looked}"
        return tuple(filter(None, (f"{duration(self.saved_s)} saved a call{some}", self.left)))


@dataclass(frozen=True)
class Status:
    """What was routed since ``instrument()``. Prints as a table.

    active: outermost calls are routed now. routed: by class of the outermost object, the most frequent first.
    faults: calls that went straight to the user's object because routing failed.
    """

    active: bool
    routed: tuple[Routed, ...] = ()
    faults: int = 0

    @property
    def calls(self) -> int:
        return sum(each.calls for each in self.routed)

    @property
    def ahead(self) -> int:
        return sum(each.ahead for each in self.routed)

    @property
    def saved_s(self) -> float:
        """Seconds of waiting that all calls saved together; computed, see ``Routed``."""
        return sum(each.saved_s * each.ahead for each in self.routed)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int = WIDTH) -> str:
        """Renders the table. width: in columns; words that are longer stay whole."""
        state = "on" if self.active else "off"
        if not self.routed:
            return f"fineflow instrumentation is {state}; no call was routed."
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        known = all(each.looked or not each.ahead for each in self.routed)
        saved = f"About {duration(self.saved_s)} of waiting saved, {_COMPUTED}." if self.saved_s >= _LEAST else ""
        said = f"fineflow instrumentation is {state}: {calls} routed. {saved or (_NOTHING if known else _UNKNOWN)}"
        lines = textwrap.wrap(said, width)
        longest = max(len(each.name) for each in self.routed)
        for each in self.routed:
            noun = "call" if each.calls == 1 else "calls"
            row = f"  {each.name:<{longest}}  {each.calls:>6} {noun:5}"
            lines += wrap(row.rstrip(), each.told, " " * 4, width)
        if self.faults:
            lines.append(f"  {self.faults} calls went straight to the app's own object after a fault of fineflow")
        return printable("\n".join(lines))

    def to_json(self) -> str:
        """Returns the status as JSON: the fields of this class and of ``Routed``, and their sums."""
        sums = {"calls": self.calls, "ahead": self.ahead, "saved_s": self.saved_s}
        return json.dumps(asdict(self) | sums, indent=1)


@dataclass
class _Count:
    """Calls of the objects of one class. saved: seconds, of the latest ones in which anything could run ahead."""

    calls: int = 0
    ahead: int = 0
    saved: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))

    @property
    def due(self) -> bool:
        return self.ahead <= _LATEST or not self.ahead % _ONE_OF


class Counts:
    """The counts of one ``instrument()``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # Python may collect an abandoned stream inside, whose end counts
        self._counts: dict[str, _Count] = {}

    def add(self, fast: Any, name: str, *, eager: bool) -> None:
        """Counts a call of an optimized object, by the method of that name, that has ended."""
        plans = [plan for plan in getattr(fast, "_self_plans", {}).values() if plan is not None]
        ahead = any(plan.follows_for(name, eager=eager) for plan in plans)
        kind = name_of(fast.__wrapped__ if is_optimized(fast) else fast)
        with self._lock:
            if len(self._counts) >= _NAMED and kind not in self._counts:
                return
            found = self._counts.setdefault(kind, _Count())
            found.calls += 1
            found.ahead += ahead
        last = getattr(fast, "_self_last", None)  # perhaps of another call that ended at the same time
        if ahead and found.due and last is not None and last.trace is not None:
            # At once, and not in a status: a trace holds the graph, and that the user's objects.
            saved = saved_by(((plan.p_graph, plan.e_graph) for plan in plans), last.trace)
            found.saved += [] if saved is None else [saved]

    def routed(self) -> tuple[Routed, ...]:
        """Returns the counts, the most frequent first."""
        with self._lock:
            rows = [
                Routed(
                    name,
                    each.calls,
                    each.ahead,
                    "" if each.ahead == each.calls else _LEFT if each.ahead else _NONE_AHEAD,
                    fmean(each.saved) if each.saved else 0.0,
                    len(each.saved),
                    sum(seconds >= _LEAST for seconds in each.saved),
                )
                for name, each in self._counts.items()
            ]
        return tuple(sorted(rows, key=lambda each: -each.calls))
