"""Documents that a map, or a loop in a function, makes are embedded and scored one by one, as soon as each is there."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import wrapt
from chroma_client import CLIENT
from chromadb.api.models.Collection import Collection
from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, RunnablePick
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from pipelines import DIRECT, ask, echo, same
from test_ingest import WordEngine

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.components.indexing import IndexDocuments, SearchIndex
from fineflow.cost_model.costs import costs
from fineflow.cost_model.forecast import predict
from fineflow.engines import EmulatedLLM
from fineflow.ir import Op
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual_threads
from fineflow.testing.differential import differences, observe
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeVectorStore

CHUNKS = ["Paris", "Lyon", "Rome", "wine", "bread"]
INPUT = {"chunks": CHUNKS, "question": "a town"}


def made(x: dict[str, Any]) -> Document:
    return Document(page_content=f"{x['context']} {x['chunk']}")


def listed(x: dict[str, Any]) -> list[dict[str, str]]:
    return [{"chunk": chunk} for chunk in x["chunks"]]


def texts(docs: list[Document]) -> str:
    return "; ".join(doc.page_content for doc in docs)


def situated(model: Any) -> Any:
    """Makes a document of each chunk."""
    one = RunnablePassthrough.assign(context=ask("situate {chunk}") | model | StrOutputParser()) | RunnableLambda(made)
    return RunnableLambda(listed) | one.map()


def written(model: Any, store: Any) -> Any:
    return (
        RunnablePassthrough.assign(ids=situated(model) | RunnableLambda(store.add_documents))
        | RunnablePassthrough.assign(found=RunnablePick("question") | store.as_retriever() | RunnableLambda(texts))
        | RunnablePick("found")
    )


def indexed(model: Any, embeddings: Any) -> Any:
    return (
        RunnablePassthrough.assign(index=situated(model) | IndexDocuments(None, embeddings, FakeVectorStore))
        | SearchIndex(search_kwargs={"k": 2})
        | RunnableLambda(texts)
    )


def paired(x: dict[str, Any]) -> list[Document]:
    return [Document(page_content=f"{one} {two}") for one, two in zip(x["contexts"], x["chunks"], strict=True)]


def paired_in_a_loop(x: dict[str, Any]) -> list[Document]:
    documents = []
    question = x["question"]
    for one, two in zip(x["contexts"], x["chunks"], strict=True):
        text = f"{one} {two}"
        documents.append(Document(page_content=text, metadata={"question": question}))
    return documents


def paired_by_number(x: dict[str, Any]) -> list[Document]:
    found: list[Document] = []
    for i, (one, two) in enumerate(zip(x["contexts"], x["chunks"], strict=True), start=1):
        found.append(Document(page_content=f"{one} {two} {i}", id=str(i)))
    return found


def by_function(model: Any, embeddings: Any, paired: Any = paired) -> Any:
    """A function makes documents of all contexts and chunks."""
    contexts = RunnableLambda(listed) | (ask("situate {chunk}") | model | StrOutputParser()).map()
    return (
        RunnablePassthrough.assign(contexts=contexts)
        | RunnablePassthrough.assign(
            index=RunnableLambda(paired) | IndexDocuments(None, embeddings, FakeVectorStore),
        )
        | SearchIndex(search_kwargs={"k": 2})
        | RunnableLambda(texts)
    )


def answers(**given: Any) -> FakeChat:
    return FakeChat(answers=echo, **given)


SHAPES: dict[str, Callable[[Any, WordEngine], Any]] = {
    "a store's method": lambda model, engine: written(model, FakeVectorStore(EngineEmbeddings(engine))),
    "IndexDocuments": lambda model, engine: indexed(model, EngineEmbeddings(engine)),
    "a function behind the map": lambda model, engine: by_function(model, EngineEmbeddings(engine)),
    "a loop behind it": lambda model, engine: by_function(model, EngineEmbeddings(engine), paired_in_a_loop),
    "a loop with numbers": lambda model, engine: by_function(model, EngineEmbeddings(engine), paired_by_number),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_embedding_moves_into_the_map(shape: str) -> None:
    plan = fineflow.explain(SHAPES[shape](answers(), WordEngine()), input=INPUT)
    assert plan.e_graph is not None
    (mapped,) = (p for p in plan.e_graph if p.op is Op.MAP)
    assert [(p.op, p.params["stage"]) for p in mapped.body if p.op is Op.EMBED] == [(Op.EMBED, "one")]
    assert mapped.body.output.name != mapped.body.primitives[-1].name, "its value is what it was before"
    assert any("starts on each document when" in note.reason for note in plan.all_notes if note.done)


@pytest.mark.parametrize("shape", SHAPES)
def test_same_answer(shape: str) -> None:
    engines: list[WordEngine] = []

    def make() -> Any:
        engines.append(WordEngine())
        return SHAPES[shape](answers(), engines[-1])

    same(make, INPUT, entries=("invoke", "ainvoke", "stream", "astream"))
    for engine in engines:
        embedded = [text for text in engine.embedded if text != INPUT["question"]]
        assert sorted(embedded) == sorted(set(embedded)), "each document is embedded once"


@pytest.mark.parametrize("chunks", [[], ["one"], ["twice", "twice"], ["Paris", "poison", "Rome"], "text"])
@pytest.mark.parametrize("shape", SHAPES)
def test_same_answer_for_unusual_inputs(shape: str, chunks: Any) -> None:
    same(lambda: SHAPES[shape](answers(), WordEngine()), {**INPUT, "chunks": chunks}, entries=DIRECT)


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_document_is_embedded_while_others_are_being_made(sync: bool) -> None:
    situating, embedding = Gate(), Gate()
    engine = WordEngine(embedding)
    store = FakeVectorStore(EngineEmbeddings(engine))
    mine = fineflow.optimize(written(answers(gate=situating), store), strict=True)
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(mine.invoke(INPUT) if sync else asyncio.run(mine.ainvoke(INPUT)))
    )
    thread.start()
    situating.wait_arrived(len(CHUNKS))
    situating.let(1)
    embedding.wait_arrived(1)
    assert [len(batch) for batch in engine.batches] == [1]
    assert not found
    assert not store._rows, "nothing is written before stock writes"
    situating.open()
    embedding.open()
    thread.join(10)
    assert found == [written(answers(), FakeVectorStore(EngineEmbeddings(WordEngine()))).invoke(INPUT)]


def test_a_store_stays_empty_if_a_document_cannot_be_made_or_embedded() -> None:
    for chunks, fails in ((["Paris", "poison"], "cannot embed"), (["Paris", "broken"], "no answer")):

        def answer(messages: Any) -> str:
            if "broken" in messages[-1].text:
                raise ValueError("no answer")
            return "a context"

        store = FakeVectorStore(EngineEmbeddings(WordEngine()))
        mine = fineflow.optimize(written(FakeChat(answers=answer), store), strict=True)
        with pytest.raises(ValueError, match=fails):
            mine.invoke({**INPUT, "chunks": chunks})
        assert not store._rows


# --- in functions


class Contextual:
    """Situates chunks in a loop, as people write it. build: makes a store of documents."""

    def __init__(self, model: Any, embeddings: Any, build: Callable[[list[Document], Any], Any]) -> None:
        self.model, self.embeddings, self.build = model, embeddings, build

    def process(self, chunks: list[str]) -> list[Document]:
        documents = []
        for chunk in chunks:
            context = self.model.invoke(f"situate {chunk}").content
            documents.append(Document(page_content=f"{context} {chunk}"))
        return documents

    def run(self, x: dict[str, Any]) -> list[str]:
        store = self.build(self.process(x["chunks"]), self.embeddings)
        return [doc.page_content for doc in store.similarity_search(x["question"], k=2)]


def from_documents(documents: list[Document], embeddings: Any) -> Any:
    return InMemoryVectorStore.from_documents(documents, embeddings)


def from_texts(documents: list[Document], embeddings: Any) -> Any:
    return InMemoryVectorStore.from_texts([doc.page_content for doc in documents], embedding=embeddings)


def embedded(documents: list[Document], embeddings: Any) -> Any:
    vectors = embeddings.embed_documents([doc.page_content for doc in documents])
    store = InMemoryVectorStore(embeddings)
    for i, (document, vector) in enumerate(zip(documents, vectors, strict=True)):
        store.store[str(i)] = {"id": str(i), "vector": vector, "text": document.page_content, "metadata": {}}
    return store


def chroma(documents: list[Document], embeddings: Any) -> Any:
    return Chroma.from_documents(documents, embeddings, client=CLIENT, collection_name=f"c{uuid.uuid4().hex}")


class RowStore(VectorStore):
    """A store of the user's own that writes a row for each text."""

    def __init__(self, embedding: Any) -> None:
        self.embedding, self.connection = embedding, sqlite3.connect(":memory:", check_same_thread=False)
        self.connection.execute("CREATE TABLE rows (text TEXT, vector TEXT)")

    def add_texts(self, texts: Iterable[str], metadatas: Any = None, **kwargs: Any) -> list[str]:
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts)
        with self.connection:
            for each, vector in zip(texts, vectors, strict=True):
                self.connection.execute("INSERT INTO rows VALUES (?, ?)", (each, json.dumps(vector)))
        return texts

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        wanted = self.embedding.embed_query(query)
        rows = self.connection.execute("SELECT text, vector FROM rows").fetchall()
        rows.sort(key=lambda row: -sum(a * b for a, b in zip(wanted, json.loads(row[1]), strict=True)))
        return [Document(text) for text, _ in rows[:k]]

    @classmethod
    def from_texts(cls, texts: list[str], embedding: Any, metadatas: Any = None, **kwargs: Any) -> Any:
        store = cls(embedding)
        store.add_texts(texts)
        return store


