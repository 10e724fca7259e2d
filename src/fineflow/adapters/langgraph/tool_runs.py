"""Keeps what runs in an outermost call and may change what a tool reads: tools, and what the user's code starts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.langgraph.turns import Offered
from fineflow.runtime.loop.scopes import setting

_FEW = 32  # tasks and threads, below which nobody looks for those that have ended


class ToolRun:
    """A run of a tool. turn: that of the model which has called it, if it is known. reads: it changes nothing."""

    __slots__ = ("_tool", "reads", "turn")

    def __init__(self, tool: Offered | None, turn: object, *, reads: bool) -> None:
        self._tool, self.turn, self.reads = tool, turn, reads

    def changes(self, tool: Offered) -> bool:
        """Returns True if it may change what a tool reads."""
        if not (tool.reads or tool.guards):
            return False
        if self._tool is None or self._tool.guards:
            return True
        return bool(self._tool.writes) if tool.guards else tool.waits_for(self._tool.writes)


class Started:
    """A task, a thread or a call of an executor that the user's code has started: it may change anything.

    turns: those whose tools have started it, as a part of what these do.
    """

    turns: frozenset[object] = frozenset()


class Moment(NamedTuple):
    """Counts, at one moment of an outermost call, the runs of tools so far, and what the user's code has started."""

    begun: int
    started: int


class ToolRuns:
    """Of one outermost call: the runs of tools that may change something, and what was started, in their order.

    unseen: nobody has looked at what was started in it so far, as the first agent of the process is asked in it.
    """

    def __init__(self) -> None:
        self.unseen = False
        self._begun: list[ToolRun] = []
        self._running = set[ToolRun]()
        self._lock = threading.Lock()
        self._started: list[Started] = []
        self._going: list[tuple[Started, Callable[[], bool]]] = []
        self._most = _FEW  # of these, before those that have ended are left out

    @property
    def now(self) -> Moment:
        """Counts what has begun so far."""
        return Moment(len(self._begun), len(self._started))

    def changing(self, tool: Offered) -> bool:
        """Returns True if one runs that may change what a tool reads, and that the current code is no part of."""
        return any(run.changes(tool) for run in self._running - within.get())

    def changed(self, tool: Offered, since: Moment, turn: object) -> bool:
        """Returns True if one that may has begun. turn: whose own calls do not count."""
        return any(run.turn is not turn and run.changes(tool) for run in self._begun[since.begun :])

    @contextmanager
    def run(self, run: ToolRun) -> Iterator[None]:
        """Is the run of a tool. One that only reads does not count."""
        if not run.reads:
            self._running.add(run)
            self._begun.append(run)
        try:
            with setting((within, within.get() | {run})):
                yield
        finally:
            self._running.discard(run)

    def starts(self, started: Started, going: Callable[[], bool]) -> None:
        """Notes what the user's code has started, if no tool that only reads has. going: returns False at its end."""
        runs = [each for each in within.get() if isinstance(each, ToolRun)]
        if any(run.reads for run in runs):
            return
        started.turns = frozenset(run.turn for run in runs)
        with self._lock:
            self._started.append(started)
            if len(self._going) >= self._most:
                self._going = [(each, goes) for each, goes in self._going if goes()]
                self._most = max(_FEW, 2 * len(self._going))
            self._going.append((started, going))

    def others_go_on(self) -> bool:
        """Returns True if something that the user's code has started goes on, and the current code is no part of it."""
        return any(goes() and each not in within.get() for each, goes in self._going)

    def others_since(self, since: Moment, turn: object) -> bool:
        """Returns True if the user's code has started something since, and the current code is no part of it.

        turn: whose own calls do not count, nor what they start: stock runs them at the same time.
        """
        return any(turn not in each.turns and each not in within.get() for each in self._started[since.started :])


within: ContextVar[frozenset[ToolRun | Started]] = ContextVar("fineflow_tool_runs", default=frozenset())
"""The runs of tools that the current code is a part of, and what the user's code has started it in."""


def tool_runs_of(here: Claiming) -> ToolRuns:
    """Returns what acts in the outermost call."""
    while here.outer is not None:
        here = here.outer
    return here.call.memory(ToolRuns)
