"""Wrappers around the methods of Pregel's loop that begin a superstep and take a node's writes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import CONFIG_KEY_TASK_ID
from langgraph._internal._runnable import RunnableCallable
from langgraph.pregel._loop import PregelLoop

from fineflow.adapters.core.claiming import Claiming, under_way
from fineflow.adapters.core.installers import of_package
from fineflow.adapters.inner_calls.entry_wrappers import wrap_method
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.langgraph.ahead_of_nodes import AheadOfNodes
from fineflow.adapters.langgraph.node_facts import NodeFacts
from fineflow.errors import FineflowWarning

_HELD = "_fineflow_ahead"  # attribute of a loop


_WHOLE = ("invoke", "ainvoke")
"""Calls during which nobody reads what nodes write: a reader of a stream may do anything between two supersteps."""


class _Looking:
    """Of one call of a graph: what is ahead of its nodes."""

    begun = False
    ahead: AheadOfNodes | None = None


def install() -> None:
    """Looks at the supersteps of graphs, from now on."""
    wrap_method(PregelLoop, "tick", _beginning)
    wrap_method(PregelLoop, "put_writes", _writing)


def _beginning(own: Any, name: str) -> Any:
    def method(loop: Any) -> bool:
        goes_on: bool = own(loop)
        nodes = _nodes(loop) if goes_on else None
        if nodes:
            try:
                _begin(loop, nodes)
            except Exception as error:
                _left(error)
        return goes_on

    return method


def _nodes(loop: Any) -> Mapping[str, NodeFacts] | None:
    """Returns what is known of the nodes of the graph whose call is under way here, if this is its loop."""
    here = under_way.get()
    nodes: Mapping[str, NodeFacts] | None = getattr(here and here.shadows, "across", None)
    if here is None or not nodes or loop.is_nested or loop.nodes is not here.shadows.shadow.nodes:
        return None
    stops = loop.interrupt_before or loop.interrupt_after or here.call.facts.stops
    if here.shadows.options.across_nodes is None and here.call.entry not in _WHOLE:
        return None
    return None if stops or here.call.limit is not None or loop.cache is not None else nodes


def _begin(loop: Any, nodes: Mapping[str, NodeFacts]) -> None:
    here = under_way.get()
    assert here is not None
    looking = here.call.memory(_Looking)
    if not looking.begun:
        looking.begun = True
        alone = here.shadows.options.across_nodes or _known_handlers(loop)
        if alone and not here.shadows.losses.skips():
            looking.ahead = AheadOfNodes(here, loop, nodes, here.shadows.losses)
            setattr(loop, _HELD, looking.ahead)
    ahead: AheadOfNodes | None = loop.__dict__.get(_HELD)
    claimed = here.shadows.enters(RunnableCallable) and wrap_method(PregelLoop, "put_writes", _writing) is not None
    if ahead is not None and claimed:
        ahead.begin_superstep()


def _known_handlers(loop: Any) -> bool:
    """Returns True if all handlers of a run are of packages: the user's own may change what later nodes read."""
    handlers = loop.manager.handlers if loop.manager is not None else ()
    return all(of_package(type(each).__module__) for each in handlers)


def _writing(own: Any, name: str) -> Any:
    def method(loop: Any, task_id: str, writes: Any, **named: Any) -> None:
        own(loop, task_id, writes, **named)
        ahead: AheadOfNodes | None = loop.__dict__.get(_HELD)
        if ahead is not None:
            try:
                ahead.write(task_id, writes)
            except Exception as error:
                _left(error)

    return method


def _left(error: Exception) -> None:
    text = f"the component calls of the next nodes could not run ahead ({type(error).__name__}: {error})"
    warnings.warn(f"{text}; they start when stock enters these. Please report this.", FineflowWarning, stacklevel=3)


def looks(here: Claiming) -> bool:
    """Returns True if this call of a graph looks ahead of its nodes."""
    return here.call.memory(_Looking).ahead is not None


def enter(here: Claiming, func: Any, calls: InnerCalls) -> None:
    """Lets the calls of a function of a node claim what has been started for it."""
    ahead = here.call.memory(_Looking).ahead
    if ahead is not None:
        config: Any = var_child_runnable_config.get() or {}
        ahead.enter(str((config.get("configurable") or {}).get(CONFIG_KEY_TASK_ID)), func, calls)
