"""Runs user functions ahead whose results stock claims: those that read, and pure ones that take time.

Stock and the graph must not hold the same mutable value of a pure function, as stock's steps may change theirs. So each
side gets its own, copied before either has seen it. A value that holds parts of the argument, or that is not plain
data, cannot be copied without a difference: then stock calls the function itself. It also does so if the function
failed ahead.
"""

from __future__ import annotations

import copy
import copy as copying
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from typing import Any, NamedTuple

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.runnables.utils import AddableDict

from fineflow.adapters.analysis import Verdict
from fineflow.adapters.analysis.keys import keys_read
from fineflow.adapters.analysis.tables import is_plain, parts_of
from fineflow.adapters.analysis.values import immutable
from fineflow.adapters.core.durations import computed
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.langchain.arguments import Arguments, frozen
from fineflow.adapters.langchain.claims import aclaim, claim
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, current, plain
from fineflow.adapters.langchain.lowering.declared import functions_of
from fineflow.adapters.langchain.lowering.list_functions import judged
from fineflow.adapters.langchain.run_recorder import RunRecorder, clean
from fineflow.declare import undeclared
from fineflow.ir import Primitive
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.work import Work
from fineflow.runtime.events import now
from fineflow.runtime.loop.workers import in_thread

ABSENT: Any = object()
"""Stands for a value that cannot be copied."""

_MOST = 2000  # parts of a value that are copied, and of an argument that it may share parts with


def keys_of(step: RunnableLambda[Any, Any]) -> frozenset[str] | None:
    """Returns the keys that its functions read of their argument; None for any."""
    found = [keys_read(func) for func in functions_of(step)]
    return frozenset[str]().union(*(keys for keys in found if keys)) if None not in found else None


def takes_config(func: Any) -> bool:
    """Returns True if a function has a parameter ``config``."""
    code = getattr(undeclared(getattr(func, "__func__", func)), "__code__", None)
    return code is not None and "config" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _seen(value: Any, keys: frozenset[str] | None, config: Any) -> Any:
    """Returns what the function reads of its argument and config: calls that read the same are the same call."""
    configurable = None if config is None else config.get("configurable")
    if type(value) is AddableDict:  # stock's type for a dict that arrives in chunks
        value = dict(value)
    if keys is None or not isinstance(value, dict) or not all(key in value for key in keys):
        return value, configurable
    return {key: dict.__getitem__(value, key) for key in keys}, configurable


def _all_of(value: Any, keys: frozenset[str] | None) -> Any:
    """Returns what a pure function reads, with what stock adds to messages in place."""
    seen, _ = _seen(value, keys, None)
    return seen, frozen(seen, left_out=frozenset())


class _Both(NamedTuple):
    """The result of a pure function for each side; ABSENT for one that has to call the function itself."""

    graph: Any
    stock: Any


# --- the graph's side -----------------------------------------------------------------------------------------------


def read(p: Primitive, args: Args, run: Execution) -> Work:
    """Calls a function ahead; stock's call with the same argument claims the result."""
    current(run)
    value = args["value"]
    plain(value)
    return _compute(p, value, run) if "verdict" in p.meta else _read(p, value, run)


def _timed(func: Any, value: Any) -> Any:
    begun = now()
    found = func(value)
    computed(func, now() - begun)
    return found


def _compute(p: Primitive, value: Any, run: Execution) -> Work:
    func, verdict = p.component.func, p.meta["verdict"]

    async def start(entry: Entry) -> Any:
        entry.reports.silence()
        try:
            found = await in_thread(lambda: _timed(func, value))
        except Exception as error:  # stock's own call raises its own
            raise LeftToStock(f"the function raised {type(error).__name__}") from error
        return _Both(_whole(found), fresh_copy(found, value, *verdict.held))

    return _work(p, Arguments(_all_of(value, p.meta["keys"])), start, run, _for_graph)


def _read(p: Primitive, value: Any, run: Execution) -> Work:
    name = "afunc" if "afunc" in p.component.__dict__ and not run.call.sync else "func"
    func = p.component.__dict__.get(name)
    if func is None:
        raise LeftToStock("an async function in a sync call")
    given: dict[str, Any] = {}
    if takes_config(func):
        visible = run.call.context.get(var_child_runnable_config) or {}
        given["config"] = {"configurable": dict(visible.get("configurable") or {})}

    async def start(entry: Entry) -> Any:
        entry.reports.silence()
        entry.running()
        if name == "afunc":
            return await func(value, **given)
        return await in_thread(lambda: func(value, **given))

    return _work(p, Arguments(_seen(value, p.meta["keys"], given.get("config"))), start, run, _whole)


