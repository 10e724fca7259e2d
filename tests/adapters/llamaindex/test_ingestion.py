"""Taking documents in gives what stock gives: nodes, vectors, calls of stores, caches, exceptions, spans and events."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import Document, StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.extractors import (
    KeywordExtractor,
    QuestionsAnsweredExtractor,
    SummaryExtractor,
    TitleExtractor,
)
from llama_index.core.indices.base import BaseIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionCache, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter, SentenceWindowNodeParser, TokenTextSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import (
    BaseNode,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
    TransformComponent,
)
from llama_index.core.storage.docstore import SimpleDocumentStore

import fineflow
from fineflow.testing.llamaindex.fakes import FakeLLM
from fineflow.testing.llamaindex.ingestion_differential import (
    Bench,
    RecordingStore,
    TextEmbedding,
    assert_same_ingestion,
)

pytestmark = pytest.mark.sweep

WORDS = ("bridge", "river", "town", "stone", "tower", "mill", "market")


def sentence(i: int, j: int) -> str:
    return f"The {WORDS[(i + j) % 7]} number {j} of place {i} stands near the {WORDS[(i * j) % 7]}."


def documents(count: int = 4, length: int = 12, mark: str = "") -> list[Document]:
    found = []
    for i in range(count):
        text = " ".join(sentence(i, j) for j in range(length + i)) + (mark if i == count - 1 else "")
        found.append(Document(text=text, id_=f"document {i}", metadata={"place": i, "kind": "note"}))
    return found


def nodes(count: int = 11, mark: int = -1) -> list[BaseNode]:
    return [
        TextNode(
            id_=f"node {i}",
            text=sentence(i, 3) + (" unreadable" if i == mark else ""),
            metadata={"number": i},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"document {i // 4}")},
        )
        for i in range(count)
    ]


def splitter(manager: CallbackManager | None = None) -> SentenceSplitter:
    return SentenceSplitter(chunk_size=60, chunk_overlap=8, callback_manager=manager)


def model(manager: CallbackManager, **settings: Any) -> TextEmbedding:
    return TextEmbedding(callback_manager=manager, embed_batch_size=3, **settings)


def index_of(store: dict[str, Any] | None = None, embedding: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Makes an empty index."""

    def make(manager: CallbackManager) -> Bench:
        made, kept = model(manager, **(embedding or {})), RecordingStore(**(store or {}))
        context = StorageContext.from_defaults(vector_store=kept)
        given = {"insert_batch_size": 4, "transformations": [splitter(manager)], **settings}
        index = VectorStoreIndex([], embed_model=made, storage_context=context, callback_manager=manager, **given)
        return Bench(index, made, kept, context.docstore)

    return make


def with_vectors() -> list[BaseNode]:
    found = nodes(9)
    for i in (0, 4, 5):
        found[i].embedding = [float(i)] * 32
    return found


def with_references() -> list[BaseNode]:
    return [*nodes(5), IndexNode(id_="a reference", text="see the other index", index_id="other")]


@pytest.mark.parametrize("make_nodes", [nodes, with_vectors, with_references, lambda: nodes(2), lambda: []])
@pytest.mark.parametrize("settings", [{}, {"store_nodes_override": True}, {"insert_batch_size": 1}])
def test_nodes_are_inserted_as_by_stock(make_nodes: Callable[[], Any], settings: dict[str, Any]) -> None:
    make = index_of(**settings)
    assert_same_ingestion(make, lambda index: index.insert_nodes(make_nodes()))

    async def call(index: Any) -> Any:
        return await index.ainsert_nodes(make_nodes())

    assert_same_ingestion(make, call)


def test_batches_are_asked_for_in_stocks_order_and_size() -> None:
    seen = assert_same_ingestion(index_of(), lambda index: index.insert_nodes(nodes(11)))
    assert [len(batch) for batch in seen.asked] == [3, 1, 3, 1, 3]
    assert [len(added) for _, added in seen.written] == [4, 4, 3]


