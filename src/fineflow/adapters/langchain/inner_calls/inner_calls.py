"""LangChain's side of component calls inside user functions: the steps and nodes in whose functions they run ahead."""

from __future__ import annotations

import copy as copying
import sys
from collections.abc import Mapping
from functools import partial
from itertools import product
from types import FunctionType, MethodType
from typing import Any, TypeVar

from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import StructuredTool, Tool

from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.inner_calls.entry_wrappers import claims_of, looked_through, looks_through
from fineflow.adapters.inner_calls.functions import visits_of
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.inner_calls.run_figures import RunFigures
from fineflow.adapters.inner_calls.vectors_ahead import VectorsAhead
from fineflow.adapters.langchain import several_prompts
from fineflow.adapters.langchain.calls import Streams
from fineflow.adapters.langchain.inner_calls.classic_chains import is_chain
from fineflow.adapters.langchain.inner_calls.composed import steps_of
from fineflow.adapters.langchain.inner_calls.guests import runnables
from fineflow.adapters.langchain.inner_calls.inner_functions import HIDDEN
from fineflow.adapters.langchain.inner_calls.made_chains import makes_agents
from fineflow.adapters.langchain.user_functions import ENTRIES, functions_of
from fineflow.adapters.langchain.user_functions import looked_through as looked_through_in
from fineflow.adapters.lookahead import UNKNOWN
from fineflow.adapters.lookahead.scan import Found
from fineflow.adapters.lookahead.surroundings import Injected, config_as_data
from fineflow.declare import active
from fineflow.runtime.call.visits import InTheWay, Visits

Calls = TypeVar("Calls", bound=InnerCalls)

HIDDEN_VALUES: Mapping[str, Any] = {**dict.fromkeys(HIDDEN, UNKNOWN), "config": config_as_data}
"""What walks get in place of the callbacks and the config that stock passes to a function: a value, or a function that
makes one of what stock passes."""

COPIED = (RunnableLambda, StructuredTool, Tool)
"""Classes whose functions are attributes; others define methods."""


def looking_through(step: Any, site: Site) -> Any:
    """Returns an opaque step in whose own functions component calls run ahead."""
    if not site.looked_through:
        return step
    several_prompts.install()
    found = looked_through_in(step)
    for _, each in found.values():
        claims_inside(each)
    if type(step) in COPIED:
        copy = copying.copy(step)
        for name, func in functions_of(step).items():
            copy.__dict__[name] = looked_through(func, partial(_begin, site, func))
        return copy
    for obj, _ in found.values():
        for name in functions_of(obj):  # the user's object itself must run: its identity and its state are the user's
            looks_through(type(obj), name)
        site.shadows.inside[id(obj)] = partial(_begin, site)
    return step


def claims_inside(found: Found) -> None:
    """Makes calls of the components that a function calls claim what runs ahead."""
    for component in found.components.values():
        if isinstance(component, Runnable):  # one call of it, or of one of its steps, may gain by itself
            for part, name in product((component, *steps_of(component)), ENTRIES):
                claims_of(type(part), name)
        elif makes_agents(component):
            for name in ENTRIES:
                claims_of(sys.modules["langgraph.pregel"].Pregel, name)


def _begin(site: Site, func: Any, args: Any, named: Any) -> InnerCalls | None:
    here = site.here
    if here is None or not site.shadows.leaves:
        return None
    if active.get() is not None and is_chain(type(getattr(func, "__self__", None))):
        return None  # walks of the function around it go through chains
    visits = _visits_of(func)
    figures = None if visits is None else RunFigures(visits, patient=False)
    return inner_calls_of(here, func, args, named, streams_models=here.call.facts.streams_models, figures=figures)


def held_in(step: Any) -> tuple[InTheWay, ...]:
    """Returns where the search for component calls in an opaque step has ended before the last one."""
    functions = (func for obj, _ in looked_through_in(step).values() for func in functions_of(obj).values())
    kept = filter(None, map(_visits_of, functions))
    return tuple(dict.fromkeys(each for visits in kept for each in visits.forecast.held))


def _visits_of(func: Any) -> Visits | None:
    """Returns the figures of the runs of a function; None for other callables, whose hash may be the user's code."""
    own = func.__func__ if type(func) is MethodType else func
    return visits_of(own) if type(own) is FunctionType else None


def _hidden(instead: Any, value: Any) -> Any:
    return Injected(instead, value) if isinstance(instead, FunctionType) else instead


def inner_calls_of(
    here: Claiming,
    func: Any,
    args: Any,
    named: Any,
    hidden: Mapping[str, Any] = HIDDEN_VALUES,
    *,
    streams_models: Streams,
    figures: RunFigures | None = None,
    vectors: VectorsAhead | None = None,
    kind: type[Calls] = InnerCalls,  # type: ignore[assignment]
) -> Calls:
    """Returns the component calls of a function that stock is about to run in a call.

    hidden: parameters that stock fills with what is its own, such as the callbacks and the config of this run, and
    what walks get instead. figures, vectors: of the run, if there are some. kind: what is made.
    """
    given = {name: _hidden(hidden[name], value) if name in hidden else value for name, value in named.items()}
    shadows = here.shadows
    trusting = shadows.options.trust == "interfaces"
    components = runnables(
        shadows, shadows.options, shadows.component, trusting=trusting, streams_models=streams_models
    )
    return kind(components, here, func, args, given, options=shadows.options, figures=figures, vectors=vectors)
