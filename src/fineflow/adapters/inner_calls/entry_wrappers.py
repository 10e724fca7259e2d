"""Wrappers around methods of classes, as instrumentation libraries have them, installed when first needed.

Around the entry methods of components: inside a user function whose calls run ahead, a call claims its result. Around
methods of the user's own classes that stock calls: their component calls run ahead. Elsewhere a wrapper reads one
context variable and calls the method.

Others change classes, too: a mock puts its own function there, and then back what it has found. So nothing here
remembers that a method is wrapped; each look says whether calls come to the wrapper now, and what nobody would claim
does not start (``comes_here``).
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial, wraps
from itertools import count
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import wrapt

from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.core.trust import called
from fineflow.adapters.inner_calls.vectors_ahead import here
from fineflow.adapters.lookahead.values import Args, Named
from fineflow.declare import active
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.loop.scopes import setting

if TYPE_CHECKING:
    from fineflow.adapters.inner_calls.inner_calls import InnerCalls
    from fineflow.adapters.inner_calls.sleeping_calls import SleepingCalls

watching: ContextVar[Callable[[Any, Any], Begin | None] | None] = ContextVar("fineflow_watching", default=None)
"""Asked outside of optimized calls, with a method and its object: how to predict what its calls would gain."""

Begin = Callable[[Any, Mapping[str, Any]], "InnerCalls | SleepingCalls | None"]
"""Makes the ``InnerCalls`` of a function called with these arguments; None outside of calls."""

_WRAPS = "__fineflow_wraps__"  # attribute of a wrapper: its ``_Wraps``
_numbers = count(1)
_wrapping = threading.Lock()


class _Wraps(NamedTuple):
    """What a wrapper is. own: the method in it. made: what made it. since: its number; later ones have higher ones."""

    wrapper: FunctionType
    own: Any
    made: Any
    since: int


def claims_of(kind: type, name: str) -> int | None:
    """Makes calls of a component's method claim what runs ahead, from now on. Returns what ``wrap_method`` does."""
    return _wrap(kind, name, _claimed, _aclaimed)


def comes_here(component: Any, name: str, *, before: int | None) -> bool:
    """Returns True if stock's call of a component would claim: none may start ahead otherwise.

    It would not where the object or its class has a method of somebody else's, such as a mock. before: the number
    (``latest``) of the moment when stock began to run the function that makes the call, None if it has not: the
    function may have loaded a method that was wrapped later (``chain.batch([other.invoke(x)])`` loads ``batch`` first).
    """
    if name in getattr(component, "__dict__", ()):
        return False
    since = claims_of(type(component), name)
    return since is not None and (before is None or since <= before)


def latest() -> int:
    """Returns a number that wrappers made from now on exceed."""
    return next(_numbers)


def looks_through(kind: type, name: str) -> None:
    """Makes component calls inside a method of the user's class run ahead, for objects in ``Shadows.inside``."""
    _wrap(kind, name, _looking, _alooking, anybodys=True)  # nothing claims by it


def wrap_method(
    kind: type,
    name: str,
    made: Callable[[Any, str], Any],
    awaiting: Callable[[Any, str], Any] | None = None,
    *,
    anybodys: bool = False,
) -> int | None:
    """Puts a wrapper around a method, unless there is one, in the class that defines it.

    made: makes it of method and name. awaiting: the same for a coroutine function. anybodys: also around one that was
    not written in the class. Returns the number of the wrapper; None if calls of the method do not come to it.
    """
    return _wrap(kind, name, made, awaiting or made, anybodys=anybodys)


def in_block(block: Callable[[Any, Any, str, Mapping[str, Any]], AbstractContextManager[Any]]) -> tuple[Any, Any]:
    """Returns what makes wrappers of sync and async methods (``wrap_method``) that call in a block.

    block: gets the method, bound to its object, the object, the name, and the arguments by name; yields what is called
    in place of the method.
    """

    def sync(own: Any, name: str) -> Any:
        def method(obj: Any, /, *args: Any, **named: Any) -> Any:
            with block(own.__get__(obj, type(obj)), obj, name, named) as call:
                return call(*args, **named)

        return method

    def awaiting(own: Any, name: str) -> Any:
        async def method(obj: Any, /, *args: Any, **named: Any) -> Any:
            with block(own.__get__(obj, type(obj)), obj, name, named) as call:
                return await call(*args, **named)

        return method

    return sync, awaiting


