"""Runnables that a user function composes itself, such as ``{"context": retriever | join, "text": passed} | llm``.

Stock's are other objects in every call. A walk needs no objects, only what becomes of an input; the components in them
are the user's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from langchain_core.runnables import (
    Runnable,
    RunnableAssign,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase

from fineflow.adapters.core.invocation import is_async
from fineflow.adapters.inner_calls.fresh_components import Fresh
from fineflow.adapters.lookahead import UNKNOWN, Stop
from fineflow.adapters.lookahead.values import Local, unknown

_HIDDEN = ("config", "run_manager")  # parameters of a function by which RunnableLambda passes them


class MadeSequence(NamedTuple):
    """``prompt | llm``."""

    steps: tuple[Any, ...]


class MadeParallel(NamedTuple):
    """A dict in a sequence. merged: of ``RunnablePassthrough.assign``."""

    branches: Mapping[str, Any]
    merged: bool = False


class MadeFunction(NamedTuple):
    """A function in a sequence; None for ``RunnablePassthrough()``."""

    func: Any


MADE = (MadeSequence, MadeParallel, MadeFunction)
_RECOVERS = frozenset({"with_retry", "with_fallbacks"})
"""Methods whose result is the same as long as nothing fails: what is called after a failure is stock's own."""

COMPOSES = frozenset({"assign", "pipe", *_RECOVERS})
"""Methods that make another sequence."""

_FUNCTIONS = (Local, FunctionType, MethodType, operator.itemgetter)
_FUNCTION_STEPS = (MadeFunction, RunnableLambda, RunnableGenerator, RunnablePassthrough, RunnablePick)
_KINDS = (RunnableParallel, RunnablePassthrough, RunnableLambda, RunnableSequence)


def coerced(obj: Any) -> Any:
    """Returns a step of a sequence, as ``coerce_to_runnable`` would make it (langchain-core 1.7). Raises Stop."""
    if isinstance(obj, Runnable | Fresh) or type(obj) in MADE:
        return obj
    if type(obj) is dict:
        return MadeParallel({name: coerced(part) for name, part in obj.items()})
    if isinstance(obj, _FUNCTIONS):
        if _flags(obj) & (CO_GENERATOR | CO_ASYNC_GENERATOR):
            raise Stop("makes a sequence of a generator function")
        return MadeFunction(obj)
    raise Stop("makes a sequence of something that is no runnable")


