"""LlamaIndex: sampled calls are run again on stock, without spans and events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import QueryBundle, VectorStoreIndex
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import CustomLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import TextNode

import fineflow
from fineflow import Difference, Verify
from fineflow.testing.llamaindex.fakes import FakeEmbedding
from fineflow.testing.llamaindex.recording import Legacy, recording

LIES: list[str] = []


@fineflow.external
class Model(CustomLLM):
    """A model as users write them. Answers what ``LIES`` holds, then what it is asked."""

    temperature: float = 0.0

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=4096, num_output=64)

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        return CompletionResponse(text=LIES.pop() if LIES else f"said {prompt[-40:]}")

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        whole = self.complete(prompt).text
        yield CompletionResponse(text=whole, delta=whole)


def index(manager: CallbackManager | None = None) -> VectorStoreIndex:
    nodes = [TextNode(text=text, id_=text) for text in ("a bridge", "a tower", "a road")]
    return VectorStoreIndex(nodes, embed_model=FakeEmbedding(), callback_manager=manager)


def engine(manager: CallbackManager | None = None, **options: Any) -> Any:
    return index(manager).as_query_engine(llm=Model(**options), response_mode="tree_summarize")


def optimized(obj: Any, **settings: Any) -> Any:
    return fineflow.optimize(obj, eager=True, verify=Verify(1.0, seed=1, **settings))


def called(obj: Any, entry: str, *args: Any) -> Any:
    if not entry.startswith("a"):
        return getattr(obj, entry)(*args)

    async def call() -> Any:
        return await getattr(obj, entry)(*args)

    return asyncio.run(call())


@pytest.mark.parametrize("entry", ["query", "aquery", "retrieve", "aretrieve"])
def test_equal_answers_are_counted(entry: str) -> None:
    given = "where?" if "query" in entry else QueryBundle("where?")
    stock = called(engine(), entry, given)
    fast = called(optimized(engine()), entry, given)
    assert str(fast) == str(stock)
    found = fineflow.verified(10)
    assert (found.equal, dict(found.skipped)) == (1, {})


@pytest.mark.parametrize("entry", ["query", "aquery"])
def test_another_answer_is_found(entry: str) -> None:
    reported: list[Difference] = []
    LIES.append("a lie")
    assert str(called(optimized(engine(), report=reported.append), entry, "where?")) == "a lie"
    assert fineflow.verified(10).different == 1
    [difference] = reported
    assert (difference.name, difference.entry, difference.repeated) == ("RetrieverQueryEngine", entry, "query")
    assert "a lie" in difference.diff and not difference.doubt


def test_documents_are_compared_as_they_were_answered() -> None:
    reported: list[Difference] = []
    own = index()
    first, second = (own.as_retriever(similarity_top_k=1) for _ in range(2))
    fusion = QueryFusionRetriever([first, second], num_queries=1, llm=Model(), use_async=False)
    fast = optimized(fusion, report=reported.append)
    fast.retrieve("a bridge")
    assert fineflow.verified(10).equal == 1
    found = fast.retrieve("a bridge")
    found[0].score = 0.0  # by the caller: its own object
    assert fineflow.verified(10).equal == 2
    assert not reported


@pytest.mark.parametrize("entry", ["query", "aquery"])
def test_spans_events_and_callbacks_are_those_of_one_call(entry: str) -> None:
    def observed(change: Any) -> tuple[int, int]:
        legacy = Legacy()
        obj = change(engine(CallbackManager([legacy])))
        legacy.forget()
        with recording() as seen:
            called(obj, entry, "where?")
            fineflow.verified(10)
        return len(legacy._events), len(seen.spans)

    stock = observed(lambda obj: obj)
    fast = observed(optimized)
    assert fineflow.verified(10).equal == 1
    assert fast == stock and all(stock)


def test_temperature_decides_how_it_is_compared() -> None:
    LIES.append("a lie")
    fast = optimized(engine(temperature=0.5))
    fast.query("where?")
    assert fineflow.verified(10).equal == 1
    explained = " ".join(fineflow.explain(fast).summary)
    assert "by structure, as Model answers at temperature 0.5; source_nodes exactly" in explained


def test_chat_engines_and_indexes_are_not_repeated() -> None:
    chat = optimized(index().as_chat_engine(llm=Model(), chat_mode="context"))
    called(chat, "achat", "where?")
    assert list(fineflow.verified(10).skipped) == ["a chat engine remembers each call"]
    messages = chat.chat_history
    assert [each.role.value for each in messages] == ["user", "assistant"]
    own = optimized(index())
    own.insert_nodes([TextNode(text="new", id_="new")])
    assert fineflow.verified(10).verified == 0


def test_a_response_that_streams_is_its_readers() -> None:
    fast = optimized(index().as_query_engine(llm=Model(), response_mode="tree_summarize", streaming=True))
    response = fast.query("where?")
    assert "".join(response.response_gen).startswith("said")
    assert list(fineflow.verified(10).skipped) == ["its answer is a stream, which only its reader may read"]


def test_sync_methods_that_run_a_loop_of_their_own_are_not_used() -> None:
    own = index()
    fusion = QueryFusionRetriever([own.as_retriever(), own.as_retriever()], num_queries=1, llm=Model(), use_async=True)
    called(optimized(fusion), "aretrieve", "a bridge")
    assert list(fineflow.verified(10).skipped) == ["its sync method uses an event loop of its own (use_async)"]
