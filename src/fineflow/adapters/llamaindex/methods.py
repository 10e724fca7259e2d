"""Methods of LlamaIndex classes without what LlamaIndex puts around them, and put back around something else.

A method may be wrapped by the dispatcher (``dispatcher.span``: it opens a span) and by the callbacks of LLMs
(``llm_chat_callback``: they send events, count, limit rates). The graph calls what is inside, which nobody can observe;
the shadow that stock runs has the same wrappers around a claim, so that spans and events are stock's own.
"""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any

import wrapt
from llama_index.core.llms import callbacks

from fineflow.adapters.core.builder import Builder
from fineflow.adapters.core.recognition import NotLowered
from fineflow.adapters.llamaindex.thread_affinity import stays
from fineflow.declare import declared_external
from fineflow.runtime.call.query import LeftToStock
from fineflow.runtime.loop.scopes import Scope
from fineflow.runtime.loop.workers import in_thread

_PACKAGES = frozenset(
    {"fineflow", "llama_index", "llama_index_instrumentation", "pydantic", "abc", "builtins", "typing"}
)
_TELLING = frozenset({"callback_manager", "dispatcher", "get_dispatcher", "instrument"})
_STORING = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_CLIENTS = frozenset({"_client", "_aclient"})  # which integrations make when they first need them
_AWAITING = frozenset({"GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH"})
_LOOP = frozenset({"create_task", "ensure_future", "get_running_loop", "get_event_loop", "current_task", "TaskGroup"})


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a class. function: what is inside of all wrappers. spans, told: the wrappers, the outermost first."""

    function: FunctionType
    spans: tuple[Any, ...]
    told: tuple[FunctionType, ...]

    def around(self, obj: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, which takes ``obj`` first, as this method of ``obj``: with the same wrappers around it.

        To be put into the ``__dict__`` of ``obj``. It has to be a coroutine function if the method is one.
        """
        inner = _named(function, self.function)
        for wrapper in reversed(self.told):
            inner = _with_cell(wrapper, "f", inner)
        wrapped: Any = inner
        for span in reversed(self.spans):
            wrapped = wrapt.FunctionWrapper(wrapped, span._self_wrapper)
        bound: Callable[..., Any] = wrapped.__get__(obj, type(obj))
        return bound


def method(kind: type, name: str) -> Method | None:
    """The method of a class by its name; None if it has none, or one that is no function."""
    found = inspect.getattr_static(kind, name, None)
    spans, told = [], []
    while isinstance(found, wrapt.FunctionWrapper):
        spans.append(found)
        found = found.__wrapped__
    while (
        isinstance(found, FunctionType) and found.__globals__ is vars(callbacks) and "f" in found.__code__.co_freevars
    ):
        told.append(found)
        found = _cells(found)["f"].cell_contents
    return Method(found, tuple(spans), tuple(told)) if isinstance(found, FunctionType) else None


def _tells(function: Any) -> bool:
    """Whether it is a wrapper that ``llm_chat_callback`` or ``llm_completion_callback`` has made."""
    if not isinstance(function, FunctionType) or function.__globals__ is not vars(callbacks):
        return False
    return "f" in function.__code__.co_freevars


def same(kind: type, base: type, *names: str) -> bool:
    """Whether a class has these methods of another one, as they are there."""
    if kind is base:
        return True
    for name in names:
        found, expected = method(kind, name), method(base, name)
        if found is None or expected is None or found.function is not expected.function:
            return False
    return True


def believed_class(component: Any, b: Builder) -> None:
    """Raises NotLowered unless all that a component does is written in LlamaIndex, in fineflow or declared @external.

    A method that is not overridden may call one that is; so every class counts that the component's is made of.
    """
    for owner in type(component).__mro__:
        if b.assume_pure or declared_external(owner) or owner.__module__.partition(".")[0] in _PACKAGES:
            continue
        raise NotLowered(f"{owner.__name__} is a class of your own; see fineflow.external if it only calls out")


def library_class(kind: type) -> bool:
    """Whether a class, and all that it is made of, is written in LlamaIndex or in fineflow."""
    return all(owner.__module__.partition(".")[0] in _PACKAGES for owner in kind.__mro__)


def quiet(kind: type, name: str) -> bool:
    """Whether a method, called without its wrappers, opens no span, sends no event and leaves the object as it is.

    As far as its bytecode shows, with that of the methods it may call; what looks as if it might counts as if it did.
    """
    found = method(kind, name)
    return found is not None and _known_quiet(kind, name, found.function)


@lru_cache(maxsize=1024)
def _known_quiet(kind: type, name: str, function: FunctionType) -> bool:
    return _quiet(kind, function, {name})


def _quiet(kind: type, function: FunctionType, seen: set[str]) -> bool:
    names: set[str] = set()
    for code in _codes(function.__code__):
        if "__class__" in code.co_freevars:  # a method of a base class is called, wrappers and all
            return False
        names.update(code.co_names)
        if any(i.opname in _STORING and i.argval not in _CLIENTS for i in dis.get_instructions(code)):
            return False
    if names & _TELLING:
        return False
    for name in names - seen:
        seen.add(name)
        found = method(kind, name)
        if found is not None and (found.spans or found.told or not _quiet(kind, found.function, seen)):
            return False
    return True


