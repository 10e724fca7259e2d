"""Pipelines into writes and out of maps: apps that index what comes with the request, emulated engines, virtual time.

*Contextual retrieval* (Ayo, section 7.1): a model situates each of 48 chunks among its four neighbours, the chunks are
embedded and indexed, 32 are searched and reranked, and 3 of them answer. Once as a chain, once as a class of the user's
with a loop. *Documents as a table* (the configuration of Ayo's repository): 666 passages are embedded, and written to
a table row by row, each in 2 ms; naive: the question is searched; expanded: a model writes three queries, 20 passages
are found for each, and 2 are kept. Nothing is declared. The store of the table is a plain class, on a real sqlite3
connection.

"invoke" is stock as users call it, whose sync ``map()`` has as many threads as the machine has cores, and four more;
"tuned" is written with asyncio, as a good engineer would. The limit is computed by hand from the profiles of the
engines, and from requests that run alone: see ``limit_of_contextual`` and ``limit_of_table``. Linux only
(``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.backends.emulated.profiles import CROSS_ENCODER, EMBEDDER
from fineflow.cost_model.costs import costs
from fineflow.engines import BatchProfile, EmulatedEmbedding, EmulatedLLM, EmulatedReranker
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineReranker
from fineflow.testing import virtual_threads

CHUNKS, NEIGHBOURS, FOUND, KEPT = 48, 2, 32, 3
PASSAGES, EACH, BEST = 666, 20, 2
ROW, SEARCH = 0.002, 0.03
"""Seconds to write a row, and to search the table."""

SMALL_TEXTS = BatchProfile(call=0.01, item=0.002, max_batch=64)
"""An embedding model and a reranker for short passages: an assumption, about 500 texts a second."""

WORDS = ("bridge", "ferry", "lighthouse", "tunnel", "river", "harbour", "mill", "tower", "stone", "flood", "market")
QUESTION = "Which stone bridge crosses the river?"
QUERIES = ", ".join(
    f"{kind} that cross the broad river near the old harbour and the rocks of the northern bay"
    for kind in ("stone bridges", "ferries and tunnels", "lighthouses")
)
SITUATE = "Situate a chunk among its neighbours.\n{neighbours}\nThe chunk:\n{chunk}\nIts context:"


def said(prompt: str) -> str:
    """Returns the answers of all models; the context of a chunk takes 10 to 40 words."""
    if "Situate" in prompt:
        chosen = random.Random(prompt)
        return " ".join(chosen.choices(WORDS, k=chosen.randint(10, 40)))
    return QUERIES if "Rewrite" in prompt else "It is the stone one by the old harbour, sir."


def joined(docs: Iterable[Document]) -> str:
    return "\n".join(doc.page_content for doc in docs)


@dataclass
class Engines:
    """The engines of one app, new for every measurement. small_texts: for short passages.

    prompts: all that the models were sent.
    """

    small_texts: bool
    prompts: list[str] = field(default_factory=list)
    small: ChatEngine = field(init=False)
    llm: ChatEngine = field(init=False)
    embeddings: EngineEmbeddings = field(init=False)
    reranker: EngineReranker = field(init=False)

    def __post_init__(self) -> None:
        self.small = ChatEngine(engine=EmulatedLLM(self._answer, name="small-llm"))
        self.llm = ChatEngine(engine=EmulatedLLM(self._answer))
        self.embeddings = EngineEmbeddings(EmulatedEmbedding(SMALL_TEXTS if self.small_texts else EMBEDDER))
        pairs = EmulatedReranker(SMALL_TEXTS if self.small_texts else CROSS_ENCODER)
        self.reranker = EngineReranker(engine=pairs, top_n=BEST if self.small_texts else KEPT)

    def _answer(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return said(prompt)

    def ask(self, text: str, model: ChatEngine | None = None) -> Runnable[Any, Any]:
        return ChatPromptTemplate.from_template(text) | (model or self.llm) | StrOutputParser()


# --- contextual retrieval ---------------------------------------------------------------------------------------------


def chunks() -> list[str]:
    chosen = random.Random(0)
    return [f"Chunk {i}: {' '.join(chosen.choices(WORDS, k=40))}" for i in range(CHUNKS)]


def windows(texts: Sequence[str]) -> list[dict[str, str]]:
    """Returns each chunk with its neighbours."""
    around = (texts[max(i - NEIGHBOURS, 0) : i + NEIGHBOURS + 1] for i in range(len(texts)))
    return [{"chunk": text, "neighbours": "\n".join(near)} for text, near in zip(texts, around, strict=True)]


def document(x: Mapping[str, str]) -> Document:
    return Document(page_content=f"{x['context']}\n\n{x['chunk']}")


def situated(engines: Engines) -> Runnable[Any, Any]:
    """Returns the step for one chunk."""
    return RunnablePassthrough.assign(context=engines.ask(SITUATE, engines.small)) | RunnableLambda(document)


def contextual_chain(engines: Engines) -> Runnable[Any, Any]:
    store = InMemoryVectorStore(engines.embeddings)
    index = (
        itemgetter("chunks") | RunnableLambda(windows) | situated(engines).map() | RunnableLambda(store.add_documents)
    )
    found = ContextualCompressionRetriever(
        base_retriever=store.as_retriever(search_kwargs={"k": FOUND}), base_compressor=engines.reranker
    )
    return (
        RunnablePassthrough.assign(ids=index)
        | RunnablePassthrough.assign(context=itemgetter("question") | found | RunnableLambda(joined))
        | engines.ask("Answer {question} from {context}")
    )


class ContextualRetrieval:
    """Contextual retrieval in plain Python (see examples/langchain/contextual_retrieval.py)."""

    def __init__(self, engines: Engines) -> None:
        self.small, self.llm = engines.small, engines.llm
        self.embeddings, self.reranker = engines.embeddings, engines.reranker

    def process_document(self, texts: list[str]) -> list[Document]:
        contextualized_chunks = []
        for i, chunk in enumerate(texts):
            neighbours = "\n".join(texts[max(i - NEIGHBOURS, 0) : i + NEIGHBOURS + 1])
            context = self._generate_context(neighbours, chunk)
            contextualized_chunks.append(Document(page_content=f"{context}\n\n{chunk}"))
        return contextualized_chunks

    def _generate_context(self, neighbours: str, chunk: str) -> str:
        prompt = ChatPromptTemplate.from_template(SITUATE)
        text: str = self.small.invoke(prompt.format_messages(neighbours=neighbours, chunk=chunk)).content
        return text

    def run(self, inputs: dict[str, Any]) -> str:
        documents = self.process_document(inputs["chunks"])
        store = InMemoryVectorStore.from_documents(documents, self.embeddings)
        found = store.similarity_search(inputs["question"], k=FOUND)
        best = self.reranker.compress_documents(found, inputs["question"])
        prompt = ChatPromptTemplate.from_template("Answer {question} from {context}")
        chain = prompt | self.llm | StrOutputParser()
        answer: str = chain.invoke({"question": inputs["question"], "context": joined(best)})
        return answer


def contextual_class(engines: Engines) -> Runnable[Any, Any]:
    return RunnableLambda(ContextualRetrieval(engines).run)


def tuned_contextual(engines: Engines) -> Runnable[Any, Any]:
    answer = engines.ask("Answer {question} from {context}")

    async def run(x: dict[str, Any]) -> str:
        made = asyncio.gather(*map(situated(engines).ainvoke, windows(x["chunks"])))
        documents, vector = await asyncio.gather(made, engines.embeddings.aembed_query(x["question"]))
        store = await InMemoryVectorStore.afrom_documents(documents, engines.embeddings)
        found = await store.asimilarity_search_by_vector(vector, FOUND)
        best = await engines.reranker.acompress_documents(found, x["question"])
        text: str = await answer.ainvoke({"question": x["question"], "context": joined(best)})
        return text

    return RunnableLambda(run)


def limit_of_contextual(engines: Engines, prompt: str) -> float:
    """All contexts at once, and vectors of chunks as they come; then the reranking of all that was found, the answer.

    The last vector comes after the last context; all of them take the time of full batches after the first context.
    """
    ended: list[float] = []

    async def one(x: dict[str, str]) -> None:
        await situated(engines).ainvoke(x)
        ended.append(asyncio.get_running_loop().time())

    async def contexts() -> None:
        await asyncio.gather(*map(one, windows(chunks())))

    alone(contexts)
    indexed = max(max(ended) + EMBEDDER.seconds(1), min(ended) + batches(EMBEDDER, CHUNKS))
    return indexed + batches(CROSS_ENCODER, FOUND) + alone(lambda: engines.llm.ainvoke(prompt))


# --- documents as a table ---------------------------------------------------------------------------------------------


class PassageStore(VectorStore):
    """Passages in a table: one INSERT for each, all in one transaction."""

    def __init__(self, embedding: Embeddings, connection: sqlite3.Connection) -> None:
        self.embedding, self.connection = embedding, connection

    def add_texts(
        self, texts: Iterable[str], metadatas: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        ids = [str(uuid.uuid4()) for _ in texts]
        with self.connection:
            for id_, text, vector in zip(ids, texts, vectors, strict=True):
                self.connection.execute("INSERT INTO passages VALUES (?, ?, ?)", (id_, text, json.dumps(vector)))
        return ids

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        wanted = self.embedding.embed_query(query)
        time.sleep(SEARCH)
        rows = self.connection.execute("SELECT text, vector FROM passages").fetchall()
        near = sorted(rows, key=lambda row: -sum(a * b for a, b in zip(wanted, json.loads(row[1]), strict=True)))
        return [Document(text) for text, _ in near[:k]]

    @classmethod
    def from_texts(cls, texts: list[str], embedding: Embeddings, metadatas: Any = None, **kwargs: Any) -> Any:
        store = cls(embedding, passages_table())
        store.add_texts(texts, metadatas)
        return store


def passages_table() -> sqlite3.Connection:
    """Returns a connection to an empty table, each row of which takes ``ROW`` seconds to write."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.create_function("wait", 0, lambda: time.sleep(ROW))
    connection.execute("CREATE TABLE passages (id TEXT, text TEXT, vector TEXT)")
    connection.execute("CREATE TRIGGER slow AFTER INSERT ON passages BEGIN SELECT wait(); END")
    return connection


