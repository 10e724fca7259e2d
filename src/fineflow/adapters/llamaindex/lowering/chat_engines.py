"""Chat engines: the parts of their prompts that are known before the retrieved context, and their shadows.

In all prompts of these engines the history comes after the context, so only the text before the context is known ahead.
Stock feeds the graph the question to search for: condensed by the model, or the user's own words. Stock also reads and
writes the memory, in its own order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import wrapt
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.chat_engine.types import BaseChatEngine

from fineflow.adapters.core.builder import TEXT, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.builder import IndexBuilder, asked_for, query_in, unlowered
from fineflow.adapters.llamaindex.lowering.retrieval.retrievers import lower_retrieval, shadow_retrieval
from fineflow.adapters.llamaindex.models.llms import lane, model_known, shadow_llm
from fineflow.adapters.llamaindex.thread_affinity import blocks, may_leave, off_loop, unblocked
from fineflow.ir import Op

REMEMBERING = ("aget", "aput", "aset")
"""Async methods of a memory that chat engines call."""

_CHATTING = ("chat", "achat", "stream_chat", "astream_chat")
_RETRIEVING = ("_get_nodes", "_aget_nodes", "_get_response_synthesizer")
_CONDENSING = ("_condense_question", "_acondense_question")
_QUESTION, _ENGINE, _SYNTHESIZER, _LLM = "question", "engine", "synthesizer", "llm"


@dataclass(frozen=True, slots=True)
class Chat(Row):
    """A class of chat engines, recognised by its methods.

    retrieves: retrieves nodes, from which a synthesizer answers; a condensing one that does not has a query engine.
    condenses: its model rewrites the question.
    """

    retrieves: bool = False
    condenses: bool = False


def _lower_chat(engine: Any, value: Symbol, b: IndexBuilder) -> Symbol:
    """Appends the primitives of one turn."""
    message, row = query_in(value), _row_of(engine)
    if not row.retrieves and not row.condenses:
        return b.left_to_stock(
            engine, {"message": message.ref}, "it calls its model at once: there is nothing to run ahead"
        )
    inputs = {"message": message.ref}
    if row.condenses:
        llm = engine._llm
        name = lane(llm)
        written = b.add(
            Op.DECODE,
            {"prompt": message.ref},
            name="condensed",
            component=llm,
            engine=name,
            kind=TEXT,
            by_stock=True,
        )
        inputs["condensed"] = written.ref
    with b.inside(_QUESTION):
        question = b.fed(engine, inputs, _QUESTION)
    if not row.retrieves:
        with b.inside(_ENGINE):
            return b.lower(engine._query_engine, asked_for(question))
    nodes = lower_retrieval(engine, question, b)
    with b.inside(_SYNTHESIZER):
        return b.lower(_like(engine), asked_for(message, nodes))


def _like(engine: Any) -> Any:
    """Returns the synthesizer that the engine makes for a conversation without a history.

    Making one replaces the model's callback manager, which only stock may do: so it is made with a copy of the model.
    """
    probe = copy.copy(engine)
    probe._llm = engine._llm.model_copy()
    made = probe._get_response_synthesizer([])
    made._llm = engine._llm
    return made


def _shadow_chat(engine: Any, site: Site) -> Any:
    """Returns a copy of a chat engine whose parts claim, and which feeds the graph the question to search for."""
    made, row = copy.copy(engine), _row_of(engine)
    if model_known(engine._llm):
        made._llm = shadow_llm(engine._llm, site.part(_LLM))
    blocking = any(blocks(type(engine._memory), name) for name in REMEMBERING)
    if blocking and not site.sync and may_leave(engine._memory, site.options.trusting):
        made._memory = _Memory(engine._memory)
    asked = site.part(_QUESTION)
    if row.retrieves:
        shadow_retrieval(made, engine, site)
        made._get_response_synthesizer = _making(engine, site.part(_SYNTHESIZER))
        made._get_nodes = partial(_get_nodes, made._get_nodes, asked)
        made._aget_nodes = partial(_get_nodes, made._aget_nodes, asked)
    elif row.condenses:
        made._query_engine = site.of(engine._query_engine, _ENGINE)
        made._condense_question = partial(_condense, made._condense_question, asked)
        made._acondense_question = partial(_acondense, made._acondense_question, asked)
    return made


def _get_nodes(own: Callable[[str], Any], asked: Site, message: str) -> Any:
    asked.feed(message)
    return own(message)


def _condense(own: Callable[..., str], asked: Site, *args: Any) -> str:
    question = own(*args)
    asked.feed(question)
    return question


async def _acondense(own: Callable[..., Any], asked: Site, *args: Any) -> str:
    question: str = await own(*args)
    asked.feed(question)
    return question


def _making(engine: Any, site: Site) -> Callable[..., Any]:
    """Returns a function that has the user's engine make a synthesizer, and returns its shadow.

    Making it sets the callback manager of the user's model, as in stock.
    """

    def make(*args: Any, **kwargs: Any) -> Any:
        return site.of(engine._get_response_synthesizer(*args, **kwargs))

    return make


class _Memory(wrapt.ObjectProxy[Any]):
    """Proxy of a memory whose async methods do not block the event loop. Everything else is the user's memory."""

    def __getattr__(self, name: str) -> Any:
        memory = self.__wrapped__
        own = getattr(memory, name)
        if name in REMEMBERING and name not in vars(memory) and blocks(type(memory), name):
            return partial(unblocked, own)
        return own


def _shadow_other(engine: Any, site: Site) -> Any:
    return engine if site.sync else off_loop(engine, "achat", site.options.trusting)


def _components(engine: Any) -> Iterator[Any]:
    row = _row_of(engine)
    yield from (engine._llm, engine._memory)
    if row.retrieves:
        yield from (engine._retriever, *engine._node_postprocessors)
    elif row.condenses:
        yield engine._query_engine


def _chat(base: type, methods: tuple[str, ...], *, retrieves: bool = False, condenses: bool = False) -> Chat:
    return Chat(
        base,
        methods,
        _lower_chat,
        _shadow_chat,
        components=_components,
        retrieves=retrieves,
        condenses=condenses,
        per_call=condenses and not retrieves,  # it sets attributes of its query engine's synthesizer in a call
    )


CHATS = (
    _chat(SimpleChatEngine, _CHATTING),
    _chat(ContextChatEngine, (*_CHATTING, *_RETRIEVING), retrieves=True),
    _chat(
        CondensePlusContextChatEngine,
        (*_CHATTING, *_RETRIEVING, *_CONDENSING, "_run_c3", "_arun_c3"),
        retrieves=True,
        condenses=True,
    ),
    _chat(CondenseQuestionChatEngine, (*_CHATTING, *_CONDENSING, "_get_tool_output_from_response"), condenses=True),
)
ROWS: tuple[Row, ...] = (
    *CHATS,
    Row(BaseChatEngine, (), unlowered(), _shadow_other, components=lambda each: (each,)),
)


def _row_of(engine: Any) -> Chat:
    return next(row for row in CHATS if row.matches(engine))
