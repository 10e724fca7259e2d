"""Visits of nodes: component calls in a function of a graph run ahead from the moment stock enters the function.

Pregel runs the user's own graph, and so decides all that can be seen of it: supersteps, events, checkpoints,
interrupts, caches, retries. The methods by which LangGraph and LangChain call a function have a wrapper, as those of
components have (``entry_wrappers``). Within a call of an optimized graph it runs the method on a shallow copy of the
step, whose function is the user's in a scope for its component calls. Elsewhere it reads one context variable.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from operator import is_
from types import FunctionType
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.config import run_in_executor
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langgraph._internal._runnable import RunnableCallable
from langgraph.func import _TaskFunction

from fineflow.adapters.core.claiming import Claiming, under_way
from fineflow.adapters.core.losses import Losses
from fineflow.adapters.core.shadows import Shadows
from fineflow.adapters.inner_calls.calls_ahead import left_to_stock
from fineflow.adapters.inner_calls.entry_wrappers import looked_through, looks_through, wrap_method
from fineflow.adapters.inner_calls.functions import forecast_with
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.inner_calls.run_figures import RunFigures
from fineflow.adapters.inner_calls.sleeping_calls import SleepingCalls
from fineflow.adapters.inner_calls.vectors_ahead import VectorsAhead
from fineflow.adapters.langchain.calls import streaming_handlers
from fineflow.adapters.langchain.inner_calls.inner_calls import HIDDEN_VALUES, claims_inside, inner_calls_of
from fineflow.adapters.langchain.user_functions import called_by_name, calls_of, components_of
from fineflow.adapters.langgraph import inner_graphs, messages, searches_ahead, supersteps, tools_ahead
from fineflow.adapters.langgraph.beside import known_around, may_act
from fineflow.adapters.langgraph.early_nodes import across
from fineflow.adapters.langgraph.inner_graphs import graphs_beside, graphs_inside
from fineflow.adapters.langgraph.messages import reader
from fineflow.adapters.langgraph.steps import attributes_of, in_executor, own_tool, steps_of, user_functions
from fineflow.adapters.langgraph.tools_ahead import Turn
from fineflow.adapters.langgraph.turns import Turns, turns_of
from fineflow.adapters.lookahead import UNKNOWN
from fineflow.adapters.lookahead.scan import Found
from fineflow.adapters.lookahead.surroundings import as_it_is, runtime_as_data
from fineflow.adapters.lookahead.values import INERT
from fineflow.declare import active
from fineflow.runtime.call.visits import Visit, Visits
from fineflow.runtime.loop.scopes import setting
from fineflow.runtime.recording import weakly

_CALLED: tuple[tuple[type, str], ...] = (
    *((kind, name) for kind in (RunnableCallable, RunnableLambda) for name in ("invoke", "ainvoke")),
    *((kind, name) for kind in (StructuredTool, Tool) for name in ("_run", "_arun")),
)
"""Methods that call the user's function."""

_KEPT = (RunnableCallable, RunnableLambda)  # all that objects of these hold is in their ``__dict__``
_HOLDING = ("func", "afunc", "coroutine")  # attributes that hold functions
_MOST = 4096  # steps that are known


_INJECTED: Mapping[str, Any] = {"writer": INERT, "store": as_it_is, "runtime": runtime_as_data}
"""What walks get in place of what LangGraph passes to functions, as ``HIDDEN_VALUES``."""


