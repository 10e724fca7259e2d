"""Component calls inside tools that start while the model writes, where nobody has declared what the tools do.

When the JSON of a call is complete, a walk goes through the tool's function with its arguments. Searches and requests
to models that it is certain to make start; all else waits for stock. Nothing of the function itself runs. When stock
calls the function for this call of the model, its own walk takes over what has started, and the function's calls of
components claim it by equal arguments. What stock does not ask for is ended.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from langchain_core.prompts import BasePromptTemplate, PromptTemplate
from langchain_core.tools import StructuredTool, Tool
from langchain_core.tools.base import _get_runnable_config_param  # private, guarded by the pinned major version
from langgraph.pregel import Pregel

from fineflow.adapters.analysis.pydantic_fields import plain_model
from fineflow.adapters.core.claiming import Claiming
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.adapters.inner_calls.inner_calls import InnerCalls
from fineflow.adapters.inner_calls.predicted_calls import PredictedCalls
from fineflow.adapters.langchain.calls import streaming_handlers
from fineflow.adapters.langchain.inner_calls.inner_calls import inner_calls_of
from fineflow.adapters.langchain.inner_calls.inner_functions import HIDDEN
from fineflow.adapters.langchain.inner_calls.runnables import reads
from fineflow.adapters.langchain.user_functions import ENTRIES, called_by_name, components_of
from fineflow.adapters.langgraph.messages import reader
from fineflow.adapters.lookahead import UNKNOWN
from fineflow.adapters.python.parts import closure
from fineflow.ir import Effect, Op, Primitive
from fineflow.ir.meta import CORES

_ASKS = frozenset({Op.PREFILL, Op.PARTIAL_PREFILL, Op.DECODE, Op.PARTIAL_DECODE})
_USERS = frozenset({Op.TOOL, Op.CALL})  # functions that are declared to read
_RETRIEVER_TOOLS = "langchain_core.tools.retriever"
"""The module of ``create_retriever_tool``."""


def may_search(tool: StructuredTool | Tool) -> bool:
    """Returns True if component calls of a tool's function may start as soon as its arguments are known."""
    functions = [func for func in (tool.func, tool.coroutine) if func is not None]
    checked = tool.args_schema is not None or type(tool) is not Tool  # without a schema a text is passed on as it is
    known = (plain_model(tool.args_schema) or not checked) and not tool._injected_args_keys
    return known and components_of(functions) is not None and not only_graphs(functions)


def only_graphs(functions: Sequence[Any]) -> bool:
    """Returns True if all components that functions call are graphs: what these ask for is known when they run."""
    found = components_of(functions)
    return (
        found is not None and bool(found.components) and all(isinstance(p, Pregel) for p in found.components.values())
    )


class SearchesAhead(PredictedCalls):
    """Starts searches and requests of a tool's function before stock calls it.

    alone: an earlier call of the message may write what a search reads, so only requests to engines start.
    """

    alone = False
    _may_embed = False  # vectors are those of one walk: that of stock's call makes its own

    @property
    def only_reads(self) -> bool:
        """True if the function is known to do no more than to call components that read."""
        with self._lock:  # a result may be there already, and another walk under way
            walked = bool(self._table.calls)  # if walks do not pay, there was none
            return walked and (self._finder.through or self._renders_what_it_reads())

    def _renders_what_it_reads(self) -> bool:
        """Returns True for the function of ``create_retriever_tool`` with a retriever that only reads.

        Walks do not get through it while its documents are missing.
        """
        if getattr(self._func, "__module__", "") != _RETRIEVER_TOOLS:
            return False
        prompts = [value for value in closure(self._func).values() if isinstance(value, BasePromptTemplate)]
        parts = [self._table.part(call.component) for call in self._table.calls]
        reads = all(part is not None and self._components.reads_only(part, "invoke", UNKNOWN) for part in parts)
        return reads and all(type(prompt) is PromptTemplate for prompt in prompts)

    def _fill(self) -> None:
        self._waiting = [call for call in self._waiting if self._reads(call)]
        super()._fill()

    def _reads(self, call: FoundCall) -> bool:
        """Returns True for a call that changes nothing, and that is made of no tools or functions of the user's."""
        if self._components.embedded(call.component, call.name, call.args, call.named) is not None:
            return False  # stock's walk embeds the texts by itself
        part = self._table.part(call.component)
        if part is None:
            return not self.alone
        if call.name not in ENTRIES:
            return False
        invocation = self._components.invocation(part, call.name, call.args, call.named, None)
        plan = part._self_current(invocation.way)
        return plan is not None and plan.all_are(_only_asks if self.alone else _only_reads)

    def _learn(self) -> None:
        """Leaves it to stock's own call of the function to tell whether walks pay: a run may end before it."""