def _wrap(kind: type, name: str, sync: Any, awaiting: Any, *, anybodys: bool = False) -> int | None:
    """Does what ``wrap_method`` says. anybodys: also for a method that was not written in the class.

    By a plain function: what ``wrapt`` makes would be another object at each look at the class, and plans compare
    methods by identity.
    """
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    if owner is None:
        return None
    if (since := _since(owner, name, sync)) is not None:
        return since
    with _wrapping:
        own, since = vars(owner)[name], _since(owner, name, sync)
        if since is None and isinstance(own, FunctionType | wrapt.FunctionWrapper):
            if not (anybodys or _of_class(own, owner, name)):
                return None
            since = put(owner, name, own, (awaiting if inspect.iscoroutinefunction(own) else sync)(own, name), sync)
    return since


def _layers(found: Any) -> Iterator[Any]:
    """Yields a method of a class and what is in it, as far as wrappers of ours and of instrumentation tell."""
    while callable(found):  # LlamaIndex sets the attribute of models' methods to True
        yield found
        found = getattr(found, "__wrapped__", None)


def _since(owner: type, name: str, made: Any) -> int | None:
    marks = (_mark(each) for each in _layers(vars(owner).get(name)))
    return next((mark.since for mark in marks if mark is not None and mark.made is made), None)


def _of_class(found: Any, owner: type, name: str) -> bool:
    """Returns True for a method that was written in the class, also in wrappers that say so."""
    *_, own = [None, *_layers(found)]
    return isinstance(own, FunctionType) and own.__qualname__ == f"{owner.__qualname__}.{name}"


def put(owner: type, name: str, own: Any, wrapper: Any, made: Any = None) -> int:
    """Puts a wrapper of a method into its class; ``own_function`` finds the method again. Returns its number."""
    wrapper = wraps(own)(wrapper)
    mark = wrapper.__dict__[_WRAPS] = _Wraps(wrapper, own, made, next(_numbers))
    setattr(owner, name, wrapper)
    return mark.since


def own_function(found: Any) -> Any:
    """Returns a method without the wrappers of this module."""
    while (inner := wrapped(found)) is not None:
        found = inner
    return found


def wrapped(found: Any) -> Any:
    """Returns what a wrapper of this module calls; None if it is no such wrapper."""
    mark = _mark(found)
    return None if mark is None else mark.own


def _mark(found: Any) -> _Wraps | None:
    mark = found.__dict__.get(_WRAPS) if type(found) is FunctionType else None
    return mark if mark is not None and mark.wrapper is found else None  # ``functools.wraps`` copies attributes


def _claimed(own: Any, name: str) -> Any:
    def method(component: Any, /, *args: Any, **named: Any) -> Any:
        bound = own.__get__(component, type(component))  # ``own`` may be a wrapper of instrumentation
        return claimed(component, name, bound, args, named, awaits=False)

    return method


def _aclaimed(own: Any, name: str) -> Any:
    async def method(component: Any, /, *args: Any, **named: Any) -> Any:
        bound = own.__get__(component, type(component))
        return await claimed(component, name, bound, args, named, awaits=True)

    return method


def merging() -> bool:
    """Returns True in a function whose calls are claimed: there an optimized object's calls are parts of that call."""
    calls = active.get()
    return calls is not None and getattr(calls, "claims", False)


def claimed(component: Any, name: str, own: Callable[..., Any], args: Args, named: Named, *, awaits: bool) -> Any:
    """Makes a call of a component, whose class has no wrapper: by what runs ahead, if a walk has found the call.

    awaits: of an async method; returns its coroutine.
    """
    calls = active.get()
    call = None if calls is None else calls.take(own, component, name, args, named)
    if calls is None or call is None:
        return own(*args, **named)
    return (calls.astock if awaits else calls.stock)(own, call, args, named)


