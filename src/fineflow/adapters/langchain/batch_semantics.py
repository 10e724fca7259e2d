"""Detects chains for which stock's ``batch`` order differs observably from one call per input.

The batch of a sequence runs a step for all inputs before it runs the next step for any. The order can be observed if
one of two steps is opaque user code and the other one is opaque, too, or reads something: a counter that the first step
increments has counted all inputs when the second step reads it. It can also be observed if both print.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, takewhile
from typing import Any

from langchain_core.runnables import RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase

from fineflow.ir import Effect, Graph

_OWN = (Effect.OPAQUE, Effect.UNORDERED)


def steps_meet(graph: Graph, objects: Mapping[str, Any]) -> bool:
    """Returns True if steps that stock's batch runs one after the other could observe the order of inputs.

    graph: as lowered. objects: the lowered objects, by path.
    """
    telling = [p for p in graph if p.effects.kind in _OWN or p.effects.touched]
    return any(
        _observable(one.effects.kind, other.effects.kind) and _kept_apart(one.leaf, other.leaf, objects)
        for one, other in combinations(telling, 2)
    )


def _observable(one: Effect, other: Effect) -> bool:
    return Effect.OPAQUE in (one, other) or one is other is Effect.UNORDERED


def _kept_apart(one: str, other: str, objects: Mapping[str, Any]) -> bool:
    """Returns True if two paths diverge at a sequence whose own ``batch`` runs when the whole object is batched."""
    pairs = zip(one.split("/"), other.split("/"), strict=False)
    common = [step for step, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    way = [objects.get("/".join(common[:end])) for end in range(len(common) + 1)]
    return isinstance(way[-1], RunnableSequence) and all(
        isinstance(obj, (RunnableSequence, RunnableBindingBase)) for obj in way
    )
