"""LangChain's handler for recorders: in every run of the process while a recorder is open."""

from __future__ import annotations

from typing import Any, cast

from langchain_core.tracers.context import register_configure_hook

from fineflow.adapters.langchain.inner_calls.dry_run import sent_one_by_one
from fineflow.recording.runs import Runs
from fineflow.runtime import recording
from fineflow.watching.langchain import FineflowCallbackHandler
from fineflow.watching.runs import Run


class Handler(Runs, FineflowCallbackHandler):
    """Records runs."""

    def _end(self, key: Any, *, failed: bool = False) -> None:
        run, call = self._run(key), recording.current()
        super()._end(key, failed=failed)
        if run is not None and run.sync and call is not None and not call.optimized:
            _one_by_one(run)


def _one_by_one(run: Run) -> None:
    """Sets the times of requests that stock sends one after the other, and reports all at once, to equal parts."""
    for child in run.children:
        asked = [each for each in child.children if each.kind == "llm" and each.end is not None]
        if sent_one_by_one(run.obj, len(asked)):
            start, end = min(each.start for each in asked), max(each.end or 0.0 for each in asked)
            for number, each in enumerate(asked):
                each.start, each.end = (start + (end - start) * part / len(asked) for part in (number, number + 1))


_handler = Handler()


class _Everywhere:
    """Stands for the context variable of LangChain's hook: the handler is in all contexts, or in none."""

    def get(self) -> Handler | None:
        return _handler if recording.recorders else None


# It cannot be taken back. Without a recorder, a run asks once whether there is one. The class is named so that
# LangChain makes an idle handler if the last recorder closes between the two times that it asks.
register_configure_hook(cast(Any, _Everywhere()), True, Handler)


def begin() -> None:
    """Begins to record."""


def end() -> None:
    """Forgets the runs that are under way."""
    _handler._open.clear()
    _handler._outermost.clear()
