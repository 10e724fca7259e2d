"""Users' declarations about their code: ``@pure`` and ``@effects(...)`` of functions, ``@external`` of classes.

A declaration is trusted. It is kept in a table instead of on the function, because ``functools.wraps`` copies a
function's attributes onto wrappers that may do more than the function does.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

from fineflow.ir import Effect, Effects

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_lock = threading.Lock()


def resource_name(resource: Any) -> str:
    """Returns the resource's name in ``Effects.resource``: strings name themselves, other objects go by identity."""
    return resource if isinstance(resource, str) else f"{type(resource).__name__}@{id(resource):x}"


@dataclass(frozen=True, slots=True)
class Declaration:
    """Declaration of one function: the resources it reads and writes; no resources means pure. name: of a method.

    Keeps the resources alive, so that their ids are not reused.
    """

    reads: tuple[Any, ...] = ()
    writes: tuple[Any, ...] = ()
    name: str = field(default="", compare=False)

    def effects(self, name: Callable[[Any], str] = resource_name) -> Effects:
        """Returns the effects of a primitive; ``name`` gives the name of a resource in the graph."""
        if not self.reads and not self.writes:
            return Effects(Effect.PURE, reason="declared pure")
        written = dict.fromkeys(map(name, self.writes))
        read = [resource for resource in dict.fromkeys(map(name, self.reads)) if resource not in written]
        said = [f"{verb} {', '.join(names)}" for verb, names in (("read", read), ("write", written)) if names]
        reason = f"is declared to {' and '.join(said)}"
        parts = [Effects(Effect.WRITE, w, reason) for w in written] + [Effects(Effect.READ, r, reason) for r in read]
        return replace(parts[0], also=tuple(parts[1:]))


# By the id of a function, and of a bound method's object and function: the function or the object, and the declaration.
_Table = dict[int | tuple[int, int], tuple[weakref.ref[Any], Declaration]]
_declared: _Table = {}
_unheard: _Table = {}  # those that write, of what comes back as it is: nobody notices its calls


def pure(func: F) -> F:
    """Declares that a function has no side effects and depends on nothing but its argument.

    fineflow may then call it earlier than the framework would, on another thread, or not at all. Returns the
    function itself. Raises TypeError if ``func`` is not callable.
    """
    _declare(func, Declaration())
    return func


def effects(*misplaced: Any, reads: Any = None, writes: Any = None) -> Callable[[F], F]:
    """Declares which resources a function reads and writes, and that it has no other side effects.

    A resource is any object (a store, a client; compared by identity) or a name; a list, tuple or set means each of
    its items. Reading and writing the same resource counts as writing. The function is then not a guard (it does not
    prevent later steps by raising), does not change its argument, and steps that touch other resources need not wait
    for it. A function that writes is called by the framework alone, where and when it always was. One that only reads
    may be called as soon as its argument is ready, in another thread (a coroutine function: in the caller's event
    loop), as often as the framework would call it; that call may have happened even though an earlier step fails.

    It is believed wherever it is called: as a step of a chain, as a tool, in a node, in a function that another one
    calls. A function comes back in a wrapper: of one that only reads, calls in nodes and functions find by it what has
    begun before; calls of one that writes are noticed, so that what was read too early is read again. Calls of a bound
    method, a partial or another object that writes are not, so nothing that reads the same starts early. A function of
    a library, ``fineflow.effects(reads="the web")(httpx.get)``, is replaced in its module or class, too, but not where
    others have imported it by name. In another thread it may not need a lock that the caller holds, or a connection
    that belongs to its thread. One that calls components, or looks at the run that it belongs to (``interrupt``,
    ``get_config``), is called in its place, and so are calls after a change of something that the calling function did
    not make.

    Of a bound method it says what that does for this object; above a method in its class, for each. A store given as a
    resource is the one that vector store retrievers search. Raises ValueError if no resource is
    given, and TypeError for positional arguments, as in ``@effects`` without parentheses.
    """
    if misplaced:
        raise TypeError(
            "effects() takes reads and writes by name, @effects(reads=...) or @effects(writes=...), "
            f"not {_kind(misplaced[0])}; a function without side effects is declared @pure"
        )
    read, written = _several(reads), _several(writes)
    if not read and not written:
        raise ValueError(
            "effects() was given neither reads nor writes: name a resource, or use @pure for a function without effects"
        )
    if any(resource is None for resource in (*read, *written)):
        raise ValueError("effects() was given None among its resources: name a resource by a string, or by its object")

    def decorate(func: F) -> F:
        promise = Declaration(read, written, func.__name__ if isinstance(func, MethodType) else "")
        _declare(func, promise)
        in_pieces = inspect.isasyncgenfunction(func) if written else _is_generator(func)
        plain = type(func) is FunctionType and not in_pieces
        if written and not plain:
            _keep(func, promise, _unheard)
        if not plain or undeclared(func) is not func:
            return func
        wrapper = _telling(func, written) if written else _wrapped(func)
        _declare(wrapper, promise)
        _replace(func, wrapper)
        return cast(F, wrapper)

    return decorate