def passages() -> list[Document]:
    chosen = random.Random(1)
    return [Document(f"Passage {i}: {' '.join(chosen.choices(WORDS, k=12))}") for i in range(PASSAGES)]


def naive_table(engines: Engines) -> Runnable[Any, Any]:
    store = PassageStore(engines.embeddings, passages_table())
    found = store.as_retriever(search_kwargs={"k": BEST})
    return (
        RunnablePassthrough.assign(ids=itemgetter("passages") | RunnableLambda(store.add_documents))
        | RunnablePassthrough.assign(context=itemgetter("question") | found | RunnableLambda(joined))
        | engines.ask("Answer {question} from {context}")
    )


def expanded_table(engines: Engines) -> Runnable[Any, Any]:
    store = PassageStore(engines.embeddings, passages_table())
    expand = ChatPromptTemplate.from_template("Rewrite {question} in three ways") | engines.llm
    found = store.as_retriever(search_kwargs={"k": EACH}).map()

    def reranked(x: dict[str, Any]) -> str:
        docs = [doc for docs in x["found"] for doc in docs]
        return joined(engines.reranker.compress_documents(docs, x["question"]))

    return (
        RunnablePassthrough.assign(ids=itemgetter("passages") | RunnableLambda(store.add_documents))
        | RunnablePassthrough.assign(queries=expand | CommaSeparatedListOutputParser())
        | RunnablePassthrough.assign(found=itemgetter("queries") | found)
        | RunnablePassthrough.assign(context=RunnableLambda(reranked))
        | engines.ask("Answer {question} from {context}")
    )


