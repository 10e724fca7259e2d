"""What engines tell: tokens, cached tokens, batches and time in queues; on the steps, and in metrics."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI
from opentelemetry.sdk.trace import ReadableSpan
from telemetry_kit import QUESTION, Kept, app, attributes, telemetry

import fineflow
from fineflow.backends.emulated import EmulatedLLM
from fineflow.backends.openai_server import OpenAIServerEngine
from fineflow.langchain import ChatEngine, EngineEmbeddings
from fineflow.runtime.statistics import statistics
from fineflow.testing.engines import GatedBatches, GatedLLM
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat
from fineflow.testing.server import OpenAIServer
from fineflow.testing.virtual import run

RULES = "rule " * 640


def by_op(kept: Kept, op: str) -> list[ReadableSpan]:
    return [span for span in kept.spans if attributes(span).get("fineflow.op") == op]


def on_engine(engine: Any) -> Runnable[Any, Any]:
    """Answers behind a slow step, so that the beginning of the prompt is prefilled meanwhile."""
    slow = ChatPromptTemplate.from_template("classify {question}") | FakeChat(prefill=5.0) | StrOutputParser()
    prompt = ChatPromptTemplate.from_template(f"{RULES}{{question}} {{category}}")
    return RunnablePassthrough.assign(category=slow) | prompt | ChatEngine(engine=engine) | StrOutputParser()


def test_an_engine_tells_its_tokens() -> None:
    fast = fineflow.optimize(on_engine(EmulatedLLM(lambda _: "one two three", name="emulated")), strict=True)
    with telemetry() as kept:
        assert run(fast.ainvoke(QUESTION)).value == "one two three"
    (ahead,) = by_op(kept, "partial_prefill")
    (answer,) = [span for span in by_op(kept, "decode") if attributes(span)["fineflow.engine"] == "emulated"]
    prefilled, found = attributes(ahead), attributes(answer)
    assert found["gen_ai.usage.output_tokens"] == 3
    assert found["gen_ai.usage.input_tokens"] > 640
    assert 0 < found["gen_ai.usage.cache_read.input_tokens"] <= prefilled["gen_ai.usage.input_tokens"]
    assert prefilled["gen_ai.usage.output_tokens"] == 0
    assert "gen_ai.operation.name" not in prefilled and prefilled["gen_ai.request.model"] == "emulated"
    points = {
        (p.attributes["fineflow.engine"], p.attributes["fineflow.type"]): p.value
        for p in kept.metrics()["fineflow.engine.tokens"]
    }
    assert points["emulated", "output"] == 3
    assert points["emulated", "cached"] == found["gen_ai.usage.cache_read.input_tokens"]


def wait_for_queued(engine: str, items: int) -> None:
    """Returns when so many items wait for a batch: a queue has no gate."""
    for _ in range(10_000):
        if statistics().engines[engine].queued >= items:
            return
        time.sleep(0.001)
    raise TimeoutError(f"{items} items never waited for {engine}")


def retrieving(engine: Any, gate: Gate) -> Runnable[Any, Any]:
    store = InMemoryVectorStore(EngineEmbeddings(engine=engine))
    gate.open()
    store.add_documents([Document("a planner"), Document("a memory")])
    gate.close()
    search = RunnableLambda(lambda given: given["question"]) | store.as_retriever()
    return RunnablePassthrough.assign(found=search, other=ChatPromptTemplate.from_template("{question}") | FakeChat())


def test_requests_of_several_calls_share_a_batch() -> None:
    gate = Gate()
    engine = GatedBatches(name="embedder", max_batch=4, gate=gate)
    fast = fineflow.optimize(retrieving(engine, gate), strict=True, eager=True)
    arrived = gate.arrivals
    with telemetry() as kept:
        threads = [threading.Thread(target=fast.invoke, args=(QUESTION,)) for _ in range(3)]
        threads[0].start()
        gate.wait_arrived(arrived + 1)  # its batch is on the engine: the others wait for the next one
        queue = next(each for each in statistics().engines.values() if each.name == "embedder")
        for thread in threads[1:]:
            thread.start()
        wait_for_queued("embedder", 2)
        opened = time.time()
        gate.open()
        for thread in threads:
            thread.join()
    assert queue.running == 1
    spans = [attributes(span) for span in by_op(kept, "embed")]
    assert [span["fineflow.batch.size"] for span in spans] == [1, 2, 2]
    assert [span["fineflow.batch.items"] for span in spans] == [1, 1, 1]
    assert all(span["gen_ai.operation.name"] == "embeddings" for span in spans)
    first, *others = by_op(kept, "embed")
    gate_opened = opened * 1e9  # until then the first batch was on the engine
    for span in others:
        waited = attributes(span)["fineflow.queue_seconds"] * 1e9
        assert (span.start_time or 0) < gate_opened <= (span.start_time or 0) + waited + 1e6
    assert (first.start_time or 0) + attributes(first)["fineflow.queue_seconds"] * 1e9 < gate_opened
    (sizes,) = [
        p for p in kept.metrics()["fineflow.engine.batch_size"] if p.attributes["fineflow.engine"] == "embedder"
    ]
    assert (sizes.count, sizes.sum, sizes.max) == (2, 3, 2)
    (waits,) = [p for p in kept.metrics()["fineflow.engine.wait"] if p.attributes["fineflow.engine"] == "embedder"]
    assert waits.count == 3


def test_a_call_that_runs_as_stock_tells_its_engine_work() -> None:
    chain = ChatPromptTemplate.from_template("{question}") | ChatEngine(engine=GatedLLM("one two")) | StrOutputParser()
    with telemetry() as kept:
        assert fineflow.optimize(chain).invoke(QUESTION) == "one two"
    (call,) = kept.calls
    (request,) = kept.below(call)
    found = attributes(request)
    assert attributes(call)["fineflow.ahead"] is False
    assert (found["fineflow.result"], found["fineflow.engine"]) == ("stock", "gated-llm")
    assert found["gen_ai.usage.output_tokens"] == 2


class Server(httpx.BaseTransport):
    """An OpenAI-compatible server that tells usage."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        usage = {
            "prompt_tokens": 90,
            "completion_tokens": 7,
            "total_tokens": 97,
            "prompt_tokens_details": {"cached_tokens": 64},
        }
        message = {"role": "assistant", "content": "ok"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "gpt-4o-mini", "usage": usage}
        return httpx.Response(
            200, json={**body, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        )


def test_a_client_of_a_server_tells_the_tokens_of_its_answer() -> None:
    model = ChatOpenAI(model="gpt-4o-mini", api_key="none", http_client=httpx.Client(transport=Server()))  # type: ignore[arg-type]
    fast = fineflow.optimize(app(model=model), strict=True)
    with telemetry() as kept:
        fast.invoke(QUESTION)
    chats = by_op(kept, "decode")
    assert len(chats) == 2
    for span in chats:
        found = attributes(span)
        assert span.name == "chat gpt-4o-mini"
        assert (found["gen_ai.request.model"], found["gen_ai.provider.name"]) == ("gpt-4o-mini", "openai")
        assert found["gen_ai.usage.input_tokens"] == 90 and found["gen_ai.usage.output_tokens"] == 7
        assert found["gen_ai.usage.cache_read.input_tokens"] == 64


def test_metrics_count_calls_claims_and_failures() -> None:
    good = fineflow.optimize(app(), strict=True)
    bad = fineflow.optimize(app(last=FakeChat(answers=lambda _: ValueError())), strict=True)
    plain = fineflow.optimize(ChatPromptTemplate.from_template("{question}") | FakeChat())
    with telemetry() as kept:
        good.invoke(QUESTION)
        asyncio.run(good.ainvoke(QUESTION))
        plain.invoke(QUESTION)
        with pytest.raises(ValueError):
            bad.invoke(QUESTION)
        found = kept.metrics()
    calls = {
        tuple(p.attributes[f"fineflow.{n}"] for n in ("entry", "ahead", "outcome")): p.count
        for p in found["fineflow.call.duration"]
    }
    assert calls == {
        ("invoke", "true", "finished"): 1,
        ("ainvoke", "true", "finished"): 1,
        ("invoke", "false", "finished"): 1,
        ("invoke", "true", "failed"): 1,
    }
    assert {p.attributes["fineflow.result"]: p.value for p in found["fineflow.claims"]} == {"claimed": 9}
    assert {p.attributes["fineflow.kind"]: p.value for p in found["fineflow.ahead.failures"]} == {"error": 1}
    assert sum(p.count for p in found["fineflow.call.saved"]) == 3
    assert all(p.sum > 0 for p in found["fineflow.call.saved"])
    assert [p.value for p in found["fineflow.calls.running"]] == [0]


def test_refused_calls_are_overloaded() -> None:
    gate = Gate()
    fast = fineflow.optimize(app(0.0, last=FakeChat(gate=gate)), strict=True)
    with telemetry() as kept, fineflow.Runtime(max_queries=1, overload="raise"):
        thread = threading.Thread(target=fast.invoke, args=(QUESTION,))
        thread.start()
        gate.wait_arrived()
        with pytest.raises(fineflow.Overloaded):
            fast.invoke(QUESTION)
        gate.open()
        thread.join()
    assert sorted(attributes(span)["fineflow.outcome"] for span in kept.calls) == ["finished", "overloaded"]


def test_saved_counts_what_stock_would_have_done_one_by_one() -> None:
    """Requests in a loop of the user's: three of a second each, at once."""
    model = FakeChat(prefill=1.0)
    grade = ChatPromptTemplate.from_template("grade {x}") | model

    async def graded(given: Any) -> list[str]:
        return [(await grade.ainvoke({"x": word})).content for word in given["question"].split()]

    fast = fineflow.optimize(RunnableLambda(graded) | RunnableLambda(len), strict=True)
    with telemetry() as kept:
        seconds = [run(fast.ainvoke({"question": "one two three"})).seconds for _ in range(2)]
    assert seconds[1] == pytest.approx(1.0, abs=0.01)
    assert attributes(kept.calls[1])["fineflow.saved_seconds"] == pytest.approx(2.0, abs=0.01)
    assert len([span for span in kept.below(kept.calls[1]) if span.name.startswith("invoke_workflow")]) == 3


def test_branches_that_stock_runs_at_once_save_nothing() -> None:
    both = RunnableParallel(one=FakeChat(prefill=1.0), other=FakeChat(prefill=1.0))
    fast = fineflow.optimize(both, strict=True, eager=True)
    with telemetry() as kept:
        assert run(fast.ainvoke("x")).seconds == pytest.approx(1.0, abs=0.01)
    assert attributes(kept.calls[0])["fineflow.saved_seconds"] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("entry", ["invoke", "stream"])
def test_an_engine_on_a_server_tells_the_usage_that_it_reports(entry: str) -> None:
    with OpenAIServer("one two three") as server, telemetry() as kept:
        engine = OpenAIServerEngine(server.url, "tiny", api_key="none")
        fast = fineflow.optimize(app(last=ChatEngine(engine=engine)), strict=True)
        said = fast.invoke(QUESTION) if entry == "invoke" else "".join(fast.stream(QUESTION))
        assert said == "one two three"
        asked = len(server.received[-1].prompt)
    (answer,) = [span for span in by_op(kept, "decode") if "tiny" in span.name]
    found = attributes(answer)
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.cache_read.input_tokens"]) == (asked, 0)
    assert found["gen_ai.usage.output_tokens"] > 0 and found["fineflow.result"] == "claimed"
