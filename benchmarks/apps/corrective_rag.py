"""Corrective RAG as a LangGraph graph: documents are graded in a loop; if one fails, the web is searched, too."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from benchmarks.apps.app import INSTRUCTIONS, App, nearest, prose, question, scripted
from benchmarks.harness.limits import Path, count
from benchmarks.harness.world import World, joined

FOUND, RESULTS = 4, 2
QUERY, ANSWER = 16, 64
PASSAGES = [f"Passage {i}: {prose(f'graded {i}', 120)}." for i in range(64)]
GRADING = "Grade whether the document helps, yes or no. Question: {question} Document: {document}"
REWRITING = "Rewrite the question for a web search. Question: {question}"
ANSWERING = "Answer from the context. Question: {question} Context: {context}"


class State(TypedDict, total=False):
    question: str
    documents: list[Document]
    failed: bool
    answer: str


def graph(world: World, *, concurrently: bool) -> Runnable[Any, Any]:
    retriever = world.store().as_retriever(search_kwargs={"k": FOUND})
    grader = world.ask(GRADING, system=INSTRUCTIONS, small=True)
    rewriter, answerer = (
        world.ask(REWRITING, system=INSTRUCTIONS, small=True),
        world.ask(ANSWERING, system=INSTRUCTIONS),
    )
    web = world.web(RESULTS)

    async def retrieve(state: State) -> State:
        return {"documents": await retriever.ainvoke(state["question"])}

    async def grade(state: State) -> State:
        kept, failed = [], False
        for doc in state["documents"]:
            said = await grader.ainvoke({"question": state["question"], "document": doc.page_content})
            if "yes" in said:
                kept.append(doc)
            else:
                failed = True
        return {"documents": kept, "failed": failed}

    async def grade_by_hand(state: State) -> State:
        given = [{"question": state["question"], "document": doc.page_content} for doc in state["documents"]]
        said = await asyncio.gather(*map(grader.ainvoke, given))
        kept = [doc for doc, grade in zip(state["documents"], said, strict=True) if "yes" in grade]
        return {"documents": kept, "failed": len(kept) < len(said)}

    async def rewrite(state: State) -> State:
        return {"question": await rewriter.ainvoke({"question": state["question"]})}

    async def search(state: State) -> State:
        return {"documents": state["documents"] + await web.ainvoke(state["question"])}

    async def answer(state: State) -> State:
        given = {"question": state["question"], "context": joined(state["documents"])}
        return {"answer": await answerer.ainvoke(given)}

    def then(state: State) -> str:
        return "rewrite" if state["failed"] else "answer_it"

    made = StateGraph(State)
    made.add_node("retrieve", retrieve)
    made.add_node("grade", grade_by_hand if concurrently else grade)
    made.add_node("rewrite", rewrite)
    made.add_node("search", search)
    made.add_node("answer_it", answer)
    made.add_edge(START, "retrieve")
    made.add_edge("retrieve", "grade")
    made.add_conditional_edges("grade", then, ["rewrite", "answer_it"])
    made.add_edge("rewrite", "search")
    made.add_edge("search", "answer_it")
    made.add_edge("answer_it", END)
    return made.compile()


def build(world: World) -> Runnable[Any, Any]:
    return graph(world, concurrently=False)


def tuned(world: World) -> Runnable[Any, Any]:
    """Documents are graded concurrently."""
    return graph(world, concurrently=True)


def final(state: State) -> str:
    return state["answer"]


def graded(prompt: str) -> str:
    document = prompt.rpartition("Document: ")[2].split("\n")[0]
    return "no" if sum(map(ord, document)) % 3 == 0 else "yes"


def limit(path: Path, x: dict[str, Any]) -> None:
    asked, system = count(x["question"]), count(INSTRUCTIONS) + 4
    documents = nearest(PASSAGES, x["question"], FOUND)
    kept = [text for text in documents if graded(f"Document: {text}") == "yes"]
    passage = count(PASSAGES[0]) + 1
    vector = path.batch("vector of the question", "embedder", [(1, None)])
    found = path.wait("search", path.setting.search, vector)
    prompt = [(system + asked + 11, None), (passage, found)]
    grades = [path.write(f"grade {i}", prompt, 1, cached=system, on="small") for i in range(FOUND)]
    if len(kept) == len(documents):
        context = [(asked + 3, None), (len(kept) * passage, grades[-1])]
    else:
        prompt = [(system + asked + 9, None), (1, grades[-1])]
        query = path.write("question for the web", prompt, QUERY, cached=system, on="small")
        results = path.wait("web search", path.setting.web, query)
        context = [(QUERY, query), (len(kept) * passage, grades[0]), (RESULTS * passage, results)]
    path.write("answer", [(system + 6, None), *context], ANSWER, cached=system)


APP = App(
    "corrective_rag",
    "corrective RAG as a LangGraph graph: 4 documents graded, the question rewritten for the web",
    build,
    tuned,
    lambda number, seed: {"question": question(number, seed)},
    scripted({"Grade whether": graded, "Rewrite the": QUERY, "Answer from": ANSWER}),
    limit,
    passages=PASSAGES,
    streams=False,
    answer=final,
    sync=False,
)