class GraphShadows(Shadows):
    """Stock runs the user's own graph. In calls of it the functions of nodes are looked through.

    across: nodes whose calls may start before stock enters them, by name; only with ``across_nodes``. losses: runs in
    which none did. turns: nodes whose model may call tools that start early, by the id of their step. tools: the ids of
    these tools. searching: of those whose searches start early, but not they themselves. copies: what runs in place of
    the graph's own steps, by their id; alone: the same for visits in which even a single call may have started before.
    Steps that are made during calls have none here: they would live as long as the graph.
    """

    def build(self, obj: Any) -> GraphShadows:
        self.shadow = obj
        turns = list(turns_of(obj, self.options.trust_tools))
        self.turns: dict[int, Turns] = {id(each.step): each for each in turns if each.gains}
        self._look_through_tools(obj)
        early = [tool for each in self.turns.values() for tool in each.tools.values() if not tool.why]
        self.tools = {id(each.tool) for each in early if not each.searches}
        self.searching = {id(each.tool) for each in early if each.searches}
        self.across = across(obj, self.options.across_nodes).nodes
        self.losses = Losses()
        self._across = frozenset(id(facts.step) for facts in self.across.values())
        self._counting = bool(self._across or self.searching)
        self.copies: dict[int, _Copy] = {}
        self.alone: dict[int, _Copy] = {}
        self.graphs = {id(each): each for each in graphs_inside(obj, self.options.trust_tools)}
        self.beside = graphs_beside(obj)
        tools = [step.obj for step in steps_of(obj) if isinstance(step.obj, BaseTool)]
        self.known_tools = {id(tool): may_act(tool, self.options.trust_tools) for tool in tools}
        self._own = frozenset(id(step.obj) for step in steps_of(obj) if type(step.obj) in _KEPT)
        return self

    def _look_through_tools(self, obj: Any) -> None:
        """Makes component calls in tools run ahead that are classes of the user's, whose objects must run."""
        for step in steps_of(obj):
            found = step.found() if own_tool(step.obj) else None
            if found is not None:
                claims_inside(found)
                self.inside[id(step.obj)] = _inside_method
                for func in step.functions:
                    looks_through(type(step.obj), func.__name__)

    def hold(self, obj: Any) -> bool:
        return self.shadow is obj

    def enters(self, kind: type) -> bool:
        """Returns True if stock's calls of steps of a class come here: else nobody would claim what starts early."""
        own = [(each, name) for each, name in _CALLED if issubclass(kind, each)]
        return all(wrap_method(each, name, _visiting, _avisiting) is not None for each, name in own)

    def in_place_of(self, here: Claiming, step: Any) -> Any:
        """Returns what runs in place of a step: a copy whose functions are looked through, or the step itself."""
        alone = self._counting and self._calls_count(step, here)
        copies = self.alone if alone else self.copies
        kept = copies.get(id(step))
        if kept is not None and kept.fits(step):
            return kept.made
        functions = _calling_functions_of(step) if alone else _functions_of(step)
        if id(step) in self.tools:
            functions = tools_ahead.claiming(here, step, functions)
        made = step
        if functions:
            made = copy.copy(step)
            made.__dict__.update(functions)
        if id(step) in self._own:
            copies[id(step)] = _Copy(step, made)
        return made

    def _calls_count(self, step: Any, here: Claiming) -> bool:
        """Returns True if even one component call of a step may have started before stock has entered it."""
        if id(step) in self.searching:
            return searches_ahead.waits(here, tools_ahead.asked.get())
        return id(step) in self._across and supersteps.looks(here)


class _Copy:
    """A step and its copy, which serves any number of visits: stock changes nothing in it."""

    __slots__ = ("_step", "_values", "made")

    def __init__(self, step: Any, made: Any) -> None:
        self._step, self.made = step, made
        self._values = (*vars(step).values(), *vars(made).values())

    def fits(self, step: Any) -> bool:
        """Returns True if another copy would be the same, and nobody has set an attribute of this one."""
        if self._step is not step:
            return False
        now = (*step.__dict__.values(), *self.made.__dict__.values())
        return len(now) == len(self._values) and all(map(is_, now, self._values))


def _inside_method(func: Any, args: Any, named: Any) -> InnerCalls | SleepingCalls | None:
    return _begin(func, HIDDEN_VALUES, None, args, named)


def install(*, across: bool) -> None:
    """Puts the wrappers around the methods that call the user's functions, once per process.

    across: also around those of supersteps.
    """
    if across:
        supersteps.install()
    for kind, name in _CALLED:
        wrap_method(kind, name, _visiting, _avisiting)
    messages.install()
    tools_ahead.install()
    inner_graphs.install()


def _visiting(own: Any, name: str) -> Any:
    call = _calling(own)

    def method(step: Any, /, *args: Any, **named: Any) -> Any:
        here = under_way.get()
        if here is None or not isinstance(here.shadows, GraphShadows):
            return call(step, *args, **named)
        runs, left = _entered(here, step, args, named)
        if left is None:
            return call(runs, *args, **named)
        with left:
            return call(runs, *args, **named)

    return method


