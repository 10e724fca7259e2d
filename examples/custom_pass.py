"""A pass is a function from graph to graph: a custom one, and the gain of each of fineflow's (ablation).

The store emulates a remote one (its search sleeps); both models are real and run in this process.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from operator import itemgetter
from statistics import median
from typing import Any

from langchain_classic.retrievers.multi_query import MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from fineflow.demo.data import QUESTIONS, default_model
from fineflow.engines import SentenceTransformerEngine, TransformersEngine, bundled_minilm
from fineflow.ir import Graph, Note, Op, Primitive
from fineflow.langchain import ChatEngine, EngineEmbeddings

FACTS = ("Dunwen Tower was planned by Helen Kormar.", "Nelbury lies on the Vasquist River.")
CLASSIFY = "You classify questions. Reply with JSON only: complexity, joint_reasoning, pieces and summary_words."
ANSWER = "Answer the question from the context. Keep the answer short."


@fineflow.external
class RemoteStore(InMemoryVectorStore):
    """Vector store behind a network, which serves one search at a time."""

    line = asyncio.Lock()

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        async with self.line:
            await asyncio.sleep(0.08)
            return await super().asimilarity_search(query, k, **kwargs)


def read_whole(graph: Graph) -> Graph:
    """Undoes decode pipelining for one model, e.g. because it often revises its output."""
    changed, primitives, notes = set[str](), list[Primitive](), list[Note]()
    for p in graph:
        if p.op is Op.PARTIAL_DECODE and p.engine == "tinylm":
            p = p.with_(op=Op.DECODE)
            notes.append(Note("read_whole", p.name, True, "the output of tinylm is read as a whole"))
            changed.add(p.name)
        elif any(ref.stream and ref.name in changed for ref in p.args.values()):  # the parser and its readers
            p = p.with_(args={name: replace(ref, stream=False) for name, ref in p.args.items()})
            changed.add(p.name)
        primitives.append(p)
    return graph.with_primitives(primitives, notes)


def build() -> Runnable[dict[str, str], dict[str, Any]]:
    llm = ChatEngine(engine=TransformersEngine(default_model()), max_tokens=48)
    store = RemoteStore.from_texts(FACTS, EngineEmbeddings(SentenceTransformerEngine(bundled_minilm())))
    retriever = MultiQueryRetriever.from_llm(store.as_retriever(search_kwargs={"k": 1}), llm, include_original=True)

    def ask(system: str, human: str) -> Runnable[Any, str]:
        return ChatPromptTemplate.from_messages([("system", system), ("human", human)]) | llm | StrOutputParser()

    return (
        RunnablePassthrough.assign(kind=ask(CLASSIFY, "Question: {question}"))
        | RunnablePassthrough.assign(context=itemgetter("question") | retriever | (lambda docs: docs[0].page_content))
        | RunnablePassthrough.assign(answer=ask(ANSWER, "Context:\n{context}\n\nQuestion: {question}"))
    )


async def main() -> None:
    chain = build()
    mine = fineflow.optimize(chain, passes=[*fineflow.PASSES, read_whole], strict=True)
    for note in fineflow.explain(mine).all_notes:
        print(note)

    variants = {"stock": chain, "fineflow": fineflow.optimize(chain), "with read_whole": mine}
    for out in fineflow.PASSES:
        others = [each for each in fineflow.PASSES if each is not out]
        variants[f"without {out.__name__}"] = fineflow.optimize(chain, passes=others)
    times: dict[str, list[float]] = {name: [] for name in variants}
    answers = []
    for _ in range(4):
        for name, variant in variants.items():
            start = time.perf_counter()
            answers.append(await variant.ainvoke({"question": QUESTIONS[2]}))
            times[name].append(time.perf_counter() - start)
    for name, taken in times.items():  # the first round warms up
        print(f"{name:<16}  {median(taken[1:]) * 1000:.0f} ms")
    print(f"equal: {all(answer == answers[0] for answer in answers)}")


if __name__ == "__main__":
    asyncio.run(main())
