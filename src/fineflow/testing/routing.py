"""Pytest plugin that sends every outermost call of a Runnable through ``fineflow.optimize``.

``pytest -p fineflow.testing.routing --fineflow-options '{"strict": true}' tests/`` runs an existing test suite of a
LangChain application (or of LangChain itself) as if each test called ``fineflow.optimize(x).invoke(...)`` instead of
``x.invoke(...)``. A suite that passes without the plugin should pass with it.

The execution methods of every Runnable class, present and future, are replaced by shims. A context variable tells a
shim whether it is the outermost one: only that call is routed, everything inside it runs the original methods. Shims
are set on the class that defines the method, so that ``type(x).invoke is RunnableSequence.invoke`` stays true for code
that compares methods while the plugin is active; ``original()`` returns the function behind a shim.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fineflow.adapters.inner_calls.entry_wrappers import own_function

if TYPE_CHECKING:
    import pytest

METHODS = (
    "invoke",
    "ainvoke",
    "batch",
    "abatch",
    "batch_as_completed",
    "abatch_as_completed",
    "stream",
    "astream",
    "transform",
    "atransform",
    "astream_log",
    "astream_events",
    "stream_events",
)

_inside: ContextVar[bool] = ContextVar("fineflow_routing_inside", default=False)
_originals: dict[Any, Callable[..., Any]] = {}  # shim -> the function that it replaced


def original(function: Any) -> Any:
    """Returns the function behind a shim, or ``function`` itself if it is no shim."""
    return _originals[function] if _is_shim(function) else function


def _is_shim(function: Any) -> bool:
    return inspect.isfunction(function) and function in _originals


@contextmanager
def inside() -> Iterator[None]:
    """Marks calls in the block as not outermost."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


class Routing:
    """The shims of one installation, and the counts of routed calls.

    optimize: called with the Runnable and ``options`` for every routed call. calls: routed calls by method name. types:
    routed object types by qualified name.
    """

    def __init__(self, optimize: Callable[..., Any], options: dict[str, Any] | None = None) -> None:
        self.optimize = optimize
        self.options = dict(options or {})
        self.calls: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self._lock = threading.RLock()  # Python may collect an abandoned stream inside, whose end makes calls
        self._shims: list[tuple[type, str, Callable[..., Any]]] = []

    def install(self) -> None:
        """Shims all existing Runnable classes, and hooks into the creation of further ones."""
        from langchain_core.runnables import Runnable

        def shim_subclass(cls: type, **kwargs: Any) -> None:
            super(Runnable, cls).__init_subclass__(**kwargs)  # type: ignore[misc]
            self.shim_class(cls)

        if "__init_subclass__" in vars(Runnable):
            raise RuntimeError("Runnable is routed already; uninstall the other routing first")
        todo: list[type] = [Runnable]
        seen: set[type] = set()
        while todo:
            cls = todo.pop()
            if cls not in seen:
                seen.add(cls)
                self.shim_class(cls)
                todo.extend(cls.__subclasses__())
        Runnable.__init_subclass__ = classmethod(shim_subclass)  # type: ignore[arg-type, assignment]

    def uninstall(self) -> None:
        """Restores the original methods."""
        from langchain_core.runnables import Runnable

        del Runnable.__init_subclass__
        for cls, name, function in self._shims:
            _originals.pop(vars(cls).get(name), None)
            setattr(cls, name, function)
        self._shims.clear()

    def shim_class(self, cls: type) -> None:
        """Shims the execution methods that ``cls`` itself defines."""
        for name in METHODS:
            function = vars(cls).get(name)
            if inspect.isfunction(function) and not _is_shim(function):
                shim = self._shim(cls, name, function)
                _originals[shim] = function
                self._shims.append((cls, name, function))
                setattr(cls, name, shim)

    def summary(self) -> str:
        by_method = ", ".join(f"{name} {n}" for name, n in self.calls.most_common())
        return f"fineflow routed {self.calls.total()} calls of {len(self.types)} object types ({by_method or 'none'})"

    def _routes(self, runnable: Any, owner: type, name: str) -> bool:
        """Returns True for an outermost call by the method that the object's own class resolves to.

        Skips attributes that are no shims: a test that spies on a class has set them, and the spy calls the shim.
        fineflow's own wrappers of entry methods do so, too.
        """
        if _inside.get():
            return False
        definers = (cls for cls in type(runnable).__mro__ if _is_shim(own_function(vars(cls).get(name))))
        return next(definers, None) is owner

    def _optimized(self, runnable: Any, name: str) -> Callable[..., Any]:
        with self._lock:
            self.calls[name] += 1
            self.types[f"{type(runnable).__module__}.{type(runnable).__qualname__}"] += 1
        with inside():
            return cast(Callable[..., Any], getattr(self.optimize(runnable, **self.options), name))

    def _shim(self, owner: type, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Builds a shim of the same kind (coroutine function, ...), since callers may use ``inspect``."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def coroutine(runnable: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._routes(runnable, owner, name):
                    return await function(runnable, *args, **kwargs)
                with inside():
                    return await self._optimized(runnable, name)(*args, **kwargs)

            return coroutine
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def async_generator(runnable: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                if self._routes(runnable, owner, name):
                    items = _adrive(self._optimized(runnable, name)(*args, **kwargs))
                else:
                    items = function(runnable, *args, **kwargs)
                try:
                    async for item in items:
                        yield item
                finally:
                    await items.aclose()

            return async_generator
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(runnable: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
                if self._routes(runnable, owner, name):
                    yield from _drive(self._optimized(runnable, name)(*args, **kwargs))
                else:
                    yield from function(runnable, *args, **kwargs)

            return generator

        @functools.wraps(function)
        def plain(runnable: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._routes(runnable, owner, name):
                return function(runnable, *args, **kwargs)
            with inside():
                result = self._optimized(runnable, name)(*args, **kwargs)
            if hasattr(result, "__anext__"):
                return _adrive(result)
            if inspect.isawaitable(result):
                return _await(result)
            return _drive(result) if inspect.isgenerator(result) else result

        return plain


async def _await(result: Awaitable[Any]) -> Any:
    with inside():
        return await result


def _drive(items: Iterator[Any]) -> Iterator[Any]:
    """Yields the items of ``items``. ``inside`` holds only while an item is made, not while the consumer has it."""
    try:
        while True:
            with inside():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            with inside():
                close()


async def _adrive(items: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    try:
        while True:
            with inside():
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
    finally:
        aclose = getattr(items, "aclose", None)
        if aclose is not None:
            with inside():
                await aclose()


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