def _avisiting(own: Any, name: str) -> Any:
    call = _calling(own)

    async def method(step: Any, /, *args: Any, **named: Any) -> Any:
        here = under_way.get()
        if here is None or not isinstance(here.shadows, GraphShadows):
            return await call(step, *args, **named)
        runs, left = _entered(here, step, args, named)
        if left is None:
            return await call(runs, *args, **named)
        with left:
            return await call(runs, *args, **named)

    return method


def _calling(own: Any) -> Callable[..., Any]:
    """Returns a function that calls a method, which may be a wrapper of instrumentation, on an object."""
    if type(own) is FunctionType:
        return own
    return lambda step, /, *args, **named: own.__get__(step, type(step))(*args, **named)


def _entered(
    here: Claiming, step: Any, args: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Any, AbstractContextManager[None] | None]:
    """Returns what runs in place of a step, and a block that leaves the function around it, if there is one to leave.

    A task that the function calls, a node of a graph that it invokes: walks of the function do not get there. They do
    go through the tools and the ``RunnableLambda`` that it calls, which run as they are.
    """
    kind, left = type(step), None
    graphs_own = RunnableCallable in kind.__mro__  # quicker than to ask the class, which is abstract
    if graphs_own:
        taken = _turn(here, step, args, named) if here.shadows.turns else None
        if not (active.get() is None and reader.get() is taken is None):
            left = setting((active, None), (reader, taken))
    elif active.get() is not None:
        return step, None
    if kind not in _KEPT and (graphs_own or RunnableLambda in kind.__mro__):  # such as LangGraph's own steps
        return step, left
    try:
        return here.shadows.in_place_of(here, step), left
    except Exception as error:
        _left(step, error)
        return step, left


