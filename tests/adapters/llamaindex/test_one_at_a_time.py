"""The LLM of vllm in LlamaIndex's ``Vllm`` is for one thread: its calls stay where stock makes them."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, index
from pydantic import PrivateAttr

import fineflow
from fineflow.testing.llamaindex.fakes import BlockingLLM

Threads = list[threading.Thread]


@fineflow.external
class Vllm(BlockingLLM):
    """In the place of the component, which needs vllm and a model: it notes the threads that ask it."""

    _client: Any = PrivateAttr(default=None)
    _threads: Threads = PrivateAttr(default_factory=list)

    def _answer(self, text: str) -> str:
        self._threads.append(threading.current_thread())
        return super()._answer(text)


def engine(llm: Vllm) -> Any:
    made = index().as_query_engine(llm=llm, response_mode="accumulate", similarity_top_k=6, use_async=True)
    return fineflow.optimize(made, strict=True)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    monkeypatch.setitem(sys.modules, "llama_index.llms.vllm.base", SimpleNamespace(Vllm=Vllm))  # type: ignore[arg-type]
    return Vllm(answers=answer)


def test_an_llm_in_this_process_is_asked_on_the_loop_of_its_caller(llm: Vllm) -> None:
    llm._client = object()
    asyncio.run(engine(llm).aquery(QUESTION))
    assert len(llm._threads) == 6
    assert set(llm._threads) == {threading.current_thread()}


def test_and_by_its_caller(llm: Vllm) -> None:
    llm._client = object()
    stock = index().as_query_engine(llm=llm, response_mode="accumulate", similarity_top_k=6).query(QUESTION)
    made = index().as_query_engine(llm=llm, response_mode="accumulate", similarity_top_k=6)
    llm._threads.clear()
    assert str(fineflow.optimize(made, strict=True).query(QUESTION)) == str(stock)
    assert len(llm._threads) == 6
    assert set(llm._threads) == {threading.current_thread()}


def test_one_behind_a_server_blocks_no_loop(llm: Vllm) -> None:
    asyncio.run(engine(llm).aquery(QUESTION))
    assert threading.current_thread() not in llm._threads
