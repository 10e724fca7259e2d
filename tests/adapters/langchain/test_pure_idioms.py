"""Helper functions as applications write them: they run ahead, and nobody can tell."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Literal

import pytest
from effect_chains import planned
from langchain_core.documents import Document
from langchain_core.load import dumps, loads
from langchain_core.messages import BaseMessage, HumanMessage, get_buffer_string
from langchain_core.output_parsers import PydanticOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate, format_document
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from pipelines import DIRECT, QUESTION, ask, echo, same, store
from pydantic import BaseModel

import fineflow
from fineflow.ir import Effect
from fineflow.testing.langchain import FakeChat

DEFAULT_DOCUMENT_PROMPT = PromptTemplate.from_template(template="{page_content}")
SOURCES = {"a": "first"}

pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


def format_docs(docs: Any) -> str:
    formatted = [f"{i} {doc.page_content} {SOURCES.get('a')}" for i, doc in enumerate(docs)]
    return "\n\n" + "\n\n".join(formatted)


def combine_documents(docs: Any, document_prompt: Any = DEFAULT_DOCUMENT_PROMPT, separator: str = "\n\n") -> str:
    strings = [format_document(doc, document_prompt) for doc in docs]
    return separator.join(strings)


def get_unique_union(documents: list[list[Document]]) -> list[Any]:
    flattened = [dumps(doc) for sublist in documents for doc in sublist]
    unique = list(set(flattened))
    return [loads(doc) for doc in unique]


def reciprocal_rank_fusion(results: list[list[Document]], k: int = 60) -> list[Any]:
    fused: dict[str, Any] = {}
    for docs in results:
        for rank, doc in enumerate(docs):
            text = dumps(doc)
            if text not in fused:
                fused[text] = 0
            fused[text] += 1 / (rank + k)
    return [(loads(doc), score) for doc, score in sorted(fused.items(), key=lambda x: x[1], reverse=True)]


class Application:
    """Keeps its settings on itself."""

    def __init__(self) -> None:
        self.top = 1

    def format(self, docs: Any) -> str:
        return "\n".join(self._shown(doc) for doc in docs[: self.top])

    def _shown(self, doc: Any) -> str:
        return re.sub(r"\s+", " ", doc.page_content).strip()


class Grade(BaseModel):
    binary_score: Literal["yes", "no"]
    reason: str = ""

    def as_text(self) -> str:
        return self.reason


def draft() -> Any:
    return ask("rewrite {question}") | FakeChat(answers=echo) | StrOutputParser()


def last(text: str = "{context} {question}") -> Any:
    return ask(text) | FakeChat(answers=echo) | StrOutputParser()


def over_documents(function: Any) -> Any:
    found = RunnablePassthrough.assign(rewritten=draft()) | RunnablePassthrough.assign(
        context=itemgetter("question") | store().as_retriever() | RunnableLambda(function)
    )
    return found | last()


def over_lists(function: Any) -> Any:
    queries = itemgetter("question") | RunnableLambda(lambda x: [x, x + " again"])
    searched = queries | store().as_retriever().map() | RunnableLambda(function)
    return RunnablePassthrough.assign(rewritten=draft()) | RunnablePassthrough.assign(context=searched) | last()


def graded() -> Any:
    def decide(x: Any) -> str:
        if x["grade"].binary_score.lower() == "yes" and x["grade"].reason == "":
            return str(x["question"])
        return "other " + str(x["question"])

    grading = FakeChat(default=json.dumps({"binary_score": "yes"}))
    grade = ask("{question}") | grading | PydanticOutputParser(pydantic_object=Grade)
    routed = {"grade": grade, "question": itemgetter("question")} | RunnableLambda(decide)
    searched = {"context": routed | store().as_retriever(), "question": itemgetter("question")}
    return RunnablePassthrough.assign(rewritten=draft()) | searched | last()


def with_history() -> Any:
    def told(x: Any) -> str:
        roles = ["user" if isinstance(m, HumanMessage) else "other" for m in x["history"] if isinstance(m, BaseMessage)]
        return get_buffer_string(x["history"]) + ",".join(roles)

    return (
        RunnablePassthrough.assign(history=lambda x: [HumanMessage(content=x["question"])])
        | RunnablePassthrough.assign(rewritten=draft())
        | RunnablePassthrough.assign(context=told)
        | last()
    )


def stuffed() -> Any:
    documents = pytest.importorskip("langchain_classic.chains.combine_documents")
    prompt = ChatPromptTemplate.from_template("{context} {question}")
    chain = documents.create_stuff_documents_chain(FakeChat(answers=echo), prompt)
    found = RunnablePassthrough.assign(context=itemgetter("question") | store().as_retriever())
    return RunnablePassthrough.assign(rewritten=draft()) | found | chain


CHAINS: dict[str, Callable[[], Any]] = {
    "format_docs": lambda: over_documents(format_docs),
    "combine_documents": lambda: over_documents(combine_documents),
    "a method": lambda: over_documents(Application().format),
    "unique union": lambda: over_lists(get_unique_union),
    "rank fusion": lambda: over_lists(reciprocal_rank_fusion),
    "graded": graded,
    "history": with_history,
    "stuff documents": stuffed,
}


@pytest.fixture(scope="module", autouse=True)
def _warned() -> None:
    loads(dumps(Document("a")))  # gives its warning once, which is stock's


@pytest.mark.parametrize("name", CHAINS)
def test_they_run_ahead_and_the_answer_is_stocks(name: str) -> None:
    plan = fineflow.explain(CHAINS[name]())
    assert plan.e_graph is not None
    assert Effect.OPAQUE not in {p.effects.kind for p in plan.p_graph}, str(plan)
    same(CHAINS[name], QUESTION, entries=DIRECT)


def test_loads_is_stocks_until_it_has_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = loads.__closure__[loads.__code__.co_freevars.index("warned")]  # type: ignore[index]
    chain = over_lists(get_unique_union)
    fast = fineflow.optimize(chain, strict=True, eager=True)
    cell.cell_contents = False
    assert planned(fast)["get_unique_union.call"].effects.kind is Effect.UNORDERED
    with pytest.warns(match="in beta"):
        first = fast.invoke(QUESTION)
    assert planned(fast)["get_unique_union.call"].effects.kind is Effect.PURE
    assert fast.invoke(QUESTION) == first == chain.invoke(QUESTION)
