"""What of a prompt is known goes ahead to a server where that is allowed; requests say how urgent they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.core")
pytest.importorskip("llama_index.llms.openai_like")

import httpx
import openai
from index_shapes import QUESTION
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle
from served_index import (
    CONTEXT_FIRST,
    KINDS,
    KNOWN_FIRST,
    RULES,
    Make,
    completing,
    engine_of,
    fusion_of,
    like,
    openai_chat,
    optimized,
    served_by,
)

import fineflow
from fineflow.runtime import servers
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeStore
from fineflow.testing.server import Fault, OpenAIServer, Received


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with served_by() as found:
        yield found
        servers.forget(found.url)


def known_first(llm: Callable[[], Any], gate: Gate | None = None, **settings: Any) -> Make:
    """The beginning of the prompt is known while the store searches."""
    store = FakeStore(gate=gate)
    return engine_of(llm, "simple_summarize", store=store, text_qa_template=KNOWN_FIRST, **settings)


def shown(make: Make) -> str:
    return " ".join(str(fineflow.explain(make(CallbackManager([])), graphs=True)).split())


async def heard(server: OpenAIServer, model: str = "tiny") -> None:
    """Returns when nothing is on its way to the server and back that was sent ahead."""
    async with asyncio.timeout(10):
        while servers.at(server.url).of(model).warmed.under_way:  # type: ignore[union-attr]
            await asyncio.sleep(0)


async def sent_ahead(server: OpenAIServer, llm: Callable[[], Any], entry: str = "aquery", expected: int = 1) -> None:
    """One query, whose search ends when what is sent ahead of its end has been answered."""
    gate = Gate()
    engine = optimized(known_first(llm, gate))
    query = engine.aquery(QUESTION) if entry == "aquery" else asyncio.to_thread(engine.query, QUESTION)
    call = asyncio.ensure_future(query)
    await gate.arrived()
    await asyncio.to_thread(server.wait, lambda s: [each.ended for each in s.warmed] == ["answered"] * expected)
    assert not server.answered
    await heard(server, llm().model)
    gate.open()
    await call
    assert len(server.answered) == 1


@pytest.mark.parametrize("entry", ["query", "aquery"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_known_is_sent_ahead(server: OpenAIServer, kind: str, entry: str) -> None:
    fineflow.engine(server.url, warm=True)
    await sent_ahead(server, lambda: KINDS[kind](server.url), entry)
    ahead, answer = server.received
    begun = f"{RULES}{QUESTION}\n"
    text = ahead.body["prompt"] if "completing" in kind else ahead.body["messages"][0]["content"]
    assert text == begun and ahead.path == answer.path
    assert ahead.body["max_tokens"] == 1 and ahead.body["model"] == answer.body["model"]
    assert ahead.headers["authorization"] == answer.headers["authorization"] == "Bearer secret"
    assert answer.cached > 0.9 * len(begun)


async def test_vllm_is_sent_open_messages(server: OpenAIServer) -> None:
    server.vllm = True
    fineflow.engine(server.url, warm=True)
    await sent_ahead(server, lambda: like(server.url))
    ahead, answer = server.received
    assert answer.prompt.startswith(ahead.prompt) and ahead.prompt.endswith(f"{QUESTION}\n")


async def test_what_decides_how_a_prompt_is_read_is_sent_with_it(server: OpenAIServer) -> None:
    fineflow.engine(server.url, warm=True)
    extra = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}, "store": True}
    model = lambda: like(server.url, additional_kwargs=extra, default_headers={"X-Team": "blue"})  # noqa: E731
    await sent_ahead(server, model)
    ahead, _ = server.received
    assert ahead.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert ahead.headers["x-team"] == "blue" and not {"temperature", "store", "stream"} & ahead.body.keys()


async def test_the_same_beginning_is_sent_once(server: OpenAIServer) -> None:
    fineflow.engine(server.url, warm=True)
    await sent_ahead(server, lambda: like(server.url))
    server.received.clear()
    await sent_ahead(server, lambda: like(server.url), expected=0)


@pytest.mark.parametrize("mode", ["refine", "compact"])
@pytest.mark.parametrize("entry", ["query", "aquery"])
def test_texts_that_refine_an_answer_go_ahead_while_it_is_written(server: OpenAIServer, entry: str, mode: str) -> None:
    """At most four of them; the answer is asked for and held while they come."""
    gate = server.gate = Gate()
    fineflow.engine(server.url, warm=True)
    make = engine_of(lambda: like(server.url), mode, top=8, refine_template=CONTEXT_FIRST)
    engine = optimized(make)

    async def call() -> None:
        query = engine.aquery(QUESTION) if entry == "aquery" else asyncio.to_thread(engine.query, QUESTION)
        task = asyncio.ensure_future(query)
        await gate.arrived()
        await asyncio.to_thread(server.wait, lambda s: [each.ended for each in refining(s)] == ["answered"] * 4)
        await heard(server)
        assert len(server.answered) == 1
        gate.open()
        await task

    asyncio.run(call())
    asked = [each.prompt for each in server.answered]
    assert len(refining(server)) == 4 and len(server.warmed) <= 5  # and the beginning that all first prompts share
    assert all(any(ahead.body["messages"][0]["content"] in prompt for prompt in asked) for ahead in refining(server))
    server.received.clear()
    server.gate = None
    assert_same_index(make, QUESTION, entries=("query", "aquery"))


def refining(server: OpenAIServer) -> list[Received]:
    return [each for each in server.warmed if "New context" in each.prompt]


async def test_an_answer_does_not_wait_for_what_is_sent_ahead(server: OpenAIServer) -> None:
    server.ahead_gate = Gate()
    fineflow.engine(server.url, warm=True)
    gate = Gate()
    call = asyncio.create_task(optimized(known_first(lambda: like(server.url), gate)).aquery(QUESTION))
    await server.ahead_gate.arrived()
    gate.open()
    assert str(await call)
    await asyncio.to_thread(server.wait, lambda s: s.warmed[0].ended == "gone")


async def test_a_cancelled_query_takes_back_what_it_has_sent(server: OpenAIServer) -> None:
    server.ahead_gate = Gate()
    fineflow.engine(server.url, warm=True)
    call = asyncio.create_task(optimized(known_first(lambda: like(server.url), Gate())).aquery(QUESTION))
    await server.ahead_gate.arrived()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(server.wait, lambda s: s.warmed[0].ended == "gone")
    assert not server.answered


async def test_a_server_that_refuses_beginnings_is_left_alone(server: OpenAIServer) -> None:
    fineflow.engine(server.url, warm=True)
    for number in range(1, 6):
        gate = Gate()
        server.faults[:] = [Fault(400, "no user message")]
        engine = optimized(known_first(lambda: like(server.url, max_retries=2), gate))
        call = asyncio.create_task(engine.aquery(QUESTION))
        await gate.arrived()
        if number <= 3:
            await asyncio.to_thread(server.wait, lambda s, n=number: len(s.warmed) == n and s.warmed[-1].ended)  # type: ignore[misc]
            await heard(server)
        server.faults.clear()
        gate.open()
        assert str(await call)
    assert len(server.warmed) == 3 and len(server.answered) == 5


class Guard(BaseRetriever):
    """User code, which may refuse."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        raise PermissionError("not for you")


