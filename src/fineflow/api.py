"""Read this first: one line makes a pipeline sooner, another says how.

    lower   the user's object becomes a p-graph of primitives    adapters/langchain/plan.py
    passes  the p-graph becomes an e-graph                       passes/
    run     the e-graph runs ahead, stock claims its results     runtime/executor.py, adapters/langchain/proxy.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from fineflow.explanation import Explanation
from fineflow.options import Options
from fineflow.passes import PASSES, Pass

T = TypeVar("T")


def optimize(
    obj: T,
    *,
    passes: Sequence[Pass] = PASSES,
    strict: bool = False,
    assume_pure: bool = False,
    eager: bool = False,
) -> T:
    """Returns ``obj`` with the same interface and the same behaviour, only sooner.

    obj: a LangChain ``Runnable``; anything else is returned as it is. The other arguments are those of
    :class:`fineflow.Options`.

    Raises: PlanningError, with ``strict=True``, when a call cannot be planned (when it is made, not here).
    """
    if not _is_runnable(obj):
        return obj
    from fineflow.adapters.langchain.proxy import Optimized

    options = Options(tuple(passes), strict, assume_pure, eager)
    wrapped = obj.__wrapped__ if type(obj) is Optimized else obj
    return Optimized(wrapped, options)


def explain(obj: Any, *, input: Any = "", passes: Sequence[Pass] = PASSES, assume_pure: bool = False) -> Explanation:
    """The plan of an object: its graphs, each rewrite and each refusal with its reason.

    input: an example of what the object will be called with, where it matters that it is not text (or a dict of text).
    """
    if not _is_runnable(obj):
        return Explanation(name=type(obj).__name__, fallback="it is not a LangChain Runnable, and is left as it is")
    from fineflow.adapters.langchain.plan import make_plan
    from fineflow.adapters.langchain.proxy import Optimized, _constant

    options = Options(tuple(passes), assume_pure=assume_pure)
    if type(obj) is Optimized:
        obj, options = obj.__wrapped__, obj._self_options
    plan = make_plan(obj, options, text_input=_constant(input))
    return Explanation(
        name=type(obj).__name__,
        p_graph=plan.p_graph,
        e_graph=plan.e_graph,
        notes=plan.e_graph.notes,
        fallback="" if plan.gain_sync else "nothing in it can start earlier than stock starts it",
    )


def _is_runnable(obj: Any) -> bool:
    runnables = sys.modules.get("langchain_core.runnables")  # whoever has a Runnable has imported it
    return runnables is not None and isinstance(obj, runnables.Runnable)
