"""Pytest plugin that sends every outermost call of a Runnable through ``fineflow.optimize``.

``pytest -p fineflow.testing.routing --fineflow-options '{"strict": true}' tests/`` runs an existing test suite of a
LangChain application (or of LangChain itself) as if each test called ``fineflow.optimize(x).invoke(...)`` instead of
``x.invoke(...)``. A suite that passes without the plugin should pass with it.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fineflow.instrumentation.routing import METHODS, Routing, inside, original

if TYPE_CHECKING:
    import pytest

__all__ = ["METHODS", "Routing", "inside", "original"]


def _load(spec: str) -> Callable[..., Any]:
    module, _, attribute = spec.partition(":")
    try:
        return cast(Callable[..., Any], getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"--fineflow-optimizer expects 'module:function', got {spec!r}: {error}") from error


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the plugin's options."""
    group = parser.getgroup("fineflow", "route the outermost calls of Runnables through fineflow")
    group.addoption("--fineflow-options", default="{}", metavar="JSON", help="keyword arguments of optimize()")
    group.addoption(
        "--fineflow-optimizer",
        default="fineflow:optimize",
        metavar="MODULE:FUNCTION",
        help="function that gets every routed object (default: %(default)s)",
    )
    group.addoption("--fineflow-report", metavar="FILE", help="write the counts of routed calls to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Installs the shims before any test module is imported. Raises ValueError for an invalid option."""
    text = config.getoption("--fineflow-options")
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--fineflow-options expects a JSON object, got {text!r}: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"--fineflow-options expects a JSON object, got {text!r}")
    routing = Routing(_load(config.getoption("--fineflow-optimizer")), options)
    routing.install()
    config.stash[_stash_key()] = routing
    _warm(routing)


def _warm(routing: Routing) -> None:
    """Triggers the optimizer's lazy imports before tests that watch for blocking calls in event loops."""
    from langchain_core.runnables import RunnableLambda, RunnablePassthrough

    with inside():
        routing.optimize(RunnablePassthrough() | RunnableLambda(str), **routing.options).invoke(1)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Restores the original methods."""
    routing = config.stash.get(_stash_key(), None)
    if routing is not None:
        routing.uninstall()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the number of routed calls."""
    routing = config.stash[_stash_key()]
    terminalreporter.write_line(routing.summary())
    report = config.getoption("--fineflow-report")
    if report:
        Path(report).write_text(json.dumps({"calls": routing.calls, "types": routing.types}), encoding="utf-8")


@functools.cache
def _stash_key() -> pytest.StashKey[Routing]:
    """Returns the plugin's key, made on demand: pytest is imported only where the plugin runs."""
    import pytest

    return pytest.StashKey[Routing]()
