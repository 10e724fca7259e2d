"""Verdict on one callable, and its cache."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any

from fineflow.adapters.analysis.calls import CallSite, call
from fineflow.adapters.analysis.frame import Frame
from fineflow.adapters.analysis.outside import Outside, defaults
from fineflow.adapters.analysis.replay import Replays
from fineflow.adapters.analysis.state import Analysis, name_of
from fineflow.adapters.analysis.tables import trusted
from fineflow.adapters.analysis.values import ARG, GIVEN, SHARED, Impure, Kind, Value, immutable
from fineflow.adapters.core.installers import module_of, of_package
from fineflow.adapters.python.bytecode import location
from fineflow.declare import declared, is_supposing, undeclared
from fineflow.ir import Effect

_POSITIONAL_REST, _NAMED_REST, _GENERATOR, _GENERATORS = 0x04, 0x08, 0x20, 0x20 | 0x200
# LangChain passes these by name to every function that has them as parameters.
_CONTEXT = frozenset({"config", "run_manager", "callbacks"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict if a function is pure: an extra, earlier, or off-thread call makes no observable difference.

    reason: the evidence, or the first counterexample. keys: the keys of its argument that it may read, if it uses the
    argument only by constant subscripts and ``.get``; None: anything. location: ``file.py:12`` or "". assumes: checks
    of the outside objects that the verdict relies on. raises: it has a ``raise`` or ``assert``, so it may be meant as a
    guard of later steps. unordered: it would be pure, but prints, logs or reads the clock: only stock may call it, and
    nothing depends on when. held: mutable objects outside the function that it only reads.
    """

    pure: bool
    reason: str
    keys: frozenset[str] | None = None
    location: str = ""
    assumes: tuple[Callable[[], bool], ...] = field(default=(), compare=False, repr=False)
    raises: bool = False
    unordered: bool = False
    held: tuple[Any, ...] = field(default=(), compare=False, repr=False)

    def still_holds(self) -> bool:
        """Returns True if the globals, closure cells and functions that it relies on are still the same objects."""
        return all(check() for check in self.assumes)


_cache: weakref.WeakKeyDictionary[FunctionType, Verdict] = weakref.WeakKeyDictionary()
_replays: Replays[Verdict] = Replays()  # of functions that are made anew, by their code
_lock = threading.RLock()  # reentrant: GC inside may collect an abandoned stream, whose end may need verdicts


def analyse(func: Callable[..., Any], *, returned: Sequence[Any] = ()) -> Verdict:
    """Returns the verdict on ``func(argument)``. Never raises; code that is not understood is not pure.

    returned: mutable objects outside the function that it may return unchanged, but not use otherwise.

    A declaration (``fineflow.declare``) is trusted; the keys of a function declared pure are those of the analysis if
    it agrees, else None.
    """
    promise = declared(func)
    if returned:
        return _fresh(func, returned)
    if promise is None:
        return _analysed(func)
    where = location(undeclared(func).__code__) if type(func) is FunctionType else ""
    if promise.kind is not Effect.PURE:
        return Verdict(False, promise.reason, None, where)
    found = _analysed(func)
    if found.pure:
        return replace(found, reason=promise.reason, raises=False)
    if type(func) is functools.partial and not all(map(immutable, (*func.args, *func.keywords.values()))):
        return Verdict(False, "is declared pure, but holds bound arguments that can change", None, where)
    return Verdict(True, promise.reason, None, where)


def _analysed(func: Callable[..., Any]) -> Verdict:
    if type(func) is not FunctionType:
        return _fresh(func)
    with _lock:
        found = _cache.get(func)
    if found is None or not found.still_holds():
        found = _fresh(func)
        if (
            found.pure or found.unordered
        ) and not is_supposing():  # a negative verdict may depend on anything, so it could not be invalidated
            with _lock:
                _cache[func] = found
    return found


def passes_on(func: Callable[..., Any]) -> Verdict:
    """Returns the verdict on a generator function, sync or async, that gets an iterator.

    It is pure if it yields each item that it gets, as it is and once, and is otherwise like a pure function.
    """
    return _fresh(func, given=GIVEN)


def trusting_models(func: Callable[..., Any]) -> Verdict:
    """Returns the verdict on a function whose pydantic models are believed to change nothing when they validate."""
    return _fresh(func, trusting=True)


def asking(func: Callable[..., Any], reads: Callable[[Any, str], bool]) -> tuple[Verdict, Sequence[Any]]:
    """Returns the verdict on a function that may call components, and the components that it calls.

    reads: see ``Outside``. It is pure if it does nothing else that a pure function does not.
    """
    analysis = Analysis(reads=reads)
    return _interpreted(analysis, func, ARG), list(analysis.asked.values())


def _fresh(
    func: Callable[..., Any], returned: Sequence[Any] = (), *, given: Value = ARG, trusting: bool = False
) -> Verdict:
    kind, outside = (bool(returned), given is GIVEN, trusting), Outside(returned)
    found = _replays.known(func, kind, outside)
    if found is not None:
        checks = tuple(outside.pins.values()) if found.pure or found.unordered else ()
        return replace(found, assumes=checks, held=tuple(outside.held) if found.pure else ())
    analysis = Analysis(returned, trusting=trusting)
    found = _interpreted(analysis, func, given)
    if analysis.readings is not None:
        _replays.keep(func, kind, replace(found, assumes=(), held=()), analysis.readings.values())
    return found


