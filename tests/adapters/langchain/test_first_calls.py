"""The first call of an app, its plan included, does not block the event loop that it is made on."""

from __future__ import annotations

from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langgraph.graph import END, START, StateGraph

import fineflow
from fineflow.adapters.core import installers, recognition
from fineflow.testing.langchain import FakeChat, FakeRetriever


@pytest.fixture
def nothing_known() -> None:
    """Where modules come from is not known yet."""
    recognition._installed.cache_clear()
    recognition.of_application.cache_clear()
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