def _turn(here: Claiming, step: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Turn | None:
    """Returns the turn that begins when stock enters a step; None if no tool may start early there."""
    turns = here.shadows.turns.get(id(step))
    if turns is None or turns.stops or here.call.limit is not None or here.call.facts.stops:
        return None
    config = (args[1] if len(args) > 1 else named.get("config")) or {}
    inside = "|" in (config.get("configurable", {}).get("checkpoint_ns") or "")  # of another graph
    return Turn(here, turns, _left) if known_around(here, inside=inside) else None


def _looking_through() -> GraphShadows | None:
    """Returns the shadows of the call of a graph that is under way here; None inside of other optimized calls."""
    here = under_way.get()
    return here.shadows if here is not None and isinstance(here.shadows, GraphShadows) else None


def _left(step: Any, error: Exception) -> None:
    """Warns that stock makes the component calls of a step, as ours could not begin. Raises if the call is strict."""
    shadows, name = _looking_through(), getattr(step, "__name__", None) or getattr(step, "name", None) or "a function"
    strict = shadows is not None and shadows.options.strict
    left_to_stock(f"the component calls inside {name} could not run ahead", error, strict=strict)


class _Known(NamedTuple):
    """Facts about a step. Holds neither the step nor its functions: these often refer to the graph and to the app.

    own: references to the functions it had, by attribute. gaining: attributes whose functions may gain. calling: those
    whose functions call components at all, from the first call on that looks across nodes. visits: figures of its runs.
    """

    step: weakref.ref[Any]
    own: dict[str, Callable[[], Any]]
    gaining: tuple[str, ...]
    calling: list[tuple[str, ...]]
    visits: Visits

    def holds(self, step: Any) -> bool:
        """Returns True if this is about a step as it is now."""
        return self.step() is step and all(found() is step.__dict__.get(name) for name, found in self.own.items())

    def runs(self, functions: Sequence[Any]) -> bool:
        """Returns True if this is about a step that runs one of these functions."""
        own = [found() for found in self.own.values()]
        return self.step() is not None and any(func is each for func in functions for each in own)


_known: dict[int, _Known] = {}  # by the id of a step
_adding = threading.Lock()


def _functions_of(step: Any) -> dict[str, Any]:
    """Returns functions in place of those of a step whose component calls may gain, by attribute; {} for none."""
    kept = _known_of(step)
    return _made(step, kept) if kept.gaining else {}


def _calling_functions_of(step: Any) -> dict[str, Any]:
    """Returns functions in place of those of a step that call components at all, by attribute; {} for none."""
    kept = _known_of(step)
    if not kept.calling:
        kept.calling.append(_gaining(step, components_of))
    calling = kept.calling[0]
    return _made(step, kept._replace(gaining=calling)) if calling else {}


def _known_of(step: Any) -> _Known:
    kept = _known.get(id(step))
    if kept is None or not kept.holds(step):
        if len(_known) >= _MOST:
            _known.clear()
        number, own = id(step), {name: weakly(step.__dict__.get(name)) for name in _HOLDING}
        forget = weakref.ref(step, lambda _: _known.pop(number, None))
        found = _Known(forget, own, _gaining(step, calls_of), [], Visits())
        with _adding:  # threads that run one step at the same time share its figures
            kept = _known.get(number)
            if kept is None or not kept.holds(step):
                kept = _known[number] = found
    return kept


def _gaining(step: Any, look: Callable[[Sequence[Any]], Found | None]) -> tuple[str, ...]:
    own = user_functions(step)
    scanned = look(own)
    if scanned is None:
        return ()
    claims_inside(scanned)
    return tuple(name for name, func in attributes_of(step).items() if any(func is each for each in own))


def forecast_of(obj: Any) -> Visit:
    """Returns a forecast of a step's next run, with the names by which its functions know the components."""
    functions = (obj.func,) if isinstance(obj, _TaskFunction) else user_functions(obj)
    if isinstance(obj, _TaskFunction):  # its steps are made when it is called
        kept = next((each for each in list(_known.values()) if each.runs(functions)), None)
    else:
        kept = next((each for each in [_known.get(id(obj))] if each is not None and each.step() is obj), None)
    found = calls_of(functions)
    if kept is None or found is None:
        return Visit()
    return forecast_with(kept.visits, found.components)


def _made(step: Any, kept: _Known) -> dict[str, Any]:
    hidden = {**dict.fromkeys(getattr(step, "func_accepts", ()), UNKNOWN), **HIDDEN_VALUES, **_INJECTED}
    users = {name: step.__dict__[name] for name in kept.gaining}
    made = {
        name: looked_through(called_by_name(func), partial(_begin, func, hidden, kept.visits))
        for name, func in users.items()
    }
    if "func" in made and in_executor(step.__dict__.get("afunc"), step.func):
        made["afunc"] = wraps(step.func)(partial(run_in_executor, None, made["func"]))
    return made


def _begin(
    func: Any, hidden: Mapping[str, Any], visits: Visits | None, args: Any, named: Any
) -> InnerCalls | SleepingCalls | None:
    """Returns the component calls of a function that stock is about to run.

    None outside of calls, inside of other optimized calls, and where the walks of a function around it go through it.
    """
    here = under_way.get()
    if here is None or active.get() is not None or not isinstance(here.shadows, GraphShadows):
        return None
    figures, shadows = None if visits is None else RunFigures(visits), here.shadows
    make = partial(_made_calls, here, func, hidden, args, named, figures)
    if figures is not None and figures.quiet and not (shadows.across or shadows.searching or shadows.options.eager):
        return SleepingCalls(figures, make)
    return make(None)


def _made_calls(
    here: Claiming,
    func: Any,
    hidden: Mapping[str, Any],
    args: Any,
    named: Any,
    figures: RunFigures | None,
    vectors: VectorsAhead | None,
) -> InnerCalls | None:
    try:
        streams = streaming_handlers(None)
        walked = called_by_name(func)
        calls: InnerCalls = inner_calls_of(
            here, walked, args, named, hidden, streams_models=streams, figures=figures, vectors=vectors
        )
        if here.shadows.across:
            supersteps.enter(here, func, calls)
        if here.shadows.searching and tools_ahead.holds(here, tools_ahead.asked.get()):
            searches_ahead.enter(here, func, calls, tools_ahead.asked.get())
        return calls
    except Exception as error:
        _left(func, error)
        return None
