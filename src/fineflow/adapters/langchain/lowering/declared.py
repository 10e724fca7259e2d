"""Users' declarations (``fineflow.declare``) as effects of primitives."""

from __future__ import annotations

import functools
from typing import Any

from langchain_core.runnables import RunnableGenerator, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import VectorStoreRetriever

from fineflow.adapters.langchain.builder import ChainBuilder
from fineflow.adapters.python.bytecode import location
from fineflow.declare import Declaration, declaration, undeclared
from fineflow.ir import Effects

Step = RunnableLambda[Any, Any] | RunnablePassthrough[Any] | RunnableGenerator[Any, Any]
_FUNCTIONS = ("func", "afunc", "_transform", "_atransform")


def functions_of(step: Step) -> list[Any]:
    """Returns the functions of a step: its sync one, its async one, or both."""
    return [undeclared(func) for name in _FUNCTIONS if (func := step.__dict__.get(name)) is not None]


def promised(step: Step) -> Declaration | None:
    """Returns the declaration of a step's function or functions (sync and async); None unless all are declared."""
    found = [declaration(func) for func in functions_of(step)]
    said = [each for each in found if each is not None]
    if not said or len(said) < len(found):
        return None
    reads, writes = (tuple(r for each in said for r in getattr(each, name)) for name in ("reads", "writes"))
    return Declaration(reads, writes)


def declared_effects(promise: Declaration, b: ChainBuilder) -> Effects:
    """Returns the declared effects; objects get the name that all primitives use that touch them."""

    def name(resource: Any) -> str:
        if isinstance(resource, str):
            return resource
        return b.resource(resource.vectorstore if isinstance(resource, VectorStoreRetriever) else resource)

    return promise.effects(name)


def place(func: Any) -> str:
    """Returns where a function is defined, as ``file.py:12``; "" if it has no source."""
    while type(func) is functools.partial:
        func = func.func
    code = getattr(undeclared(func), "__code__", None)
    return location(code) if code is not None else ""
