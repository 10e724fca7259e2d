"""An index and the first question to it, written as users write it: two statements, in ``with fineflow.session():``.

Stock builds the whole index before the second statement runs. In a session the vectors of the documents are made while
the first question is expanded and embedded. The apps are naive and advanced RAG of Ayo, section 7: a request brings 48
passages; advanced RAG writes more queries, searches for each, reranks what it finds, and refines an answer.

Emulated engines (``fineflow.backends.emulated``), on a virtual clock: the seconds are the same on every machine. The
limit is the optimized question to an index that is there ("question alone"), where writing queries takes longer than
embedding the passages. Where nothing is written first, only the vector of the question can be early, and the one
embedding model makes it and the passages one after the other. Linux only (``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio
import itertools
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

STOCK, OPTIMIZED, SESSION = SIDES = ("stock", "optimized", "in a session")
PASSAGES, FOUND, KEPT = 48, 16, 3
QUESTION = "Which bridge crosses the river in the old harbour?"
ANSWER = "It is the Kelmora Bridge, built of grey stone three hundred years ago, where the river meets the bay."
Optimize = Callable[[Any], Any]

_numbers = itertools.count()
TEXTS = [f"Fact {i}: the bridge of grey stone crosses the river in harbour number {i % 7}." for i in range(PASSAGES)]


def said(prompt: str) -> str:
    """Returns what the model answers: queries, or the answer."""
    return LINES if "queries" in prompt or "different versions" in prompt else ANSWER


class App(NamedTuple):
    """An index, and the question to it. index: builds it (optimize). ask: answers (index, optimize, async)."""

    name: str
    index: Callable[[Optimize], Any]
    ask: Callable[[Any, Optimize, bool], Any]


# LlamaIndex


def index_of(optimize: Optimize) -> Any:
    documents = [Document(text=text, id_=f"document {i}") for i, text in enumerate(TEXTS)]
    return optimize(VectorStoreIndex).from_documents(
        documents, embed_model=EngineEmbedding(EmulatedEmbedding()), transformations=[SentenceSplitter()]
    )


def queried(engine: Any, is_async: bool) -> Any:
    found = asyncio.run(engine.aquery(QUESTION)) if is_async else engine.query(QUESTION)
    return str(found), [(node.text, node.score) for node in found.source_nodes]


def llama_naive(index: Any, optimize: Optimize, is_async: bool) -> Any:
    llm = EngineLLM(engine=EmulatedLLM(said))
    return queried(index.as_query_engine(llm=llm, similarity_top_k=KEPT), is_async)


def llama_advanced(index: Any, optimize: Optimize, is_async: bool) -> Any:
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
    return queried(optimize(engine), is_async)


# LangChain


def stored(kind: Any) -> Callable[[Optimize], Any]:
    def run(optimize: Optimize) -> Any:
        documents = [Passage(text, metadata={"number": i}) for i, text in enumerate(TEXTS)]
        given = {"collection_name": f"passages-{next(_numbers)}"} if kind is Chroma else {}
        return kind.from_documents(documents, EngineEmbeddings(EmulatedEmbedding()), **given)

    return run


def ask(llm: Any, text: str) -> Runnable[Any, Any]:
    return ChatPromptTemplate.from_template(text) | llm | StrOutputParser()


def invoked(chain: Any, is_async: bool) -> Any:
    return asyncio.run(chain.ainvoke(QUESTION)) if is_async else chain.invoke(QUESTION)


def lang_naive(store: Any, optimize: Optimize, is_async: bool) -> Any:
    llm = ChatEngine(engine=EmulatedLLM(said))
    context = store.as_retriever(search_kwargs={"k": KEPT}) | RunnableLambda(joined)
    chain = {"context": context, "question": RunnablePassthrough()} | ask(llm, "Answer {question} from {context}")
    return invoked(optimize(chain), is_async)


def lang_advanced(store: Any, optimize: Optimize, is_async: bool) -> Any:
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


APPS: Sequence[App] = (
    App("LlamaIndex, naive", index_of, llama_naive),
    App("LlamaIndex, advanced", index_of, llama_advanced),
    App("LangChain in memory, naive", stored(InMemoryVectorStore), lang_naive),
    App("LangChain in memory, advanced", stored(InMemoryVectorStore), lang_advanced),
    App("LangChain on Chroma, advanced", stored(Chroma), lang_advanced),
)

# Measuring


def optimized(obj: Any) -> Any:
    return fineflow.optimize(obj, strict=True)


def unchanged(obj: Any) -> Any:
    return obj


def both(app: App, side: str, *, is_async: bool) -> tuple[Any, float]:
    """Returns the answer of an app, and the virtual seconds of both statements. side: one of ``SIDES``."""
    optimize = unchanged if side == STOCK else optimized
    costs.forget()  # every measurement is that of a first call

    def run() -> Any:
        with fineflow.session() if side == SESSION else nullcontext():
            return app.ask(app.index(optimize), optimize, is_async)

    ran = virtual_threads.run(run)
    return ran.value, ran.seconds


def alone(app: App, *, is_async: bool) -> float:
    """Returns the virtual seconds of the optimized question to an index that is there."""
    costs.forget()
    return both(app, OPTIMIZED, is_async=is_async)[1] - virtual_threads.run(lambda: app.index(optimized)).seconds


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"{hardware()}, llama-index-core {version('llama-index-core')}; virtual seconds\n")
    rows = [["index, then question", "call", "question alone", *SIDES, "times"]]
    figures: dict[str, Any] = {}
    checks: dict[str, bool] = {}
    for app in APPS:
        for is_async in (False, True):
            answers, seconds = zip(*(both(app, side, is_async=is_async) for side in SIDES), strict=True)
            if any(each != answers[0] for each in answers):
                raise AssertionError(f"{app.name} gave another answer: {answers}")
            entry, least = "async" if is_async else "sync", alone(app, is_async=is_async)
            name, times = f"{app.name}, {entry}", seconds[0] / seconds[-1]
            figures[name] = {"question alone": least, **dict(zip(SIDES, seconds, strict=True))}
            rows.append([app.name, entry, *(f"{each:.2f}" for each in (least, *seconds)), f"{times:.2f}"])
            checks[f"{name}: no slower than stock"] = seconds[-1] <= 1.02 * seconds[0]
            if "advanced" in app.name:
                checks[f"{name}: at least 1.3 times as fast as stock"] = times >= 1.3
                checks[f"{name}: the index takes no time besides the question"] = seconds[-1] <= 1.05 * least
    print(table(rows))
    print()
    return finish({"seconds": figures}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
