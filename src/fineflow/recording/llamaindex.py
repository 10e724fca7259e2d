"""LlamaIndex's span handler for recorders: at the root dispatcher while a recorder is open."""

from __future__ import annotations

from typing import Any

from llama_index_instrumentation import get_dispatcher
from pydantic import PrivateAttr

from fineflow.recording.runs import Runs
from fineflow.watching import llamaindex
from fineflow.watching.llamaindex import FineflowSpanHandler


class _Spans(Runs, llamaindex.SpanWatcher):
    """Records spans."""


class Handler(FineflowSpanHandler):
    """Records runs."""

    _watcher: Any = PrivateAttr(default_factory=_Spans)


_handlers: list[Handler] = []


def begin() -> None:
    """Begins to record."""
    _handlers.append(Handler())
    get_dispatcher().add_span_handler(_handlers[-1])


def end() -> None:
    """Ends recording."""
    root = get_dispatcher()
    root.span_handlers = [each for each in root.span_handlers if all(each is not own for own in _handlers)]
    _handlers.clear()
