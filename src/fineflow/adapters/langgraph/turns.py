"""Where a graph's model and its tools take turns: nodes whose model writes calls that a ``ToolNode`` makes next.

Found in the graph as it was built: the node leads to the ``ToolNode`` by one of its edges, or by way of nodes that are
hooks of middlewares which only look at the answer (``middleware``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, NamedTuple, cast

from langchain_core.tools import BaseTool, StructuredTool, Tool
from langgraph._internal._runnable import RunnableCallable
from langgraph.graph import StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel

from fineflow.adapters.analysis.hooks import Holds
from fineflow.adapters.core.installers import module_of, of_package
from fineflow.adapters.inner_calls.components import QUEUED
from fineflow.adapters.inner_calls.own_runs import needs_its_run
from fineflow.adapters.langchain.lowering.list_functions import judged
from fineflow.adapters.langchain.lowering.tools import declared_to_stock
from fineflow.adapters.langchain.models.streamed_answers import sums_up
from fineflow.adapters.langchain.user_functions import calls_components
from fineflow.adapters.langgraph.asking import only_asks, picks_one
from fineflow.adapters.langgraph.mcp_tools import hinted, left_to_stock, unread
from fineflow.adapters.langgraph.middleware import after_model, around_calls, writes_state
from fineflow.adapters.langgraph.searches_ahead import may_search, only_graphs
from fineflow.adapters.langgraph.steps import flat, in_executor
from fineflow.adapters.python.parts import closure
from fineflow.declare import Declaration, declaration

_HOOK = ".after_model"  # ends the names of nodes that are hooks of middlewares (langchain 1.5.2)
_DEPTH = 8  # of functions that hold functions
_CALLS, _SEARCHES = "calls of", "searches and requests in calls of"  # that start early
_STREAMED = ": in calls that stream, or all with optimize(..., stream_answers=True)"
_BESIDE = ", and no task or thread runs that your code has started"
_BETWEEN = "code of your own may run between the model's answer and the tools, and change what they read"


class Offered(NamedTuple):
    """A tool that a model may call. why: what keeps it from starting early; "" for nothing.

    functions: its sync and its async one. reads, writes: the resources that it is declared to touch. guards: it may do
    anything, so no later call of the same message starts before it. searches: not the function starts early, but the
    component calls that it makes (``searches_ahead``); if these are known to be all that it does, it does not guard.
    hinted: its server says that it reads, but not what: it may be what any other tool writes.
    """

    tool: BaseTool
    why: str
    functions: Sequence[Any] = ()
    reads: frozenset[int | str] = frozenset()
    writes: frozenset[int | str] = frozenset()
    guards: bool = False
    searches: bool = False
    hinted: bool = False

    def waits_for(self, written: frozenset[int | str]) -> bool:
        """Returns True if it may read one of the resources that earlier calls of the same message write."""
        return bool(written if self.hinted else self.reads & written)

    def holds(self, tool: Any) -> bool:
        """Returns True if this is about a tool as it is now."""
        return tool is self.tool and self.functions == (getattr(tool, "func", None), getattr(tool, "coroutine", None))


@dataclass(frozen=True, slots=True)
class Turns:
    """A node with a model, and the tools of the ``ToolNode`` that it leads to, by name.

    name: of the node, for display. graph: whose node it is. trusted: no code of the user's runs between the model's
    answer and the tools, nor beside the model, so that what tools read cannot change there, nor the messages.
    on_engine: the node's model is. at_once: it is one of a provider's, whose answer stock's ``invoke`` gets as a whole
    (``streamed_answers``). hooks: checks that middlewares still make each call; why: a reason if one may not.
    """

    name: str
    step: RunnableCallable
    graph: Pregel[Any, Any, Any, Any]
    node: ToolNode
    tools: dict[str, Offered]
    trusted: bool
    on_engine: bool = False
    at_once: bool = False
    hooks: Sequence[Holds] = ()
    why: str = ""

    def early(self, name: str) -> Offered | None:
        """Returns a tool whose calls may start while the model writes."""
        found = self.tools.get(name)
        if not self._makes_all:
            return None
        if found is not None and not found.holds(self.node.tools_by_name.get(name)):
            return None
        reads = found is not None and (found.searches or bool(found.reads))
        return None if found is None or found.why or (reads and not self.trusted) else found

    @property
    def gains(self) -> bool:
        """True if a tool may start early, or the next prompt may be prefilled while tools run."""
        return any(self.early(name) for name in self.tools) or self.prefills

    @property
    def prefills(self) -> bool:
        """True if the next prompt may be prefilled while tools run."""
        return self.trusted and self.on_engine and self._makes_all

    @property
    def _makes_all(self) -> bool:
        """True if no hook of a middleware leaves calls out, or changes them."""
        return not self.why and all(holds() for holds in self.hooks)

    def said(self, *, stream_answers: bool, called: bool = False) -> Iterator[tuple[bool, str]]:
        """Yields what goes ahead and what does not, for ``explain``: whether it does, and a sentence.

        called: by a function or a chain, which may start tasks and threads (``started``).
        """
        if self.stops:
            yield False, "the graph has breakpoints, so its tools start when stock calls them"
            return
        left: dict[str, list[str]] = {}
        for name, each in self.tools.items():
            why = "" if self.early(name) else each.why or self.why or _BETWEEN
            left.setdefault(why or (_SEARCHES if each.searches else _CALLS), []).append(name)
        for what in (_CALLS, _SEARCHES):
            if early := left.pop(what, []):
                listed = ", ".join(early)
                where = "" if stream_answers or not self.at_once else _STREAMED
                beside = _BESIDE if called else ""
                yield (
                    True,
                    f"{what} {listed} start when the model has written them, if its answer comes in pieces"
                    f"{beside}{where}",
                )
        for why, names in left.items():
            yield False, f"calls of {', '.join(names)} start when stock makes them: {why}"
        if self.prefills:
            yield True, "the beginning of its next prompt is prefilled while tools run, if it is long enough to pay"

    @property
    def stops(self) -> bool:
        """True if the graph has a breakpoint between the model and the tools."""
        return bool(self.graph.interrupt_before_nodes) or bool(self.graph.interrupt_after_nodes)


def turns_of(graph: Pregel[Any, Any, Any, Any], trust: Any = None) -> Iterator[Turns]:
    """Yields the nodes of a graph that a ``ToolNode`` follows, if its nodes run one at a time.

    trust: the option ``trust_tools``. Those of subgraphs are left out: these run ahead by themselves
    (``inner_graphs``).
    """
    builder = getattr(graph, "builder", None)
    if type(builder) is not StateGraph or _fans_out(builder):
        return
    reduced = reduced_by_packages(builder)
    for name, node in graph.nodes.items():
        if name.endswith(_HOOK):
            continue
        made, between, hooks, why = _next_tools(graph, builder, name)
        for step in flat(node.bound):
            if type(step) is RunnableCallable and made is not None:
                trusted, on_engine, at_once = looked_at(step, (made._wrap_tool_call, made._awrap_tool_call))
                trusted = trusted and reduced and all(routed_by_packages(builder, each) for each in (name, *between))
                tools = {each: offered(tool, trust) for each, tool in made.tools_by_name.items()}
                yield Turns(name, step, graph, made, tools, trusted, on_engine, at_once, hooks, why)


def _next_tools(graph: Any, builder: Any, name: str) -> tuple[Any, list[str], list[Holds], str]:
    """Returns the ``ToolNode`` that a node leads to, and the nodes between, which are hooks of middlewares.

    Also checks that these, and those around the calls, make each call; and a reason if one may not, else "".
    """
    between: list[str] = []
    found: list[tuple[list[Holds], str]] = []
    while True:
        behind = [each for each in _behind(builder, name) if each in graph.nodes and each not in between]
        made: Any = _tool_node([part for each in behind for part in flat(graph.nodes[each].bound)])
        hooks = [each for each in behind if each.endswith(_HOOK)]
        if made is not None or len(hooks) != 1:
            break
        name = hooks[0]
        between.append(name)
        found += map(after_model, flat(graph.nodes[name].bound))
    if made is not None:
        found.append(around_calls(made._wrap_tool_call, made._awrap_tool_call))
    why = next((why for _, why in found if why), "")
    return made, between, [] if why else [check for checks, _ in found for check in checks], why


def _behind(builder: Any, name: str) -> set[str]:
    """Returns the nodes that an edge leads to from a node."""
    found = {end for start, end in builder.edges if start == name}
    for branch in builder.branches.get(name, {}).values():
        found.update(builder.nodes if branch.ends is None else branch.ends.values())
    return found


def routed_by_packages(builder: Any, name: str) -> bool:
    """Returns True if no router of the user's runs behind a node."""
    paths = [branch.path for branch in builder.branches.get(name, {}).values()]
    functions = [getattr(path, "func", None) or getattr(path, "afunc", None) for path in paths]
    return all(of_package(getattr(func, "__module__", None) or "") for func in functions)


