"""The first calls of an app, its plan included, do not block the event loop that they are made on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langgraph.graph import END, START, StateGraph

import fineflow
from fineflow.adapters.core import installers
from fineflow.testing.langchain import FakeChat, FakeRetriever
from fineflow.testing.stalls import entered

CALLS = 20
AWAY = (
    "fineflow.api.plan",
    "fineflow.adapters.core.shadows.Shadows.build",
    "_frozen_importlib._find_and_load_unlocked",
)
"""What takes long, and runs in a thread."""


@pytest.fixture
def nothing_known() -> None:
    """Where modules come from is not known yet."""
    installers._installed.cache_clear()
    installers.of_application.cache_clear()
    installers._folder.cache_clear()
    installers._records.cache_clear()


def _chain() -> Any:
    retriever, llm = FakeRetriever(documents=[Document("x")]), FakeChat(answers={})
    text = retriever | RunnableLambda(lambda found: found[0].page_content)
    prompt = ChatPromptTemplate.from_template("{text} {question}")
    answer = {"text": text, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()
    return RunnableParallel(one=answer, two=answer | RunnableLambda(str.upper))


def _graph() -> Any:
    retriever, llm = FakeRetriever(documents=[Document("x")]), FakeChat(answers={})

    async def node(state: Any) -> Any:
        found = await retriever.ainvoke(state["question"])
        one, two = await llm.ainvoke(f"1 {found}"), await llm.ainvoke(f"2 {found}")
        return {"answer": f"{one.content} {two.content}"}

    made = StateGraph(dict)
    made.add_node("node", node)
    made.add_edge(START, "node")
    made.add_edge("node", END)
    return made.compile()


@pytest.mark.parametrize("entry", ["ainvoke", "astream"])
@pytest.mark.parametrize(("made", "given"), [(_chain, "q"), (_graph, {"question": "q"})], ids=["chain", "graph"])
async def test_a_first_call_does_not_block_its_loop(made: Any, given: Any, entry: str, nothing_known: None) -> None:
    fast = fineflow.optimize(made(), strict=True, eager=True)
    with blockbuster_ctx("fineflow"):
        found = await fast.ainvoke(given) if entry == "ainvoke" else [each async for each in fast.astream(given)]
    assert found
    assert fast._self_plans


def _twenty_five_models() -> Any:
    prompt = ChatPromptTemplate.from_template("{question}")
    parts = {f"k{i}": prompt | FakeChat(default="yes") | StrOutputParser() for i in range(24)}
    return RunnablePassthrough.assign(**parts) | prompt | FakeChat(default="done") | StrOutputParser()


def _grading() -> Any:
    llm = FakeChat(default="yes")
    grader = ChatPromptTemplate.from_template("grade {text}") | llm | StrOutputParser()

    async def node(state: Any) -> Any:
        return {"answer": [await grader.ainvoke({"text": text}) for text in state["question"].split()]}

    made = StateGraph(dict)
    made.add_node("node", node)
    made.add_edge(START, "node")
    made.add_edge("node", END)
    return made.compile()


@pytest.mark.parametrize("made", [_chain, _twenty_five_models, _graph, _grading])
def test_first_calls_plan_and_import_in_threads(made: Any) -> None:
    app = made()
    given: Any = "q" if made is _chain else {"question": "one two three"}
    fast = fineflow.optimize(app, strict=True, eager=True)

    async def calls() -> list[Any]:
        return [await fast.ainvoke(given) for _ in range(CALLS)]

    found, called = entered(calls)
    assert found == [asyncio.run(app.ainvoke(given))] * CALLS
    assert called.intersection(AWAY) == set()
    assert any(name.startswith("fineflow.adapters.core.session.") for name in called)  # it follows its plan
