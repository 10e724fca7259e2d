"""Nodes of a graph whose calls need nothing of a node that runs before them, as far as their code shows.

Only where there are such nodes does a run look ahead of its nodes by itself: in other graphs it would cost something
and bring nothing. Nothing else depends on it. What a node reads of the state, and what it writes, are the constant keys
in its code. A node that may do more than to ask components is in the way of all that follow it, and begins itself only
when all before it have ended.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

from langgraph.graph import END, START

from fineflow.adapters.analysis import Verdict, asking
from fineflow.adapters.analysis.keys import keys_read, keys_returned
from fineflow.adapters.analysis.sources import without_waiting
from fineflow.adapters.langchain.repeating import reads
from fineflow.adapters.langchain.user_functions import calls_components
from fineflow.adapters.langgraph.node_facts import NodeFacts, facts_of
from fineflow.adapters.langgraph.steps import attributes_of, user_functions
from fineflow.adapters.python.parts import names_in

_DECIDE = frozenset({"Command", "Send", "interrupt"})
"""Names in a function that decides which nodes run next, or whether the run goes on."""


class Ahead(NamedTuple):
    """Nodes that a run of a graph looks ahead of. nodes: facts by name. free: names of those that need none before."""

    nodes: Mapping[str, NodeFacts]
    free: frozenset[str]


NOTHING = Ahead({}, frozenset())


def across(graph: Any, wanted: bool | None) -> Ahead:
    """Returns what a run of a graph looks ahead of. wanted: the option ``across_nodes``; None: if a node is free."""
    facts = {} if wanted is False else facts_of(graph)
    stops = bool(facts) and bool(graph.interrupt_before_nodes or graph.interrupt_after_nodes)
    if not facts or (stops and wanted is None):
        return NOTHING
    known = _Dependencies(graph, facts)
    free = frozenset(name for name in facts if known.calls(name) and known.free(name) and not stops)
    return Ahead(facts, free) if wanted or free else NOTHING


class _Dependencies:
    """The nodes of a graph: in which superstep they run first, what each needs of others."""

    def __init__(self, graph: Any, facts: Mapping[str, NodeFacts]) -> None:
        self._facts, builder = facts, graph.builder
        self._keys = frozenset(graph.channels)
        self._joins = [(set(starts), end) for starts, end in builder.waiting_edges]
        self._edges = [(start, end) for start, end in builder.edges if end != END]
        self._edges += [(start, end) for starts, end in self._joins for start in starts]
        self._branches = {
            name: {end for each in specs.values() for end in (graph.nodes if each.ends is None else each.ends.values())}
            for name, specs in builder.branches.items()
        }
        self._sent = {
            end for name, specs in builder.branches.items() if _sends(specs.values()) for end in self._branches[name]
        }
        self._levels = self._all_levels()
        self._verdicts = {name: list(map(_verdict, user_functions(each.step))) for name, each in facts.items()}
        self._writes = {name: self._written_by(name) for name in graph.nodes}

    def calls(self, name: str) -> bool:
        return any(map(calls_components, user_functions(self._facts[name].step)))

    def free(self, name: str) -> bool:
        """Returns True if a node that makes calls runs before this one, which does not need it."""
        before = self._before(name) if self._only_asks(name) else set[str]()
        needed, todo = set[str](), [name]
        while todo:
            last = todo.pop()
            found = {each for each in before - needed - {name} if self._needs(last, each)}
            needed |= found
            todo += found
        return any(each in self._facts and self.calls(each) and self._certain(each, name) for each in before - needed)

    def _before(self, name: str) -> set[str]:
        level = self._levels.get(name, 0)
        return {each for each, other in self._levels.items() if other < level and each != START}

    def _needs(self, name: str, other: str) -> bool:
        if other not in self._before(name):
            return False
        if not (self._only_asks(name) and self._only_asks(other)) or self._decides(other):
            return True
        return not self._read_by(name).isdisjoint(self._writes[other])

    def _only_asks(self, name: str) -> bool:
        """Returns True if a node does no more than to ask components, as far as its code shows, and runs once."""
        found = self._verdicts.get(name, ()) if name not in self._sent else ()
        return bool(found) and all(each.pure or each.unordered for each in found)

    def _decides(self, name: str) -> bool:
        """Returns True if what a node writes may decide, by the router behind it, which one follows."""
        if not _DECIDE.isdisjoint(self._names(name)):
            return True
        if name not in self._branches:
            return False
        read = [keys_read(each) for router in self._facts[name].routers for each in user_functions(router.step)]
        return not read or any(keys is None or not keys.isdisjoint(self._writes[name]) for keys in read)

    def _certain(self, other: str, name: str) -> bool:
        """Returns True if a node has run in every run in which another one does, as far as plain edges show."""
        return self._leads(START, other) or self._leads(other, name)

    def _leads(self, start: str, end: str) -> bool:
        seen, todo = {start}, [start]
        while todo:
            last = todo.pop()
            found = {after for before, after in self._edges if before == last} - seen
            seen |= found
            todo += found
        return end in seen

    def _all_levels(self) -> dict[str, int]:
        """Returns the superstep in which each node runs at the earliest; -1 for the beginning."""
        levels = {START: -1}
        joined = {(start, end) for starts, end in self._joins for start in starts}
        single = [each for each in self._edges if each not in joined]
        single += [(start, end) for start, ends in self._branches.items() for end in ends]
        for _ in self._keys:  # among them one at least for each node
            for start, end in single:
                if start in levels and end != END:
                    levels[end] = min(levels.get(end, levels[start] + 1), levels[start] + 1)
            for starts, end in self._joins:
                if starts <= levels.keys():
                    levels[end] = max(levels[each] for each in starts) + 1
        return levels

    def _read_by(self, name: str) -> frozenset[str]:
        found = [each.keys for each in self._verdicts[name]]
        return frozenset(self._facts[name].keys if None in found else (key for keys in found for key in keys or ()))

    def _written_by(self, name: str) -> frozenset[str]:
        facts = self._facts.get(name)
        found = [keys_returned(each) for each in user_functions(facts.step)] if facts is not None else [None]
        return self._keys if None in found else frozenset(key for keys in found for key in keys or ())

    def _names(self, name: str) -> frozenset[str]:
        return _names_in(user_functions(self._facts[name].step))


def _names_in(functions: Iterable[Any]) -> frozenset[str]:
    """Returns the names of globals and attributes in the code of functions."""
    plain = (getattr(each, "__func__", each) for each in functions)
    return frozenset().union(*(names_in(func.__code__) for func in plain if type(func) is FunctionType))


def _sends(routers: Iterable[Any]) -> bool:
    """Returns True if a router may send tasks: nobody knows how often the node runs that it leads to."""
    return any("Send" in _names_in(attributes_of(each.path).values()) for each in routers)


def _verdict(func: Any) -> Verdict:
    """Returns the verdict on a function that may ask components; on a coroutine function as if it did not wait."""
    if not inspect.iscoroutinefunction(func):
        return asking(func, reads)[0]
    plain = without_waiting(func)
    return Verdict(False, "is asynchronous") if plain is None else asking(plain, reads)[0]
