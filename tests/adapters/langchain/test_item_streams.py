"""What a model writes in any list format, or as an object, is consumed while the model still writes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from operator import attrgetter, itemgetter
from typing import Any

import pytest
from langchain_classic.retrievers import MultiQueryRetriever
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
    PydanticOutputParser,
    StrOutputParser,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePick
from pydantic import BaseModel

import fineflow
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.ir import Op
from fineflow.passes import PASSES, decode
from fineflow.protocols import Delta
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore

pytestmark = pytest.mark.sweep

QUESTION = {"question": "the capital of France"}
LINES = "capital of France\ntown of France\ncheese"
TEXT = StrOutputParser()
FORMATS: dict[str, tuple[Any, str]] = {
    "values": (CommaSeparatedListOutputParser(), "capital of France, town of France, cheese"),
    "points": (NumberedListOutputParser(), "1. capital of France\n2. town of France\n3. cheese"),
    "bullets": (MarkdownListOutputParser(), "- capital of France\n- town of France\n- cheese"),
    "elements": (JsonOutputParser(), '["capital of France", "town of France", "cheese"]'),
    "lines": (TEXT | RunnableLambda(lambda x: x.split("\n")), LINES),
    "lines stripped": (TEXT | (lambda x: [q.strip() for q in x.strip().split("\n") if q.strip()]), LINES),
    "lines of a message": (RunnableLambda(lambda m: m.content.split("\n")), LINES),
    "str.splitlines": (TEXT | RunnableLambda(str.splitlines), LINES),
    "parts": (TEXT | RunnableLambda(lambda x: x.split(", ")), "capital of France, town of France, cheese"),
}


def documents() -> FakeVectorStore:
    return FakeVectorStore.from_texts(["Paris is the capital", "Lyon is a town", "cheese"], FakeEmbeddings())


def multi_query(kind: str, model: Any = None, **chat: Any) -> tuple[Runnable[Any, Any], FakeVectorStore]:
    parser, text = FORMATS[kind]
    store = documents()
    queries = PromptTemplate.from_template("{question}") | (model or FakeChat(default=text, **chat)) | parser
    return RunnablePick("question") | MultiQueryRetriever(retriever=store.as_retriever(), llm_chain=queries), store


def mapped(kind: str, model: Any = None, **chat: Any) -> tuple[Runnable[Any, Any], FakeVectorStore]:
    """The retriever is called for each query by ``.map()``."""
    parser, text = FORMATS[kind]
    store = documents()
    queries = PromptTemplate.from_template("{question}") | (model or FakeChat(default=text, **chat)) | parser
    return queries | store.as_retriever().map(), store


SHAPES = pytest.mark.parametrize("shape", [multi_query, mapped])


async def searched(store: FakeVectorStore) -> None:
    while not store.meter.calls:
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", FORMATS)
@SHAPES
def test_the_documents_are_the_same(shape: Any, kind: str) -> None:
    graph = fineflow.explain(shape(kind)[0]).e_graph
    assert graph is not None
    assert [kind.split()[0].replace("str.split", "")] == [p.params["items"] for p in graph if "items" in p.params]
    assert any(p.op is Op.PARTIAL_DECODE for p in graph)
    assert_same(lambda: shape(kind)[0], QUESTION, strict=True)


@pytest.mark.parametrize("kind", FORMATS)
@SHAPES
async def test_the_first_query_is_searched_before_the_last_is_written(shape: Any, kind: str) -> None:
    gate = Gate()
    runnable, store = shape(kind, token_gate=gate)
    call = asyncio.create_task(fineflow.optimize(runnable, strict=True).ainvoke(QUESTION))
    gate.let(5)  # "1." "capital" "of" "France" "2.": past the first item in every format
    await asyncio.wait_for(searched(store), 10)
    assert not call.done()
    gate.open()
    assert len(await call) == 3


async def test_without_the_pass_the_searches_wait() -> None:
    gate = Gate()
    runnable, store = mapped("lines", token_gate=gate)
    passes = [each for each in PASSES if each is not decode]
    call = asyncio.create_task(fineflow.optimize(runnable, passes=passes, eager=True).ainvoke(QUESTION))
    gate.let(5)
    await gate.arrived(6)
    assert not store.meter.calls
    gate.open()
    assert len(await call) == 3


def test_malformed_json_is_the_same() -> None:
    FORMATS["broken"] = (JsonOutputParser(), '["capital", oh] ```json\n["town"]\n```')
    try:
        assert_same(lambda: multi_query("broken")[0], QUESTION, entries=["invoke", "ainvoke"])
    finally:
        del FORMATS["broken"]


# --- objects ----------------------------------------------------------------------------------------------------------


class Plan(BaseModel):
    query: str
    reason: str
    number: int = 3


ask = PromptTemplate.from_template
OBJECT = '{"query": "capital of France", "reason": "it is asked for", "number": 4}'
pydantic_parser = PydanticOutputParser(pydantic_object=Plan)


READERS: dict[str, tuple[Any, Any, Any]] = {
    "pick": (JsonOutputParser(), RunnablePick("query"), RunnablePick("reason")),
    "itemgetter": (JsonOutputParser(), RunnableLambda(itemgetter("query")), RunnableLambda(itemgetter("reason"))),
    "function": (JsonOutputParser(), RunnableLambda(lambda x: x["query"]), RunnableLambda(lambda x: x["reason"])),
    "schema": (JsonOutputParser(pydantic_object=Plan), RunnablePick("query"), RunnablePick("reason")),
    "model": (pydantic_parser, RunnableLambda(lambda x: x.query), RunnableLambda(lambda x: x.reason)),
    "attrgetter": (pydantic_parser, RunnableLambda(attrgetter("query")), RunnableLambda(attrgetter("reason"))),
    "function of text": (TEXT | JsonOutputParser(), RunnableLambda(lambda x: x.get("query")), RunnablePick("reason")),
}


def planned(kind: str, text: str = OBJECT, **chat: Any) -> tuple[Runnable[Any, Any], FakeVectorStore]:
    """A model writes what to search for, and why."""
    parser, query, reason = READERS[kind]
    store = documents()
    parts: Any = RunnableParallel(docs=query | store.as_retriever(), why=reason)
    return ask("{question}") | FakeChat(default=text, **chat) | parser | parts, store


def followed(text: str = OBJECT, **chat: Any) -> tuple[Runnable[Any, Any], FakeChat]:
    """One of the fields that a model writes goes into the prompt of another model."""
    answering = FakeChat(default="an answer")
    chain = ask("{question}") | FakeChat(default=text, **chat) | JsonOutputParser() | ask("answer {query}") | answering
    return chain | TEXT, answering


@pytest.mark.parametrize("kind", READERS)
def test_the_fields_are_the_same(kind: str) -> None:
    assert_same(lambda: planned(kind)[0], QUESTION, strict=True)


@pytest.mark.parametrize(
    "text",
    [
        '{"query": "town", "query": "capital", "reason": "the last one counts"}',
        '```json\n{"query": "town",\n "reason": "in a fence"}\n```',
        'Sure: {"query": "town", "reason": "behind other text"}',
        '{"query": "town", "reason": "cut short',
        '{"query": "town", "reason": "garbage follows"}]',
        '{"query": "town"}',
        '["town"]',
        "no object",
    ],
)
@pytest.mark.parametrize("kind", ["pick", "model", "schema"])
def test_objects_in_any_state_are_the_same(kind: str, text: str) -> None:
    assert_same(lambda: planned(kind, text)[0], QUESTION, entries=["invoke"], eager=True)
    # Both branches may fail: the first one decides. Sync handlers, which run in threads, would make it any of the two.
    assert_same(lambda: planned(kind, text)[0], QUESTION, entries=["ainvoke"], handler="async", eager=True)
    assert_same(lambda: followed(text)[0], QUESTION, entries=["invoke", "astream"], eager=True)


@pytest.mark.parametrize("kind", READERS)
async def test_a_field_is_searched_for_before_the_next_is_written(kind: str) -> None:
    gate = Gate()
    runnable, store = planned(kind, token_gate=gate)
    call = asyncio.create_task(fineflow.optimize(runnable, strict=True).ainvoke(QUESTION))
    gate.let(4)  # '{"query":' '"capital' 'of' 'France",'
    await asyncio.wait_for(searched(store), 10)
    assert not call.done()
    gate.open()
    assert (await call)["why"] == "it is asked for"


async def test_a_prompt_of_one_field_is_answered_before_the_next_is_written() -> None:
    gate = Gate()
    chain, answering = followed(token_gate=gate)
    call = asyncio.create_task(fineflow.optimize(chain, strict=True).ainvoke(QUESTION))
    gate.let(4)
    while not answering.meter.spans:
        await asyncio.sleep(0)
    assert not call.done()
    gate.open()
    assert await call == "an answer"
    assert answering.meter.calls == 1


def test_a_sync_call_searches_early_too() -> None:
    gate = Gate()
    runnable, store = planned("pick", token_gate=gate)
    arrived = store.gate = Gate(opened=True)
    thread = threading.Thread(target=fineflow.optimize(runnable, strict=True).invoke, args=(QUESTION,))
    thread.start()
    gate.let(4)
    arrived.wait_arrived()
    assert thread.is_alive()
    gate.open()
    thread.join(10)
    assert not thread.is_alive()


# --- models -----------------------------------------------------------------------------------------------------------


class HeldEngine:
    """An ``LLMEngine`` whose tokens are words, each of which waits at a gate."""

    name = "held"
    block_size = 16
    can_prefill = False

    def __init__(self, text: str) -> None:
        self.words = text.replace(" ", " \0").split("\0")
        self.gate = Gate()

    def render_chat(self, messages: Any, *, add_generation_prompt: bool = True) -> str:
        return "".join(m.content for m in messages)

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    async def prefill(self, tokens: Any, *, priority: int = 0) -> None:
        raise NotImplementedError

    async def generate(self, tokens: Any, sampling: Any, *, priority: int = 0) -> AsyncIterator[Delta]:
        for i, word in enumerate(self.words):
            await self.gate.wait()
            last = i + 1 == len(self.words)
            yield Delta(word, (i,), "stop" if last else None, len(tokens) if last else 0)

    async def aclose(self) -> None:
        pass


@SHAPES
async def test_a_model_on_an_engine(shape: Any) -> None:
    engine = HeldEngine(FORMATS["bullets"][1])
    runnable, store = shape("bullets", ChatEngine(engine=engine))
    call = asyncio.create_task(fineflow.optimize(runnable, strict=True).ainvoke(QUESTION))
    engine.gate.let(5)
    await asyncio.wait_for(searched(store), 10)
    assert not call.done()
    engine.gate.open()
    assert len(await call) == 3


@fineflow.external
class Foreign(BaseChatModel):
    """A chat model that generates something else than it streams."""

    streamed: str = LINES
    gate: Any = None

    @property
    def _llm_type(self) -> str:
        return "foreign"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        message = AIMessage("generated: " + self.streamed)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
        for word in self.streamed.replace("\n", "\n\0").split("\0"):
            if self.gate is not None:
                self.gate.wait_sync()
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))


@SHAPES
def test_a_foreign_model_is_the_same(shape: Any) -> None:
    assert_same(lambda: shape("lines", Foreign())[0], QUESTION, strict=True)
    assert_same(lambda: shape("lines", Foreign())[0], QUESTION, strict=True, eager=True)


@pytest.mark.parametrize("entry", ["astream", "astream_events"])
async def test_a_foreign_model_is_consumed_in_pieces_where_stock_streams_it(entry: str) -> None:
    gate = Gate()
    runnable, store = mapped("lines", Foreign(gate=gate))

    async def collect() -> list[Any]:
        return [item async for item in getattr(fineflow.optimize(runnable, strict=True), entry)(QUESTION)]

    call = asyncio.create_task(collect())
    gate.let(2)
    await asyncio.wait_for(searched(store), 10)
    assert not call.done()
    gate.open()
    assert await call


def test_a_foreign_model_that_does_not_stream_for_stock_is_not_made_to() -> None:
    runnable, _ = mapped("lines", Foreign(gate=Gate()))
    mine = fineflow.optimize(runnable, strict=True, eager=True)
    assert len(mine.invoke(QUESTION)) == 3  # the gate of its stream stayed closed
    note = next(note for note in fineflow.explain(runnable).e_graph.notes if note.source == "decode" and note.done)
    assert "in calls that stream" in note.reason


async def test_nothing_is_searched_for_that_stock_does_not_search_for_when_it_streams() -> None:
    """Stock adds up the texts of the growing objects that its parser streams: it searches for something else."""
    runnable, store = planned("pick")
    mine, other = planned("pick")
    assert [part async for part in runnable.astream(QUESTION)]
    assert [part async for part in fineflow.optimize(mine, eager=True, strict=True).astream(QUESTION)]
    assert other.meter.labels == store.meter.labels
