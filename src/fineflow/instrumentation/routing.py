"""Routing: the outermost call of every object of some base classes goes through a function, such as ``optimize``.

The execution methods of every class, present and future, are replaced by shims. A context variable tells a shim whether
it is the outermost one: only that call is routed, everything inside it runs the original methods. Shims are set on the
class that defines the method, so that ``type(x).invoke is RunnableSequence.invoke`` stays true for code that compares
methods meanwhile; ``original()`` returns the function behind a shim.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, cast

from fineflow.adapters.inner_calls.entry_wrappers import wrapped

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

_KEPT = 128  # objects whose plans are kept; those that were called once are not

_inside: ContextVar[bool] = ContextVar("fineflow_routing_inside", default=False)
_routed: set[type] = set()
_originals: dict[Any, Callable[..., Any]] = {}  # shim -> the function that it replaced


def original(function: Any) -> Any:
    """Returns the function behind a shim, or ``function`` itself if it is no shim."""
    return _originals[function] if _is_shim(function) else function


def _is_shim(function: Any) -> bool:
    return inspect.isfunction(function) and function in _originals


def _shimmed(function: Any) -> bool:
    """Returns True for a shim, also inside fineflow's wrappers of entry methods: those may be older or younger."""
    while function is not None and not _is_shim(function):
        function = wrapped(function)
    return function is not None


@contextmanager
def inside() -> Iterator[None]:
    """Marks calls in the block as not outermost."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def is_inside() -> bool:
    """Returns True inside of a routed call."""
    return _inside.get()


class Routing:
    """The shims of one installation, the plans of objects that are called repeatedly, and the counts of routed calls.

    optimize: called with the object and ``options``; from an object's second call on its result is kept. calls: routed
    calls by method name. types: routed object types by qualified name.
    """

    def __init__(self, optimize: Callable[..., Any], options: dict[str, Any] | None = None) -> None:
        self.optimize = optimize
        self.options = dict(options or {})
        self.calls: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self._installed = True
        self._lock = threading.RLock()  # Python may collect an abandoned stream inside, whose end makes calls
        self._shims: list[tuple[type, str, Callable[..., Any]]] = []
        self._seen: dict[int, weakref.ref[Any]] = {}  # called once
        self._kept: OrderedDict[int, tuple[Any, Any]] = OrderedDict()  # an object and the same optimized, by its id
        self._bases: list[tuple[type, Any]] = []  # with their own __init_subclass__, if they have one

    def install(self, base: type | None = None, methods: tuple[str, ...] = METHODS) -> None:
        """Shims the methods of all existing classes under ``base``, and hooks into the creation of further ones.

        base: by default LangChain's ``Runnable``. Raises RuntimeError if it is routed already.
        """
        if base is None:
            from langchain_core.runnables import Runnable

            base = Runnable
        own: Any = base
        known = vars(base).get("__init_subclass__")
        if base in _routed:
            raise RuntimeError(f"{base.__name__} is routed already; uninstall the other routing first")
        self._installed = True
        _routed.add(base)
        self._bases.append((base, known))

        def shim_subclass(cls: type, **kwargs: Any) -> None:
            if known is None:
                super(own, cls).__init_subclass__(**kwargs)  # type: ignore[misc]
            else:
                known.__get__(None, cls)(**kwargs)
            self.shim_class(cls, methods)

        todo: list[type] = [base]
        seen: set[type] = set()
        while todo:
            cls = todo.pop()
            if cls not in seen:
                seen.add(cls)
                self.shim_class(cls, methods)
                todo.extend(cls.__subclasses__())
        base.__init_subclass__ = classmethod(shim_subclass)  # type: ignore[arg-type, assignment]

    def uninstall(self) -> None:
        """Restores the original methods."""
        for base, known in self._bases:
            if known is None:
                del base.__init_subclass__
            else:
                base.__init_subclass__ = known  # type: ignore[method-assign]
            _routed.discard(base)
        self._bases.clear()
        self._installed = False
        for cls, name, function in self._shims:
            shim = vars(cls).get(name)
            if _is_shim(shim):  # else something else has wrapped it meanwhile: the shim only calls the method
                _originals.pop(shim, None)
                setattr(cls, name, function)
        self._shims.clear()

    def shim_class(self, cls: type, methods: tuple[str, ...] = METHODS) -> None:
        """Shims the execution methods that ``cls`` itself defines."""
        for name in methods:
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
        if _inside.get() or not self._installed:
            return False
        definers = (cls for cls in type(runnable).__mro__ if _shimmed(vars(cls).get(name)))
        return next(definers, None) is owner

    def _optimized(self, runnable: Any, name: str) -> Callable[..., Any]:
        with self._lock:
            self.calls[name] += 1
            self.types[f"{type(runnable).__module__}.{type(runnable).__qualname__}"] += 1
        with inside():
            return cast(Callable[..., Any], getattr(self.proxy(runnable), name))

    def proxy(self, obj: Any) -> Any:
        """Returns the object optimized; from its second call on the same proxy, with its plans."""
        with self._lock:
            known, kept = self._kept.get(id(obj), (None, None))
            if known is obj:
                self._kept.move_to_end(id(obj))
                return kept
        made = self.optimize(obj, **self.options)
        with self._lock:
            seen = self._seen.pop(id(obj), None)
            if seen is not None and seen() is obj:
                self._kept[id(obj)] = obj, made
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            else:
                if len(self._seen) >= 8 * _KEPT:
                    self._seen.clear()
                with suppress(TypeError):  # without weak references it is planned in every call
                    self._seen[id(obj)] = weakref.ref(obj)
        return made

    def _shim(self, owner: type, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Builds a shim of the same kind (coroutine function, ...), since callers may use ``inspect``."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def coroutine(runnable: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._routes(runnable, owner, name):
                    return await function.__get__(runnable)(*args, **kwargs)
                with inside():
                    return await self._optimized(runnable, name)(*args, **kwargs)

            return coroutine
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def async_generator(runnable: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                if self._routes(runnable, owner, name):
                    items = _adrive(self._optimized(runnable, name)(*args, **kwargs))
                else:
                    items = function.__get__(runnable)(*args, **kwargs)
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
                    yield from function.__get__(runnable)(*args, **kwargs)

            return generator

        @functools.wraps(function)
        def plain(runnable: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._routes(runnable, owner, name):
                return function.__get__(runnable)(*args, **kwargs)
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
