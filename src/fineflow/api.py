"""Read this first: one line makes a pipeline sooner, another says how.

lower   the user's object becomes a p-graph of primitives     adapters/langchain/plan.py, adapters/llamaindex/plan.py
passes  the p-graph becomes an e-graph                        passes/
run     the e-graph runs ahead, stock claims its results      adapters/*/sessions.py, runtime/call/executor.py
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from fineflow.adapters.core.framework import Framework
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.explanation import Explanation
from fineflow.observe.critical import Forecasts
from fineflow.options import Options
from fineflow.passes import PASSES, Pass, rewrite
from fineflow.runtime.call.claims import Summary

T = TypeVar("T")

_TAKEN = "a LangChain Runnable or one of the objects of LlamaIndex that are taken (docs/llamaindex.md)"
_UNKNOWN = f"it is not {_TAKEN}, and is left as it is"
_UNKNOWN_CLASS = "it is a class, and is left as it is; optimize and explain an object of it"
_CLASS = (
    "a class has no plan, as what it builds depends on the models and stores that it is given; "
    "explain(index) shows the plan of an index"
)
_EXPECTED = "explain(..., last_run=True) expects an object that fineflow.optimize() returned, after a call of it"
_NO_GAIN = "nothing in it can start earlier than stock starts it"


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

    obj: a LangChain ``Runnable``; or of LlamaIndex a query engine, retriever, response synthesizer or chat engine, a
    tool that calls one of the first two, an agent, a workflow, an ``IngestionPipeline``, a ``VectorStoreIndex`` (or the
    class, to build one) or a ``DocumentQA``; anything else is returned as it is, with a ``FineflowWarning``. The other
    arguments are those of :class:`fineflow.Options`.

    Raises: TypeError if ``passes`` are not functions; ValueError if ``timeout`` is no number of seconds above 0, or is
    given for a workflow; PlanningError, with ``strict=True``, for an object that is not taken, and when a call cannot
    be planned (when it is made, not here).
    """
    options = Options(passes, strict, assume_pure, eager, timeout)
    framework = _framework(obj)
    if framework is not None:
        return cast(T, framework.optimized(obj, options, plan))
    got = f"the class {obj.__name__}" if isinstance(obj, type) else type(obj).__name__
    text = f"fineflow.optimize expected {_TAKEN}, got {got}: it is left as it is"
    if strict:
        raise PlanningError(text)
    warnings.warn(text, FineflowWarning, stacklevel=2)
    return obj


def plan(obj: Any, options: Options, way: Any) -> Any:
    """Lowers, rewrites, decides: what happens when an optimized object is called in some way for the first time.

    way: how it is called, and with what, as far as plans depend on it (``Framework.ways``).

    Raises: PlanningError for a pass of the user's that raises or returns no valid graph; GraphError, where graphs are
    verified, for a pass of fineflow's that breaks a rule.
    """
    framework = _framework(obj)
    assert framework is not None  # it was, when it was optimized
    p_graph, seen = framework.lower(obj, options, way)
    e_graph = rewrite(p_graph, options.passes, check=options.strict)
    return framework.decide(p_graph, e_graph, seen)


def explain(
    obj: Any,
    *,
    input: Any = "",
    passes: Sequence[Pass] = PASSES,
    assume_pure: bool = False,
    last_run: bool = False,
) -> Explanation:
    """The plan of an object: its graphs, each rewrite and each refusal with its reason, its critical path in seconds.

    The seconds are predicted by what the process has measured of its engines so far (``cost_model.costs``), and say so.

    input: an example of what a runnable will be called with, where it matters that it is not text (or a dict of text).
    last_run: of an optimized object, also what the call took that ended last: each step, and the critical path.

    Raises: TypeError if ``passes`` are not functions; PlanningError when one of the user's own raises or returns no
    valid graph; ValueError, with ``last_run``, if there was no call that ran ahead, or the object is not optimized.
    """
    options = Options(passes, assume_pure=assume_pure)
    framework = _framework(obj)
    optimized = framework is not None and issubclass(type(obj), framework.Optimized)
    if last_run and not optimized:
        raise ValueError(f"{_EXPECTED}; got {type(obj).__name__}, which is not optimized")
    if isinstance(own := obj.__wrapped__ if optimized else obj, type):
        return Explanation(name=f"class {own.__name__}", fallback=_UNKNOWN_CLASS if framework is None else _CLASS)
    if framework is None:
        return Explanation(name=type(obj).__name__, fallback=_UNKNOWN)
    made = _explained(framework, obj, "", options, input, obj._self_last if last_run else None)
    if last_run and not _ran(made):
        raise ValueError(
            f"{_EXPECTED}; no call of this one has ended in which anything ran ahead. Call it, or see explain() "
            "without last_run for why its calls run as stock"
        )
    return made


def _explained(
    framework: Framework, obj: Any, at: str, options: Options, input: Any, last: Summary | None
) -> Explanation:
    """The plan of an object and of its parts. at: where it is a part. last: of the call that is told of, too."""
    given, trace = obj, None
    used: dict[Any, Any] = {}  # the plan that the call ran by, if it is still in use
    if last is not None and last.trace is not None and last.trace.runs:
        trace = last.trace
        used = {way: made for way, made in obj._self_plans.items() if made and made.e_graph is trace.graph}
    if issubclass(type(obj), framework.Optimized):
        obj, options = obj.__wrapped__, obj._self_options
    ways = framework.ways(obj, input, next(iter(used), None))
    plans = [used.get(way) or plan(obj, options, way) for way in ways]
    ahead = [entry for made in plans for entry in made.ahead(eager=options.eager)]
    made = next(iter(used.values()), None) or next((p for p in plans if p.ahead(eager=options.eager)), plans[0])
    entries = tuple(entry for each in plans for entry in each.entries)
    return Explanation(
        name=f"{type(obj).__name__} ({at})" if at else type(obj).__name__,
        p_graph=made.p_graph,
        e_graph=made.e_graph,
        notes=made.e_graph.notes,
        fallback="" if ahead else _NO_GAIN,
        entries=entries,
        stock=tuple(entry for entry in entries if entry not in ahead) if ahead else (),
        forecasts=Forecasts.of(made.p_graph, made.e_graph),
        trace=trace,
        remarks=tuple(dict.fromkeys(remark for each in plans for remark in each.remarks)),
        parts=tuple(
            _explained(framework, part, name, options, input, _within(part, last))
            for name, part in framework.parts(given, made).items()
        ),
    )


def _within(part: Any, last: Summary | None) -> Summary | None:
    """The last call of a part of an object, if it was made in the last call of the object. Where it was not, parts of
    the part may still have been: what is returned then has no steps, and tells when the call of the object began.
    """
    if last is None or last.trace is None:
        return None
    found = getattr(part, "_self_last", None)
    if found is not None and found.trace is not None and found.trace.began >= last.trace.began:
        return cast(Summary, found)
    return replace(last, trace=replace(last.trace, runs=()))


def _ran(made: Explanation) -> bool:
    return made.trace is not None or any(map(_ran, made.parts))


def _framework(obj: Any) -> Framework | None:
    """The framework that an object is of. Whoever has one has imported that."""
    runnables = sys.modules.get("langchain_core.runnables")
    if runnables is not None and isinstance(obj, runnables.Runnable):
        from fineflow.adapters.langchain import framework as langchain

        return langchain
    if sys.modules.get("llama_index.core") is not None:
        try:
            from fineflow.adapters.llamaindex import framework as llamaindex
        except ImportError:  # a version that is laid out in another way: its objects are left as they are
            return None
        return llamaindex if llamaindex.known(obj) else None
    return None