class OwnEmbedding(FakeEmbedding):
    """User code inside of a retriever that is known."""

    def _get_query_embedding(self, query: str) -> list[float]:
        raise PermissionError("not for you")


class OwnStore(FakeStore):
    def query(self, query: Any, **kwargs: Any) -> Any:
        raise PermissionError("not for you")


def own_query() -> Any:
    """A store that asks no database, as a function of the user's raises before that."""
    kind = pytest.importorskip("llama_index.vector_stores.postgres").PGVectorStore

    def customize(*_: Any, **__: Any) -> Any:
        raise PermissionError("not for you")

    return kind("postgresql+psycopg2://", "postgresql+asyncpg://", perform_setup=False, customize_query_fn=customize)


class MyReranker(BaseNodePostprocessor):
    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        raise PermissionError("not for you")


def guarded(server: OpenAIServer, how: str) -> Make:
    def make(manager: CallbackManager) -> Any:
        store = OwnStore() if how == "a store" else FakeStore()
        made = engine_of(lambda: like(server.url), "simple_summarize", store=store, text_qa_template=KNOWN_FIRST)
        engine = made(manager)
        if how == "an embedding":
            engine._retriever._embed_model = OwnEmbedding()
        if how == "a function in a store":
            engine._retriever._vector_store = own_query()
        if how == "a postprocessor":
            engine._node_postprocessors = [MyReranker()]
        if how == "a retriever":
            return RetrieverQueryEngine(Guard(), engine._response_synthesizer)
        return engine

    return make