def _interpreted(analysis: Analysis, func: Callable[..., Any], given: Value) -> Verdict:
    core = func
    while type(core) is functools.partial:
        core = core.func
    where = location(core.__code__) if isinstance(core, FunctionType | MethodType) else ""
    try:
        if not (3, 11) <= sys.version_info[:2] <= (3, 14):
            raise Impure(f"unsupported bytecode of Python {sys.version_info[0]}.{sys.version_info[1]}")
        analysis.settle(lambda: _enter(analysis, func, given))
    except Impure as problem:
        return Verdict(False, problem.reason, None, problem.where or where)
    except Exception as error:  # an unforeseen shape of code must cost an optimization, not the call
        analysis.readings = None  # may be different next time
        return Verdict(False, f"could not be analysed ({type(error).__name__}: {error})", None, where)
    keys = None if analysis.escaped else frozenset(analysis.keys)
    reads = "reads its argument" if keys is None else f"reads {', '.join(sorted(keys))}" if keys else "reads no key"
    reason = ", ".join([reads, *analysis.notes])
    checks = tuple(analysis.pins.values())
    if analysis.unordered:
        reason = " and ".join(analysis.unordered)
        return Verdict(False, reason, keys, where, checks, analysis.raises, unordered=True)
    return Verdict(True, reason, keys, where, checks, analysis.raises, held=tuple(analysis.held))


def _enter(analysis: Analysis, func: Any, given: Value) -> None:
    """Analyses a call of ``func`` with the argument, or with an iterator that gives it."""
    bound: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    if type(func) is functools.partial:
        analysis.pin_partial(func)
        bound, named, func = func.args, dict(func.keywords), func.func
        for value in (*bound, *named.values()):
            if not (immutable(value) or analysis.makes(value)):
                raise Impure(f"holds a {type(value).__name__}, which can change")
    if type(func) is MethodType and type(func.__func__) is FunctionType and not of_package(module_of(func)):
        function, me = func.__func__, analysis.known(func.__self__, "self")
        analysis.pin_function(function)
        parameters = _parameters(analysis, function, (None,), named, given)
        parameters[function.__code__.co_varnames[0]] = me
        Frame(analysis, function.__code__, function, ("entry",)).run(parameters)
        return
    if type(func) is FunctionType and not trusted(func):
        analysis.pin_function(func)
        Frame(analysis, func.__code__, func, ("entry",)).run(_parameters(analysis, func, bound, named, given))
        return
    if given is not ARG:
        raise Impure(f"is {_kind(func)}, which may do anything")
    try:
        known = analysis.known(func, "")
    except Impure:
        raise Impure(f"is {_kind(func)}, which may do anything") from None
    if known.kind is Kind.OBJECT:
        raise Impure(f"is {_kind(func)}, which may do anything")
    args = [Value(Kind.CONST, value) for value in bound]
    keywords = {name: Value(Kind.CONST, value) for name, value in named.items()}
    analysis.use(call(CallSite(analysis, None), known, [*args, ARG], keywords))


def _kind(func: Any) -> str:
    name = name_of(type(func))
    return f"an object of class {name}" if name != "method" else f"a method of {name_of(type(func.__self__))}"


def _parameters(
    analysis: Analysis, func: FunctionType, bound: tuple[Any, ...], named: dict[str, Any], given: Value
) -> dict[str, Value]:
    """Returns abstract parameter values for a call with ``bound``, then ``given``, and ``named``."""
    code = func.__code__
    if code.co_flags & _GENERATOR and given is ARG:
        raise Impure("is a generator")
    if not code.co_flags & _GENERATORS and given is not ARG:
        raise Impure("is no generator")
    positional = code.co_varnames[: code.co_argcount]
    by_name = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    values: dict[str, Value] = {}
    for name, _ in defaults(func):
        values[name] = analysis.default(func, name)
    for name in (*positional, *by_name):
        if name == "config" and analysis.reads is not None:  # what is called again gets the same one
            values[name] = SHARED
        elif name not in values or name in _CONTEXT:
            values[name] = Value(Kind.BAD, f"reads parameter {name}, which is not part of its argument")
    for name, value in named.items():
        if name in values and name not in _CONTEXT:
            values[name] = Value(Kind.CONST, value)
    values.update((name, Value(Kind.CONST, value)) for name, value in zip(positional, bound, strict=False))
    if len(bound) < len(positional):
        values[positional[len(bound)]] = given
    elif not code.co_flags & _POSITIONAL_REST:
        raise Impure("takes no argument")
    rest = code.co_argcount + code.co_kwonlyargcount
    for flag in (_POSITIONAL_REST, _NAMED_REST):
        if code.co_flags & flag:
            name = code.co_varnames[rest]
            values[name] = Value(Kind.BAD, f"reads *{name}, which is not tracked")
            rest += 1
    return values