def reduced_by_packages(builder: Any) -> bool:
    """Returns True if no reducer of the user's runs when nodes have written."""
    found = [getattr(channel, "operator", None) for channel in builder.channels.values()]
    return all(func is None or of_package(getattr(func, "__module__", None) or "") for func in found)


def _fans_out(builder: Any) -> bool:
    """Returns True if several nodes may run at the same time: one of them may write what a tool reads."""
    starts = [start for start, _ in builder.edges]
    starts += [start for start, branches in builder.branches.items() for _ in branches]
    if builder.waiting_edges or len(set(starts)) < len(starts) or any(node.ends for node in builder.nodes.values()):
        return True
    return not all(picks_one(each.path) for branches in builder.branches.values() for each in branches.values())


def _tool_node(parts: Sequence[Any]) -> ToolNode | None:
    """Returns the only ``ToolNode`` among some nodes; None if there are others."""
    nodes = [part for part in parts if isinstance(part, ToolNode)]
    return nodes[0] if len(nodes) == 1 and type(nodes[0]) is ToolNode else None


def offered(tool: BaseTool, trust: Any = None) -> Offered:
    """Returns what is known of a tool: whether its calls may start early. trust: the option ``trust_tools``."""
    if type(tool) not in (StructuredTool, Tool):
        return Offered(tool, f"it is a {type(tool).__name__}", guards=True)
    made = cast(StructuredTool, tool)  # both classes hold functions
    both = (made.func, made.coroutine)
    functions = [func for func in both if func is not None]
    said = [found for func in functions if (found := declaration(func)) is not None]
    hint = None if said else hinted(made, trust)
    said = said if hint is None else [hint] * len(functions)
    if not functions or len(said) < len(functions):
        pure = bool(functions) and all(judged(func).pure or writes_state(func) for func in functions)
        if not said and may_search(made):
            return Offered(tool, "", both, guards=True, searches=True)
        return Offered(tool, "its effects are not declared", both, guards=not pure)
    reads, writes = (_resources(said, name) for name in ("reads", "writes"))
    structured = type(tool) is StructuredTool
    why = f"it is a {type(tool).__name__}" if not structured else left_to_stock(made)
    why = why or declared_to_stock(made, said, unread(made))
    if not why and (name := needs_its_run(functions)):
        why = f"it refers to {name}, which belongs to the run that stock opens"
    if not why and only_graphs(functions):
        why = "it calls a graph, which belongs to the run that stock opens"
    searches = not why and any(map(calls_components, functions))
    return Offered(tool, why, both, reads, writes, searches=searches, hinted=hint is not None)


