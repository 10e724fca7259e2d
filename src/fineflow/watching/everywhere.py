"""Handlers in every call of the process, for programs that know nothing of them: ``fineflow report``."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import wrapt

from fineflow.errors import FineflowWarning
from fineflow.runtime.bill import Usage
from fineflow.watching.report import Report
from fineflow.watching.watcher import Watcher


class Everywhere:
    """The watchers of this process, one for each framework that was used."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []

    def report(self) -> Report:
        """Returns what all of them saw."""
        models = dict[str, Usage]()
        for watcher in self._watchers:
            for name, usage in watcher.models.items():
                models[name] = models.get(name, Usage()) + usage
        return Report.of([app for each in self._watchers for app in each.apps], models)

    def _watched_by(self, watcher: Watcher) -> None:
        watcher.keeps = True  # a program's objects are often gone when it has ended, and could not be planned
        self._watchers.append(watcher)

    def langchain(self, module: Any) -> None:
        """Adds a handler to all runs. module: ``langchain_core.tracers.context``, which may be imported by others."""
        module.register_configure_hook(_Hook(self._langchain_handler), True)

    def _langchain_handler(self) -> Any:
        handler = import_module("fineflow.watching.langchain").FineflowCallbackHandler()
        self._watched_by(handler)
        return handler

    def llamaindex(self, module: Any) -> None:
        """Adds a handler to the root dispatcher. module: ``llama_index.core``."""
        handler = _made(lambda: import_module("fineflow.watching.llamaindex").FineflowSpanHandler())
        if handler is not None:
            self._watched_by(handler.watcher)
            module.instrumentation.get_dispatcher().add_span_handler(handler)


class _Hook:
    """Stands for the context variable of LangChain's hook: the same handler in all contexts.

    It is made in the first run, because its module imports parts of LangChain that are not ready while others import.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._handler, self._asked = make, None, False
        self._lock = threading.RLock()

    def get(self) -> Any:
        """Returns the handler; None if it cannot be made."""
        if not self._asked:
            with self._lock:
                if not self._asked:
                    self._handler, self._asked = _made(self._make), True
        return self._handler


def _made(make: Callable[[], Any]) -> Any:
    """Returns a handler. A fault never reaches the program: it runs unwatched then, with a warning."""
    try:
        return make()
    except Exception as error:
        text = f"the program's calls cannot be watched ({type(error).__name__}: {error}). Please report this."
        warnings.warn(text, FineflowWarning, stacklevel=2)
        return None


def watch() -> Everywhere:
    """Watches all calls from now on, of frameworks that are imported later, too. It cannot be taken back."""
    made = Everywhere()
    wrapt.register_post_import_hook(made.langchain, "langchain_core.tracers.context")
    wrapt.register_post_import_hook(made.llamaindex, "llama_index.core")
    return made