def _only_reads(p: Primitive) -> bool:
    slows = p.op in _ASKS and p.meta.get("device") == CORES  # the model that writes, if it runs there, too
    return reads(p) and p.op not in _USERS and not slows


def _only_asks(p: Primitive) -> bool:
    return _only_reads(p) and p.effects.kind not in (Effect.READ, Effect.EXTERNAL)


class _Begun:
    """Of one call of a graph: what has started for calls of tools, by the ids of these."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[Any, SearchesAhead]] = {}


def start(
    here: Claiming, tool: StructuredTool | Tool, given: Any, number: str, *, alone: bool
) -> tuple[bool, Callable[[], None]]:
    """Starts what a call of a tool is going to ask for.

    given: the arguments of its function. number: the id of the model's call. alone: see ``SearchesAhead``. Returns
    whether the function is known to do no more than to read, and a function that ends what stock has not taken over.
    """
    sync = here.call.sync
    func = tool.func if sync or tool.coroutine is None else tool.coroutine
    context = copy_context()
    calls: SearchesAhead = context.run(_made, here, func, given)
    calls.alone = alone
    calls.awaited_on(None if sync else here.call.loop)
    drop = _held(here, calls, number, func)
    context.run(calls.begin)
    return calls.only_reads, drop


def _made(here: Claiming, func: Any, given: Any) -> SearchesAhead:
    reader.set(None)  # what a model inside of the tool writes is not the agent's
    positional, named = given
    takes = inspect.signature(func).parameters
    hidden = {name: UNKNOWN for name in (*HIDDEN, _get_runnable_config_param(func)) if name in takes}
    streams = streaming_handlers(None)
    walked = called_by_name(func)
    return inner_calls_of(here, walked, positional, {**named, **hidden}, streams_models=streams, kind=SearchesAhead)


def _held(here: Claiming, calls: SearchesAhead, number: str, func: Any) -> Callable[[], None]:
    """Keeps what has started until stock calls the function, or else ends it: at the latest with the graph's call."""
    kept, call = here.call.memory(_Begun).calls, here.call
    kept[number] = mine = func, calls
    tasks: list[asyncio.Task[None]] = []
    begun = asyncio.Event()

    async def end() -> None:
        if kept.get(number) is mine:
            kept.pop(number, None)
        if not calls.handed_over:
            await calls.aclose()

    async def held() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await end()

    def hold() -> None:
        task = call.task(held(), 0, 0.0, "searches of a tool", None)
        tasks.append(task)
        task.add_done_callback(lambda _: None if begun.is_set() else call.loop.create_task(end()))

    here.post(hold)
    return lambda: here.post(lambda: [task.cancel() for task in tasks])


def waits(here: Claiming, number: str) -> bool:
    """Returns True if something has started for a call of a tool that stock makes now."""
    return number in here.call.memory(_Begun).calls


def enter(here: Claiming, func: Any, calls: InnerCalls, number: str) -> None:
    """Lets the calls of a tool's function claim what has started for this call of the model."""
    kept = here.call.memory(_Begun).calls
    found = kept.get(number)
    if found is not None and found[0] is func:
        kept.pop(number, None)
        found[1].hand_over(calls)
