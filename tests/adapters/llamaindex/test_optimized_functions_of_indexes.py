"""Plain functions that call LlamaIndex's components, as objects: the same answers and reports, with calls ahead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from benchmarks.public.llamaindex_kit import Kit, nodes
from llama_index.core.callbacks import CallbackManager

import fineflow
from fineflow.testing import virtual, virtual_threads

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
kit = Kit(1.0, CallbackManager())
llm, retriever = kit.llm(), kit.retriever(nodes())


def summaries(question: str) -> list[str]:
    return [llm.complete(f"Summarize {node.text}").text for node in retriever.retrieve(question)]


async def asummaries(question: str) -> list[str]:
    found = []
    for node in await retriever.aretrieve(question):
        found.append((await llm.acomplete(f"Summarize {node.text}")).text)
    return found


class Assistant:
    def __init__(self) -> None:
        self.llm = llm

    @fineflow.optimize
    def both(self, question: str) -> list[str]:
        return [self.llm.complete(question).text, self.llm.complete(f"not {question}").text]


@needs_virtual_threads
def test_calls_in_a_function_run_side_by_side() -> None:
    stock = virtual_threads.run(lambda: summaries("bridges"))
    fast = virtual_threads.run(lambda: fineflow.optimize(summaries, strict=True)("bridges"))
    assert fast.value == stock.value
    assert fast.seconds < 0.6 * stock.seconds


def test_calls_in_an_async_function_run_side_by_side() -> None:
    stock = virtual.run(asummaries("bridges"))
    fast = virtual.run(fineflow.optimize(asummaries, strict=True)("bridges"))
    assert fast.value == stock.value
    assert fast.seconds < 0.6 * stock.seconds


@needs_virtual_threads
def test_calls_in_a_method_run_side_by_side() -> None:
    found = virtual_threads.run(lambda: Assistant().both("a"))
    asked = virtual_threads.run(lambda: llm.complete("a"))
    assert found.seconds == pytest.approx(asked.seconds)


def test_explain_names_it() -> None:
    plan: Any = fineflow.explain(fineflow.optimize(summaries), graphs=True)
    assert plan.name == "summaries"
    said = " ".join(str(plan).split())
    assert "calls of `retriever`, `llm` in it that need nothing from each other start together" in said
    assert asyncio.iscoroutinefunction(fineflow.optimize(asummaries))
