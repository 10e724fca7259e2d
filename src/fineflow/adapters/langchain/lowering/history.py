"""Lowers ``RunnableWithMessageHistory``: plans what it wraps, ordered with the history's read and write.

Stock reads the history when the call begins and writes it when the call ends, with its own methods: both are steps of
the graph that stock runs. Which other steps may overlap with them depends on the user's ``get_session_history``:
declared ``@fineflow.effects(reads=...)`` (or ``writes``, if it creates missing sessions), only steps that touch that
resource wait. The declaration covers the messages of the returned history. Undeclared, it may be a guard, and models
and searches that leave the process wait for it.
"""

from __future__ import annotations

import copy as copying
from types import CodeType, MethodType
from typing import Any

from langchain_core.runnables import RunnableBinding, RunnableLambda, RunnableSequence
from langchain_core.runnables.history import RunnableWithMessageHistory

from fineflow.adapters.core.builder import Leaf, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered, plain
from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.langchain.lowering.declared import declared_effects, place
from fineflow.adapters.langchain.lowering.structure import RUN
from fineflow.declare import Declaration, declaration

_INNER = "runnable"
# The two functions that it defines to call what it wraps are recognised by their code.
_CODES = {
    code.co_name: code
    for code in getattr(getattr(plain(RunnableWithMessageHistory, "__init__"), "__code__", None), "co_consts", ())
    if isinstance(code, CodeType)
}


def _lower_history(step: RunnableWithMessageHistory, value: Symbol, b: ChainBuilder) -> Symbol:
    if not _as_made(step):
        raise NotLowered("its parts are not those that RunnableWithMessageHistory creates")
    with b.inside("bound", ""), b.step():
        outcome = b.lower(step.bound, value)
    promise = declaration(step.get_session_history)
    if promise is None:
        b.opaque(step, outcome, _undeclared(step.get_session_history), name="save_history")
    else:
        written = Declaration(writes=(*promise.reads, *promise.writes) or ("history",))
        b.by_stock(step, outcome, declared_effects(written, b), name="save_history")
    return outcome


def _undeclared(get: Any) -> str:
    where = f" at {found}" if (found := place(get)) else ""
    return (
        f"calls your get_session_history{where}, whose effects are unknown; "
        "see fineflow.effects if it only reads (or makes) a history"
    )


def _as_made(step: RunnableWithMessageHistory) -> bool:
    bound = step.bound
    if type(bound) is not RunnableBinding or type(bound.bound) is not RunnableSequence or bound.kwargs:
        return False
    first, *rest = bound.bound.steps
    last = rest[0] if len(rest) == 1 else None
    return first is step._history_chain and type(last) is RunnableBinding and _inner(last.bound) is not None


def _shadow_history(step: RunnableWithMessageHistory, site: Site) -> Any:
    return step.model_copy(update={"bound": site.of(step.bound, "bound")})


def writes(obj: Any) -> bool:
    """Returns True if calls of the object end with a write; stock's batch writes only after reading for all inputs."""
    return isinstance(obj, RunnableWithMessageHistory)


def lower_read(step: RunnableLambda[Any, Any], value: Symbol, b: ChainBuilder) -> Leaf | None:
    """Lowers the step that reads the history; returns None for any other."""
    func = step.__dict__.get("func")
    if type(func) is not MethodType or func.__func__ is not plain(RunnableWithMessageHistory, "_enter_history"):
        return None
    owner: Any = func.__self__
    get = owner.get_session_history
    promise = declaration(get)
    if promise is None:
        return b.opaque(step, value, _undeclared(get), name="load_history")
    promise = promise if promise.reads or promise.writes else Declaration(reads=("history",))
    effects = declared_effects(promise, b)
    return b.by_stock(step, value, effects, where=place(get), name="load_history")


def _inner(step: Any) -> tuple[tuple[RunnableBinding[Any, Any], ...], ...] | None:
    """Returns the bindings through which sync calls, and async calls, get to what is wrapped; outermost first.

    ``with_listeners`` of a binding changes the binding, ``with_alisteners`` wraps it in another one. None for any other
    step than the one after the read.
    """
    parts: list[Any] = [getattr(step, "__dict__", {}).get(name) for name in ("func", "afunc")]
    codes = [_CODES.get(name) for name in ("_call_runnable_sync", "_call_runnable_async")]
    if None in codes or [getattr(part, "__code__", None) for part in parts] != codes:
        return None
    sync, other = (part.__closure__[0].cell_contents for part in parts)
    if type(sync) is not RunnableBinding:
        return None
    others = []
    while type(other) is RunnableBinding and other is not sync.bound:
        others.append(other)
        other = other.bound
    kwargs = {name: value for each in reversed(others) for name, value in each.kwargs.items()}
    return ((sync,), tuple(others)) if other is sync.bound and kwargs == sync.kwargs else None


def lower_inner(step: RunnableLambda[Any, Any], value: Symbol, b: ChainBuilder) -> Symbol | None:
    """Lowers what ``RunnableWithMessageHistory`` wraps, which one of its steps returns; None for other steps."""
    inner = _inner(step)
    if inner is None:
        return None
    with b.inside(_INNER, ""):
        return b.lower(inner[0][0], value)


def shadow_inner(step: RunnableLambda[Any, Any], site: Site) -> Any:
    """Builds the step that returns the shadow of what is wrapped; None for other steps."""
    inner = _inner(step)
    if inner is None or site.part(_INNER).planned is None:
        return None
    copy = copying.copy(step)
    for each in (*inner[0], *inner[1]):
        site.reads(each)
    shadow = site.of(inner[0][0].bound, _INNER, "bound")
    for each in reversed(inner[not site.sync]):
        shadow = each.model_copy(update={"bound": shadow})
    sync, other = (
        shadow if mine else bindings[0] for bindings, mine in zip(inner, (site.sync, not site.sync), strict=True)
    )

    async def call(value: Any) -> Any:
        return other

    copy.func, copy.afunc = (lambda value: sync), call
    return copy


ROWS = (
    Row(
        RunnableWithMessageHistory,
        (
            *RUN,
            *("_merge_configs", "_enter_history", "_aenter_history", "_exit_history", "_aexit_history"),
            *("_get_input_messages", "_get_output_messages"),
        ),
        _lower_history,
        _shadow_history,
        reads=("bound", "get_session_history"),
    ),
)
