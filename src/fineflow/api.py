"""Start here: ``optimize`` makes a pipeline faster with one line, ``explain`` shows the plan.

lower    the user's object becomes a p-graph of primitives      adapters/core/builder.py, adapters/*/lowering/
passes   the p-graph becomes an e-graph                         passes/
decide   which calls follow the plan, and which run as stock    adapters/*/planning.py, adapters/core/plan.py
run      the e-graph runs ahead, stock claims its results       adapters/core/session.py, runtime/call/executor.py

"Stock" is the framework's own code (LangChain's, LangGraph's or LlamaIndex's). docs/design.md has the whole story.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from fineflow import tested_versions
from fineflow.adapters.registry import framework_of, is_optimized, taken, unusable
from fineflow.cost_model.basis import basis
from fineflow.cost_model.costs import costs
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.explanation import Explanation, LastCall
from fineflow.ir.text import duration, name_of
from fineflow.observe.critical import Forecasts
from fineflow.observe.gain import saved_by
from fineflow.obstacles import advice, unrecognised
from fineflow.options import Options, OptionsGiven, disabled
from fineflow.passes import PASSES, Pass, rewrite
from fineflow.runtime.queues.component_calls import limit_of
from fineflow.verification.settings import Verify

if TYPE_CHECKING:
    from fineflow.adapters.core.framework import Framework
    from fineflow.adapters.core.plan import Plan
    from fineflow.runtime.call.claims import Summary
    from fineflow.runtime.call.trace import Trace

T = TypeVar("T")

_EXPECTED = "explain(..., last_run=True) expects an object that fineflow.optimize() returned, after a call of it"
_NONE_AHEAD = (
    "no call of this one has ended in which anything ran ahead. Call it, or see explain() without last_run for why its "
    "calls run as stock"
)
_LATER: Any = object()
_NO_GAIN = "nothing in it can start earlier than stock starts it"
_NO_GAIN_YET = f"as it is, {_NO_GAIN}"


@overload
def optimize(obj: T, **options: Unpack[OptionsGiven]) -> T: ...


@overload
def optimize(**options: Unpack[OptionsGiven]) -> Callable[[T], T]: ...


def optimize(obj: Any = _LATER, **options: Unpack[OptionsGiven]) -> Any:
    """Returns ``obj`` with the same interface and the same behaviour, only faster.

    obj: a LangChain ``Runnable``, which a compiled LangGraph graph is, too; or a LlamaIndex query engine, retriever,
    response synthesizer or chat engine, a tool that calls a query engine or retriever, an agent, a workflow, an
    ``IngestionPipeline``, a ``VectorStoreIndex`` (or the class, to build one) or a ``DocumentQA``; or a function
    (also an async one, a generator function, or a bound method) that calls such objects. Anything else is returned
    unchanged, with a ``FineflowWarning``. options: the fields of :class:`fineflow.Options`, by name.

    It is also a decorator of functions and methods: ``@fineflow.optimize``, or with arguments
    ``@fineflow.optimize(max_concurrency=4)``.

    With the environment variable ``FINEFLOW_DISABLE=1``, ``obj`` is returned as it is.

    Raises: TypeError for an unknown option, and if ``passes`` are not functions; ValueError if ``timeout`` or
    ``max_concurrency`` is not a positive number, if ``verify`` or ``waste`` is not a share from 0 to 1, for an unknown
    ``trust``, ``objective`` or ``cache``, or if ``timeout`` is given for a workflow. With ``strict=True``,
    PlanningError for an unsupported object, and later, from a call that cannot be planned.
    """
    unknown = [name for name in options if name not in OptionsGiven.__annotations__]
    if unknown:
        raise TypeError(
            f"optimize got an unknown option {unknown[0]!r}; it takes {', '.join(OptionsGiven.__annotations__)}"
        )
    given = Options(**options)
    again = functools.partial(optimize, **options)
    if obj is _LATER:
        return again
    if disabled():
        return obj
    if isinstance(obj, staticmethod | classmethod):
        return type(obj)(again(obj.__func__))
    wrapped: Any = obj
    if is_optimized(obj):
        wrapped = wrapped.__wrapped__
    framework = framework_of(wrapped)
    if framework is not None:
        tested_versions.warn_once()
        return framework.optimized_class(wrapped)(wrapped, given, framework, plan)
    got = f"the class {obj.__name__}" if isinstance(obj, type) else type(obj).__name__
    text = f"fineflow.optimize expected {taken()}, got {got}"
    if given.strict:
        raise PlanningError(f"{text}{unusable()}")
    warnings.warn(f"{text}: it is left as it is{unusable()}", FineflowWarning, stacklevel=2)
    return obj


def plan(framework: Framework, obj: Any, options: Options, way: Any, *, answer: bool = False) -> Plan:
    """Lowers, rewrites, decides. Runs when an optimized object is first called in some way.

    way: how it is called, as far as plans depend on it (``Framework.ways``). answer: True if something outside the
    graph needs its output.

    Raises: PlanningError for a user's pass that raises or returns an invalid graph; GraphError, where graphs are
    verified, for one of fineflow's passes that breaks a rule.
    """
    with basis(costs) as asked:
        p_graph, lowered = framework.lower(obj, options, way)
        e_graph = rewrite(p_graph, options.passes, check=options.strict, answer=answer)
        made = framework.decide(p_graph, e_graph, lowered)
    if not lowered.builder.met.hold():
        made.snapshot.never()
    if tested_versions.of_this_process():
        tested_versions.tell_once(unrecognised(made))
    return replace(made, basis=asked)


def explain(
    obj: Any,
    *,
    input: Any = "",
    passes: Sequence[Pass] = PASSES,
    assume_pure: bool = False,
    trust: str = "packages",
    last_run: bool = False,
    graphs: bool = False,
) -> Explanation:
    """Returns the plan of an object: what it gains, what starts earlier than in stock, and what is in the way.

    Seconds are predictions, marked as such, from what this process has measured of its engines (``fineflow.costs``).
    With the environment variable ``FINEFLOW_DISABLE=1``, the plan that is not used is shown, and the first sentence
    says so.

    obj: as for ``optimize``, or a semantic variable: the program that it is part of.
    input: an example input of a runnable; needed only if calls get neither text nor a dict of texts.
    last_run: include the timings of the last call of an optimized object: each step, and the critical path.
    graphs: show, in texts, also the critical paths, each rewrite and refusal with its reason, and the graphs.

    Raises: TypeError if ``passes`` are not functions; PlanningError if a user's pass raises or returns an invalid
    graph; with ``last_run``, ValueError if the object is not optimized or nothing ran ahead in its last call.
    """
    options = Options(passes, assume_pure=assume_pure, trust=trust)
    if (explained := getattr(type(obj), "__fineflow_explain__", None)) is not None:  # a semantic variable
        return replace(cast(Explanation, explained(obj, last_run)), graphs=graphs)
    optimized = is_optimized(obj)
    if last_run and not optimized:
        raise ValueError(f"{_EXPECTED}; got {type(obj).__name__}, which is not optimized")
    own = obj.__wrapped__ if optimized else obj
    framework, off = framework_of(own), disabled() and not optimized
    if isinstance(own, type):
        why = f"it is not {taken()}" if framework is None else "what a class builds depends on its arguments"
        text = f"it is a class ({why}), and has no plan; explain an object of it"
        return Explanation(name=f"class {own.__name__}", fallback=text, taken=False, off=off)
    if framework is None:
        text = f"it is not {taken()}; optimize leaves it as it is{unusable()}"
        return Explanation(name=name_of(own), fallback=text, taken=False, off=off)
    found = _explained(framework, obj, "", options, input, obj._self_last if last_run else None)
    if last_run and not _ran(found):
        trace = None if obj._self_last is None else obj._self_last.trace
        if trace is None or not trace.inside:
            raise ValueError(f"{_EXPECTED}; {_NONE_AHEAD}")
        found = replace(found, remarks=(*found.remarks, _inside(trace)))
    return replace(found, off=off, newer=tested_versions.of_this_process(), graphs=graphs)


def _explained(
    framework: Framework, obj: Any, at: str, options: Options, input: Any, last: Summary | None
) -> Explanation:
    """Returns the explanation of an object and its parts. at: name as a part. last: a call to explain as well."""
    given, trace = obj, None
    used: list[Plan] = []  # the plan that the call followed, if it is still in use
    if is_optimized(obj):
        obj, options = given.__wrapped__, given._self_options
        if last is not None and last.trace is not None and last.trace.runs:
            trace = last.trace
            used = [each for each in given._self_plans.values() if each and each.e_graph is trace.graph]
    ways = framework.ways(obj, input) if not used else framework.ways_like(used[0].way)
    planned = given if is_optimized(given) else None
    plans = [
        next((p for p in used if p.way == way), None)
        or (planned and planned._self_in_use(way))
        or plan(framework, obj, options, way)
        for way in ways
    ]
    ahead = [entry for each in plans for entry in each.ahead(eager=options.eager)]
    shown = next(iter(used), None) or next((p for p in plans if p.ahead(eager=options.eager)), plans[0])
    entries = tuple(entry for each in plans for entry in each.entries)
    others = [each for each in plans if each is not shown]
    advised = (advice(each, functools.partial(plan, framework, obj, options, each.way)) for each in (shown, *others))
    said = (*unrecognised(shown), *next(filter(None, advised), ()))
    return Explanation(
        name=f"{name_of(obj)} ({at})" if at else name_of(obj),
        p_graph=shown.p_graph,
        e_graph=shown.e_graph,
        notes=shown.e_graph.notes,
        fallback="" if ahead else _NO_GAIN_YET if said else _NO_GAIN,
        entries=entries,
        stock=tuple(entry for entry in entries if entry not in ahead) if ahead else (),
        forecasts=Forecasts.of(shown.p_graph, shown.e_graph),
        trace=trace,
        remarks=tuple(dict.fromkeys(remark for each in plans for remark in each.remarks)) + _in_vain(last),
        advice=said,
        verified=_verified(framework, shown, options) if ahead else "",
        visits=framework.visits(shown),
        last=_last_call(framework, given, shown) if ahead else None,
        limits={p.name: most for p in shown.p_graph if (most := limit_of(p.component)) is not None},
        parts=tuple(
            _explained(framework, _part(given, part), name, options, input, _within(_part(given, part), last))
            for name, part in framework.parts(obj, shown).items()
        ),
    )


def _in_vain(last: Summary | None) -> tuple[str, ...]:
    """Says which requests of the last call were in vain, and why."""
    if last is None:
        return ()
    why = f"the call ended with {last.error}" if last.error else "the call did not take them"
    counted = {model: "1 request" if n == 1 else f"{n} requests" for model, n in sorted(last.in_vain.items())}
    return tuple(f"in the last run, {number} to {model} in vain: {why}" for model, number in counted.items())


def _last_call(framework: Framework, given: Any, shown: Plan) -> LastCall | None:
    """Returns what the last call of an optimized object gained; None if there is none that followed a plan of it."""
    last = _gained_alone(given)
    if last is None:
        return None
    parts = [given._self_part(part) for part in framework.parts(given.__wrapped__, shown).values()]
    return last.with_parts(map(_gained_alone, [*parts, *map(given._self_ahead, framework.inside(shown))]))


def _gained_alone(given: Any) -> LastCall | None:
    """Returns the same without what the calls of parts gained."""
    trace = given._self_last.trace if is_optimized(given) and given._self_last is not None else None
    if trace is None or not trace.seconds:  # of a workflow's run, only the beginning is known
        return None
    plans = ((each.p_graph, each.e_graph) for each in given._self_plans.values() if each)
    saved = saved_by(plans, trace)
    return None if saved is None else LastCall(trace.entry, trace.began, trace.seconds, saved)


def _verified(framework: Framework, shown: Plan, options: Options) -> str:
    """Says how calls that follow a plan are verified; "" if none is."""
    if not isinstance(options.verify, Verify):
        return ""
    from fineflow.adapters.core.repeatable import described

    def plan_of(part: Any) -> Plan | None:
        return plan(framework, part, options, framework.ways(part, {})[0]) if framework.knows(part) else None

    return described(framework, shown, options.verify, plan_of)


def _part(given: Any, part: Any) -> Any:
    """Returns a part as the optimized object calls it, or the part itself if ``given`` is not optimized."""
    return given._self_part(part) if is_optimized(given) else part


def _within(part: Any, last: Summary | None) -> Summary | None:
    """Returns the last call of a part if it happened during the last call of the object around it.

    If not, parts of the part may still have been called: returns a summary without steps that only says when the
    outer call began.
    """
    if last is None or last.trace is None:
        return None
    found = getattr(part, "_self_last", None)
    if found is not None and found.trace is not None and found.trace.began >= last.trace.began:
        return cast("Summary", found)
    return replace(last, trace=replace(last.trace, runs=()))


def _inside(trace: Trace) -> str:
    """Says what ran ahead in a call in which that were only calls inside functions, which are not timed one by one."""
    return (
        f"The last call ({trace.entry}) took {duration(trace.seconds)}; component calls inside functions had run for "
        f"{duration(trace.inside)} before stock made them."
    )


def _ran(found: Explanation) -> bool:
    return found.trace is not None or any(map(_ran, found.parts))