def test_documents_are_inserted_as_by_stock() -> None:
    def call(index: Any) -> None:
        for document in documents(3):
            index.insert(document)

    async def acall(index: Any) -> None:
        for document in documents(3):
            await index.ainsert(document)

    seen = assert_same_ingestion(index_of(), call)
    assert len(seen.written) > 4
    assert_same_ingestion(index_of(), acall)


def changed() -> list[Document]:
    found = documents(4)
    found[1].set_content("Another text. " + found[1].text)
    return [*found[:3], Document(text="new here", id_="document 9")]


def test_documents_are_refreshed_as_by_stock() -> None:
    def call(index: Any) -> Any:
        return [index.refresh_ref_docs(documents(4)), index.refresh_ref_docs(changed())]

    async def acall(index: Any) -> Any:
        return [await index.arefresh_ref_docs(documents(4)), await index.arefresh_ref_docs(changed())]

    seen = assert_same_ingestion(index_of(), call)
    assert seen.returned == [[True] * 4, [False, True, False, True]]
    assert ("delete", "document 1") in seen.written
    assert_same_ingestion(index_of(), acall)
    assert_same_ingestion(index_of(), lambda index: index.update_ref_doc(documents(1)[0]))


@pytest.mark.parametrize("entry", ["insert_nodes", "ainsert_nodes"])
@pytest.mark.parametrize(
    ("store", "mark"), [({"fails_at": 1}, -1), ({"fails_at": 2}, -1), ({}, 0), ({}, 5), ({}, 10), ({"fails_at": 2}, 6)]
)
def test_a_failure_leaves_what_stock_leaves(entry: str, store: dict[str, Any], mark: int) -> None:
    make = index_of(store, {"fails": "unreadable"})

    async def acall(index: Any) -> Any:
        return await index.ainsert_nodes(nodes(11, mark))

    call = acall if entry.startswith("a") else lambda index: index.insert_nodes(nodes(11, mark))
    seen = assert_same_ingestion(make, call)
    assert seen.error is not None


# Building


def building(store: dict[str, Any] | None = None, embedding: dict[str, Any] | None = None) -> Any:
    """Makes the class, with what an index is to be built of beside it."""

    def make(manager: CallbackManager) -> Bench:
        made, kept = model(manager, **(embedding or {})), RecordingStore(**(store or {}))
        context = StorageContext.from_defaults(vector_store=kept)
        given = {"storage_context": context, "embed_model": made, "callback_manager": manager}
        bench = Bench(_Maker(VectorStoreIndex, given), made, kept, context.docstore)
        return bench

    return make


class _Maker:
    """A class of indexes and what to build one of."""

    def __init__(self, kind: Any, given: dict[str, Any]) -> None:
        self.kind, self.given = kind, given

    def optimized(self) -> _Maker:
        return _Maker(fineflow.optimize(self.kind, strict=True, eager=True), self.given)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"insert_batch_size": 5},
        {"insert_batch_size": 5, "show_progress": True},
        {"use_async": True},
        {"transformations": [TokenTextSplitter(chunk_size=40, chunk_overlap=4)], "insert_batch_size": 2},
        {"transformations": [SentenceWindowNodeParser.from_defaults()], "insert_batch_size": 4},
        {"transformations": [splitter(), KeywordExtractor(llm=FakeLLM(), show_progress=False)]},
        {"transformations": [SentenceSplitter(chunk_size=60, chunk_overlap=8, include_metadata=False)]},
    ],
)
def test_an_index_is_built_as_by_stock(settings: dict[str, Any]) -> None:
    def call(maker: Any) -> Any:
        given = {"transformations": [splitter()], **maker.given, **settings}
        index = maker.kind.from_documents([*documents(4), Document(text="", id_="empty")], **given)
        assert type(index) is VectorStoreIndex
        assert index._embed_model is maker.given["embed_model"]
        assert index._transformations is given["transformations"]
        assert "build_index_from_nodes" not in vars(index)
        return [index.index_struct.nodes_dict, index.docstore is maker.given["storage_context"].docstore]

    seen = assert_same_ingestion(building(), call, optimize=_Maker.optimized)
    assert seen.error is None
    assert seen.written