active: ContextVar[Any] = ContextVar("fineflow_inner_calls", default=None)
"""The user function that stock is running here (``InnerCalls``), if calls in it may have begun already; else None."""

writing: list[Callable[[Sequence[Any]], AbstractContextManager[None]]] = []
"""Return the block in which a function runs that is declared to write these resources."""

_NAMES = ("call", "acall")  # of a call of a function, and of a coroutine function, as of a method


def unheard() -> Iterator[tuple[Any, Declaration]]:
    """Yields what is declared to write and whose calls ``writing`` does not get to know, and its declaration.

    Of a bound method its object.
    """
    for reference, promise in list(_unheard.values()):
        if (found := reference()) is not None:
            yield found, promise


_WRAPS = "__fineflow_declared__"  # attribute of a wrapper: itself, and the function


def undeclared(func: Any) -> Any:
    """Returns the function, or bound method, in a wrapper of ``effects``; anything else as it is."""
    if isinstance(func, MethodType):
        own = undeclared(func.__func__)
        return func if own is func.__func__ else MethodType(own, func.__self__)
    mark = func.__dict__.get(_WRAPS) if type(func) is FunctionType else None
    return mark[1] if mark is not None and mark[0] is func else func  # ``functools.wraps`` copies attributes


def name_of_call(func: Callable[..., Any]) -> str:
    """Returns the name of calls of a function, which has an "a" before it for a coroutine function."""
    return _NAMES[inspect.iscoroutinefunction(func)]


def _is_generator(func: Any) -> bool:
    return inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func)


def _active() -> Any:
    return active.get()  # cloudpickle copies the globals of a wrapper, and no context variable


def _wrapped(func: FunctionType) -> Any:
    """Returns a function that does what ``func`` does, but finds a call of it that has begun."""

    @functools.wraps(func)
    def called(*args: Any, **named: Any) -> Any:
        calls = _active()
        call = None if calls is None else calls.take(func, func, _NAMES[0], args, named)
        return func(*args, **named) if call is None else calls.stock(func, call, args, named)

    @functools.wraps(func)
    async def acalled(*args: Any, **named: Any) -> Any:
        calls = _active()
        call = None if calls is None else calls.take(func, func, _NAMES[1], args, named)
        return await (func(*args, **named) if call is None else calls.astock(func, call, args, named))

    return _marked(acalled if inspect.iscoroutinefunction(func) else called, func)


def _telling(func: FunctionType, written: Sequence[Any]) -> Any:
    """Returns a function that does what ``func`` does, in the blocks of ``writing``."""

    @functools.wraps(func)
    def called(*args: Any, **named: Any) -> Any:
        with _telling_of(written):
            return func(*args, **named)

    @functools.wraps(func)
    async def acalled(*args: Any, **named: Any) -> Any:
        with _telling_of(written):
            return await func(*args, **named)

    @functools.wraps(func)
    def pieces(*args: Any, **named: Any) -> Any:
        with _telling_of(written):
            return (yield from func(*args, **named))

    if inspect.iscoroutinefunction(func):
        return _marked(acalled, func)
    return _marked(pieces if inspect.isgeneratorfunction(func) else called, func)


