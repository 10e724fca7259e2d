"""Calls of apps that are made of the user's functions are verified, too, where these only call components that read."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from verified_calls import ASKED, Model, Reported, Search, acall, explained, optimized, rag, scripted

import fineflow
from fineflow.runtime.reruns import reruns
from fineflow.testing.gates import Gate

search, model = Search(), Model()
grader = ChatPromptTemplate.from_template("grade {text}") | model | StrOutputParser()
store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
seen: list[str] = []


def answer(question: str) -> dict[str, Any]:
    found = search.invoke(question)
    return {
        "graded": [grader.invoke({"text": d.page_content}) for d in found],
        "answer": model.invoke(question).content,
    }


def configured(question: str, config: RunnableConfig) -> str:
    return grade(grader, search.invoke(question, config=config), config)


def grade(chain: Any, found: list[Document], config: RunnableConfig) -> str:
    return " ".join(chain.batch([{"text": d.page_content} for d in found], config=config))


def from_store(question: str) -> list[str]:
    near = store.similarity_search(question, k=1)
    return [grader.invoke({"text": question}), *(d.page_content for d in near)]


class Corrective:
    """An app as a class, whose method is the step."""

    def __init__(self, retriever: Any) -> None:
        self.retriever, self.chain = retriever, grader

    def run(self, question: str) -> str:
        found = self.retriever.invoke(question)
        first = self.chain.invoke({"text": question})
        return first if not found else self.chain.invoke({"text": found[0].page_content})


def writes(question: str) -> str:
    seen.append(question)
    return grader.invoke({"text": question}) + model.invoke(question).content


def adds(question: str) -> str:
    store.add_documents([Document(question)])
    return grader.invoke({"text": question}) + model.invoke(question).content


def prints(question: str) -> str:
    print(question)
    return grader.invoke({"text": question}) + model.invoke(question).content


def of_writing(question: str) -> str:
    return inner.invoke(question) + model.invoke(question).content


inner = RunnableLambda(writes) | StrOutputParser()


@pytest.fixture(autouse=True)
def documents() -> None:
    store.store.clear()
    store.add_documents([Document("a bridge", id="1")])


@pytest.mark.parametrize("step", [answer, configured, from_store, Corrective(Search()).run])
@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_functions_that_only_call_components_are_verified(step: Any, entry: str) -> None:
    fast = optimized(RunnableLambda(step))
    acall(fast, entry, "where?") if entry == "ainvoke" else fast.invoke("where?")
    found = fineflow.verified(10)
    assert (found.verified, found.equal, dict(found.skipped)) == (1, 1, {})
    assert "run again on stock afterwards and compared exactly" in explained(fast)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (writes, "writes .* may have effects: it calls .append"),
        (adds, "adds .* may have effects: it calls .add_documents"),
        (prints, "prints .* may have effects: it prints"),
        (of_writing, "of_writing .* calls a component in which writes .* may have effects: it calls .append"),
    ],
)
@pytest.mark.parametrize("entry", ["invoke", "called"])
def test_functions_that_do_more_are_not(step: Any, why: str, entry: str) -> None:
    fast = optimized(step if entry == "called" else RunnableLambda(step))
    getattr(fast, entry, fast)("where?")
    [reason] = fineflow.verified(10).skipped
    assert re.search(why, reason), reason


@pytest.mark.parametrize("function", [answer, from_store])
def test_functions_of_their_own_are_verified(function: Any) -> None:
    fast = optimized(function)
    assert fast("where?") == function("where?")
    found = fineflow.verified(10)
    assert (found.verified, found.equal, dict(found.skipped)) == (1, 1, {})


def test_coroutine_functions_are_not() -> None:
    async def awaits(question: str) -> str:
        return str(await grader.ainvoke({"text": question})) + str((await model.ainvoke(question)).content)

    asyncio.run(optimized(awaits)("where?"))
    [reason] = fineflow.verified(10).skipped
    assert reason.endswith("may have effects: it is a coroutine function")


def test_a_difference_inside_a_function_is_reported() -> None:
    retriever = scripted("bridge", "tower", "tower")

    def found(question: str) -> list[str]:
        return [grader.invoke({"text": question}), retriever.invoke(question)[0].page_content]

    reported = Reported()
    optimized(RunnableLambda(found), reported).invoke("where?")
    assert fineflow.verified(10).different == 1
    assert "tower" in reported[0].diff


def test_a_sampling_model_inside_a_function_leaves_the_structure() -> None:
    sampling = Model(temperature=0.7)

    def asked(question: str) -> list[str]:
        return [sampling.invoke(question).content, grader.invoke({"text": question})]

    assert "by structure, as Model answers at temperature 0.7" in explained(optimized(RunnableLambda(asked)))


def test_a_function_that_calls_something_else_by_now_is_not_repeated() -> None:
    step = Corrective(Search())
    fast = optimized(RunnableLambda(step.run))
    fast.invoke("where?")
    assert fineflow.verified(10).equal == 1
    step.chain = RunnableLambda(lambda given: writes(given["text"])) | StrOutputParser()
    fast.invoke("where?")
    found = fineflow.verified(10)
    assert found.verified == 1
    assert any("calls a component in which RunnableLambda" in why for why in found.skipped), found


@fineflow.external
class Counting(Search):
    calls: int = 0
    every: int = 1

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.calls += 1
        found = super()._get_relevant_documents(query, run_manager=run_manager)
        return found * self.every


def test_components_that_count_their_calls_are_verified() -> None:
    fast = optimized(rag(Counting()))
    for _ in range(3):
        fast.invoke(ASKED)
        fineflow.verified(10)
    found = fineflow.verified(10)
    assert (found.equal, dict(found.skipped)) == (3, {})


def test_a_number_that_was_set_meanwhile_leaves_a_doubt() -> None:
    counting, gate, reported = Counting(), Gate(), Reported()
    reruns().submit(lambda: gate.wait_sync() or "", 1)
    optimized(rag(counting), reported).invoke(ASKED)
    counting.every = 2
    gate.open()
    assert fineflow.verified(10).unsteady == 1
    assert reported[0].doubt.startswith("numbers in components")