def test_an_index_is_built_of_nodes_as_by_stock() -> None:
    def call(maker: Any) -> Any:
        index = maker.kind(nodes(11), insert_batch_size=4, **maker.given)
        assert type(index) is VectorStoreIndex
        return index.index_struct.nodes_dict

    assert_same_ingestion(building(), call, optimize=_Maker.optimized)
    seen = assert_same_ingestion(
        building(), lambda maker: maker.kind(documents(1)[0].text, **maker.given), optimize=_Maker.optimized
    )
    assert seen.error is not None


@pytest.mark.parametrize(("store", "fails"), [({"fails_at": 2}, "\0"), ({}, "stands near"), ({}, "unreadable")])
def test_a_failure_while_building_leaves_what_stock_leaves(store: dict[str, Any], fails: str) -> None:
    def call(maker: Any) -> Any:
        docs = documents(4, mark=" unreadable")
        return maker.kind.from_documents(docs, transformations=[splitter()], insert_batch_size=3, **maker.given)

    seen = assert_same_ingestion(building(store, {"fails": fails}), call, optimize=_Maker.optimized)
    assert seen.error is not None


def test_what_stands_for_an_index_and_its_class() -> None:
    index = index_of()(CallbackManager([])).obj
    found = fineflow.optimize(index, strict=True)
    assert isinstance(found, VectorStoreIndex)
    found.insert_nodes(nodes(5))
    engine = found.as_query_engine(llm=FakeLLM(), response_mode="accumulate")
    assert isinstance(engine, RetrieverQueryEngine)
    assert "fineflow.optimize(" in repr(engine)
    assert "fineflow.optimize(" in repr(found.as_retriever())
    kind: Any = fineflow.optimize(VectorStoreIndex)
    assert kind.from_vector_store.__self__ is VectorStoreIndex
    assert kind.__name__ == "VectorStoreIndex"

    class Own(VectorStoreIndex):
        def build_index_from_nodes(self, nodes: Any, **kwargs: Any) -> Any:
            return super().build_index_from_nodes(nodes, **kwargs)

    for each in (Own, dict):
        with pytest.warns(fineflow.FineflowWarning, match=f"got the class {each.__name__}"):
            assert fineflow.optimize(each) is each


# Pipelines


def pipeline_of(
    *steps: Callable[[CallbackManager], Any], strategy: DocstoreStrategy | None = None, store: bool = True, **given: Any
) -> Any:
    embedding = given.pop("embedding", {})

    def make(manager: CallbackManager) -> Bench:
        made, kept = model(manager, **embedding), RecordingStore()
        docstore = SimpleDocumentStore() if strategy is not None else None
        pipeline = IngestionPipeline(
            transformations=[*(step(manager) for step in steps), made],
            vector_store=kept if store else None,
            docstore=docstore,
            docstore_strategy=strategy or DocstoreStrategy.UPSERTS,
            cache=IngestionCache(),
            **given,
        )
        return Bench(pipeline, made, kept, docstore, pipeline.cache)

    return make


def both(make: Any, *runs: Callable[[], dict[str, Any]]) -> Any:
    """Runs of one pipeline after the other, by ``run`` and by ``arun``. What was seen of the latter."""

    async def acall(pipeline: Any) -> Any:
        return [await pipeline.arun(**each()) for each in runs]

    assert_same_ingestion(make, lambda pipeline: [pipeline.run(**each()) for each in runs])
    return assert_same_ingestion(make, acall)


def extractor(kind: Any, **settings: Any) -> Callable[[CallbackManager], Any]:
    def make(manager: CallbackManager) -> Any:
        llm = FakeLLM(answers=lambda text: f"about {len(text)} {text[-60:-40]}", callback_manager=manager)
        return kind(llm=llm, show_progress=False, num_workers=2, **settings)

    return make