@contextmanager
def _telling_of(resources: Sequence[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in writing:
            stack.enter_context(each(resources))
        yield


def _marked(wrapper: Any, func: FunctionType) -> Any:
    wrapper.__dict__[_WRAPS] = (wrapper, func)
    return wrapper


def _replace(func: FunctionType, wrapper: Any) -> None:
    """Puts a wrapper where a function stands already, in its class or in modules of its package.

    So it is for functions of libraries. One that is being decorated stands nowhere yet.
    """
    *outer, name = func.__qualname__.split(".")
    owner: Any = sys.modules.get(func.__module__)
    for each in outer:
        owner = getattr(owner, each, None)
    if isinstance(owner, type):
        found = vars(owner).get(name)
        if found is func:
            setattr(owner, name, wrapper)
        elif isinstance(found, staticmethod | classmethod) and found.__func__ is func:
            setattr(owner, name, type(found)(wrapper))
        return
    if getattr(owner, "__dict__", {}).get(name) is not func:
        return
    package = func.__module__.partition(".")[0]
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == package and getattr(module, "__dict__", {}).get(name) is func:
            setattr(module, name, wrapper)


_external: weakref.WeakSet[type] = weakref.WeakSet()


def external(kind: C) -> C:
    """Declares that the answer of a component of this class depends on nothing but the arguments of the call.

    For your own classes that implement a framework interface (a chat model, an LLM, a vector store, embeddings, a
    cross-encoder), typically by calling a server. fineflow may then make a call as soon as its arguments are ready,
    concurrently with other calls, and even if the pipeline fails before it would have been made; never before an
    earlier opaque step has finished. Applies to the methods that the class itself defines: a subclass that overrides
    one of them needs its own declaration. Returns the class. Raises TypeError if ``kind`` is not a class.
    """
    if not isinstance(kind, type):
        raise TypeError(f"@external declares something about a class, not about {_kind(kind)}")
    _external.add(kind)
    return kind


def declared_external(kind: type) -> bool:
    """Returns True if this class itself was declared ``@external``; base classes do not count."""
    return kind in _external or kind in _supposed.get()


Trust = Callable[[Any, str], bool]
"""Says whether the annotations of a tool are believed, given the name of its server ("" for none)."""

_trusting: list[Trust] = []


def trust_tools(which: Any) -> None:
    """Believes the annotations of some tools of MCP servers: those with ``readOnlyHint`` are declared to read.

    They may then start while the model is still writing (docs/langgraph.md). Tools without the hint stay undeclared.
    The protocol calls annotations untrusted unless they come from a trusted server. Holds for agents that are first
    called afterwards; for one agent, ``optimize(agent, trust_tools=which)`` says the same.

    which: the name of a server, as ``MultiServerMCPClient`` has it; a list of tools, as its ``get_tools()`` returns
    them; or a function that says of a tool whether it is trusted. Raises TypeError for anything else.
    """
    _trusting.append(trust_in(which))


def trust_in(which: Any) -> Trust:
    """Returns what ``trust_tools(which)`` believes. Raises TypeError as that does."""
    if isinstance(which, str):
        return lambda tool, server: server == which
    if isinstance(which, list | tuple | set | frozenset) and all(hasattr(each, "name") for each in which):
        known = list(which)
        return lambda tool, server: any(tool is each for each in known)
    if callable(which):
        return lambda tool, server: bool(which(tool))
    raise TypeError(f"trust_tools takes the name of a server, tools, or a function of a tool, not {_kind(which)}")


def trusts_tool(tool: Any, server: str, also: Any = None) -> bool:
    """Returns True if the annotations of a tool are believed. also: as for ``trust_tools``, or None."""
    more = [] if also is None else [trust_in(also)]
    return any(each(tool, server) for each in (*_trusting, *more))


_supposed: ContextVar[tuple[Any, ...]] = ContextVar("fineflow_supposed", default=())


@contextmanager
def supposing(objs: Iterable[Any]) -> Iterator[None]:
    """Treats classes as declared ``@external``, and functions as ``@pure``, to plan what that would gain."""
    token = _supposed.set(tuple(objs))
    try:
        yield
    finally:
        _supposed.reset(token)


def is_supposing() -> bool:
    return bool(_supposed.get())


def declared(func: Any) -> Effects | None:
    """Returns the declared effects of a function, resources named by identity, or None. See ``declaration``."""
    found = declaration(func)
    return None if found is None else found.effects()


def declaration(func: Any) -> Declaration | None:
    """Returns the declaration of a function, a bound method, a ``functools.partial``, or a RunnableLambda's function.

    None if there is none.
    """
    for _ in range(16):  # a partial of a partial of ...; the bound guards against objects that refer to themselves
        bound = isinstance(func, MethodType)
        entry = _declared.get((id(func.__self__), id(func.__func__)) if bound else id(func))
        if entry is not None and entry[0]() is (func.__self__ if bound else func):
            return entry[1]
        if any(func is each for each in _supposed.get()):
            return Declaration()
        if type(func) is functools.partial:
            func = func.func
        elif bound:
            func = func.__func__
        elif type(func).__name__ == "RunnableLambda":
            parts = getattr(func, "__dict__", {})
            func = parts.get("func") or parts.get("afunc")
        else:
            return None
    return None


def _kind(value: Any) -> str:
    """Formats a value for a message: functions by name, plain values by repr, others by class; never a long repr."""
    if isinstance(value, str | int | float | None):
        return repr(value)
    name = getattr(value, "__qualname__", None)
    return name if callable(value) and isinstance(name, str) else f"a {value.__class__.__name__}"


def _several(resources: Any) -> tuple[Any, ...]:
    if resources is None:
        return ()
    return tuple(resources) if isinstance(resources, list | tuple | set | frozenset) else (resources,)


def _declare(func: Any, found: Declaration) -> None:
    if not callable(func):
        hint = ": declare the functions that it is made of" if hasattr(func, "invoke") else ""
        if hasattr(func, "args_schema"):
            hint = ": it declares a function, so put it below @tool, which makes a tool of that"
        raise TypeError(f"expected a function to declare effects of, not {_kind(func)}{hint}")
    for each in {id(each): each for each in (func, undeclared(func))}.values():
        _keep(each, found)


def _keep(func: Any, found: Declaration, table: _Table = _declared) -> None:
    """Notes the declaration of a function; of a bound method for this one object."""
    bound = isinstance(func, MethodType)
    key: Any = (id(func.__self__), id(func.__func__)) if bound else id(func)

    def forget(dead: weakref.ref[Any]) -> None:
        entry = table.get(key)
        if entry is not None and entry[0] is dead:
            del table[key]

    try:
        reference = weakref.ref(func.__self__ if bound else func, forget)
    except TypeError:
        raise TypeError(f"effects cannot be declared of {_kind(func)}: wrap it in a function of your own") from None
    with _lock:
        table[key] = (reference, found)