def blocks(kind: type, name: str) -> bool:
    """Whether an async method never gives way: it awaits nothing, so that all of its work is done on the loop.

    One that asks for the loop, or starts tasks, needs it.
    """
    found = method(kind, name)
    return found is not None and _awaits_nothing(found.function)


@lru_cache(maxsize=1024)
def _awaits_nothing(function: FunctionType) -> bool:
    code = function.__code__
    if not inspect.iscoroutinefunction(function) or any(not _LOOP.isdisjoint(each.co_names) for each in _codes(code)):
        return False
    return all(i.opname not in _AWAITING for i in dis.get_instructions(code))


async def unblocked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What an async function that awaits nothing returns, done in a worker thread, in a copy of the current context.

    Cancelling the caller takes effect at once; the thread goes no further than to its next claim or request.
    """
    scope = Scope()

    def work() -> Any:
        with scope.inside():
            return finished(function(*args, **kwargs))

    try:
        return await in_thread(work)
    except BaseException:
        scope.stop()
        raise
    finally:
        scope.close()


def finished(coroutine: Any) -> Any:
    """What a coroutine returns that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        coroutine.close()
    raise RuntimeError("a coroutine that awaits nothing was suspended")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _cells(function: FunctionType) -> dict[str, CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _with_cell(function: FunctionType, name: str, value: Any) -> FunctionType:
    """The same function with another value in one of its cells."""
    cells = {**_cells(function), name: CellType(value)}
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells[free] for free in function.__code__.co_freevars),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    _named(made, function)
    return made


@lru_cache(maxsize=1024)
def _signature(function: FunctionType) -> inspect.Signature:
    return inspect.signature(function, follow_wrapped=False)


def _named(function: Any, like: FunctionType) -> Any:
    """``function`` under the name and with the signature of another one, as spans tell them."""
    function.__name__, function.__qualname__ = like.__name__, like.__qualname__
    function.__module__, function.__doc__ = like.__module__, like.__doc__
    if function.__code__ is not like.__code__:
        function.__signature__ = _signature(like)
    return function


def as_written(obj: Any, base: type, *names: str) -> bool:
    """Whether an object has these methods of a class, and none of them was put on it."""
    return isinstance(obj, base) and vars(obj).keys().isdisjoint(names) and same(type(obj), base, *names)


def exactly(obj: Any, *kinds: type) -> bool:
    """Whether an object is of one of these very classes, and no method of theirs was put on it."""
    return type(obj) in kinds and not any(callable(getattr(type(obj), name, None)) for name in vars(obj))


def off_loop(obj: Any, name: str) -> Any:
    """A copy of an object whose async method ``name`` is done in a thread, by the object itself; where it blocks."""
    found = method(type(obj), name)
    if found is None or name in vars(obj) or not blocks(type(obj), name) or stays(obj):
        return obj
    function, made = found.function, copy.copy(obj)

    async def run(_: Any, *args: Any, **kwargs: Any) -> Any:
        return await unblocked(function, obj, *args, **kwargs)

    made.__dict__[name] = found.around(made, run)
    return made


def move(made: Any, name: str) -> None:
    """Has the async method ``name`` of a copy done in a thread, by the copy; where it blocks the event loop."""
    found = method(type(made), name)
    if found is None or name in vars(made) or not blocks(type(made), name):
        return
    function = found.function

    async def run(_: Any, *args: Any, **kwargs: Any) -> Any:
        return await unblocked(function, made, *args, **kwargs)

    made.__dict__[name] = found.around(made, run)


def opened(made: Any, name: str, then: Callable[[], None]) -> bool:
    """Has a copy call ``then`` each time it is inside of the spans of its method; False where it opens none."""
    found = method(type(made), name)
    if found is None or not found.spans or name in vars(made):
        return False
    function = found.function

    def run(_: Any, *args: Any, **kwargs: Any) -> Any:
        then()
        return function(made, *args, **kwargs)

    async def arun(_: Any, *args: Any, **kwargs: Any) -> Any:
        then()
        return await function(made, *args, **kwargs)

    made.__dict__[name] = found.around(made, arun if inspect.iscoroutinefunction(function) else run)
    return True


async def called(component: Any, name: str, *args: Any, sync: bool, **kwargs: Any) -> Any:
    """A method of a component, from inside of its wrappers: the sync one in a thread, or the async one."""
    found = method(type(component), name if sync else _async_name(name))
    put = not getattr(component, "__dict__", {}).keys().isdisjoint((name, _async_name(name)))
    if found is None or put:  # a mock has been put on the class since, or on the object
        raise LeftToStock(f"{type(component).__name__}.{name} is not what it was any more")
    function = found.function
    if sync:
        return await in_thread(lambda: function(component, *args, **kwargs))
    if blocks(type(component), _async_name(name)):
        return await unblocked(function, component, *args, **kwargs)
    return await function(component, *args, **kwargs)


def _async_name(name: str) -> str:
    return f"_a{name[1:]}" if name.startswith("_") else f"a{name}"
