"""OpenAI and OpenAILike of LlamaIndex: answers, spans, errors and requests as in stock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.core")
pytest.importorskip("llama_index.llms.openai_like")

import openai
from index_shapes import QUESTION
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from served_index import (
    KINDS,
    Make,
    bodies,
    called,
    engine_of,
    fusion_of,
    lane,
    like,
    openai_chat,
    optimized,
    served_by,
    sub_questions_of,
)

import fineflow
from fineflow.runtime import servers
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.server import Fault, OpenAIServer

pytestmark = pytest.mark.sweep

QUERY, RETRIEVE = ("query", "aquery"), ("retrieve", "aretrieve")


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with served_by() as found:
        yield found
        servers.forget(found.url)


def both(server: OpenAIServer, make: Make, entry: str, *faults: Fault | None, ordered: bool = True) -> Any:
    """Stock and optimized: what a caller sees, and what the server was asked for answers. Returns the former."""
    asked = []

    def counted(manager: CallbackManager) -> Any:
        asked.append(bodies(server.answered))
        server.received.clear()
        server.faults[:] = faults
        return make(manager)

    seen = assert_same_index(counted, QUESTION, entries=(entry,), ordered=ordered)[entry]
    assert asked[-1] == bodies(server.answered)  # what stock asked, as the object was made for fineflow
    return seen


MODES = ("tree_summarize", "accumulate", "compact_accumulate", "refine", "compact", "simple_summarize", "generation")
TOLD: dict[str, dict[str, Any]] = {"cold": {}, "warm": {"warm": True}, "limit": {"max_requests": 1}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_every_synthesizer_on_every_kind_of_model(server: OpenAIServer, mode: str, kind: str) -> None:
    for entry in QUERY:
        both(server, engine_of(lambda: KINDS[kind](server.url), mode), entry)
    assert server.answered


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("mode", MODES)
def test_every_synthesizer_with_a_server_that_is_known(server: OpenAIServer, mode: str, told: str) -> None:
    fineflow.engine(server.url, **TOLD[told])
    for entry in QUERY:
        both(server, engine_of(lambda: like(server.url), mode), entry)
    assert server.answered and (not server.warmed or told == "warm")


@pytest.mark.parametrize("kind", KINDS)
def test_a_fusion_and_sub_questions(server: OpenAIServer, kind: str) -> None:
    model = lambda: KINDS[kind](server.url)  # noqa: E731
    for options in (None, *(TOLD.values() if kind == "OpenAILike" else ())):
        if options is not None:
            fineflow.engine(server.url, **options)
        for entry in RETRIEVE:
            both(server, fusion_of(model), entry, ordered=False)
            assert len(server.answered) == 1
        for entry in QUERY:
            both(server, sub_questions_of(model), entry, ordered=False)
            assert len(server.answered) >= 5  # the questions, an answer to each, and the last one


@pytest.mark.parametrize("kind", KINDS)
def test_answers_that_stream(server: OpenAIServer, kind: str) -> None:
    for options in (None, TOLD["limit"]):
        if options is not None:
            fineflow.engine(server.url, **options)
        for mode in ("tree_summarize", "refine", "simple_summarize"):
            for entry in QUERY:
                seen = both(server, engine_of(lambda: KINDS[kind](server.url), mode, streaming=True), entry)
                assert len(seen.tokens) > 1


@pytest.mark.parametrize("mode", ["accumulate", "tree_summarize"])
@pytest.mark.parametrize("told", TOLD)
def test_sync_methods_that_run_a_loop_of_their_own(server: OpenAIServer, told: str, mode: str) -> None:
    fineflow.engine(server.url, **TOLD[told])
    both(server, engine_of(lambda: like(server.url), mode, use_async=True), "query", ordered=False)
    both(server, fusion_of(lambda: like(server.url), use_async=True), "retrieve", ordered=False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_is_set_up_with_is_what_it_asks(server: OpenAIServer, kind: str) -> None:
    options: dict[str, Any] = {"temperature": 0.5, "logprobs": True, "top_logprobs": 1, "reuse_client": False}
    options |= {"additional_kwargs": {"seed": 3, "extra_body": {"top_k": 5}}, "default_headers": {"X-Team": "blue"}}
    fineflow.engine(server.url, priority=True)
    both(server, engine_of(lambda: KINDS[kind](server.url, **options), "simple_summarize"), "query")
    asked = server.answered[0]
    assert asked.body["top_k"] == 5 and asked.body["seed"] == 3 and asked.headers["x-team"] == "blue"
    assert asked.headers["authorization"] == "Bearer secret"


FAULTS: dict[str, tuple[Fault | None, ...]] = {
    "refused": (Fault(400, "no"),),
    "one retry": (Fault(500, headers={"retry-after-ms": "1"}),),
    "all retries": (Fault(500, headers={"retry-after-ms": "1"}),) * 2,
    "too many": (Fault(429, "slow down", {"retry-after-ms": "1"}),) * 2,
    "dropped": (Fault(0),),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["OpenAILike", "OpenAILike completing", "OpenAI"])
def test_errors_and_retries_are_those_of_the_model(server: OpenAIServer, kind: str, fault: str) -> None:
    """One request at a time, so that stock and fineflow meet the same faults."""
    fineflow.engine(server.url)
    retries = 0 if fault == "dropped" else 1  # which the client makes after half a second
    model = lambda: KINDS[kind](server.url, max_retries=retries, context_window=4000)  # noqa: E731
    raised = set()
    for entry in QUERY:  # one answer, asked for ahead
        raised.add(both(server, engine_of(model, top=2), entry, *FAULTS[fault]).error is not None)
        raised.add(both(server, engine_of(model, "compact", top=2), entry, *FAULTS[fault]).error is not None)
    for entry in RETRIEVE:
        raised.add(both(server, fusion_of(model), entry, *FAULTS[fault], ordered=False).error is not None)
    assert raised == {fault != "one retry"}


@pytest.mark.parametrize("entry", QUERY)
def test_a_server_that_does_not_answer_in_time(server: OpenAIServer, entry: str) -> None:
    server.gate = Gate()
    make = engine_of(lambda: like(server.url, timeout=0.2, context_window=4000), top=2)
    assert both(server, make, entry).error == ("APITimeoutError", "Request timed out.")
    assert len(server.answered) == 1


@pytest.mark.parametrize("entry", QUERY)
def test_a_server_that_is_not_there(entry: str) -> None:
    with served_by() as gone:
        pass
    make = engine_of(lambda: like(gone.url, context_window=4000), top=2)
    assert both(gone, make, entry).error == ("APIConnectionError", "Connection error.")


def test_answers_are_asked_for_side_by_side(server: OpenAIServer) -> None:
    """Stock's sync method asks for one after the other; here all of them are on the server before one is answered."""
    server.gate = Gate()
    with called(optimized(engine_of(lambda: like(server.url), "accumulate"))) as answer:
        server.gate.wait_arrived(6)
        server.gate.open()
        assert str(answer.result(20)).count("Response") == 6


