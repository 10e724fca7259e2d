"""What is known of a graph's nodes before they run: functions, keys that they read, triggers that they set."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph._internal._runnable import RunnableCallable
from langgraph.channels import BinaryOperatorAggregate, EphemeralValue, LastValue, NamedBarrierValue
from langgraph.graph import END
from langgraph.graph._branch import BranchSpec
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.pregel._write import ChannelWrite, ChannelWriteEntry

from fineflow.adapters.langchain.user_functions import calls_components
from fineflow.adapters.langgraph.steps import user_functions

TRIGGERS = (EphemeralValue, NamedBarrierValue)
"""Channels that start a node in the next superstep: of an edge, of an edge from several nodes."""

_KEPT = (LastValue, BinaryOperatorAggregate)
"""Channels whose value stays what it is until a node writes it."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node that runs one function of the user's on a dict of the state.

    step: its runnable. keys: of the state that it reads. triggers: what it writes, when it ends, to channels that start
    nodes. routers: decide on more.
    """

    step: RunnableCallable
    keys: tuple[str, ...]
    triggers: tuple[tuple[str, Any], ...]
    routers: tuple[Router, ...]

    @property
    def functions(self) -> tuple[Any, Any]:
        """The sync and the async function, None for one that is not there."""
        return self.step.func, self.step.afunc


@dataclass(frozen=True, slots=True)
class Router:
    """A function behind a node that returns the names of the nodes that follow.

    keys: of the state that it reads. ends: the nodes, by what it returns; None if it returns their names.
    """

    step: RunnableCallable
    keys: tuple[str, ...]
    ends: Mapping[Any, str] | None

    def channels(self, value: Any, nodes: Container[str]) -> Sequence[tuple[str, Any]] | None:
        """Returns what is written for a value that it returns; None for other values, such as a ``Send``."""
        names = value if type(value) in (list, tuple) else [value]
        if self.ends is not None:
            names = [self.ends.get(each) if isinstance(each, Hashable) else None for each in names]
        if not all(type(name) is str and (name == END or name in nodes) for name in names):
            return None
        return [(f"branch:to:{name}", None) for name in names if name != END]


def facts_of(graph: Pregel[Any, Any, Any, Any]) -> Mapping[str, NodeFacts]:
    """Returns the nodes of a graph whose calls may start before stock enters them, and those that may be before such.

    {} if there is nothing to gain: no node that calls components comes after another one.
    """
    if not isinstance(graph, CompiledStateGraph) or graph.cache is not None:
        return {}
    made = {name: _facts(graph, name) for name in graph.nodes if name != "__start__"}
    found = {name: facts for name, facts in made.items() if facts is not None}
    calling = [facts for facts in found.values() if any(map(calls_components, user_functions(facts.step)))]
    return found if calling and len(made) > 1 else {}


def _facts(graph: CompiledStateGraph[Any, Any, Any, Any], name: str) -> NodeFacts | None:
    node = graph.nodes[name]
    step, keys = node.bound, node.channels
    if type(step) is not RunnableCallable or step.explode_args or step.kwargs or not user_functions(step):
        return None
    if not isinstance(keys, list) or node.mapper is not None or node.subgraphs:
        return None
    if not all(isinstance(graph.channels.get(key), _KEPT) for key in keys):
        return None
    written = [entry for each in node.writers if isinstance(each, ChannelWrite) for entry in each.writes]
    triggers = tuple((each.channel, each.value) for each in written if isinstance(each, ChannelWriteEntry))
    if not all(isinstance(graph.channels.get(channel), TRIGGERS) for channel, _ in triggers):
        return None
    others = [each for each in node.writers if not isinstance(each, ChannelWrite)]
    routers = [router for each in others if (router := _router(graph, name, each)) is not None]
    return NodeFacts(step, tuple(keys), triggers, tuple(routers)) if len(routers) == len(others) else None


def _router(graph: CompiledStateGraph[Any, Any, Any, Any], name: str, writer: Any) -> Router | None:
    branch = getattr(getattr(writer, "func", None), "__self__", None)
    if not isinstance(branch, BranchSpec) or type(branch.path) is not RunnableCallable or branch.path.kwargs:
        return None
    schema = branch.input_schema or graph.builder.nodes[name].input_schema
    if graph.schema_to_mapper.get(schema) is not None or schema not in graph.builder.schemas:
        return None
    keys = tuple(graph.builder.schemas[schema])
    kept = all(isinstance(graph.channels.get(key), _KEPT) for key in keys)
    return Router(branch.path, keys, branch.ends) if kept else None