def _resources(said: Sequence[Declaration], name: str) -> frozenset[int | str]:
    found = [resource for each in said for resource in getattr(each, name)]
    return frozenset(each if isinstance(each, str) else id(each) for each in found)


def looked_at(step: RunnableCallable, hooks: Sequence[Any]) -> tuple[bool, bool, bool]:
    """Returns whether a node is trusted, whether it holds a model on an engine, and one of a provider's.

    Trusted is a function of packages that holds none of the user's, or a user's that only asks its model. hooks:
    functions that it holds for the node of the tools.
    """
    trusted, on_engine, at_once = True, False, False
    todo: list[tuple[Any, int]] = [(step.func, 0)]
    todo += [] if in_executor(step.afunc, step.func) else [(step.afunc, 0)]
    seen = {id(getattr(each, "__func__", each)) for each in hooks}  # methods, where LangSmith does not wrap them
    while todo:
        func, depth = todo.pop()
        func = getattr(func, "__func__", func)
        if func is None or id(func) in seen:
            continue
        seen.add(id(func))
        if not isinstance(func, FunctionType):  # an object that is called, a partial
            trusted = False
            continue
        if depth > _DEPTH or not of_package(module_of(func)):
            trusted = trusted and depth == 0 and only_asks(func)
            continue
        held = list(closure(func).values())
        held += [part for each in held if isinstance(each, list | tuple) for part in each]
        todo += [(each, depth + 1) for each in held if isinstance(each, FunctionType | MethodType)]
        models = [getattr(each, "bound", each) for each in held]
        on_engine = on_engine or any(getattr(type(each), QUEUED, False) for each in models)
        at_once = at_once or any(sums_up(each) and not getattr(each, "streaming", False) for each in models)
    return trusted, on_engine, at_once