def limit_of_table(engines: Engines, prompt: str, *, expanded: bool) -> float:
    """Rows as full batches of vectors come, beside the queries; then their vectors, a search, reranking, the answer."""
    rows, made = 0.0, 0.0
    for at in range(0, PASSAGES, SMALL_TEXTS.max_batch):
        size = min(SMALL_TEXTS.max_batch, PASSAGES - at)
        made += SMALL_TEXTS.seconds(size)
        rows = max(rows, made) + size * ROW
    queries = alone(lambda: engines.ask("Rewrite {x}").ainvoke({"x": ""})) if expanded else 0.0
    reranked = batches(SMALL_TEXTS, 3 * EACH) if expanded else 0.0
    answer = alone(lambda: engines.llm.ainvoke(prompt))
    return max(rows, queries) + SMALL_TEXTS.seconds(3 if expanded else 1) + SEARCH + reranked + answer


# --- measuring --------------------------------------------------------------------------------------------------------


def batches(profile: BatchProfile, items: int) -> float:
    """Returns the seconds of so many items in full batches, one after the other."""
    whole, rest = divmod(items, profile.max_batch)
    return whole * profile.seconds(profile.max_batch) + (profile.seconds(rest) if rest else 0.0)


def alone(call: Callable[[], Any]) -> float:
    return virtual_threads.run(lambda: asyncio.run(call())).seconds


