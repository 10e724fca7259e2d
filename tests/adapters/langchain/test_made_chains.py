"""Classic chains that functions make themselves: their calls run ahead, and stock's warnings stay stock's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.public.classic_apps import chat
from benchmarks.public.written_apps import DOCUMENTS, QUESTION, retriever
from langchain_classic.chains import LLMChain, RetrievalQA, SequentialChain
from langchain_classic.chains.summarize import load_summarize_chain
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda
from pipelines import ENTRIES

import fineflow
import programs
from fineflow.testing import virtual_threads
from fineflow.testing.differential import assert_same

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")


def summary(seconds: float) -> Any:
    model = chat(seconds)

    def summarize(docs: Any) -> str:
        chain = load_summarize_chain(model, chain_type="map_reduce")
        return chain.run(docs)

    return RunnableLambda(summarize)


def over_extractor(seconds: float) -> Any:
    model, extractor = chat(seconds), LLMChainExtractor.from_llm(chat(seconds))
    search = ContextualCompressionRetriever(base_compressor=extractor, base_retriever=retriever(seconds))

    def answer(question: str) -> str:
        chain = RetrievalQA.from_chain_type(llm=model, retriever=search)
        return chain.invoke({"query": question})["result"]

    return RunnableLambda(answer)


def named(seconds: float) -> Any:
    model = chat(seconds)

    def names(topics: list[str]) -> list[str]:
        found = []
        for topic in topics:
            chain = LLMChain(llm=model, prompt=PromptTemplate.from_template("Name {topic}"))
            found.append(chain.run(topic))
        return found

    return RunnableLambda(names)


def answered(seconds: float) -> Any:
    model, search = chat(seconds), retriever(seconds)

    def answers(questions: list[str]) -> list[str]:
        chain = RetrievalQA.from_chain_type(model, chain_type="stuff", retriever=search)
        return [chain.run(question) for question in questions]

    return RunnableLambda(answers)


def in_sequence(seconds: float) -> Any:
    model = chat(seconds)

    def both(text: str) -> Any:
        first = LLMChain(llm=model, prompt=PromptTemplate.from_template("Sum up {x}"), output_key="a")
        second = LLMChain(llm=model, prompt=PromptTemplate.from_template("Translate {x}"), output_key="b")
        chain = SequentialChain(chains=[first, second], input_variables=["x"], output_variables=["a", "b"])
        return chain({"x": text})

    return RunnableLambda(both)


MADE: dict[str, tuple[Callable[[float], Any], Any, float]] = {
    "load_summarize_chain": (summary, DOCUMENTS, 2),
    "RetrievalQA over an extractor": (over_extractor, QUESTION, 2.25),
    "LLMChain in a loop": (named, ["a", "b", "c"], 1),
    "RetrievalQA in a loop": (answered, ["a", "b", "c"], 1.25),
    "SequentialChain": (in_sequence, "a", 1),
}


@needs_virtual_threads
@pytest.mark.parametrize("name", MADE)
def test_runs_ahead(name: str) -> None:
    make, value, path = MADE[name]
    found, took = virtual_threads.run(lambda: fineflow.optimize(make(1), strict=True).invoke(value))
    assert found == virtual_threads.run(lambda: make(1).invoke(value)).value
    assert took == pytest.approx(path, abs=0.05)


@pytest.mark.parametrize("name", MADE)
def test_same(name: str) -> None:
    make, value, _ = MADE[name]
    assert_same(lambda: make(0), value, strict=True, eager=True, entries=ENTRIES)


_WARNING = """
import sys, warnings
sys.path[:0] = {path}
import fineflow
from test_made_chains import named
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    app = named(0)
    (fineflow.optimize(app, eager=True) if {optimized} else app).invoke(["a", "b"])
print([(each.category.__name__, each.filename, each.lineno) for each in caught])
"""


def test_warns_where_stock_warns() -> None:
    told = []
    for optimized in (False, True):
        code = _WARNING.format(path=sys.path, optimized=optimized)
        ran = programs.run("-c", code)
        assert ran.returncode == 0, ran.stderr
        told.append(ran.stdout)
    assert told[0] == told[1]
    assert "LangChainDeprecationWarning" in told[0]
