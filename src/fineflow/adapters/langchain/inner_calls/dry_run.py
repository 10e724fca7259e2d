"""Predicts what running ahead would gain in user functions that LangChain calls, in apps that run as they are."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any

from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.utils import accepts_config, accepts_run_manager
from langchain_core.tools import BaseTool

from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.inner_calls.bounds import AT_ONCE
from fineflow.adapters.inner_calls.components import Components
from fineflow.adapters.inner_calls.dry_calls import DryCalls, predicting
from fineflow.adapters.inner_calls.entry_wrappers import Begin, looks_through
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.adapters.langchain import several_prompts
from fineflow.adapters.langchain.inner_calls.classic_chains import is_chain
from fineflow.adapters.langchain.inner_calls.guests import runnables
from fineflow.adapters.langchain.inner_calls.inner_calls import COPIED, claims_inside
from fineflow.adapters.langchain.inner_calls.inner_functions import HIDDEN
from fineflow.adapters.langchain.user_functions import functions_of, looked_through
from fineflow.adapters.lookahead import UNKNOWN

_MOST = 1024  # objects that are known


def sent_one_by_one(chain: Any, asked: int) -> float:
    """Returns the share of a sync chain's requests that would be saved if all of them were sent together."""
    return 1 - 1 / min(asked, AT_ONCE) if asked > 1 and several_prompts.asks_several(chain) else 0.0


class DryRuns:
    """Makes the predictions; keeps what is found out about objects while they live.

    planned: makes the proxy of an object, by which its components are planned. gain, ended: see ``DryCalls``.
    """

    def __init__(
        self,
        planned: Callable[[Any], Any],
        gain: Callable[[FoundCall], float],
        ended: Callable[[DryCalls], None],
    ) -> None:
        self._planned, self._gain, self._ended = planned, gain, ended
        self.guests: Sequence[Callable[[], Components]] | None = None
        self._known: dict[int, weakref.ref[Any]] = {}
        self._inside: dict[int, tuple[weakref.ref[Any], Planned]] = {}

    def prepare(self, obj: Any) -> None:
        """Finds the functions in an object whose component calls may gain, once while it lives."""
        known = self._known.get(id(obj))
        if known is not None and known() is obj:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
            self._inside.clear()
        try:
            self._known[id(obj)] = weakref.ref(obj)
            found = looked_through(obj)
            several_prompts.install()
            for each, scanned in found.values():
                claims_inside(scanned)
                if type(each) not in COPIED:
                    for name in functions_of(each):
                        looks_through(type(each), name)
                self._inside[id(each)] = weakref.ref(each), self._planned(obj)
        except TypeError:  # without weak references
            return

    def called(self, obj: Any, given: Any, *, sync: bool) -> DryCalls | None:
        """Returns the prediction for a function or a tool that is about to be called; None for anything else."""
        if type(obj) is RunnableLambda:
            return self._function(obj, given, sync=sync)
        return self._tool(obj, given, sync=sync) if type(obj) in COPIED else None

    def _function(self, step: RunnableLambda[Any, Any], value: Any, *, sync: bool) -> DryCalls | None:
        proxy = self._proxy(step)
        names = ("func",) if sync else ("afunc", "func")
        func = next((step.__dict__[name] for name in names if name in step.__dict__), None)
        if proxy is None or func is None:
            return None
        given = {"config": accepts_config(func), "run_manager": accepts_run_manager(func)}
        return self._calls(proxy, func, [value], {name: UNKNOWN for name, takes in given.items() if takes})

    def _tool(self, tool: BaseTool, given: Any, *, sync: bool) -> DryCalls | None:
        proxy, functions = self._proxy(tool), functions_of(tool)
        names = ("func",) if sync else ("coroutine", "func")
        func = next((functions[name] for name in names if name in functions), None)
        if proxy is None or func is None or not isinstance(given, dict):
            return None
        takes = inspect.signature(func).parameters
        return self._calls(proxy, func, [], {**given, **{name: UNKNOWN for name in HIDDEN if name in takes}})

    def method(self, own: Any, obj: Any) -> Begin | None:
        """Returns how a call of a method is predicted; None if it has nothing to gain. See ``watching``."""
        proxy = self._proxy(obj)
        return None if proxy is None else partial(self._of_method, proxy, MethodType(inspect.unwrap(own), obj))

    def _of_method(self, proxy: Planned, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> DryCalls | None:
        if predicting() and is_chain(type(func.__self__)):
            return None  # walks of the function around it go through chains
        return self._calls(proxy, func, args, {**named, **{name: UNKNOWN for name in named if name in HIDDEN}})

    def _calls(self, proxy: Planned, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> DryCalls:
        options = proxy._self_options
        components = runnables(self, options, proxy._self_ahead)
        return DryCalls(components, func, args, named, options=options, gain=self._gain, ended=self._ended)

    def _proxy(self, obj: Any) -> Planned | None:
        known = self._inside.get(id(obj))
        return known[1] if known is not None and known[0]() is obj else None