@dataclass(frozen=True)
class App:
    """One app. tuned: the same with asyncio. limit: its seconds at best. bound: least ratio of stock to fineflow."""

    build: Callable[[Engines], Runnable[Any, Any]]
    value: Callable[[], dict[str, Any]]
    limit: Callable[[Engines, str], float]
    bound: float
    tuned: Callable[[Engines], Runnable[Any, Any]] | None = None
    small_texts: bool = False
    share: float = 0.95  # of the limit


def _situated() -> dict[str, Any]:
    return {"question": QUESTION, "chunks": chunks()}


def _tabled() -> dict[str, Any]:
    return {"question": QUESTION, "passages": passages()}


APPS: Mapping[str, App] = {
    "contextual, chain": App(contextual_chain, _situated, limit_of_contextual, 1.6, tuned_contextual),
    "contextual, class": App(contextual_class, _situated, limit_of_contextual, 1.6, tuned_contextual),
    "table, naive": App(naive_table, _tabled, partial(limit_of_table, expanded=False), 1.6, small_texts=True),
    "table, expanded": App(expanded_table, _tabled, partial(limit_of_table, expanded=True), 2.1, small_texts=True),
}


@dataclass(frozen=True)
class Ran:
    """A first call. prompt: the last one that a model was sent."""

    answer: Any
    seconds: float
    prompt: str


def first_call(app: App, build: Callable[[Engines], Any], *, entry: str = "invoke") -> Ran:
    costs.forget()
    engines = Engines(app.small_texts)
    chain = build(engines)
    if entry == "invoke":
        ran = virtual_threads.run(lambda: chain.invoke(app.value()))
    else:
        ran = virtual_threads.run(lambda: asyncio.run(chain.ainvoke(app.value())))
    return Ran(ran.value, ran.seconds, engines.prompts[-1])


def optimized(app: App) -> Callable[[Engines], Any]:
    return lambda engines: fineflow.optimize(app.build(engines), strict=True)


def main(argv: list[str] | None = None) -> int:
    parsed = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"{hardware()}; virtual seconds of a first call\n")
    rows = [["app", "invoke", "tuned", "fineflow", "limit", "invoke /", "tuned /", "of the limit"]]
    figures, checks = {}, {}
    for name, app in APPS.items():
        as_written, theirs = first_call(app, app.build), first_call(app, optimized(app))
        assert theirs.answer == as_written.answer, "fineflow gave another answer"
        stock, ours, limit = as_written.seconds, theirs.seconds, app.limit(Engines(app.small_texts), as_written.prompt)
        tuned = None if app.tuned is None else first_call(app, app.tuned, entry="ainvoke").seconds
        figures[name] = {"stock": stock, "tuned": tuned, "fineflow": ours, "limit": limit}
        checks[f"{name}: at least {app.bound:.1f} times as fast as stock"] = stock >= app.bound * ours
        checks[f"{name}: at least {app.share:.2f} of the limit"] = limit >= app.share * ours
        shown = ["" if each is None else f"{each:.2f}" for each in (stock, tuned, ours, limit)]
        ratios = [f"{stock / ours:.2f}", "" if tuned is None else f"{tuned / ours:.2f}", f"{limit / ours:.2f}"]
        rows.append([name, *shown, *ratios])
    print(table(rows))
    return finish(figures, checks, parsed.json)


if __name__ == "__main__":
    sys.exit(main())
