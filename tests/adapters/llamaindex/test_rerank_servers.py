"""Postprocessors that ask models behind an OpenAI-compatible server: answers and requests as in stock, all at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("llama_index.core")
pytest.importorskip("llama_index.llms.openai_like")

from index_shapes import QUESTION, answer, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor import LLMRerank, StructuredLLMRerank
from llama_index.core.prompts import PromptTemplate
from served_index import MODELS, bodies, like, openai_chat

import fineflow
from fineflow.runtime import servers
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeEmbedding, FakeLLM
from fineflow.testing.server import OpenAIServer

WAIT = 10  # seconds; only a failing test waits this long
Make = Callable[[CallbackManager], Any]
# One of its own: stock leaves output parsers of other models with the one that all have in common.
PROMPT = "Which of these documents has what relevance score?\n{context_str}\nQuestion: {query_str}\n"


def said(prompt: str) -> str:
    seen = int(re.findall(r"\d+", answer(prompt))[0])
    if "1-10" in prompt and "Respond" in prompt:
        return f"Doc: 1, Relevance: {seen % 10}"
    return json.dumps({"documents": [{"document_number": 1, "relevance": seen % 10}]})


@pytest.fixture
def gate() -> Gate:
    return Gate(opened=True)


@pytest.fixture
def server(gate: Gate) -> Iterator[OpenAIServer]:
    with OpenAIServer(said, models=MODELS, gate=gate) as found:
        yield found
        servers.forget(found.url)


def structured(llm: Any) -> Any:
    return StructuredLLMRerank(llm=llm, choice_batch_size=1, top_n=3, choice_select_prompt=PromptTemplate(PROMPT))


RERANKERS: dict[str, Callable[[str], Any]] = {
    "choices": lambda url: LLMRerank(llm=like(url), choice_batch_size=1, top_n=3),
    "choices of OpenAI": lambda url: LLMRerank(llm=openai_chat(url), choice_batch_size=1, top_n=3),
    "structured choices": lambda url: structured(like(url)),
    "structured choices of OpenAI": lambda url: structured(openai_chat(url)),
}


def engine_of(make: Callable[[], Any]) -> Make:
    made = index(FakeEmbedding())

    def build(manager: CallbackManager) -> Any:
        processor = make()
        processor.llm.callback_manager = processor.callback_manager = manager
        model = FakeLLM(answers=answer, callback_manager=manager)
        engine: Any = made.as_query_engine(llm=model, similarity_top_k=6, node_postprocessors=[processor])
        engine.callback_manager = engine.retriever.callback_manager = manager
        engine._response_synthesizer.callback_manager = manager
        return engine

    return build


@pytest.mark.parametrize("entry", ["query", "aquery"])
@pytest.mark.parametrize("case", RERANKERS)
def test_nodes_and_requests_are_those_of_stock(server: OpenAIServer, case: str, entry: str) -> None:
    asked = []

    def counted(manager: CallbackManager) -> Any:
        asked.append(sorted(map(repr, bodies(server.answered))))
        server.received.clear()
        return engine_of(lambda: RERANKERS[case](server.url))(manager)

    seen = assert_same_index(counted, QUESTION, entries=(entry,))[entry]
    asked.append(sorted(map(repr, bodies(server.answered))))
    assert len(seen.nodes) == 3
    assert asked[-2] == asked[-1]
    assert len(asked[-1]) == 6


@pytest.mark.parametrize("case", [case for case in RERANKERS if case != "structured choices"])  # which is stock's
def test_all_is_asked_at_once(server: OpenAIServer, gate: Gate, case: str) -> None:
    engine = fineflow.optimize(engine_of(lambda: RERANKERS[case](server.url))(CallbackManager([])), strict=True)
    gate.close()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(engine.query, QUESTION)
        try:
            gate.wait_arrived(6)  # stock asks for the second when the first has been given
        finally:
            gate.open()
        assert len(call.result(WAIT).source_nodes) == 3
    assert len(server.answered) == 6
    assert engine._self_last.unclaimed == 0


def test_a_model_that_calls_functions_is_stocks(server: OpenAIServer) -> None:
    def make() -> Any:
        return structured(openai_chat(server.url, model="gpt-3.5-turbo-instruct"))

    plan = str(fineflow.explain(engine_of(make)(CallbackManager([])), graphs=True))
    assert "it is not known how OpenAI is called for structured output" in plan
