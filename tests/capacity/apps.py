"""An app on emulated engines for the tests of ``fineflow plan``, and recordings of its calls in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough, RunnablePick

import fineflow
from fineflow.capacity.example_calls import of_calls
from fineflow.capacity.workload import Workload
from fineflow.engines import EmulatedEmbedding, EmulatedLLM, EmulatedReranker
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineReranker
from fineflow.runtime import recording
from fineflow.runtime.recording import RecordedCall
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeVectorStore

LATENCY = 0.06  # seconds of a search
ANSWER = " ".join(["word"] * 30)


def joined(docs: list[Document]) -> str:
    return "\n".join(doc.page_content for doc in docs)


def rag() -> Runnable[Any, Any]:
    """Searches with a vector of the question, reranks, and answers; beside it, classifies the question."""
    llm = ChatEngine(engine=EmulatedLLM(lambda prompt: ANSWER if "Answer" in prompt else "low", name="llm"))
    plain = FakeVectorStore()
    plain.add_texts([f"Fact {i} about the harbour and its bridge." for i in range(12)])
    store = FakeVectorStore(EngineEmbeddings(EmulatedEmbedding(name="embedder")), latency=LATENCY)
    store._rows = plain._rows
    reranker = EngineReranker(engine=EmulatedReranker(name="reranker"), top_n=3)

    retriever = ContextualCompressionRetriever(
        base_retriever=store.as_retriever(search_kwargs={"k": 8}), base_compressor=reranker
    )
    context = RunnablePick("question") | retriever | RunnableLambda(joined)

    def ask(text: str) -> Runnable[Any, Any]:
        return ChatPromptTemplate.from_template(text) | llm | StrOutputParser()

    both = RunnableParallel(context=context, kind=ask("Classify {question}"))
    return RunnablePassthrough.assign(both=both) | ask("Answer {question} from {both}")


def asked(number: int) -> dict[str, Any]:
    return {"question": f"Which bridge of town {number} is the oldest of all the {number % 7} bridges?"}


def recordings(chain: Runnable[Any, Any], inputs: Sequence[Any]) -> list[RecordedCall]:
    """Returns what is recorded of calls one after the other, in virtual time."""
    calls: list[RecordedCall] = []

    async def all_of_them() -> None:
        with fineflow.record(), recording.opened(calls.append):
            for given in inputs:
                await chain.ainvoke(given)

    virtual.run(all_of_them())
    return calls


def recorded_workload(chain: Runnable[Any, Any], inputs: Sequence[Any]) -> Workload:
    calls = recordings(chain, inputs)
    return of_calls(calls[0], calls[1:], {})