def composed(kind: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Returns what ``kind(...)`` or ``kind.name(...)`` composes; None for anything else. Raises Stop."""
    if kind is operator.itemgetter and not name and args and not named:
        return operator.itemgetter(*args) if all(type(each) in (str, int) for each in args) else None
    if name in _RECOVERS:
        return kind if type(kind) is MadeSequence else None
    if name in COMPOSES and (type(kind) in MADE or isinstance(kind, RunnableSequence)):
        added = [coerced(each) for each in args] if name == "pipe" else [_assigned(named)]
        return None if (named if name == "pipe" else args) else MadeSequence((*steps_of(kind), *added))
    if kind is RunnablePassthrough and name == "assign" and not args:
        return _assigned(named)
    if name or kind not in _KINDS:
        return None
    if kind is RunnableParallel and len(args) < 2 and all(type(each) is dict for each in args):
        return coerced({name: part for each in args for name, part in each.items()} | dict(named))
    if kind is RunnablePassthrough and not (args or named):
        return MadeFunction(None)
    if kind is RunnableLambda and len(args) == 1 and not named and isinstance(args[0], _FUNCTIONS):
        return coerced(args[0])
    if kind is RunnableSequence and len(args) > 1 and not named:
        return MadeSequence(tuple(step for each in args for step in steps_of(coerced(each))))
    return None


def joined(left: Any, right: Any) -> MadeSequence:
    """Returns ``left | right``. Raises Stop."""
    return MadeSequence((*steps_of(coerced(left)), *steps_of(coerced(right))))


def _assigned(named: Mapping[str, Any]) -> MadeParallel:
    return MadeParallel({name: coerced(part) for name, part in named.items()}, merged=True)


def handed_on(obj: Any, given: Any, value_of: Callable[[Any, Any], Any]) -> Any:
    """Returns what a made step other than a sequence returns. value_of: returns that of a component. Raises Stop.

    ``NotImplemented`` for other steps, and for functions that have to be walked through.
    """
    if type(obj) not in (MadeParallel, MadeFunction):
        return NotImplemented
    if isinstance(obj, MadeParallel):
        if obj.merged and not unknown(given) and type(given) is not dict:
            raise Stop("assigns to something that is no dict")
        found = {name: value_of(part, given) for name, part in obj.branches.items()}
        if not obj.merged:
            return found
        return given if unknown(given) else {**given, **found}
    if obj.func is None or (unknown(given) and isinstance(obj.func, operator.itemgetter)):
        return given
    if not isinstance(obj.func, operator.itemgetter):
        return NotImplemented
    keys: tuple[Any, ...] = obj.func.__reduce__()[1]  # type: ignore[assignment]
    if type(given) not in (dict, list, tuple):
        raise Stop("takes an item of something that is no plain data")
    try:
        return obj.func(given) if len(keys) == 1 else NotImplemented
    except (KeyError, IndexError, TypeError) as error:
        raise Stop(f"raises {type(error).__name__}") from None


def function_in(obj: MadeFunction, name: str, value: Any) -> tuple[Any, list[Any], dict[str, Any]]:
    """Returns the function of a step, and its arguments, for a walk through it. Raises Stop."""
    if _flags(obj.func) & CO_COROUTINE and not is_async(name):
        raise Stop("calls an async function in a sync call")
    if isinstance(obj.func, operator.itemgetter):
        raise Stop("takes several items")
    code = obj.func.code if isinstance(obj.func, Local) else obj.func.__code__
    takes = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return obj.func, [value], {each: UNKNOWN for each in _HIDDEN if each in takes}


def _flags(func: Any) -> int:
    code = func.code if isinstance(func, Local) else getattr(func, "__code__", None)
    return getattr(code, "co_flags", 0)


def steps_of(obj: Any) -> Sequence[Any]:
    """Returns the steps of a sequence; anything else as it is."""
    return obj.steps if type(obj) in (MadeSequence, RunnableSequence) else (obj,)


def stands_for(made: Any) -> type | None:
    """Returns the class of stock's object for something made here; None for functions."""
    if type(made) is MadeSequence:
        return RunnableSequence
    return None if type(made) is not MadeParallel else RunnableAssign if made.merged else RunnableParallel


def components_in(obj: Any) -> list[Any]:
    """Returns what a composition consists of but functions: made here, or stock's."""
    if type(obj) is MadeSequence:
        return [part for step in obj.steps for part in components_in(step)]
    if type(obj) is MadeParallel:
        return [part for branch in obj.branches.values() for part in components_in(branch)]
    if type(obj) in (RunnableAssign, RunnableParallel, RunnableSequence, RunnableWithFallbacks):
        return [part for each in _members(obj) for part in components_in(each)]
    return [] if isinstance(obj, _FUNCTION_STEPS) else [obj]


def parts_of(obj: Any) -> list[Any]:
    """Returns the components in a composition of them, those in dicts and bindings, too; anything else as it is."""
    if isinstance(obj, RunnableBindingBase):
        return [obj, *parts_of(obj.bound)]
    if type(obj) in (RunnableAssign, RunnableParallel, RunnableSequence):
        return [part for each in _members(obj) for part in parts_of(each)]
    return [] if isinstance(obj, RunnablePick | RunnablePassthrough) else [obj]


def _members(obj: Any) -> list[Any]:
    if type(obj) is RunnableAssign:
        return [obj.mapper]
    if type(obj) is RunnableWithFallbacks:
        return [obj.runnable]
    return list(obj.steps__.values()) if type(obj) is RunnableParallel else list(obj.steps)
