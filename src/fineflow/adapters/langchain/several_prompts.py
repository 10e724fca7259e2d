"""Sync ``generate`` of a chat model with several prompts: stock sends the requests one by one, here they run together.

The classic chains ask so: ``MapReduceDocumentsChain``, ``MapRerankDocumentsChain``, ``LLMChain.apply``. Stock's own
``generate`` runs and opens the runs. When it calls ``_generate`` for the first prompt, the requests for all of them
start, and its calls claim them. As of langchain-core 1.7.2, whose ``agenerate`` runs them concurrently by itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from types import FunctionType
from typing import Any

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models._utils import _normalize_messages
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from fineflow.adapters.core.claiming import Claiming, under_way
from fineflow.adapters.core.installers import if_imported
from fineflow.adapters.core.trust import owner
from fineflow.adapters.inner_calls.bounds import AT_ONCE
from fineflow.adapters.inner_calls.calls_ahead import MethodAhead
from fineflow.adapters.inner_calls.entry_wrappers import wrap_method
from fineflow.adapters.langchain.arguments import Arguments
from fineflow.adapters.langchain.run_recorder import Nested, RunRecorder
from fineflow.runtime.loop.runtime_loop import engine_loop, on_engine_loop
from fineflow.runtime.loop.scopes import setting

_ASKING = (
    "combine_documents.map_reduce.MapReduceDocumentsChain",
    "combine_documents.map_rerank.MapRerankDocumentsChain",
)


class _Several:
    """The requests of one ``generate``. prompts: messages as stock hands them to ``_generate``."""

    def __init__(self, model: Any, prompts: Sequence[Any], here: Claiming) -> None:
        self.model = model
        self._prompts = [_normalize_messages(list(prompt)) for prompt in prompts]
        self._here = here
        self._ahead: list[tuple[MethodAhead, RunRecorder, Any]] | None = None
        self._next = 0

    def one(self, own: Callable[..., Any], messages: Any, named: Mapping[str, Any]) -> Any:
        """Makes stock's next request. own: the model's method."""
        number, self._next = self._next, self._next + 1
        if number == 0 and self._prompts[0] == messages:
            self._start(own, named)
        if self._ahead and number < len(self._ahead):
            ahead, recorder, key = self._ahead[number]
            if key == _key(messages, named):
                with suppress(Nested):  # the model has started a run of its own, which only stock can place
                    value = ahead.stock(_no_invocation)
                    self._here.gains(ahead.head_start)
                    recorder.replay(named.get("run_manager"))
                    return value
        return own(messages, **named)

    def _start(self, own: Callable[..., Any], named: Mapping[str, Any]) -> None:
        try:
            loop = engine_loop()
        except RuntimeError:  # the interpreter is exiting
            return
        limit, self._ahead = self._limit(loop), []
        for messages in self._prompts:
            recorder, context = RunRecorder(self.model), contextvars.copy_context()
            context.run(_several.set, None)
            context.run(recorder.silence)
            given = {**named, "run_manager": recorder.llm(sync=True)} if "run_manager" in named else named
            ahead = MethodAhead(own, [messages], given, limit)
            if not ahead.start(loop, context, lambda value: None):
                return
            self._ahead.append((ahead, recorder, _key(messages, named)))

    def _limit(self, loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
        call, options = self._here.call, self._here.shadows.options
        if call.limit is not None and call.loop is loop:
            return call.limit
        config = var_child_runnable_config.get() or {}
        return asyncio.Semaphore(config.get("max_concurrency") or options.max_concurrency or AT_ONCE)

    def close(self) -> None:
        """Ends the requests that stock has not made. The last first: none may get the permit of one that ends."""
        for ahead, *_ in reversed((self._ahead or [])[self._next :]):
            ahead.drop()


def _key(messages: Any, named: Mapping[str, Any]) -> Arguments:
    return Arguments((messages, {name: value for name, value in named.items() if name != "run_manager"}))


def _no_invocation() -> Any:
    raise AssertionError("a method is called without one")


class Applied(Runnable[Any, Any]):
    """``LLMChain.apply`` as a step, of its inputs and callbacks. Opens no run of its own."""

    def __init__(self, chain: Any) -> None:
        self.chain = chain

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        inputs, callbacks = input
        return self.chain.apply(inputs, callbacks)


_several: ContextVar[_Several | None] = ContextVar("fineflow_several_prompts", default=None)


def asks_several(obj: Any) -> bool:
    """Returns True for a classic chain that asks its model about each document, and for ``LLMChain.apply``."""
    if isinstance(obj, Applied):
        return isinstance(getattr(obj.chain, "llm", None), BaseChatModel)
    for name in _ASKING:
        module, _, kind = f"langchain_classic.chains.{name}".rpartition(".")
        known = if_imported(module, kind)
        if known is not None and isinstance(obj, known):
            return True
    return False


def install() -> None:
    """Makes ``generate`` run its requests together, inside optimized calls, from now on."""
    if "langchain_classic.chains.llm" in sys.modules:
        wrap_method(BaseChatModel, "generate", _together)


def _together(own: Any, name: str) -> Any:
    def method(model: Any, messages: Any, *args: Any, **named: Any) -> Any:
        bound, here = own.__get__(model, type(model)), under_way.get()
        if here is None or not _may_run_ahead(model, messages, here):
            return bound(messages, *args, **named)
        if wrap_method(type(model), "_generate", _one) is None:
            return bound(messages, *args, **named)
        several = _Several(model, messages, here)
        try:
            with setting((_several, several)):
                return bound(messages, *args, **named)
        finally:
            several.close()

    return method


def _one(own: Any, name: str) -> Any:
    def method(model: Any, messages: Any, *args: Any, **named: Any) -> Any:
        several, bound = _several.get(), own.__get__(model, type(model))
        if several is None or several.model is not model or args:
            return bound(messages, *args, **named)
        return several.one(bound, messages, named)

    return method


def _may_run_ahead(model: Any, messages: Any, here: Claiming) -> bool:
    if type(messages) is not list or len(messages) < 2 or on_engine_loop():
        return False
    if model.cache or (model.cache is None and get_llm_cache() is not None):  # a request may answer a later one
        return False
    part = here.shadows.component(model)
    plan = None if part is None else part._self_current(False)
    if plan is None or any(p.by_stock for p in plan.p_graph) or part._self_framework.bounded(plan) is not plan:
        return False
    return isinstance(vars(owner(type(model), "_generate")).get("_generate"), FunctionType)