def _work(p: Primitive, key: Arguments, start: Any, run: Execution, view: Callable[[Any], Any]) -> Work:
    entry = run.work(p, key, start)
    if entry.reports is None:
        entry.reports = RunRecorder(p.component)
    return Work(entry, view)


def _whole(value: Any) -> Any:
    """Returns a function's result for the graph. Raises LeftToStock if stock first turns it into another value."""
    if isinstance(value, (Runnable, Awaitable, Iterator, Generator, AsyncGenerator)):
        raise LeftToStock("the function returned something that gives its value later")
    return value


def _for_graph(both: _Both) -> Any:
    if both.graph is ABSENT:
        raise LeftToStock("the function returned a part of its argument, or something else that stock may change")
    return _whole(both.graph)


# --- stock's side ---------------------------------------------------------------------------------------------------


def shadow_of_function(step: RunnableLambda[Any, Any], site: Site) -> Any:
    """Returns a copy of a step whose function runs ahead; its functions claim."""
    verdict = None
    if "afunc" not in step.__dict__ and (found := judged(step.func)).pure:
        verdict = found
    instead: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("func", lambda func: _claiming(func, site, keys_of(step))),
        ("afunc", lambda func: _aclaiming(func, site, keys_of(step))),
    )
    if verdict is not None:
        instead = (("func", lambda func: _claiming_pure(func, site, verdict)),)
    copy = copying.copy(step)
    for name, claims in instead:
        if name in step.__dict__:
            setattr(copy, name, claims(step.__dict__[name]))
    return copy


def _claiming_pure(func: Any, site: Site, verdict: Verdict) -> Callable[..., Any]:
    def usable(entry: Entry) -> bool:
        known = not isinstance(entry.value, _Both) or entry.value.stock is not ABSENT
        return known and clean(entry) and verdict.still_holds()

    def claimed(value: Any) -> Any:
        if site.here is None:
            return func(value)

        def own() -> _Both:
            found = _timed(func, value)
            return _Both(fresh_copy(found, value, *verdict.held), found)

        return claim(site, _all_of(value, verdict.keys), own, usable)[1].stock

    return claimed


def _claiming(func: Any, site: Site, keys: frozenset[str] | None) -> Callable[..., Any]:
    def claimed(value: Any, **given: Any) -> Any:
        return claim(site, _seen(value, keys, given.get("config")), lambda: func(value, **given))[1]

    def configured(value: Any, config: RunnableConfig) -> Any:
        return claimed(value, config=config)

    return configured if takes_config(func) else claimed


def _aclaiming(func: Any, site: Site, keys: frozenset[str] | None) -> Callable[..., Any]:
    async def claimed(value: Any, **given: Any) -> Any:
        key = _seen(value, keys, given.get("config"))
        return (await aclaim(site, key, lambda: func(value, **given)))[1]

    async def configured(value: Any, config: RunnableConfig) -> Any:
        return await claimed(value, config=config)

    return configured if takes_config(func) else claimed


def fresh_copy(value: Any, *given: Any) -> Any:
    """Returns a deep copy of plain data; the value itself if it is immutable.

    Nobody can tell it from what the function would return when called again. given: what the value was made of. Returns
    ABSENT for other values, for large ones, and for those that share a mutable part with ``given``: a copy would no
    longer change with it.
    """
    if immutable(value):
        return value
    if not all(is_plain(each, _MOST) for each in (value, *given)):
        return ABSENT
    if not _mutable(value).keys().isdisjoint(_mutable(*given)):
        return ABSENT
    return copy.deepcopy(value)


def _mutable(*values: Any) -> dict[int, Any]:
    """Returns the mutable parts of plain data, by id."""
    found: dict[int, Any] = {}
    todo = list(values)
    while todo:
        part = todo.pop()
        if immutable(part) or id(part) in found:
            continue
        if type(part) not in (tuple, frozenset):
            found[id(part)] = part
        todo += parts_of(part) or ()
    return found
