"""LangChain's handler for recorders: in every run of the process while a recorder is open."""

from __future__ import annotations

from typing import Any, cast

from langchain_core.tracers.context import register_configure_hook

from fineflow.recording.runs import Runs
from fineflow.runtime import recording
from fineflow.watching.langchain import FineflowCallbackHandler


class Handler(Runs, FineflowCallbackHandler):
    """Records runs."""


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
