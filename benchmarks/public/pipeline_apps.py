"""Apps in plain LangChain that index what comes with the request, on emulated engines (``public.pipelines``)."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from fineflow.backends.emulated.profiles import CROSS_ENCODER, EMBEDDER
from fineflow.engines import BatchProfile, EmulatedEmbedding, EmulatedLLM, EmulatedReranker
from fineflow.langchain import ChatEngine, EngineEmbeddings, EngineReranker

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
