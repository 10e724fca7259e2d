"""``instrument()``: the outermost calls of an unchanged app go through ``optimize``."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType
from typing import Any

import wrapt

import fineflow
from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.inner_calls.functions import CALL
from fineflow.adapters.registry import framework_of, frameworks, is_optimized
from fineflow.errors import FineflowWarning
from fineflow.instrumentation.functions import Functions
from fineflow.instrumentation.routing import METHODS, Routing, inside, is_inside
from fineflow.instrumentation.status import Counts, Status
from fineflow.options import Options, OptionsGiven, disabled
from fineflow.runtime.reruns import repeating

Pattern = str | type | Callable[[Any], bool]
"""Says which objects are meant: a class, the beginning of ``module.Class``, or a function of the object."""

# Module in which a base class is defined, and its methods that a user's code calls.
_ROUTED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("langchain_core.runnables.base", "Runnable", METHODS),
    ("llama_index.core.base.base_query_engine", "BaseQueryEngine", ("query", "aquery")),
    ("llama_index.core.base.base_retriever", "BaseRetriever", ("retrieve", "aretrieve")),
    ("llama_index.core.chat_engine.types", "BaseChatEngine", ("chat", "achat", "stream_chat", "astream_chat")),
)

_paused: ContextVar[bool] = ContextVar("fineflow_paused", default=False)
_lock = threading.RLock()
_current: Instrumentation | None = None


class Instrumentation(Routing):
    """The shims of one ``instrument()``, and the counts of its calls."""

    def __init__(self, allow: Sequence[Pattern], deny: Sequence[Pattern], options: dict[str, Any]) -> None:
        super().__init__(fineflow.optimize, options)
        self._allow, self._deny = tuple(allow), tuple(deny)
        self._counts = Counts()
        self._functions = Functions(lambda func: self.optimize(func, **self.options), self._calls)
        self.faults = 0

    def hook(self) -> None:
        """Installs the shims, of libraries that are imported later when they are."""
        for module, name, methods in _ROUTED:
            wrapt.register_post_import_hook(_Hook(self, name, methods), module)

    def _routes(self, runnable: Any, owner: type, name: str) -> bool:
        return super()._routes(runnable, owner, name) and not self._closed(runnable)

    def _closed(self, obj: Any) -> bool:
        """Returns True for an object that runs as it is, while the calls inside it are routed."""
        try:
            framework = framework_of(obj)
            return framework is not None and framework.closed(obj) and not self._denies(obj)
        except Exception as error:
            self._fault(obj, error)
            return False

    def _denies(self, obj: Any) -> bool:
        return any(_fits(each, obj) for each in self._deny)

    def takes(self, obj: Any) -> bool:
        """Returns True if an outermost call of an object is routed. Those inside optimized calls are left."""
        if _paused.get() or under_way.get() is not None or repeating.get() or is_optimized(obj):
            return False
        try:
            return (not self._allow or any(_fits(each, obj) for each in self._allow)) and not self._denies(obj)
        except Exception as error:
            self._fault(obj, error)
            return False

    def _fault(self, obj: Any, error: Exception) -> None:
        self.faults += 1
        warnings.warn(
            f"a call of {type(obj).__name__} could not be routed ({type(error).__name__}: {error}); it runs as it is.",
            FineflowWarning,
            stacklevel=5,
        )

    def _optimized(self, obj: Any, name: str) -> Callable[..., Any]:
        own: Callable[..., Any] = getattr(obj, name)  # a call that is left is left as a whole
        if not self.takes(obj):
            return own
        try:
            with inside():
                self._functions.look(sys._getframe(2))
                fast = self.proxy(obj)
                method: Callable[..., Any] = getattr(fast, name)
            return _Counting(self, fast, name, method)
        except Exception as error:
            self._fault(obj, error)
            return own

    def _calls(self, fast: Any) -> bool:
        """Counts a call of a function that was found, and returns True, if it is routed."""
        taken = self._installed and not is_inside() and self.takes(fast.__wrapped__)
        if taken:
            self.count(fast, CALL)
        return taken

    def uninstall(self) -> None:
        super().uninstall()
        self._functions.restore()

    def count(self, fast: Any, name: str) -> None:
        """Counts a call that has ended."""
        try:
            self._counts.add(fast, name, eager=self.options.get("eager", False))
        except Exception as error:  # the call has its result, and keeps it
            text = f"a call of {type(fast).__name__} could not be counted ({type(error).__name__}: {error})."
            warnings.warn(text, FineflowWarning, stacklevel=2)

    def status(self) -> Status:
        """See ``fineflow.status``."""
        return Status(True, self._counts.routed(), self.faults)


class _Hook:
    """Shims a base class once its module is imported; nothing after ``uninstrument``."""

    def __init__(self, instrumentation: Instrumentation, name: str, methods: tuple[str, ...]) -> None:
        self._instrumentation, self._name, self._methods = weakref.ref(instrumentation), name, methods

    def __call__(self, module: Any) -> None:
        instrumentation = self._instrumentation()
        if instrumentation is not None and instrumentation is _current:
            instrumentation.install(getattr(module, self._name), self._methods)


class _Counting:
    """Calls a method of an optimized object, and counts the call when it has ended."""

    def __init__(self, counts: Instrumentation, fast: Any, name: str, method: Callable[..., Any]) -> None:
        self._counts, self._fast, self._name, self._method = counts, fast, name, method

    def __call__(self, *args: Any, **named: Any) -> Any:
        try:
            made = self._method(*args, **named)
        except BaseException:
            self._count()
            raise
        if inspect.isgenerator(made):
            return self._stream(made)
        if inspect.isasyncgen(made):
            return self._astream(made)
        if inspect.iscoroutine(made):
            return self._awaited(made)
        self._count()
        return made

    def _count(self) -> None:
        self._counts.count(self._fast, self._name)

    async def _awaited(self, made: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await made
        finally:
            self._count()

    def _stream(self, made: Generator[Any, Any, Any]) -> Iterator[Any]:
        try:
            yield from made
        finally:
            self._count()

    async def _astream(self, made: AsyncGenerator[Any, Any]) -> AsyncIterator[Any]:
        try:
            async for each in made:
                yield each
        finally:
            await made.aclose()
            self._count()


def _fits(pattern: Pattern, obj: Any) -> bool:
    kind = type(obj)
    if isinstance(pattern, str):
        if kind is FunctionType:
            return f"{obj.__module__}.{obj.__qualname__}".startswith(pattern)
        return any(f"{each.__module__}.{each.__qualname__}".startswith(pattern) for each in kind.__mro__)
    return isinstance(obj, pattern) if isinstance(pattern, type) else bool(pattern(obj))


def instrument(*, allow: Sequence[Pattern] = (), deny: Sequence[Pattern] = (), **options: Any) -> None:
    """Sends the outermost calls of an unchanged app through ``optimize``: of runnables, and of LlamaIndex's query
    engines, retrievers and chat engines; and of functions and methods of the app that call several of these, from their
    second call on.

    Calls inside these, and inside calls that the lists leave, run as they do; so do objects that the app optimizes. A
    LangGraph graph in which nothing gains, or another object of a package that no plan sees into, runs as it is, and
    the calls inside it are outermost ones. The plans of up to 128 objects that were called more than once are kept.
    Libraries may be imported before or after. Calling it again replaces the lists and the options. With the environment
    variable ``FINEFLOW_DISABLE=1`` nothing is done.

    allow, deny: which outermost objects are meant (by default all): classes, beginnings of ``module.Class`` (of the
    object's class or one of its bases), or functions of the object. options: see :class:`fineflow.Options`.

    Raises: TypeError for an unknown option or a list that is not one; what ``optimize`` raises for bad options.
    """
    global _current
    given: dict[str, Any] = {"allow": allow, "deny": deny}
    for name, each in given.items():
        listed = isinstance(each, Iterable) and not isinstance(each, str | type)
        if not listed or not all(isinstance(p, str | type) or callable(p) for p in each):
            expected = "a list of classes, beginnings of 'module.Class', or functions of the object"
            raise TypeError(f"{name} must be {expected}, not {each!r}")
    if unknown := [name for name in options if name not in OptionsGiven.__annotations__]:
        known = ", ".join((*given, *OptionsGiven.__annotations__))
        raise TypeError(f"instrument got an unknown option {unknown[0]!r}; it takes {known}")
    Options(**options)  # raises now rather than in the first call
    if disabled():
        return
    with _lock:
        uninstrument()
        _current = Instrumentation(allow, deny, options)
        _current.hook()
        frameworks()  # imports the adapters of those that are there, which the first call would wait for


def uninstrument() -> None:
    """Restores the methods of the frameworks' classes. Calls under way end as they began. Does nothing if it is off."""
    global _current
    with _lock:
        if _current is not None:
            _current.uninstall()
            _current = None


@contextmanager
def paused() -> Iterator[None]:
    """Leaves the calls in the block, in this thread or task, as they are: ``with fineflow.paused(): ...``."""
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)


def status() -> Status:
    """Returns what ``instrument()`` has routed so far, what gained, and what was left; prints as a table."""
    with _lock:
        return Status(False) if _current is None else _current.status()
