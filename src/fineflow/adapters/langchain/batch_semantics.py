"""What the ``batch`` of stock does in another order than one call for each input would.

The batch of a sequence runs a step for all inputs before the next step for any. Where one of two steps is user code of
which nothing is known, and the other one is, too, or reads something, the order can be seen: a counter that the first
step counts up has been counted up for all inputs when the second one reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, takewhile
from typing import Any

from langchain_core.runnables import RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase

from fineflow.ir import Effect, Graph


def steps_meet(graph: Graph, objects: Mapping[str, Any]) -> bool:
    """Whether steps that stock's batch keeps apart could tell in which order they run for different inputs.

    graph: as lowered. objects: what was lowered, by path.
    """
    telling = [p for p in graph if p.effects.kind is Effect.OPAQUE or p.effects.touched]
    return any(
        Effect.OPAQUE in (one.effects.kind, other.effects.kind) and _kept_apart(one.leaf, other.leaf, objects)
        for one, other in combinations(telling, 2)
    )


def _kept_apart(one: str, other: str, objects: Mapping[str, Any]) -> bool:
    """Whether two paths part at a sequence whose own ``batch`` runs when that of the whole object does."""
    pairs = zip(one.split("/"), other.split("/"), strict=False)
    common = [step for step, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    way = [objects.get("/".join(common[:end])) for end in range(len(common) + 1)]
    return isinstance(way[-1], RunnableSequence) and all(
        isinstance(obj, (RunnableSequence, RunnableBindingBase)) for obj in way
    )
