"""Read this first: one line makes a pipeline sooner, another says how.

lower   the user's object becomes a p-graph of primitives     adapters/langchain/plan.py, adapters/llamaindex/plan.py
passes  the p-graph becomes an e-graph                        passes/
run     the e-graph runs ahead, stock claims its results      adapters/*/sessions.py, runtime/executor.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fineflow.explanation import Explanation
from fineflow.observe.critical import ENTRIES, Forecasts
from fineflow.options import Options
from fineflow.passes import PASSES, Pass, rewrite
from fineflow.runtime.trace import Trace

if TYPE_CHECKING:
    from fineflow.adapters.langchain.plan import Plan
    from fineflow.adapters.llamaindex.plan import Plan as IndexPlan

T = TypeVar("T")

_UNKNOWN = (
    "it is not a LangChain Runnable, nor a query engine, retriever or response synthesizer of LlamaIndex, "
    "and is left as it is"
)


def optimize(
    obj: T,
    *,
    passes: Sequence[Pass] = PASSES,
    strict: bool = False,
    assume_pure: bool = False,
    eager: bool = False,
    timeout: float | None = None,
) -> T:
    """Returns ``obj`` with the same interface and the same behaviour, only sooner.

    obj: a LangChain ``Runnable``, or a query engine, retriever or response synthesizer of LlamaIndex; anything else is
    returned as it is. The other arguments are those of :class:`fineflow.Options`.

    Raises: TypeError if ``passes`` are not functions; ValueError if ``timeout`` is no number of seconds above 0;
    PlanningError, with ``strict=True``, when a call cannot be planned (when it is made, not here).
    """
    options = Options(passes, strict, assume_pure, eager, timeout)
    if _is_index_object(obj):
        return cast(T, _optimized_index_object(obj, options))
    if not _is_runnable(obj):
        return obj
    from fineflow.adapters.langchain.proxy import Optimized

    wrapped: Any = cast(Any, obj).__wrapped__ if type(obj) is Optimized else obj
    return cast(T, Optimized(wrapped, options, plan))


def plan(runnable: Any, options: Options, text_input: bool) -> Plan:
    """Lowers, rewrites, decides: what happens when an optimized object is called for the first time.

    text_input: whether the input is text or numbers, or a dict of such, which no step can change under a reader.

    Raises: PlanningError for a pass of the user's that raises or returns no valid graph; GraphError, where graphs are
    verified, for a pass of fineflow's that breaks a rule.
    """
    from fineflow.adapters.langchain.plan import decide, lower

    p_graph, objects = lower(runnable, options, text_input=text_input)
    e_graph = rewrite(p_graph, options.passes, check=options.strict)
    return decide(p_graph, e_graph, objects)


def explain(
    obj: Any,
    *,
    input: Any = "",
    passes: Sequence[Pass] = PASSES,
    assume_pure: bool = False,
    last_run: bool = False,
) -> Explanation:
    """The plan of an object: its graphs, each rewrite and each refusal with its reason, its critical path in seconds.

    The seconds are predicted by what the process has measured of its engines so far (``runtime.costs``), and say so.

    input: an example of what the object will be called with, where it matters that it is not text (or a dict of text).
    last_run: of an optimized object, also what the call took that ended last: each step, and the critical path.

    Raises: TypeError if ``passes`` are not functions; PlanningError when one of the user's own raises or returns no
    valid graph; ValueError, with ``last_run``, if there was no call that ran ahead, or the object is not optimized.
    """
    options = Options(passes, assume_pure=assume_pure)
    if _is_index_object(obj):
        if last_run:
            raise ValueError("explain(..., last_run=True) expects an optimized LangChain object, got one of LlamaIndex")
        return _explained_index_object(obj, options)
    trace = _last(obj) if last_run else None
    if not _is_runnable(obj):
        return Explanation(name=type(obj).__name__, fallback=_UNKNOWN)
    from fineflow.adapters.langchain.proxy import Optimized, is_constant

    used = None
    if type(obj) is Optimized:
        used = obj._self_used(trace)
        obj, options = obj.__wrapped__, obj._self_options
    made = used or plan(obj, options, is_constant(input))
    ahead = made.ahead(eager=options.eager)
    return Explanation(
        name=type(obj).__name__,
        p_graph=made.p_graph,
        e_graph=made.e_graph,
        notes=made.e_graph.notes,
        fallback="" if ahead else "nothing in it can start earlier than stock starts it",
        stock=tuple(entry for entry in ENTRIES if entry not in ahead) if ahead else (),
        forecasts=Forecasts.of(made.p_graph, made.e_graph),
        trace=trace,
    )


def _last(obj: Any) -> Trace:
    """What is known of the call of an object that ended last."""
    summary = getattr(obj, "_self_last", None) if _is_optimized(obj) else None
    if summary is not None and summary.trace is not None:
        return cast(Trace, summary.trace)
    expected = "explain(..., last_run=True) expects an object that fineflow.optimize() returned, after a call of it"
    if not _is_optimized(obj):
        raise ValueError(f"{expected}; got {type(obj).__name__}, which is not optimized")
    raise ValueError(
        f"{expected}; no call of this one has ended in which anything ran ahead. Call it, or see explain() without "
        "last_run for why its calls run as stock"
    )


def _is_optimized(obj: Any) -> bool:
    proxy = sys.modules.get("fineflow.adapters.langchain.proxy")
    return proxy is not None and type(obj) is proxy.Optimized


def _is_runnable(obj: Any) -> bool:
    runnables = sys.modules.get("langchain_core.runnables")  # whoever has a Runnable has imported it
    return runnables is not None and isinstance(obj, runnables.Runnable)


def plan_index_object(obj: Any, part: str, sync: bool, options: Options) -> IndexPlan:
    """The plan of a part of an object of LlamaIndex (``adapters.llamaindex.plan``), for sync or async calls of it.

    Raises as ``plan`` does.
    """
    from fineflow.adapters.llamaindex.plan import decide, lowered

    p_graph, seen = lowered(obj, part, sync, options)
    return decide(p_graph, rewrite(p_graph, options.passes, check=options.strict), seen, obj, part)


def _optimized_index_object(obj: Any, options: Options) -> Any:
    from fineflow.adapters.llamaindex.proxy import Optimized, optimized_class

    wrapped: Any = obj.__wrapped__ if isinstance(obj, Optimized) else obj
    made = optimized_class(wrapped)
    return obj if made is None else made(wrapped, options, plan_index_object)


def _explained_index_object(obj: Any, options: Options) -> Explanation:
    from fineflow.adapters.llamaindex.plan import main_part
    from fineflow.adapters.llamaindex.proxy import Optimized

    if isinstance(obj, Optimized):
        obj, options = obj.__wrapped__, obj._self_options
    part = main_part(obj)
    plans = [plan_index_object(obj, part, sync, options) for sync in (True, False)]
    gain = [made.used or options.eager for made in plans]
    made = plans[0] if gain[0] else plans[1]
    return Explanation(
        name=type(obj).__name__,
        p_graph=made.p_graph,
        e_graph=made.e_graph,
        notes=made.e_graph.notes,
        fallback="" if any(gain) else "nothing in it can start earlier than stock starts it",
        stock=tuple(f"{prefix}{part}" for prefix, runs in zip(("", "a"), gain, strict=True) if not runs and any(gain)),
    )


def _is_index_object(obj: Any) -> bool:
    if sys.modules.get("llama_index.core") is None:  # whoever has an object of it has imported it
        return False
    try:
        from fineflow.adapters.llamaindex.proxy import optimized_class
    except ImportError:  # a version that is laid out in another way: its objects are left as they are
        return False
    return optimized_class(obj) is not None
