"""Predicts what running ahead would gain in methods of the user's own classes, in apps that run as they are."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.retrievers import RecursiveRetriever

from fineflow.adapters.inner_calls.dry_calls import DryCalls
from fineflow.adapters.inner_calls.entry_wrappers import Begin, looks_through
from fineflow.adapters.llamaindex.agents.steps import StepComponents, StepFinder, steps_of, walked
from fineflow.adapters.llamaindex.inner_calls import IndexComponents
from fineflow.adapters.llamaindex.lowering.retrieval.retrievers import follows_links
from fineflow.adapters.llamaindex.reading import Readings
from fineflow.adapters.llamaindex.user_functions import called_by, functions_of
from fineflow.adapters.lookahead.values import Args, Named
from fineflow.options import Options

_MOST = 1024  # objects that are known


def side_by_side(retriever: Any, parts: Sequence[tuple[Any, float]]) -> tuple[float, int]:
    """Returns what would be saved if the parts that retrieved nodes refer to ran concurrently, and how many would.

    parts: what a call of the retriever called, in order, with their seconds.
    """
    if not follows_links(retriever):
        return 0.0, 0
    linked = [(part, seconds) for part, seconds in parts if isinstance(part, BaseQueryEngine | BaseRetriever)]
    if isinstance(retriever, RecursiveRetriever):  # its levels follow each other: retrievers, then engines
        levels = [[s for part, s in linked[1:] if isinstance(part, kind)] for kind in (BaseRetriever, BaseQueryEngine)]
    else:
        levels = [[seconds for _, seconds in linked]]
    saved = sum(sum(level) - max(level, default=0.0) for level in levels)
    return saved, sum(max(len(level) - 1, 0) for level in levels)


class DryStepCalls(DryCalls):
    """The prediction for one run of a step of a user's workflow."""

    finder = StepFinder


class DryRuns:
    """Makes the predictions; keeps what is found out about objects while they live. ended: see ``DryCalls``."""

    def __init__(self, ended: Callable[[DryCalls], None]) -> None:
        self._ended = ended
        self._known: dict[int, tuple[weakref.ref[Any], Readings | None]] = {}

    def prepare(self, obj: Any) -> None:
        """Finds the methods of an object whose component calls may gain, once while it lives."""
        known = self._known.get(id(obj))
        if known is not None and known[0]() is obj:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        functions = functions_of(obj)
        components = called_by(*functions.values())
        readings = Readings(Options(), components) if components else None
        for name in functions if components else ():
            looks_through(type(obj), name)
        try:
            self._known[id(obj)] = weakref.ref(obj), readings
        except TypeError:  # without weak references
            return

    def called(self, obj: Any, given: Any, *, sync: bool) -> DryCalls | None:
        """Returns the prediction for a step of a workflow. given: its name, and the arguments of the call."""
        if given is None:  # of other objects, see ``method``
            return None
        name, arguments = given
        func = steps_of(obj).get(name)
        if func is None:
            return None
        readings = self._readings_of(obj)
        components = StepComponents(Options(), lambda part: part, readings)
        args = [walked(each) for each in arguments.args]
        named = {key: walked(each) for key, each in arguments.kwargs.items()}
        return self._made(DryStepCalls, components, MethodType(func, obj), args, named)

    def _readings_of(self, workflow: Any) -> Readings:
        known = self._known.get(id(workflow))
        if known is not None and known[0]() is workflow and known[1] is not None:
            return known[1]
        methods = [MethodType(func, workflow) for func in steps_of(workflow).values()]
        readings = Readings(Options(), called_by(*methods))
        self._known[id(workflow)] = weakref.ref(workflow), readings
        return readings

    def method(self, own: Any, obj: Any) -> Begin | None:
        """Returns how a call of a method is predicted; None if it has nothing to gain. See ``watching``."""
        known = self._known.get(id(obj))
        if known is None or known[0]() is not obj or known[1] is None:
            return None
        return partial(self._calls, known[1], MethodType(inspect.unwrap(own), obj))

    def _calls(self, readings: Readings, func: Any, args: Args, named: Named) -> DryCalls:
        return self._made(DryCalls, IndexComponents(Options(), lambda part: part, readings), func, args, named)

    def _made(self, kind: type[DryCalls], components: IndexComponents, func: Any, args: Args, named: Named) -> DryCalls:
        options = components.options
        return kind(components, func, args, named, options=options, gain=lambda call: 0.0, ended=self._ended)
