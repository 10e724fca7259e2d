"""Taking the wrappers of LlamaIndex off a method, and putting them around another function.

A method may be wrapped by the dispatcher (``dispatcher.span``: it opens a span) and by the callbacks of LLMs
(``llm_chat_callback``: they send events, count, limit rates). The graph calls the function inside, which is not
observable. The shadow that stock runs has the same wrappers around a claim, so spans and events are stock's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CellType, FunctionType
from typing import Any

import wrapt
from llama_index.core.llms import callbacks

from fineflow.adapters.core.builder import Builder
from fineflow.adapters.core.installers import foreign
from fineflow.adapters.core.own_state import keeps_state
from fineflow.adapters.core.trust import OwnClass, put_on
from fineflow.adapters.inner_calls.entry_wrappers import own_function
from fineflow.adapters.python.bytecode import decode
from fineflow.adapters.python.parts import codes
from fineflow.declare import declared_external

_TELLING = frozenset({"callback_manager", "dispatcher", "get_dispatcher", "instrument"})
_STORING = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_CLIENTS = frozenset({"_client", "_aclient"})  # integrations create these on first use


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a class. function: inside of all wrappers. spans, wrappers: those of the dispatcher and of the
    callbacks, outermost first.
    """

    function: FunctionType
    spans: tuple[Any, ...]
    wrappers: tuple[FunctionType, ...]

    def around(self, obj: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns ``function`` with the wrappers of this method, bound to ``obj``, to be put into ``obj.__dict__``.

        ``function`` takes ``obj`` first, and has to be a coroutine function if the method is one.
        """
        inner = _named(function, self.function)
        for wrapper in reversed(self.wrappers):
            inner = _with_cell(wrapper, "f", inner)
        wrapped: Any = inner
        for span in reversed(self.spans):
            wrapped = wrapt.FunctionWrapper(wrapped, span._self_wrapper)
        bound: Callable[..., Any] = wrapped.__get__(obj, type(obj))
        return bound


def method(kind: type, name: str) -> Method | None:
    """Returns a method of a class; None if there is none, or it is not a function."""
    found = own_function(inspect.getattr_static(kind, name, None))
    spans, wrappers = [], []
    while isinstance(found, wrapt.FunctionWrapper):
        spans.append(found)
        found = found.__wrapped__
    while (
        isinstance(found, FunctionType) and found.__globals__ is vars(callbacks) and "f" in found.__code__.co_freevars
    ):
        wrappers.append(found)
        found = _cells(found)["f"].cell_contents
    return Method(found, tuple(spans), tuple(wrappers)) if isinstance(found, FunctionType) else None


def same(kind: type, base: type, *names: str) -> bool:
    """Returns True if a class has exactly these methods of another class, wrappers apart."""
    if kind is base:
        return True
    for name in names:
        found, expected = method(kind, name), method(base, name)
        if found is None or expected is None or found.function is not expected.function:
            return False
    return True


def believed_class(component: Any, b: Builder) -> None:
    """Raises NotLowered unless all code of a component is that of installed packages or declared @external.

    Every class in the MRO counts: a method that is not overridden may call one that is.
    """
    for owner in type(component).__mro__:
        if not (b.assume_pure or b.trusting or declared_external(owner) or foreign(owner)):
            raise OwnClass(owner)


def quiet(kind: type, name: str) -> bool:
    """Returns True if a method, without its wrappers, opens no span, sends no event and does not change its object.

    Checks its bytecode and that of the methods it may call; when in doubt, False.
    """
    found = method(kind, name)
    return found is not None and _known_quiet(kind, name, found.function)


@lru_cache(maxsize=1024)
def _known_quiet(kind: type, name: str, function: FunctionType) -> bool:
    return _quiet(kind, function, {name})


def _quiet(kind: type, function: FunctionType, seen: set[str]) -> bool:
    names: set[str] = set()
    for code in codes(function.__code__):
        if "__class__" in code.co_freevars:  # super(): calls a method of a base class, with its wrappers
            return False
        names.update(code.co_names)
        if any(i.name in _STORING and i.value not in _CLIENTS for i in decode(code)):
            return False
    if names & _TELLING:
        return False
    for name in names - seen:
        seen.add(name)
        found = method(kind, name)
        if found is not None and (found.spans or found.wrappers or not _quiet(kind, found.function, seen)):
            return False
    return True


def _cells(function: FunctionType) -> dict[str, CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _with_cell(function: FunctionType, name: str, value: Any) -> FunctionType:
    """Returns a copy of a function with another value in one of its cells."""
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
    if callable(getattr(function, "__wrapped__", None)):  # spans report the arguments by the names of the method in it
        made.__dict__["__wrapped__"] = value
    return made


@lru_cache(maxsize=1024)
def _signature(function: FunctionType) -> inspect.Signature:
    # LlamaIndex sets ``__wrapped__`` of models' methods to True.
    return inspect.signature(function, follow_wrapped=callable(getattr(function, "__wrapped__", None)))


def _named(function: Any, like: FunctionType) -> Any:
    """Gives ``function`` the name and signature of another one, which spans report; returns it."""
    function.__name__, function.__qualname__ = like.__name__, like.__qualname__
    function.__module__, function.__doc__ = like.__module__, like.__doc__
    if function.__code__ is not like.__code__:
        function.__signature__ = _signature(like)
    return function


def as_written(obj: Any, base: type, *names: str) -> bool:
    """Returns True if an object has exactly these methods of a class, with no state of a subclass around them.

    None of them may be set on the object itself.
    """
    kind = type(obj)
    own = isinstance(obj, base) and not put_on(obj, names) and same(kind, base, *names)
    return own and not keeps_state(kind)


def exactly(obj: Any, *kinds: type) -> bool:
    """Returns True if an object is of one of these classes (no subclass), and no method is set on the object itself."""
    return type(obj) in kinds and not any(callable(getattr(type(obj), name, None)) for name in vars(obj))


def instead(made: Any, name: str, by: Callable[[Callable[..., Any]], Callable[..., Any]], of: Any = None) -> None:
    """Replaces a method of a copy by what ``by`` makes of the function inside, with the same wrappers around it.

    of: the object whose method that function is, if it is not the copy's.
    """
    found = method(type(made), name)
    assert found is not None
    function = by(partial(found.function, made if of is None else of))

    def run(_: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    async def arun(_: Any, *args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    made.__dict__[name] = found.around(made, arun if inspect.iscoroutinefunction(found.function) else run)


def preceded(own: Callable[..., Any], then: Callable[..., object]) -> Callable[..., Any]:
    """Returns a function that calls ``then`` with its arguments before it calls ``own``, which may be async."""

    def run(*args: Any, **kwargs: Any) -> Any:
        then(*args, **kwargs)
        return own(*args, **kwargs)

    return run


def opened(made: Any, name: str, then: Callable[[], None]) -> bool:
    """Makes a copy call ``then`` each time its method has opened its spans; returns False if the method opens none."""
    found = method(type(made), name)
    if found is None or not found.spans or name in vars(made):
        return False
    instead(made, name, lambda own: preceded(own, lambda *args, **kwargs: then()))
    return True
