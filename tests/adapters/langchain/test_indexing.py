"""Documents that come with the request: split and embedded ahead, written by stock, searched after the write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pytest
from chroma_client import CLIENT
from langchain_chroma import Chroma
from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import CharacterTextSplitter, RecursiveCharacterTextSplitter
from pipelines import DIRECT, FailingEmbeddings, ask, echo, same
from test_ingest import WordEngine

import fineflow
from fineflow.adapters.langchain.components.embeddings import EngineEmbeddings
from fineflow.adapters.langchain.components.indexing import IndexDocuments, SearchIndex
from fineflow.ir import Effect, Op
from fineflow.testing import virtual
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat, FakeEmbeddings, FakeVectorStore

TEXT = "Paris is the capital of France.\n\nLyon is a town.\n\nRome is the capital of Italy."
DOCUMENTS = [
    Document(TEXT, metadata={"source": "a"}),
    Document("Cheese.\n\nFrance is large.", metadata={"source": "b"}),
]
INPUT = {"documents": DOCUMENTS, "question": "What is the capital of France?"}
VALUES = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")


def splitter(**given: Any) -> RecursiveCharacterTextSplitter:
    return RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0, **given)


def texts(documents: Sequence[Document]) -> str:
    return "; ".join(document.page_content for document in documents)


def pipeline(index: Any, *, search: Any = None, rewrite: float = 0.0, answer: float = 0.0) -> Any:
    """Indexes, rewrites the question, searches, answers."""
    search = SearchIndex(search_kwargs={"k": 2}) if search is None else search
    rewritten = ask("Rewrite {question}") | FakeChat(default="capital of France", prefill=rewrite) | StrOutputParser()
    return (
        RunnablePassthrough.assign(index=itemgetter("documents") | index)
        | RunnablePassthrough.assign(question=rewritten)
        | RunnablePassthrough.assign(context=search | RunnableLambda(texts))
        | ask("{context} {question}")
        | FakeChat(answers=echo, prefill=answer)
        | StrOutputParser()
    )


def plainly(splits: Any, embeddings: Any, factory: Any) -> Any:
    """The same as plain functions."""

    def index(documents: list[Document]) -> Any:
        store = factory(embeddings)
        store.add_documents(splits.split_documents(documents))
        return store

    return pipeline(
        RunnableLambda(index), search=lambda x: x["index"].as_retriever(search_kwargs={"k": 2}).invoke(x["question"])
    )


def ops(runnable: Any) -> list[Any]:
    graph = fineflow.explain(runnable, input=INPUT).e_graph
    assert graph is not None
    return [p for p in graph if p.op in (Op.EMBED, Op.INGEST, Op.SEARCH)]


# --- the same as plain code


@pytest.mark.parametrize("factory", [InMemoryVectorStore, FakeVectorStore, lambda e: InMemoryVectorStore(e)])
def test_the_answer_is_that_of_plain_functions(factory: Any) -> None:
    made = pipeline(IndexDocuments(splitter(), FakeEmbeddings(), factory))
    expected = plainly(splitter(), FakeEmbeddings(), factory).invoke(INPUT)
    assert "Paris is the capital of France" in expected
    assert made.invoke(INPUT) == asyncio.run(made.ainvoke(INPUT)) == expected
    fast = fineflow.optimize(made, strict=True)
    for _ in range(2):  # from the second call on, a function's store is known
        assert fast.invoke(INPUT) == asyncio.run(fast.ainvoke(INPUT)) == "".join(fast.stream(INPUT)) == expected


def same_value(make: Any) -> None:
    """Documents in an ``InMemoryVectorStore`` get random ids, which show in run trees and events."""
    same(make, INPUT, entries=VALUES, handler=None)


def test_every_entry_point_is_that_of_stock() -> None:
    same(lambda: pipeline(IndexDocuments(splitter(), FakeEmbeddings(), FakeVectorStore)), INPUT)
    same(lambda: pipeline(IndexDocuments(None, EngineEmbeddings(WordEngine()), FakeVectorStore)), INPUT)
    same_value(lambda: pipeline(IndexDocuments(splitter(), FakeEmbeddings(), InMemoryVectorStore)))
    same_value(lambda: pipeline(IndexDocuments(None, EngineEmbeddings(WordEngine()), InMemoryVectorStore)))


def test_a_chroma_collection_for_each_request() -> None:
    def factory(embeddings: Any) -> Chroma:
        return Chroma(embedding_function=embeddings, client=CLIENT, collection_name=f"request{next(numbers)}")

    numbers = iter(range(100))
    embeddings = FakeEmbeddings()
    fast = fineflow.optimize(pipeline(IndexDocuments(splitter(), embeddings, factory)), strict=True)
    expected = plainly(splitter(), FakeEmbeddings(), factory).invoke(INPUT)
    assert [fast.invoke(INPUT), fast.invoke(INPUT), asyncio.run(fast.ainvoke(INPUT))] == [expected] * 3
    assert embeddings.meter.calls == 6  # one for the documents and one for the query of each call


def test_the_store_is_the_one_that_the_factory_made() -> None:
    made: list[Any] = []

    def factory(embeddings: Any) -> InMemoryVectorStore:
        made.append(InMemoryVectorStore(embeddings))
        return made[-1]

    embeddings = FakeEmbeddings()
    fast = fineflow.optimize(
        RunnableParallel(index=IndexDocuments(splitter(), embeddings, factory)), strict=True, eager=True
    )
    for _ in range(2):
        store = fast.invoke(DOCUMENTS)["index"]
        assert store is made[-1]
        assert store.embeddings is embeddings
        assert [row["text"] for row in store.store.values()] == [
            "Paris is the capital of France.",
            "Lyon is a town.",
            "Rome is the capital of Italy.",
            "Cheese.\n\nFrance is large.",
        ]


def test_arguments_go_to_add_documents() -> None:
    index = IndexDocuments(None, FakeEmbeddings(), FakeVectorStore)
    fast = fineflow.optimize(index.bind(ids=["x", "y"]), strict=True, eager=True)
    found = fast.invoke(DOCUMENTS).similarity_search("Cheese", k=2)
    assert sorted(document.id for document in found) == ["x", "y"]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="expected a splitter with transform_documents, or None; got str"):
        IndexDocuments("x", FakeEmbeddings(), InMemoryVectorStore)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a function that makes a store; got InMemoryVectorStore"):
        IndexDocuments(None, FakeEmbeddings(), InMemoryVectorStore(FakeEmbeddings()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="vector_store_factory must return a VectorStore, got list"):
        IndexDocuments(None, FakeEmbeddings(), lambda embeddings: [embeddings]).invoke([])  # type: ignore[arg-type,return-value]


# --- failures


def _no_store(embeddings: Any) -> Any:
    raise OSError("no space left")


def _full(embeddings: Any) -> Any:
    return Full(embeddings)


class Full(InMemoryVectorStore):
    def add_documents(self, documents: list[Document], ids: Any = None, **kwargs: Any) -> list[str]:
        raise OSError("the store is full")

    async def aadd_documents(self, documents: list[Document], ids: Any = None, **kwargs: Any) -> list[str]:
        raise OSError("the store is full")


@pytest.mark.parametrize(
    ("embeddings", "factory", "input"),
    [
        (lambda: FailingEmbeddings("Lyon"), InMemoryVectorStore, INPUT),
        (
            lambda: FailingEmbeddings("capital of France"),
            InMemoryVectorStore,
            {**INPUT, "documents": []},
        ),  # only the query
        (FakeEmbeddings, _no_store, INPUT),
        (FakeEmbeddings, _full, INPUT),
        (FakeEmbeddings, InMemoryVectorStore, {**INPUT, "documents": ["no document"]}),
        (FakeEmbeddings, InMemoryVectorStore, {**INPUT, "documents": None}),
        (FakeEmbeddings, InMemoryVectorStore, {"question": "no documents"}),
    ],
)
def test_failures_are_those_of_stock(embeddings: Any, factory: Any, input: Any) -> None:
    # Which runs a failure finds open in a stream depends on timing.
    same(lambda: pipeline(IndexDocuments(splitter(), embeddings(), factory)), input, entries=DIRECT)


# --- what runs when


def test_documents_and_query_are_embedded_while_stock_waits() -> None:
    """Indexing takes 2 s, rewriting the question 1 s, its vector 0.5 s, the answer 1 s."""

    def made(factory: Any) -> Any:
        index = IndexDocuments(splitter(), FakeEmbeddings(per_text=0.5), factory)
        return pipeline(index, rewrite=1, answer=1)

    assert virtual.run(made(InMemoryVectorStore).ainvoke(INPUT)).seconds == 4.5
    assert virtual.run(fineflow.optimize(made(InMemoryVectorStore), strict=True).ainvoke(INPUT)).seconds == 3.0
    fast = fineflow.optimize(made(lambda embeddings: InMemoryVectorStore(embeddings)), strict=True)
    # The first call shows which store the function makes; until then its vectors are left to the store.
    assert [virtual.run(fast.ainvoke(INPUT)).seconds for _ in range(3)] == [3.5, 3.0, 3.0]


def test_the_search_waits_for_the_write_and_its_vector_does_not() -> None:
    gate = Gate()

    writing = []

    def factory(embeddings: Any) -> Any:
        gate.wait_sync()
        writing.append(embeddings)
        return InMemoryVectorStore(embeddings)

    embeddings = FakeEmbeddings()
    index = IndexDocuments(splitter(), embeddings, factory)
    index.makes = InMemoryVectorStore  # as after a first call
    fast = fineflow.optimize(pipeline(index), strict=True)

    async def run() -> str:
        call = asyncio.create_task(fast.ainvoke(INPUT))
        while embeddings.meter.calls < 2:
            await asyncio.sleep(0.001)
        assert sorted(embeddings.meter.labels) == ["4 documents", "capital of France"]
        assert not writing
        gate.open()
        return await call

    assert "Paris is the capital of France" in asyncio.run(run())
    assert embeddings.meter.calls == 2


def test_an_engine_embeds_in_stages() -> None:
    engine = WordEngine()
    index = IndexDocuments(splitter(), EngineEmbeddings(engine), InMemoryVectorStore)
    made = pipeline(index)
    embedded = next(p for p in ops(made) if p.name == "index.embed")
    assert embedded.params == {"of": "documents", "stages": 2}
    fineflow.optimize(made, strict=True).invoke(INPUT)
    assert sorted(engine.embedded) == sorted(
        [*splitter().split_text(TEXT), "Cheese.\n\nFrance is large.", "capital of France"]
    )


# --- what is planned


def test_what_is_planned() -> None:
    embed, ingest, query, search = ops(pipeline(IndexDocuments(splitter(), FakeEmbeddings(), InMemoryVectorStore)))
    assert (embed.name, embed.op, embed.engine) == ("index.embed", Op.EMBED, "FakeEmbeddings")
    assert (ingest.effects.kind, ingest.by_stock, list(ingest.args)) == (Effect.WRITE, True, ["documents", "vectors"])
    assert (query.op, query.after) == (Op.EMBED, ())
    assert (search.op, list(search.args)) == (Op.SEARCH, ["query", "store", "vector"])


def test_vectors_of_an_unknown_store_are_its_own() -> None:
    embeddings = FakeEmbeddings()
    made = pipeline(IndexDocuments(splitter(), embeddings, _own))
    fast = fineflow.optimize(made, strict=True)
    expected = made.invoke(INPUT)
    assert [fast.invoke(INPUT), fast.invoke(INPUT)] == [expected, expected]
    assert [p.op for p in ops(made)] == [Op.INGEST, Op.SEARCH]
    assert embeddings.meter.calls == 6  # a call for the documents and one for the query, three times


class Own(InMemoryVectorStore):
    def add_documents(self, documents: list[Document], ids: Any = None, **kwargs: Any) -> list[str]:
        return super().add_documents(documents[::-1], ids, **kwargs)


def _own(embeddings: Any) -> Any:
    return Own(embeddings)


class Shouting(BaseDocumentTransformer):
    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> Sequence[Document]:
        return [Document(document.page_content.upper()) for document in documents]


def test_code_of_the_users_own_is_left_to_stock() -> None:
    seen: list[str] = []
    counting = CharacterTextSplitter(
        chunk_size=40, chunk_overlap=0, length_function=lambda text: seen.append(text) or len(text)
    )
    for splits in (Shouting(), counting):
        made = pipeline(IndexDocuments(splits, FakeEmbeddings(), InMemoryVectorStore))
        assert not ops(made)
        same_value(lambda splits=splits: pipeline(IndexDocuments(splits, FakeEmbeddings(), InMemoryVectorStore)))

    class OwnEmbeddings(FakeEmbeddings):
        def embed_documents(self, given: list[str]) -> list[list[float]]:
            return super().embed_documents(given)

    assert not ops(pipeline(IndexDocuments(splitter(), OwnEmbeddings(), InMemoryVectorStore)))
    pure = splitter(length_function=lambda text: len(text) // 2)
    assert len(ops(pipeline(IndexDocuments(pure, FakeEmbeddings(), InMemoryVectorStore)))) == 4


def test_a_search_by_a_function_of_the_users_own_gets_the_store() -> None:
    def made() -> Any:
        index = IndexDocuments(splitter(), FakeEmbeddings(), InMemoryVectorStore)
        return pipeline(index, search=lambda x: x["index"].similarity_search(x["question"], k=2))

    same_value(made)


def test_an_index_from_elsewhere_is_searched_by_stock() -> None:
    store = FakeVectorStore.from_texts(["Paris", "Rome"], FakeEmbeddings())
    made = RunnablePassthrough.assign(found=SearchIndex() | texts) | ask("{found}") | FakeChat(answers=echo)
    given = {"index": store, "question": "Paris"}
    assert fineflow.optimize(made, strict=True, eager=True).invoke(given).content == made.invoke(given).content
    assert not ops(made)