def test_sub_questions_are_answered_side_by_side(server: OpenAIServer) -> None:
    server.gate = Gate()
    with called(optimized(sub_questions_of(lambda: like(server.url)))) as answer:
        server.gate.wait_arrived(1)
        server.gate.let(1)  # the questions
        server.gate.wait_arrived(4)
        server.gate.open()
        answer.result(20)


def test_lanes_are_servers(server: OpenAIServer) -> None:
    make = engine_of(lambda: like(server.url))
    assert f"on tiny@{lane(server)}" in str(fineflow.explain(make(CallbackManager([])), graphs=True))
    before = ended_at(lane(server))  # of an earlier server at the same port
    optimized(make).query(QUESTION)
    assert 1 <= ended_at(lane(server)) - before <= len(server.received)  # not those that stock has got to first


def ended_at(server: str) -> int:
    """Returns the number of requests that have been answered, rather than cut."""
    found = fineflow.statistics().engines.get(f"tiny@{server}")
    return 0 if found is None else found.batches - found.failed


def make_client(made: list[Any], given: dict[str, Any]) -> openai.OpenAI:
    made.append(given)
    return openai.OpenAI(**given)


def test_threads_that_begin_at_once_share_a_client(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    module = __import__("llama_index.llms.openai.base", fromlist=["SyncOpenAI"])
    monkeypatch.setattr(module, "SyncOpenAI", lambda **given: make_client(made, given))
    engine = optimized(engine_of(lambda: like(server.url), "accumulate"))
    engine.query(QUESTION)
    engine.query(QUESTION)
    assert len(made) == 1 and len(server.received) == 12


def test_the_client_is_kept_by_the_model(server: OpenAIServer) -> None:
    model = like(server.url)
    make = engine_of(lambda: model, "simple_summarize", streaming=True)
    engine = fineflow.optimize(make(CallbackManager([])), strict=True, eager=True)
    assert str(engine.query(QUESTION))
    client = model._client
    assert str(engine.query(QUESTION)) and client is not None and model._client is client
    assert len(server.received) == 2


# What is not recognised


class Own(OpenAILike):  # type: ignore[misc]  # has no types
    """A class of the user's, which calls what it overrides."""

    def chat(self, messages: Any, **kwargs: Any) -> Any:
        return super().chat(messages, **kwargs)


@fineflow.external
class Declared(OpenAILike):  # type: ignore[misc]  # has no types
    """One that was declared, and that the library calls by another way."""

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        return super().complete(prompt, formatted, **kwargs)


class Counting(OpenAILike):  # type: ignore[misc]  # has no types
    def _get_model_kwargs(self, **kwargs: Any) -> Any:
        return super()._get_model_kwargs(**kwargs)


def put_on_it(server: OpenAIServer) -> OpenAILike:
    model = like(server.url)
    own = model._chat
    model.__dict__["_chat"] = lambda messages, **kwargs: own(messages, **kwargs)
    return model


def of_class(kind: type[OpenAILike], *, chats: bool = True) -> Callable[[OpenAIServer], OpenAILike]:
    options: dict[str, Any] = {"model": "tiny", "max_retries": 0, "context_window": 900, "max_tokens": 60}
    return lambda s: kind(api_base=s.url, api_key="x", is_chat_model=chats, **options)


OTHERS: dict[str, Callable[[OpenAIServer], OpenAILike]] = {
    "an overridden method": of_class(Own),
    "an inner one": of_class(Counting),
    "a declared class": of_class(Declared, chats=False),
    "a method that was put on it": put_on_it,
}


@pytest.mark.parametrize("other", OTHERS)
def test_others_are_left_to_stock(server: OpenAIServer, other: str) -> None:
    fineflow.engine(server.url, warm=True, max_requests=1)
    make = engine_of(lambda: OTHERS[other](server))
    assert "decode" not in str(fineflow.explain(make(CallbackManager([]))))
    for entry in QUERY:
        both(server, make, entry)


@pytest.mark.parametrize("entry", QUERY)
def test_clients_that_users_have_made_are_used(server: OpenAIServer, entry: str) -> None:
    given: dict[str, Any] = {"base_url": server.url, "api_key": "other", "max_retries": 0}
    clients = {"openai_client": openai.OpenAI(**given), "async_openai_client": openai.AsyncOpenAI(**given)}
    make = engine_of(lambda: openai_chat("http://127.0.0.1:1/v1", **clients), top=2)
    both(server, make, entry)
    assert server.answered[0].headers["authorization"] == "Bearer other"
    assert f"gpt-4o-mini@{lane(server)}" in str(fineflow.explain(make(CallbackManager([]))))


def test_tools_are_left_alone(server: OpenAIServer) -> None:
    """What calls tools comes to the same inner methods, with arguments that nothing was asked ahead with."""
    model = openai_chat(server.url)
    tools = {"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]}
    engine = fineflow.optimize(engine_of(lambda: model)(CallbackManager([])), strict=True, eager=True)
    assert str(engine.query(QUESTION))
    server.received.clear()
    assert model.chat([ChatMessage(content="x")], **tools).message.content
    assert server.received[0].body["tools"] == tools["tools"]