def _looking(own: Any, name: str) -> Any:
    def method(obj: Any, /, *args: Any, **named: Any) -> Any:
        return _run(_inside(own, obj), own.__get__(obj, type(obj)), args, named)

    return method


def _alooking(own: Any, name: str) -> Any:
    async def method(obj: Any, /, *args: Any, **named: Any) -> Any:
        begin, bound = _inside(own, obj), own.__get__(obj, type(obj))
        return await (bound(*args, **named) if begin is None else _arun(begin, bound, args, named))

    return method


def _inside(own: Any, obj: Any) -> Begin | None:
    here = under_way.get()
    while here is not None and id(obj) not in here.shadows.inside:
        here = here.outer
    if here is not None:
        return partial(here.shadows.inside[id(obj)], MethodType(inspect.unwrap(own), obj))
    predicts = watching.get()
    return None if predicts is None or under_way.get() is not None else predicts(own, obj)


def looked_through(func: Any, begin: Begin) -> Any:
    """Returns a function that does what ``func`` does, while the component calls in it run ahead."""
    kind: Any = called(func)
    runs: Callable[..., Any] = _run
    if inspect.iscoroutinefunction(kind):
        runs = _arun
    elif inspect.isgeneratorfunction(kind):
        runs = _pieces
    elif inspect.isasyncgenfunction(kind):
        runs = _apieces

    @wrapt.decorator
    def run(own: Any, instance: Any, args: Any, named: Any) -> Any:
        return runs(begin, own, args, named)

    return run(func)


def _run(begin: Begin | None, own: Any, args: Any, named: Any) -> Any:
    calls = None if begin is None or on_engine_loop() else begin(args, named)
    if calls is None:
        return own(*args, **named)
    calls.begin()
    try:
        with _scope(calls):
            return own(*args, **named)
    finally:
        calls.close()


async def _arun(begin: Begin, own: Any, args: Any, named: Any) -> Any:
    calls = begin(args, named)
    if calls is None:
        return await own(*args, **named)
    calls.begin()
    try:
        with _scope(calls):
            return await own(*args, **named)
    finally:
        await calls.aclose()


def _pieces(begin: Begin, own: Any, args: Any, named: Any) -> Generator[Any, Any, Any]:
    """Does what a generator function does. Its reader's code, between two values, is in no scope of it."""
    made = own(*args, **named)
    calls: Any = None if on_engine_loop() else begin(args, named)
    if calls is None:
        return (yield from made)
    scope = partial(_scope, calls)
    step = partial(next, made)
    try:
        calls.streams()
        calls.begin()
        while True:
            try:
                with scope():
                    value = step()
            except StopIteration as end:
                return end.value
            try:
                sent = yield value
            except GeneratorExit:
                raise
            except BaseException as error:
                step = partial(made.throw, error)
            else:
                calls.asked(sent)
                step = partial(made.send, sent)
    finally:
        with scope():
            made.close()
        calls.close()


async def _apieces(begin: Begin, own: Any, args: Any, named: Any) -> AsyncGenerator[Any, Any]:
    """``_pieces`` of an async generator function."""
    made: Any = own(*args, **named)
    calls: Any = begin(args, named)
    scope = nullcontext if calls is None else partial(_scope, calls)
    step = made.asend(None)
    try:
        if calls is not None:
            calls.streams()
            calls.begin()
        while True:
            try:
                with scope():
                    value = await step
            except StopAsyncIteration:
                return
            try:
                sent = yield value
            except GeneratorExit:
                raise
            except BaseException as error:
                step = made.athrow(error)
            else:
                if calls is not None:
                    calls.asked(sent)
                step = made.asend(sent)
    finally:
        with scope():
            await made.aclose()
        if calls is not None:
            await calls.aclose()


def _scope(calls: Any) -> AbstractContextManager[None]:
    """Marks what runs in the block as the function's."""
    return setting((active, calls), (here, calls.vectors))