def own_store(documents: list[Document], embeddings: Any) -> Any:
    return RowStore.from_documents(documents, embeddings)


BUILDS = (from_documents, from_texts, embedded, chroma)


@pytest.mark.parametrize("build", [*BUILDS, own_store], ids=lambda build: build.__name__)
@pytest.mark.parametrize("chunks", [CHUNKS, ["twice", "twice"], [], ["Paris", "poison", "Rome"]], ids=len)
def test_functions_return_what_stock_returns(build: Any, chunks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langchain_core.vectorstores.in_memory.uuid", SimpleNamespace(uuid4=lambda: "id"))
    for entry in DIRECT:
        engines, seen = [WordEngine(), WordEngine()], []
        for engine in engines:
            app: Any = RunnableLambda(Contextual(answers(), EngineEmbeddings(engine), build).run)
            app = fineflow.optimize(app, strict=True, eager=True) if engine is engines[1] else app
            seen.append(observe(app, entry, {**INPUT, "chunks": chunks}))
        assert not (found := differences(*seen)), found
        if "poison" in chunks:
            continue  # what comes after it may have been embedded, or not
        assert set(engines[1].embedded) <= {*engines[0].embedded}
        assert len(engines[1].embedded) <= len(engines[0].embedded), "no text is embedded twice"


class Timed(WordEngine):
    """Takes a tenth of a second for a batch, and notes when it began."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[float] = []

    async def execute(self, op: Op, items: Any) -> list[Any]:
        self.began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)
        return await super().execute(op, items)


def long_answer(prompt: str) -> str:
    """Returns an answer of more words for each chunk than for the one before it."""
    return "word " * (4 + 8 * next(i for i, chunk in enumerate(CHUNKS) if chunk in prompt))


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_a_text_is_embedded_while_the_loop_is_making_others(build: Any) -> None:
    def ran(optimize: Callable[[Any], Any]) -> tuple[Any, float, list[float]]:
        engine, model = Timed(), ChatEngine(engine=EmulatedLLM(long_answer))
        app = optimize(RunnableLambda(Contextual(model, EngineEmbeddings(engine), build).run))
        took = virtual_threads.run(lambda: app.invoke(INPUT))
        return took.value, took.seconds, engine.began

    value, _, _ = ran(lambda app: app)
    found, seconds, began = ran(lambda app: fineflow.optimize(app, strict=True, eager=True))
    alone = [partial(ChatEngine(engine=EmulatedLLM(long_answer)).invoke, f"situate {chunk}") for chunk in CHUNKS]
    contexts = max(virtual_threads.run(call).seconds for call in alone)
    assert found == value
    assert sum(at < contexts for at in began) >= 3, began  # of five texts; the last one waits for the last context
    assert seconds <= contexts + 0.3  # that text and the question


class OfTwo(wrapt.ObjectProxy):  # type: ignore[misc]
    """A client of Chroma that takes two documents at a time."""

    def get_max_batch_size(self) -> int:
        return 2


@pytest.mark.parametrize("make", ["from_texts", "from_documents"])
def test_a_batch_is_embedded_while_the_one_before_is_written(make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, second, own = WordEngine(), threading.Event(), Collection.upsert
    execute, met, embeddings = engine.execute, list[bool](), EngineEmbeddings(engine)
    client = OfTwo(CLIENT)

    async def noting(op: Op, items: Any) -> list[Any]:
        if len(engine.batches) == 1:
            second.set()
        return await execute(op, items)

    def upsert(*args: Any, **named: Any) -> None:
        met.append(second.wait(30))
        own(*args, **named)

    def index(chunks: list[str]) -> list[str]:
        more: Any = {"client": client, "collection_name": f"c{uuid.uuid4().hex}"}
        if make == "from_texts":
            store = Chroma.from_texts(chunks, embeddings, **more)
        else:
            store = Chroma.from_documents([Document(page_content=each) for each in chunks], embeddings, **more)
        return sorted(store.get()["documents"])

    monkeypatch.setattr(engine, "execute", noting)
    monkeypatch.setattr(Collection, "upsert", upsert)
    assert fineflow.optimize(RunnableLambda(index), strict=True).invoke(CHUNKS) == sorted(CHUNKS)
    assert met == [True] * 3 and len(engine.embedded) == len(CHUNKS)


@pytest.mark.parametrize("bound", ["optimize", "config"])
def test_bounds_of_the_user_hold(bound: str) -> None:
    """Requests of single texts would be calls of components beside others."""
    engine = WordEngine()
    embeddings = EngineEmbeddings(engine)
    app = RunnableLambda(Contextual(answers(), embeddings, from_documents).run)
    mine = fineflow.optimize(app, strict=True, eager=True, **({"max_concurrency": 1} if bound == "optimize" else {}))
    mine.invoke(INPUT, {"max_concurrency": 1} if bound == "config" else None)
    assert [len(batch) for batch in engine.batches] == [2, 2, 1, 1]


class Picks(InMemoryVectorStore):
    """Embeds only some of its documents."""

    @classmethod
    def from_documents(cls, documents: list[Document], embedding: Any, **kwargs: Any) -> Any:
        return InMemoryVectorStore.from_documents(documents[:1], embedding)


def test_a_store_class_that_may_embed_something_else_is_not_foreseen() -> None:
    engine = WordEngine()
    build = lambda documents, embeddings: Picks.from_documents(documents, embeddings)  # noqa: E731
    app = RunnableLambda(Contextual(answers(), EngineEmbeddings(engine), build).run)
    fineflow.optimize(app, strict=True, eager=True).invoke(INPUT)
    assert len(engine.embedded) == 2  # the first document, and the question


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
def test_calls_of_components_on_engines_are_bounded_by_their_queues() -> None:
    """Of a model in a package, 16 requests run ahead at a time; an engine itself knows how many it can take."""

    def loop(model: Any, **options: Any) -> float:
        app = RunnableLambda(lambda x: [model.invoke(f"{number}").text for number in range(32)])
        mine: Any = fineflow.optimize(app, strict=True, **options)
        return virtual_threads.run(lambda: mine.invoke("x")).seconds

    def engine() -> ChatEngine:
        return ChatEngine(engine=EmulatedLLM(lambda prompt: "one two three four"))

    at_once, bounded = loop(engine()), loop(engine(), max_concurrency=16)
    assert at_once < 0.7 * bounded
    assert loop(FakeChat(prefill=1.0)) == pytest.approx(2.0, abs=0.01)


CALLS = """[{"q": "the old stone bridge that crosses the broad river in the harbour town"},
{"q": "who built the ferry and the lighthouse of the bay"}, {"q": "when was the flood"}]"""


@fineflow.effects(reads="web")
def looked_up(call: dict[str, str]) -> str:
    time.sleep(1.2 if "bridge" in call["q"] else 0.2)
    return call["q"]


def agent() -> Any:
    """Plans calls of a tool, makes them, answers."""
    model = ChatEngine(engine=EmulatedLLM(lambda prompt: CALLS if "Plan" in prompt else "the stone one " * 5))
    found = ask("Plan {question}") | model | JsonOutputParser() | RunnableLambda(looked_up).map()
    return RunnablePassthrough.assign(found=found) | ask("Answer {question} from {found}") | model | StrOutputParser()


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
def test_the_forecast_counts_what_runs() -> None:
    """The slowest tool is called first, while the model writes the other calls."""
    costs.forget()
    try:
        stock, mine = agent(), fineflow.optimize(agent(), strict=True)
        for _ in range(3):
            as_written = virtual_threads.run(lambda: stock.invoke({"question": "which?"})).seconds
            as_run = virtual_threads.run(lambda: mine.invoke({"question": "which?"})).seconds
        plan = fineflow.explain(mine)
        assert plan.p_graph is not None
        assert plan.e_graph is not None
        assert as_run < 0.85 * as_written
        assert predict(plan.p_graph).seconds == pytest.approx(as_written, rel=0.05)
        assert predict(plan.e_graph, written=plan.p_graph).seconds == pytest.approx(as_run, rel=0.05)
    finally:
        costs.forget()