SHAPES: dict[str, list[Callable[[CallbackManager], Any]]] = {
    "splitter": [splitter],
    "nothing before": [],
    "keywords": [splitter, extractor(KeywordExtractor)],
    "questions": [splitter, extractor(QuestionsAnsweredExtractor)],
    "summaries": [splitter, extractor(SummaryExtractor)],
    "more summaries": [splitter, extractor(SummaryExtractor, summaries=["prev", "self", "next"])],
    "titles": [splitter, extractor(TitleExtractor)],
    "copies": [splitter, extractor(KeywordExtractor, in_place=False)],
    "as it was": [splitter, extractor(KeywordExtractor, disable_template_rewrite=True)],
    "again": [splitter, extractor(KeywordExtractor, max_retries=1, retry_backoff=0.0)],
    "several": [
        splitter,
        extractor(TitleExtractor),
        extractor(QuestionsAnsweredExtractor),
        extractor(KeywordExtractor),
    ],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("disable_cache", [True, False])
def test_a_pipeline_gives_what_stock_gives(shape: str, disable_cache: bool) -> None:
    make = pipeline_of(*SHAPES[shape], disable_cache=disable_cache)
    seen = both(make, lambda: {"documents": documents()})
    assert seen.returned[0]
    assert bool(seen.kept["cache"]) is not disable_cache


@pytest.mark.parametrize(
    "settings", [{}, {"in_place": False}, {"cache_collection": "other"}, {"store_doc_text": False}]
)
def test_caches_are_used_as_by_stock(settings: dict[str, Any]) -> None:
    make = pipeline_of(splitter)

    def again() -> dict[str, Any]:
        return {"documents": documents(4), **settings}

    seen = both(make, again, lambda: {"documents": documents(5)}, again)
    assert len(seen.asked) < 3 * len(assert_same_ingestion(make, lambda p: p.run(**again())).asked)


@pytest.mark.parametrize("strategy", list(DocstoreStrategy))
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.filterwarnings("ignore:docstore_strategy")
def test_document_stores_are_used_as_by_stock(strategy: DocstoreStrategy, store: bool) -> None:
    make = pipeline_of(splitter, strategy=strategy, store=store, disable_cache=True)
    first = {"documents": [*documents(4), documents(1)[0]]}
    both(make, lambda: dict(first), lambda: {"documents": changed()}, lambda: {"nodes": nodes(6)})


@pytest.mark.parametrize("fails", ["stands near", "unreadable"])
@pytest.mark.parametrize("shape", ["splitter", "keywords"])
def test_a_pipeline_that_fails_leaves_what_stock_leaves(fails: str, shape: str) -> None:
    make = pipeline_of(*SHAPES[shape], embedding={"fails": fails}, strategy=DocstoreStrategy.UPSERTS)
    seen = both(make, lambda: {"documents": documents(4, mark=" unreadable")})
    assert seen.error is not None


def broken(manager: CallbackManager) -> Any:
    answers = {"place 3": RuntimeError("no answer")}
    return KeywordExtractor(llm=FakeLLM(answers=answers, callback_manager=manager), show_progress=False)


def test_a_model_that_fails_is_stocks() -> None:
    seen = both(pipeline_of(splitter, broken), lambda: {"documents": documents(4)})
    assert seen.error == ("RuntimeError", "no answer")


def test_metadata_that_is_too_long_is_stocks() -> None:
    long = Document(text="short", id_="long", metadata={"words": "many " * 200})
    seen = both(pipeline_of(splitter), lambda: {"documents": [*documents(3), long]})
    assert seen.error is not None
    assert "Metadata length" in seen.error[1]


def test_progress_is_shown_as_by_stock(capfd: pytest.CaptureFixture[str]) -> None:
    def bars(obj: Any, call: Callable[[Any], Any]) -> list[str]:
        call(obj)
        # A bar is shown anew as time goes by, and for the last time where it ends its line.
        ended = [line.rpartition("\r")[2] for line in capfd.readouterr().err.split("\n")]
        return [line.split("[")[0].strip() for line in ended if "100%" in line]

    make = pipeline_of(splitter, store=False)
    run = lambda pipeline: pipeline.run(documents=documents(), show_progress=True)  # noqa: E731
    build = lambda kind: kind.from_documents(  # noqa: E731
        documents(), embed_model=model(CallbackManager([])), transformations=[splitter()], show_progress=True
    )
    for obj, call, name in (
        (make(CallbackManager([])).obj, run, "Applying transformations"),
        (VectorStoreIndex, build, "Generating embeddings"),
    ):
        stock, found = bars(obj, call), bars(fineflow.optimize(obj, strict=True), call)
        assert stock == found
        assert any(line.startswith(f"{name}: 100%") for line in stock)


def test_the_keys_of_a_cache_are_stocks() -> None:
    """A cache that stock has filled serves an optimized pipeline, and the other way round."""
    for first in (True, False):
        bench = pipeline_of(splitter)(CallbackManager([]))
        optimized = fineflow.optimize(bench.obj, strict=True)
        (optimized if first else bench.obj).run(documents=documents())
        asked = len(bench.model.asked)
        (bench.obj if first else optimized).run(documents=documents())
        assert len(bench.model.asked) == asked > 0


class Shouting(TransformComponent):
    """A step of the user's."""

    def __call__(self, nodes: Any, **kwargs: Any) -> Any:
        for node in nodes:
            node.set_content(node.get_content(metadata_mode=MetadataMode.NONE).upper())
        return nodes


def test_steps_of_the_users_are_stocks() -> None:
    seen = both(pipeline_of(splitter, lambda _: Shouting()), lambda: {"documents": documents()})
    assert seen.asked[0][0].isupper() or "PLACE" in seen.asked[0][0]
    plan = str(fineflow.explain(pipeline_of(splitter, lambda _: Shouting())(CallbackManager([])).obj, graphs=True))
    assert "which nothing overtakes" in plan


def test_a_model_that_only_embeds_single_texts() -> None:
    def make(manager: CallbackManager) -> Any:
        index = VectorStoreIndex([], embed_model=MockEmbedding(8), insert_batch_size=3)
        return index

    stock, found = make(CallbackManager([])), make(CallbackManager([]))
    stock.insert_nodes(nodes(10))
    optimized = fineflow.optimize(found, strict=True, eager=True)
    optimized.insert_nodes(nodes(10))
    assert stock.vector_store.data.embedding_dict == found.vector_store.data.embedding_dict
    assert optimized._self_last.claimed == 10


def test_a_class_derived_from_what_stands_for_a_class_is_one_of_stock() -> None:
    base: Any = fineflow.optimize(VectorStoreIndex)

    class Derived(base):  # type: ignore[misc]
        pass

    assert Derived.__bases__ == (VectorStoreIndex,)
    built = Derived([], embed_model=TextEmbedding())
    assert type(built) is Derived


def test_what_stands_for_a_class_is_one_to_checks() -> None:
    """But where an abstract class is asked about it: that insists on a real class, before anybody else is asked."""
    stands: Any = fineflow.optimize(VectorStoreIndex)

    class Derived(stands):  # type: ignore[misc]
        pass

    assert isinstance(stands, type) and inspect.isclass(stands)
    assert issubclass(stands, object) and not issubclass(stands, int)
    assert issubclass(VectorStoreIndex, stands) and issubclass(Derived, stands) and issubclass(stands, stands)
    assert not issubclass(SummaryIndex, stands)
    assert isinstance(VectorStoreIndex([], embed_model=TextEmbedding()), stands)
    assert BaseIndex in inspect.getmro(stands) and issubclass(stands.__wrapped__, BaseIndex)
    for abstract in (VectorStoreIndex, BaseIndex):
        with pytest.raises(TypeError, match="arg 1 must be a class"):
            issubclass(stands, abstract)
