"""The runs that stock reports while a recorder is open: outermost ones begin calls, the others belong to them."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from contextvars import Token
from typing import Any

from fineflow.runtime import events, recording
from fineflow.runtime.events import now
from fineflow.watching.runs import Run
from fineflow.watching.watcher import Watcher

_None: Any = None


class Runs(Watcher):
    """Gives the runs of a framework's handler to the recorded calls, and predicts nothing.

    The first of the framework's classes, before its handler of ``fineflow.watching``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._outermost: dict[Run, tuple[recording.RecordedCall, Token[int]]] = {}  # those that began a call

    def _predictions(self) -> Any:
        return _None

    def _at_once(self, run: Run) -> tuple[float, int]:
        return 0.0, 0

    def _begin(self, key: Hashable, run: Run, parent: Run | None, given: Any, obj: Any) -> None:
        if not recording.recorders:
            return
        recording.run_here.set(run)
        if parent is not None:
            parent.add(run)
            self._open[key] = run, None, ()
            return
        call, token = recording.current(), None
        if call is None:
            call = recording.begin(obj, _entry(run), optimized=False, name=run.name if obj is None else "")
            token = events.mark_call(call.number)
        if len(call.runs) < recording.MOST:
            call.runs.append(run)
        self._open[key] = run, None, ()
        if token is not None:
            self._outermost[run] = call, token

    def _end(self, key: Hashable, *, failed: bool = False) -> None:
        run, _, _ = self._open.pop(key, (None, None, ()))
        if run is None:
            return
        run.end, run.failed = now(), failed
        if run in self._outermost:
            call, token = self._outermost.pop(run)
            with suppress(ValueError):  # reported from another context
                events.unmark_call(token)
            recording.end(call, Exception if failed else None)


def _entry(run: Run) -> str:
    """Returns the method that was called; LangChain's handlers tell methods that stream by their kind of code."""
    return {"invoke": "stream", "ainvoke": "astream"}.get(run.entry, run.entry) if run.streamed else run.entry
