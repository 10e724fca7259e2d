"""Applications: the papers' ones and common ones of the community, each written once in unmodified LangChain.

A module describes one ``App``; ``ALL`` finds them by name.
"""

from __future__ import annotations

from importlib import import_module

from benchmarks.apps.app import App

NAMES = ("search_generation", "naive_rag", "advanced_rag")


def app(name: str) -> App:
    """Returns an application. Raises ValueError for an unknown name."""
    if name not in NAMES:
        raise ValueError(f"no application is called {name!r}; there are {', '.join(NAMES)}")
    found: App = import_module(f"benchmarks.apps.{name}").APP
    return found


def apps() -> dict[str, App]:
    """Returns all applications by name."""
    return {name: app(name) for name in NAMES}
