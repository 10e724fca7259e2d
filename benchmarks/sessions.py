"""An index and the first question to it, written as users write it: two statements, in ``with fineflow.session():``.

Stock builds the whole index before the second statement runs. In a session the vectors of the documents are made while
the first question is expanded and embedded. The apps are naive and advanced RAG of Ayo, section 7: a request brings 48
passages; advanced RAG writes more queries, searches for each, reranks what it finds, and refines an answer.

Emulated engines (fineflow.backends.emulated), on a virtual clock: the seconds are the same on every machine. "path" is
the critical path of data dependencies, from the same profiles by hand: what does not need the vectors of the documents
runs beside their embedding. Linux only (``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any, NamedTuple

from langchain_chroma import Chroma
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.documents import Document as Passage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES

import fineflow
from benchmarks.passes import LINES, joined
from benchmarks.report import arguments, finish, hardware, table
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedEmbedding, EmulatedLLM, EmulatedReranker
from fineflow.langchain import ChatEngine, EngineEmbeddings
from fineflow.langchain import EngineReranker as Compressor
from fineflow.llamaindex import EngineEmbedding, EngineLLM, EngineReranker
from fineflow.testing import virtual_threads

PASSAGES, FOUND, KEPT = 48, 16, 3
QUESTION = "Which bridge crosses the river in the old harbour?"
ANSWER = "It is the Kelmora Bridge, built of grey stone three hundred years ago, where the river meets the bay."
TEXTS = [f"Fact {i}: the bridge of grey stone crosses the river in harbour number {i % 7}." for i in range(PASSAGES)]


def said(prompt: str) -> str:
    """Returns what the model answers: queries, or the answer."""
    return LINES if "queries" in prompt or "different versions" in prompt else ANSWER


class App(NamedTuple):
    """run: builds the index and answers the question (optimize, async), inside of a session or not. after: seconds of
    stock that follow the index whatever overlaps. meanwhile: seconds that can run while it is built.
    """

    name: str
    run: Callable[[Callable[[Any], Any], bool], Any]


# LlamaIndex


def index_of(optimize: Callable[[Any], Any]) -> Any:
    documents = [Document(text=text, id_=f"document {i}") for i, text in enumerate(TEXTS)]
    return optimize(VectorStoreIndex).from_documents(
        documents, embed_model=EngineEmbedding(EmulatedEmbedding()), transformations=[SentenceSplitter()]
    )


def asked(engine: Any, is_async: bool) -> Any:
    found = asyncio.run(engine.aquery(QUESTION)) if is_async else engine.query(QUESTION)
    return str(found), [(node.text, node.score) for node in found.source_nodes]


def llama_naive(optimize: Callable[[Any], Any], is_async: bool) -> Any:
    index = index_of(optimize)
    llm = EngineLLM(engine=EmulatedLLM(said))
    return asked(index.as_query_engine(llm=llm, similarity_top_k=KEPT), is_async)


def llama_advanced(optimize: Callable[[Any], Any], is_async: bool) -> Any:
    index = index_of(optimize)
    llm = EngineLLM(engine=EmulatedLLM(said))
    retriever = QueryFusionRetriever(
        [index.as_retriever(similarity_top_k=FOUND)],
        llm=llm,
        mode=FUSION_MODES.RECIPROCAL_RANK,
        num_queries=4,
        similarity_top_k=2 * FOUND,
        use_async=False,
    )
    engine = RetrieverQueryEngine.from_args(
        retriever,
        llm=llm,
        node_postprocessors=[EngineReranker(engine=EmulatedReranker(), top_n=KEPT)],
        response_mode=ResponseMode.REFINE,
    )
    return asked(optimize(engine), is_async)


# LangChain


def passages() -> list[Passage]:
    return [Passage(text, metadata={"number": i}) for i, text in enumerate(TEXTS)]


def ask(llm: Any, text: str) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template(text) | llm | StrOutputParser()


def invoked(chain: Any, is_async: bool) -> Any:
    return asyncio.run(chain.ainvoke(QUESTION)) if is_async else chain.invoke(QUESTION)


def lang_naive(optimize: Callable[[Any], Any], is_async: bool) -> Any:
    store = InMemoryVectorStore.from_documents(passages(), EngineEmbeddings(EmulatedEmbedding()))
    llm = ChatEngine(engine=EmulatedLLM(said))
    context = store.as_retriever(search_kwargs={"k": KEPT}) | RunnableLambda(joined)
    chain = {"context": context, "question": RunnablePassthrough()} | ask(llm, "Answer {question} from {context}")
    return invoked(optimize(chain), is_async)


def lang_advanced(kind: Any) -> Callable[[Callable[[Any], Any], bool], Any]:
    def run(optimize: Callable[[Any], Any], is_async: bool) -> Any:
        store = kind.from_documents(passages(), EngineEmbeddings(EmulatedEmbedding()))
        try:
            llm = ChatEngine(engine=EmulatedLLM(said))
            searches = MultiQueryRetriever.from_llm(store.as_retriever(search_kwargs={"k": FOUND}), llm)
            reranker = Compressor(engine=EmulatedReranker(), top_n=KEPT)
            best = ContextualCompressionRetriever(base_retriever=searches, base_compressor=reranker)
            chain = (
                {"context": best | RunnableLambda(joined), "question": RunnablePassthrough()}
                | RunnablePassthrough.assign(draft=ask(llm, "Answer {question} from {context}"))
                | ask(llm, "Answer {question} better than {draft} from {context}")
            )
            return invoked(optimize(chain), is_async)
        finally:
            if kind is Chroma:
                store.delete_collection()

    return run


APPS: Sequence[App] = (
    App("LlamaIndex, naive", llama_naive),
    App("LlamaIndex, advanced", llama_advanced),
    App("LangChain in memory, naive", lang_naive),
    App("LangChain in memory, advanced", lang_advanced(InMemoryVectorStore)),
    App("LangChain on Chroma, advanced", lang_advanced(Chroma)),
)


def measured(app: App, side: str, *, is_async: bool) -> tuple[Any, float]:
    """Returns the answer of an app, and its virtual seconds. side: stock, optimized or session."""
    costs.forget()

    def run() -> Any:
        optimize = (lambda obj: obj) if side == "stock" else lambda obj: fineflow.optimize(obj, strict=True)
        with fineflow.session() if side == "session" else nullcontext():
            return app.run(optimize, is_async)

    ran = virtual_threads.run(run)
    return ran.value, ran.seconds


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"{hardware()}, llama-index-core {version('llama-index-core')}; virtual seconds\n")
    rows = [["index, then question", "call", "stock", "optimized", "in a session", "times"]]
    figures: dict[str, Any] = {}
    checks: dict[str, bool] = {}
    for app in APPS:
        for is_async in (False, True):
            answers, seconds = zip(*(measured(app, side, is_async=is_async) for side in SIDES), strict=True)
            if any(each != answers[0] for each in answers):
                raise AssertionError(f"{app.name} gave another answer: {answers}")
            name = f"{app.name}, {'async' if is_async else 'sync'}"
            figures[name] = dict(zip(SIDES, seconds, strict=True))
            rows.append(
                [app.name, "async" if is_async else "sync", *(f"{each:.2f}" for each in seconds), f"{seconds[0] / seconds[-1]:.2f}"]
            )
            checks[f"{name}: no slower than stock"] = seconds[-1] <= 1.02 * seconds[0]
            if app.name == "LlamaIndex, advanced":
                checks[f"{name}: at least 1.3 times as fast"] = seconds[0] >= 1.3 * seconds[-1]
    print(table(rows))
    print()
    return finish({"seconds": figures}, checks, given.json)


SIDES = ("stock", "optimized", "session")

if __name__ == "__main__":
    sys.exit(main())