@pytest.mark.parametrize("how", ["a retriever", "a store", "an embedding", "a postprocessor", "a function in a store"])
def test_nothing_is_sent_ahead_of_user_code(server: OpenAIServer, how: str) -> None:
    fineflow.engine(server.url, warm=True)
    make = guarded(server, how)
    assert "may be user code, which no beginning of a prompt overtakes" in shown(make)
    with pytest.raises(PermissionError):
        fineflow.optimize(make(CallbackManager([])), strict=True, eager=True).query(QUESTION)
    assert not server.paths


def with_clients(server: OpenAIServer, **options: Any) -> Any:
    given: dict[str, Any] = {"base_url": server.url, "api_key": "other", "max_retries": 0}
    return openai_chat(server.url, openai_client=openai.OpenAI(**given), **options)


OTHERS: dict[str, tuple[Callable[[OpenAIServer], Any], str]] = {
    "another server": (lambda s: like("http://127.0.0.1:1/v1"), "takes whole prompts only"),
    "an HTTP client": (lambda s: like(s.url, async_http_client=httpx.AsyncClient()), "HTTP client or proxy of its own"),
    "a client for sync calls": (with_clients, "given a client for sync calls only"),
    "a key that is made": (
        lambda s: openai_chat(
            s.url, async_openai_client=openai.AsyncOpenAI(base_url=s.url, api_key=lambda: asyncio.sleep(0, "x"))
        ),
        "key comes from a function",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_nothing_is_sent_ahead_for(server: OpenAIServer, other: str) -> None:
    make, why = OTHERS[other]
    fineflow.engine(server.url, warm=True)
    plan = shown(known_first(lambda: make(server)))
    assert why in plan and "partial_prefill" not in plan


def test_the_plan_says_why_nothing_is_sent_ahead(server: OpenAIServer) -> None:
    make = known_first(lambda: like(server.url))
    assert "takes whole prompts only" in shown(make)
    fineflow.engine(server.url)
    assert "fineflow.engine was not given warm=True for tiny@" in shown(make)
    fineflow.engine(server.url, warm=True)
    assert "what comes before {context_str} is prefilled at once" in shown(make)


def test_a_server_that_was_told_of_later_is_used(server: OpenAIServer) -> None:
    engine = optimized(known_first(lambda: completing(server.url)))
    engine.query(QUESTION)
    assert not server.warmed
    fineflow.engine(server.url, warm=True)
    gate = engine.retriever._vector_store._gate = Gate()
    with_gate = asyncio.run(_held(engine, gate, server))
    assert str(with_gate) and len(server.warmed) == 1


async def _held(engine: Any, gate: Gate, server: OpenAIServer) -> Any:
    call = asyncio.ensure_future(asyncio.to_thread(engine.query, QUESTION))
    await gate.arrived()
    await asyncio.to_thread(server.wait, lambda s: bool(s.warmed and s.warmed[0].ended))
    gate.open()
    return await call


# Priorities


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
def test_requests_that_run_ahead_say_how_deep_they_are(server: OpenAIServer, entry: str) -> None:
    fineflow.engine(server.url, priority=True)
    model = lambda: like(server.url, additional_kwargs={"extra_body": {"top_k": 5}})  # noqa: E731
    server.gate = Gate(opened=True)
    assert_same_index(fusion_of(model), QUESTION, entries=(entry,), ordered=False)
    stock, ours = (each.body for each in server.received)
    assert "priority" not in stock and ours["priority"] < 0
    assert ours["top_k"] == stock["top_k"] == 5


@pytest.mark.parametrize("entry", ["retrieve", "aretrieve"])
def test_a_server_that_refuses_priorities_is_told_none(server: OpenAIServer, entry: str) -> None:
    server.priorities = False
    fineflow.engine(server.url, priority=True)
    for _ in range(2):
        assert_same_index(fusion_of(lambda: like(server.url)), QUESTION, entries=(entry,), ordered=False)
    assert [each.ended for each in server.received] == ["answered", "refused", "answered", "answered", "answered"]


def test_what_a_user_says_of_priority_counts(server: OpenAIServer) -> None:
    fineflow.engine(server.url, priority=True)
    model = lambda: like(server.url, additional_kwargs={"extra_body": {"priority": 7}})  # noqa: E731
    assert_same_index(fusion_of(model), QUESTION, entries=("retrieve",), ordered=False)
    assert [each.body["priority"] for each in server.received] == [7, 7]
