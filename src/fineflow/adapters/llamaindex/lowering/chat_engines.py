"""Chat engines: what of their prompts is known before a context is there, and their shadows.

In every prompt of these engines the history stands behind the context, so what is known ahead is what stands before the
context. The question that is searched for is told to the graph when stock has it: written anew by the model, or as the
user asked it. Memories are stock's: it reads and writes them, in its own order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
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

from fineflow.adapters.core.builder import TEXT, Leaf
from fineflow.adapters.llamaindex.lowering.context import Place, Seen
from fineflow.adapters.llamaindex.lowering.retrievers import lower_retrieval, shadow_retrieval
from fineflow.adapters.llamaindex.lowering.synthesizers import lower_synthesizer, shadow_synthesizer
from fineflow.adapters.llamaindex.methods import as_written, blocks, unblocked
from fineflow.adapters.llamaindex.models.llms import lane, model_known, shadow_llm
from fineflow.ir import Op

REMEMBERING = ("aget", "aput", "aset")
"""Async methods of a memory that chat engines call."""

_CHATTING = ("chat", "achat", "stream_chat", "astream_chat")
_RETRIEVING = ("_get_nodes", "_aget_nodes", "_get_response_synthesizer")
_CONDENSING = ("_condense_question", "_acondense_question")
_QUESTION, _ENGINE, _SYNTHESIZER, _LLM = "question", "engine", "synthesizer", "llm"


@dataclass(frozen=True, slots=True)
class Chat:
    """A class of chat engines by its methods. retrieves: nodes, from which it makes a synthesizer answer; else one that
    condenses has a query engine. condenses: has its model write the question anew.
    """

    base: type
    methods: tuple[str, ...]
    retrieves: bool
    condenses: bool


CHATS = (
    Chat(SimpleChatEngine, _CHATTING, False, False),
    Chat(ContextChatEngine, (*_CHATTING, *_RETRIEVING), True, False),
    Chat(CondensePlusContextChatEngine, (*_CHATTING, *_RETRIEVING, *_CONDENSING, "_run_c3", "_arun_c3"), True, True),
    Chat(CondenseQuestionChatEngine, (*_CHATTING, *_CONDENSING, "_get_tool_output_from_response"), False, True),
)


def chat_of(obj: Any) -> Chat | None:
    """How a chat engine is recognised, if it is."""
    return next((row for row in CHATS if as_written(obj, row.base, *row.methods)), None)


def lower_chat(engine: Any, row: Chat, message: Leaf, seen: Seen, lower_engine: Callable[..., Leaf]) -> Leaf:
    """The primitives of one turn. lower_engine: makes those of a query engine, for a query."""
    b = seen.b
    if not row.retrieves and not row.condenses:
        return seen.opaque(engine, {"message": message.ref}, "its model is asked at once: there is nothing to wait for")
    told = {"message": message.ref}
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
        told["condensed"] = written.ref
    with b.inside(_QUESTION):
        question = seen.fed(engine, told, _QUESTION)
    if not row.retrieves:
        with b.inside(_ENGINE):
            return lower_engine(engine._query_engine, query=question)
    nodes = lower_retrieval(engine, question, seen)
    with b.inside(_SYNTHESIZER):
        return lower_synthesizer(_like(engine), nodes, message, seen)


def _like(engine: Any) -> Any:
    """The synthesizer that it makes for a conversation without a history.

    Making one changes who listens to the model, which is stock's to do, at its time: so here it is made with another.
    """
    probe = copy.copy(engine)
    probe._llm = engine._llm.model_copy()
    made = probe._get_response_synthesizer([])
    made._llm = engine._llm
    return made


def shadow_chat(engine: Any, row: Chat, place: Place, shadow: Callable[[Any, Place], Any]) -> Any:
    """A copy of a chat engine whose parts claim, and which tells the graph what it asks them. shadow: makes that of a
    query engine.
    """
    made = copy.copy(engine)
    if model_known(engine._llm):
        made._llm = shadow_llm(engine._llm, place.part(_LLM).leaf, place.claims, sync=place.sync)
    if not place.sync and any(blocks(type(engine._memory), name) for name in REMEMBERING):
        made._memory = _Memory(engine._memory)
    asked = place.part(_QUESTION)
    if row.retrieves:
        shadow_retrieval(made, engine, place)
        made._get_response_synthesizer = _making(engine, place.part(_SYNTHESIZER))
        made._get_nodes = partial(_get_nodes, made._get_nodes, asked)
        made._aget_nodes = partial(_get_nodes, made._aget_nodes, asked)
    elif row.condenses:
        made._query_engine = shadow(engine._query_engine, place.part(_ENGINE))
        made._condense_question = partial(_condense, made._condense_question, asked)
        made._acondense_question = partial(_acondense, made._acondense_question, asked)
    return made


def _get_nodes(own: Callable[[str], Any], asked: Place, message: str) -> Any:
    asked.claims.feed(asked.leaf, message)
    return own(message)


def _condense(own: Callable[..., str], asked: Place, *args: Any) -> str:
    question = own(*args)
    asked.claims.feed(asked.leaf, question)
    return question


async def _acondense(own: Callable[..., Any], asked: Place, *args: Any) -> str:
    question: str = await own(*args)
    asked.claims.feed(asked.leaf, question)
    return question


def _making(engine: Any, place: Place) -> Callable[..., Any]:
    """Has the engine itself make a synthesizer, which tells its model who listens to it; returns the shadow."""

    def make(*args: Any, **kwargs: Any) -> Any:
        return shadow_synthesizer(engine._get_response_synthesizer(*args, **kwargs), place)

    return make


class _Memory(wrapt.ObjectProxy[Any]):
    """A memory none of whose async methods blocks the event loop. All else, and all that it holds, is the user's."""

    def __getattr__(self, name: str) -> Any:
        memory = self.__wrapped__
        own = getattr(memory, name)
        if name in REMEMBERING and name not in vars(memory) and blocks(type(memory), name):
            return partial(unblocked, own)
        return own
