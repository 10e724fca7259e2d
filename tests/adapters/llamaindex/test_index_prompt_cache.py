"""Requests of a synthesizer that share a long beginning: the first goes, the others follow when it is answered."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, index
from llama_index.core import PromptTemplate
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse

import fineflow
from fineflow.adapters.llamaindex.models.usage import beginning, tokens
from fineflow.runtime.events import Tokens
from fineflow.runtime.queues.rate_limits import calls_of
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.fakes import FakeLLM

LONG = PromptTemplate("The rubric. " * 600 + "{context_str} {query_str}")


def engine(llm: Any) -> Any:
    return index().as_query_engine(llm=llm, response_mode="accumulate", similarity_top_k=6, text_qa_template=LONG)


@pytest.mark.parametrize("chat", [True, False])
def test_the_others_follow_the_first_response(chat: bool) -> None:
    gate, found = Gate(), list[str]()
    llm = FakeLLM(answers=answer, gate=gate, is_chat=chat)
    app = fineflow.optimize(engine(llm), strict=True, cache="warm")
    calling = threading.Thread(target=lambda: found.append(str(app.query(QUESTION))))
    calling.start()
    gate.wait_arrived(1)
    waiting, cache = threading.Event(), calls_of(llm).cache
    while sum(len(each.followers) for each in set(cache._pending.values())) < 5:  # the five others have asked
        assert calling.is_alive()
        waiting.wait(0.001)
    assert llm.meter.calls == 1
    gate.open()
    calling.join(10)
    assert found == [str(engine(FakeLLM(answers=answer, is_chat=chat)).query(QUESTION))]
    assert llm.meter.calls == 6


def test_what_answers_tell_of_caches() -> None:
    details = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}
    told = tokens(CompletionResponse(text="", raw={"usage": details}))
    assert told == Tokens(100, 64, 5)
    assert told is not None
    assert told.told
    usage = SimpleNamespace(
        input_tokens=10, output_tokens=5, cache_read_input_tokens=80, cache_creation_input_tokens=20
    )
    message = ChatMessage(role="assistant", content="")
    assert tokens(ChatResponse(message=message, raw={"usage": usage})) == Tokens(110, 80, 5, written=20)
    assert tokens(CompletionResponse(text="", raw={"usage": {}})) is None


def test_beginnings_of_requests() -> None:
    breaks = ChatMessage(role="system", content="s", additional_kwargs={"cache_control": {"type": "ephemeral"}})
    found = beginning(("chat", [breaks, ChatMessage(role="user", content="u")], {}))
    assert found is not None
    assert found.explicit
    assert beginning(("complete", "text", True, {})) == ("text", False)
    assert beginning(("query", "text")) is None
