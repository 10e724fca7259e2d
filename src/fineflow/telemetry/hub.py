"""The one receiver of ended calls and engine work, which hands them on to what is turned on.

It is a recorder of ``runtime.recording`` and an observer of ``runtime.statistics``, and neither while nothing is on.
Whatever a sink raises ends here: it is logged, and the user's call goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from fineflow.runtime import recording, statistics
from fineflow.runtime.recording import RecordedCall
from fineflow.telemetry.finished import FinishedCall

log = logging.getLogger("fineflow")


class Sink(Protocol):
    """Receiver of what calls and engines did, called from any thread."""

    def began(self, call: RecordedCall) -> Any:
        """Notes that a call begins, in the context of its caller. What it returns is given back at its end."""
        ...

    def finished(self, call: FinishedCall, given: Any) -> None:
        """Notes that a call has ended."""
        ...

    def dropped(self, call: FinishedCall, given: Any) -> None:
        """Notes that a call has ended after the sink was turned off."""
        ...

    def worked(self, engine: str, items: int, waits: Sequence[float], seconds: float, failed: bool) -> None:
        """Notes that a batch, or a request to an LLM or component, has ended (``statistics.Tally.batch``)."""
        ...


class Hub:
    """The sinks that are turned on."""

    def __init__(self) -> None:
        self._sinks: tuple[Sink, ...] = ()
        self._open = ExitStack()
        self._told: set[str] = set()  # faults that were logged

    def add(self, sink: Sink) -> None:
        """Adds a sink."""
        if not self._sinks:
            self._open.enter_context(recording.opened(self._began))
            statistics.observers.append(self._worked)
        self._sinks += (sink,)

    def remove(self, sink: Sink) -> None:
        """Removes a sink."""
        self._sinks = tuple(each for each in self._sinks if each is not sink)
        if not self._sinks:
            statistics.observers.remove(self._worked)
            self._open.close()

    def _began(self, call: RecordedCall) -> None:
        if call.optimized:
            finished = FinishedCall(call)
            given = [(sink, self._safely(sink.began, call)) for sink in self._sinks]
            call.finished.append(lambda _: self._ended(finished, given))

    def _ended(self, call: FinishedCall, given: Sequence[tuple[Sink, Any]]) -> None:
        for sink, each in given:
            self._safely(sink.finished if sink in self._sinks else sink.dropped, call, each)

    def _worked(self, engine: str, items: int, waits: Sequence[float], seconds: float, *, failed: bool) -> None:
        for sink in self._sinks:
            self._safely(sink.worked, engine, items, waits, seconds, failed)

    def _safely(self, tell: Callable[..., Any], *given: Any) -> Any:
        try:
            return tell(*given)
        except Exception as error:  # of a provider, a processor or an exporter
            text = f"{tell.__qualname__}: {type(error).__name__}"
            if text not in self._told and len(self._told) < 100:
                self._told.add(text)
                log.warning("telemetry failed (%s), which changes no call; said once", text, exc_info=True)
            return None


HUB = Hub()
