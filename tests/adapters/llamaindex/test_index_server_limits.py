"""A limit of a server holds for all that asks it, whatever the framework; who waits is not seen by the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("llama_index.core")
pytest.importorskip("llama_index.llms.openai_like")

from index_shapes import QUESTION
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank
from llama_index.core.query_engine import RouterQueryEngine, TransformQueryEngine
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from served_index import called, engine_of, lane, like, optimized, served_by, sub_questions_of

import fineflow
from fineflow.llamaindex import EngineLLM
from fineflow.runtime import servers
from fineflow.runtime.loop.submission import run_sync
from fineflow.testing.gates import Gate, wait_until
from fineflow.testing.server import OpenAIServer


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with served_by() as found:
        yield found
        servers.forget(found.url)


@pytest.mark.parametrize("entry", ["query", "aquery"])
def test_a_limit_holds_for_both_frameworks_together(server: OpenAIServer, entry: str) -> None:
    prompts = pytest.importorskip("langchain_core.prompts")
    runnables = pytest.importorskip("langchain_core.runnables")
    langchain_openai = pytest.importorskip("langchain_openai")
    server.gate = Gate()
    fineflow.engine(server.url, max_requests=2)
    chat = langchain_openai.ChatOpenAI(base_url=server.url, api_key="x", model="tiny", max_retries=0)
    parts = {word: prompts.ChatPromptTemplate.from_template(f"{word} {{x}}") | chat for word in ("Who", "What")}
    chain = fineflow.optimize(runnables.RunnableParallel(**parts), strict=True)
    index = optimized(engine_of(lambda: like(server.url), "accumulate"))

    async def calls() -> None:
        answer = index.aquery(QUESTION) if entry == "aquery" else asyncio.to_thread(index.query, QUESTION)
        tasks = [asyncio.ensure_future(each) for each in (chain.ainvoke("x"), answer)]
        for arrived in (2, 4, 6, 8):
            await asyncio.to_thread(queued, server, 8 - arrived)
            assert len(server.received) == arrived
            server.gate.let(2)  # type: ignore[union-attr]
        await asyncio.gather(*tasks)

    asyncio.run(calls())
    assert fineflow.statistics().engines[lane(server)].queued == 0


def queued(server: OpenAIServer, count: int) -> None:
    """Returns when so many requests wait for their turn, and the server is at work on as many as it may be."""
    component, gate = servers.component_at(server.url), server.gate
    assert component is not None and component.permits is not None and gate is not None
    permits = component.permits

    def so() -> bool:
        at_work = sum(not each.ended for each in server.received)
        return at_work == permits.at_once and (permits.waiting, gate.arrivals) == (count, len(server.received))

    wait_until(so)


def hyde(server: OpenAIServer) -> Any:
    inner = engine_of(lambda: like(server.url), "compact", top=1)(CallbackManager([]))
    return TransformQueryEngine(inner, HyDEQueryTransform(llm=like(server.url)))


WAITING: dict[str, tuple[Callable[[OpenAIServer], Callable[[], Any]], int, int]] = {  # those that wait, and in all
    "nothing to gain": (lambda s: lambda: engine("compact", s).query(QUESTION), 1, 1),
    "on a loop": (lambda s: lambda: asyncio.run(engine("compact", s).aquery(QUESTION)), 1, 1),
    "left to stock": (lambda s: lambda: engine("generation", s).query(QUESTION), 1, 1),
    "a stream": (lambda s: lambda: str(engine("simple_summarize", s, streaming=True).query(QUESTION)), 1, 1),
    "several answers": (lambda s: lambda: engine("accumulate", s, top=2).query(QUESTION), 2, 2),
    "several, on a loop": (lambda s: lambda: asyncio.run(engine("accumulate", s, top=2).aquery(QUESTION)), 2, 2),
    "a transformed query": (lambda s: lambda: fineflow.optimize(hyde(s)).query(QUESTION), 1, 2),
    "what a router asks": (lambda s: lambda: fineflow.optimize(router(s)).query(QUESTION), 1, 2),
    "questions": (lambda s: lambda: optimized(sub_questions_of(lambda: like(s.url))).query(QUESTION), 1, 8),
    "a postprocessor": (lambda s: lambda: fineflow.optimize(reranked(s)).query(QUESTION), 1, 2),
    "a chat": (lambda s: lambda: chatting(s).chat(QUESTION), 1, 1),
    "a component": (lambda s: lambda: component(s).complete("x"), 1, 1),
}


def engine(mode: str, server: OpenAIServer, *, top: int = 1, **settings: Any) -> Any:
    return optimized(engine_of(lambda: like(server.url, context_window=4000), mode, top=top, **settings))


def component(server: OpenAIServer) -> EngineLLM:
    found: Any = servers.at(server.url)
    return EngineLLM(engine=found.of("tiny"))


def router(server: OpenAIServer) -> Any:
    inner = engine_of(lambda: like(server.url), "compact", top=1)(CallbackManager([]))
    tool = QueryEngineTool.from_defaults(inner, name="north", description="about the north")
    return RouterQueryEngine(LLMSingleSelector.from_defaults(like(server.url)), [tool], llm=like(server.url))


def reranked(server: OpenAIServer) -> Any:
    made = engine_of(lambda: like(server.url), "compact", top=1)(CallbackManager([]))
    made._node_postprocessors = [RankGPTRerank(llm=like(server.url), verbose=False)]
    return made


def chatting(server: OpenAIServer) -> Any:
    memory = ChatMemoryBuffer.from_defaults(token_limit=500)
    return fineflow.optimize(SimpleChatEngine.from_defaults(llm=like(server.url), memory=memory), strict=True)


@pytest.mark.parametrize("what", WAITING)
def test_a_limit_counts(server: OpenAIServer, what: str) -> None:
    """While the only place is taken, a call waits for it before its first request."""
    make, count, requests = WAITING[what]
    server.gate = Gate()
    made = fineflow.engine(server.url, max_requests=1)
    holds = engine("compact", server)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(holds.query, QUESTION)
        server.gate.wait_arrived()
        second = pool.submit(make(server))
        queued(server, count)
        assert len(server.received) == 1
        server.gate.open()
        assert str(first.result(20)) and second.result(20)
    assert len(server.received) == 1 + requests
    run_sync(made.aclose)


async def test_a_sync_call_on_a_loop_does_not_wait_for_what_only_the_loop_can_end(server: OpenAIServer) -> None:
    gate = server.gate = Gate()
    fineflow.engine(server.url, max_requests=1)
    holds = asyncio.create_task(engine("accumulate", server).aquery(QUESTION))
    await gate.arrived()

    def two_are_there() -> None:
        gate.wait_arrived(2)
        gate.open()

    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(two_are_there)
        assert str(engine("accumulate", server).query(QUESTION))
        opened.result(20)
    await holds


def test_a_limit_may_be_set_and_lifted_later(server: OpenAIServer) -> None:
    index = optimized(engine_of(lambda: like(server.url), "accumulate"))
    index.query(QUESTION)
    server.received.clear()
    gate = server.gate = Gate()
    fineflow.engine(server.url, max_requests=1)
    with called(index) as answer:
        queued(server, 5)
        fineflow.engine(server.url)
        gate.wait_arrived(6)
        gate.open()
        assert answer.result(20)
