"""Writes to vector stores: the vectors run ahead, the write is stock's, and searches of the same store wait for it."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from chroma_client import CLIENT
from langchain_chroma import Chroma
from langchain_classic.retrievers import MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, RunnablePick
from langchain_core.vectorstores import InMemoryVectorStore
from pipelines import DIRECT, ask, echo, same

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.ir import Effect, Op
from fineflow.ir.text import format_graph
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore

TEXTS = [
    "Paris is the capital of France",
    "Lyon is a town",
    "Rome is the capital of Italy",
    "France is large",
    "cheese",
]
DOCUMENTS = [Document(text, id=f"d{i}", metadata={"n": i}) for i, text in enumerate(TEXTS)]
INPUT = {"question": "What is the capital of France?", "documents": DOCUMENTS}


class WordEngine:
    """An embedding engine whose vectors depend on the text alone. Raises for a text that says so."""

    name = "words"
    ops = frozenset({Op.EMBED})
    max_batch = 2

    def __init__(self, gate: Gate | None = None) -> None:
        self.batches: list[list[str]] = []
        self.gate = gate  # each text waits there
        self._words = FakeEmbeddings()

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        self.batches.append([text for _, text in items])
        for _ in items if self.gate is not None else ():
            await self.gate.wait()
        if any("poison" in text for _, text in items):
            raise ValueError("cannot embed this")
        return [self._words.vector(text) for _, text in items]

    async def aclose(self) -> None:
        pass

    @property
    def embedded(self) -> list[str]:
        return [text for batch in self.batches for text in batch]


def made(kind: str, embeddings: Any) -> Any:
    if kind == "chroma":
        return Chroma(f"c{uuid.uuid4().hex}", embeddings, client=CLIENT)
    return InMemoryVectorStore(embeddings) if kind == "memory" else FakeVectorStore(embeddings)


def chain(store: Any, write: Any = None, *, read: Any = None, documents: Any = None) -> Any:
    """Writes the documents of the input, searches, answers."""
    write = store.add_documents if write is None else write
    step = write if isinstance(write, RunnableLambda) else RunnableLambda(write)
    return (
        RunnablePassthrough.assign(ids=(documents or RunnablePick("documents")) | step)
        | RunnablePassthrough.assign(found=RunnablePick("question") | (read or store).as_retriever())
        | RunnablePassthrough.assign(answer=ask("{found} {question}") | FakeChat(answers=echo) | StrOutputParser())
    )


def ingests(runnable: Any) -> list[Any]:
    graph = fineflow.explain(runnable, input=INPUT).e_graph
    assert graph is not None
    return [p for p in graph if p.op is Op.INGEST]


# --- what is planned


def test_before_and_after() -> None:
    store = InMemoryVectorStore(EngineEmbeddings(WordEngine()))
    plan = fineflow.explain(chain(store), input=INPUT)
    assert plan.p_graph is not None
    assert plan.e_graph is not None
    assert format_graph(plan.p_graph, title="before").splitlines()[2:8] == [
        "   1  ids.embed                      embed(texts=input[documents])  on words  of='documents'",
        "   2  ids.ingest                     ingest(documents=input[documents], vectors=1)  on InMemoryVectorStore",
        "          write(InMemoryVectorStore)  stock",
        "   3  found/retriever.embed          embed(texts=input[question])  on words  after 2  of='query'",
        "   4  found/retriever.search         search(query=input[question], vector=3)  on InMemoryVectorStore",
        "          read(InMemoryVectorStore)  after 2",
    ]
    assert format_graph(plan.e_graph, title="after").splitlines()[2:8] == [
        "   1  ids.embed               7      embed(texts=input[documents])  on words  of='documents'  stages=2",
        "   2  ids.ingest              6      ingest(documents=input[documents], vectors=1)  on InMemoryVectorStore",
        "          write(InMemoryVectorStore)  stock",
        "   3  found/retriever.embed   6      embed(texts=input[question])  on words  of='query'",
        "   4  found/retriever.search  5      search(query=input[question], vector=3)  on InMemoryVectorStore",
        "          read(InMemoryVectorStore)  after 2",
    ]
    text = "kept in order after ids.ingest: both touch InMemoryVectorStore and one of them writes"
    assert text in [note.reason for note in plan.all_notes if note.where == "found/retriever.search"]


def test_without_an_engine_it_is_a_write_alone() -> None:
    store = InMemoryVectorStore(FakeEmbeddings())
    (ingest,) = ingests(chain(store))
    assert (ingest.effects.kind, ingest.by_stock, list(ingest.args)) == (Effect.WRITE, True, ["documents"])


class Counting(InMemoryVectorStore):
    def add_documents(self, documents: list[Document], ids: list[str] | None = None, **kwargs: Any) -> list[str]:
        return super().add_documents(documents, ids, **kwargs)


def test_what_is_overridden_or_unknown_is_opaque() -> None:
    embeddings = EngineEmbeddings(WordEngine())
    assert not ingests(chain(Counting(embeddings)))
    patched: Any = InMemoryVectorStore(embeddings)
    patched.add_texts = lambda texts, **kwargs: []
    assert not ingests(chain(patched))
    store = InMemoryVectorStore(embeddings)
    assert not ingests(chain(store, lambda docs: store.add_documents(docs)))
    assert not ingests(chain(store, store.delete))

    class Own(FakeEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return super().embed_documents(texts)

    assert not ingests(chain(InMemoryVectorStore(Own())))
    assert ingests(chain(InMemoryVectorStore(fineflow.external(Own)())))


def test_two_stores_over_the_same_documents_are_one_resource() -> None:
    name, embeddings = f"c{uuid.uuid4().hex}", EngineEmbeddings(WordEngine())
    one, other = (Chroma(name, embeddings, client=CLIENT) for _ in range(2))
    memory, alias = InMemoryVectorStore(embeddings), InMemoryVectorStore(embeddings)
    alias.store = memory.store
    for write, read in ((one, other), (memory, alias)):
        graph = fineflow.explain(chain(write, read=read), input=INPUT).e_graph
        assert graph is not None
        assert graph["found/retriever.search"].after == ("ids.ingest",)
        same(lambda write=write, read=read: chain(write, read=read), INPUT, entries=DIRECT)


def test_another_store_is_searched_beside_the_write() -> None:
    embeddings = EngineEmbeddings(WordEngine())
    graph = fineflow.explain(chain(made("memory", embeddings), read=made("memory", embeddings)), input=INPUT).e_graph
    assert graph is not None
    assert graph["found/retriever.search"].after == ()


# --- that nobody can tell


@pytest.mark.parametrize("kind", ["memory", "chroma", "fake"])
@pytest.mark.parametrize("method", ["add_documents", "aadd_documents", "both", "add_texts"])
def test_same_answer(kind: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[WordEngine] = []

    def make() -> Any:
        engines.append(WordEngine())
        numbers = count()  # a store makes up ids for texts
        for module in ("langchain_chroma.vectorstores", "langchain_core.vectorstores.in_memory"):
            monkeypatch.setattr(f"{module}.uuid", SimpleNamespace(uuid4=lambda: next(numbers)))
        store = made(kind, EngineEmbeddings(engines[-1]))
        if method == "both":
            return chain(store, RunnableLambda(store.add_documents, store.aadd_documents))
        if method == "add_texts":
            texts = RunnableLambda(lambda x: [doc.page_content for doc in x["documents"]])
            return chain(store, store.add_texts, documents=texts)
        return chain(store, getattr(store, method))

    same(make, INPUT, entries=DIRECT if method != "aadd_documents" else ("ainvoke", "astream", "invoke"))
    for engine in engines:
        embedded = [text for text in engine.embedded if text in TEXTS]
        assert len(embedded) == len(set(embedded)), "no document is embedded twice"


@pytest.mark.parametrize(
    "documents", [[], DOCUMENTS[:1], [DOCUMENTS[0]] * 3, [Document("poison"), *DOCUMENTS], "text", 3]
)
def test_same_answer_for_unusual_documents(documents: Any) -> None:
    for kind in ("memory", "chroma"):
        same(
            lambda kind=kind: chain(made(kind, EngineEmbeddings(WordEngine()))),
            {**INPUT, "documents": documents},
            entries=DIRECT,
        )


def test_the_store_holds_what_stock_writes_and_nothing_after_a_failure() -> None:
    for documents, held in ((DOCUMENTS, 5), ([*DOCUMENTS, Document("poison")], 0)):
        store = InMemoryVectorStore(EngineEmbeddings(WordEngine()))
        mine = fineflow.optimize(chain(store), strict=True, eager=True)
        try:
            mine.invoke({**INPUT, "documents": documents})
        except ValueError as error:
            assert str(error) == "cannot embed this"
        assert len(store.store) == held


def test_a_store_that_gets_other_embeddings_uses_them() -> None:
    store, other = InMemoryVectorStore(EngineEmbeddings(WordEngine())), FakeEmbeddings()
    mine = fineflow.optimize(chain(store), strict=True)
    mine.invoke(INPUT)
    store.embedding = other
    mine.invoke(INPUT)
    assert other.meter.labels[0] == "5 documents"


# --- that it overlaps


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_the_vectors_are_made_while_a_model_writes_and_the_search_waits_for_the_write(sync: bool) -> None:
    writing, embedding = Gate(), Gate(opened=True)
    engine = WordEngine(embedding)
    store = InMemoryVectorStore(EngineEmbeddings(engine))
    model = FakeChat(default="fact", gate=writing)
    runnable = RunnablePassthrough.assign(kind=ask("classify {question}") | model | StrOutputParser()) | chain(store)
    expected = chain(InMemoryVectorStore(EngineEmbeddings(WordEngine()))).invoke(INPUT)
    mine = fineflow.optimize(runnable, strict=True)
    values: list[Any] = []
    call = (lambda: mine.invoke(INPUT)) if sync else (lambda: asyncio.run(mine.ainvoke(INPUT)))
    thread = threading.Thread(target=lambda: values.append(call()))
    thread.start()
    writing.wait_arrived()
    embedding.wait_arrived(6)  # the documents and the question
    assert not store.store, "nothing is written before stock writes"
    writing.open()
    thread.join(10)
    assert {**values[0], "kind": None} == {**expected, "kind": None}
    assert sorted(engine.embedded) == sorted([*TEXTS, INPUT["question"]])


def test_queries_are_written_by_a_model_while_the_write_is_under_way_and_searched_after_it() -> None:
    writing, searching = Gate(), Gate(opened=True)

    @fineflow.external
    class Slow(FakeEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            writing.wait_sync()
            return super().embed_documents(texts)

    store = FakeVectorStore(Slow(), gate=searching)
    model = FakeChat(default="capital of France\n\ntown in France")
    found = MultiQueryRetriever.from_llm(store.as_retriever(), model)
    runnable = RunnablePassthrough.assign(ids=RunnablePick("documents") | RunnableLambda(store.add_documents)) | (
        RunnablePassthrough.assign(found=RunnablePick("question") | found)
    )
    values: list[Any] = []
    mine = fineflow.optimize(runnable, strict=True)
    thread = threading.Thread(target=lambda: values.append(mine.invoke(INPUT)))
    thread.start()
    writing.wait_arrived()
    model.meter._signal.wait_sync(lambda: len(model.meter.spans) == 1, 10, lambda: "the model has not written")
    assert searching.arrivals == 0
    writing.open()
    thread.join(10)
    assert {doc.page_content for doc in values[0]["found"]} >= {*TEXTS} - {"cheese"}
