"""Ingestion by an ``IngestionPipeline``, a ``VectorStoreIndex``, and an index that is being built.

Stock runs the transformations and writes to the stores, so the order of writes and the contents after a failure are
stock's. Embedding runs ahead: of the next nodes while stock adds nodes to the store, and of the first nodes while a
splitter or an extractor is still processing others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import wrapt
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.storage.kvstore.types import MutableMappingKVStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from fineflow.adapters.core.builder import DOCUMENTS, TEXT, VALUE, Leaf, Symbol
from fineflow.adapters.core.own_state import known_class
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered, believed
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.adapters.llamaindex.ingestion.text_vectors import TextBatches, Wanted, lower_texts, shadow_texts
from fineflow.adapters.llamaindex.ingestion.transformations import known, shadow_transformation, tapped
from fineflow.adapters.llamaindex.methods import as_written, believed_class, same
from fineflow.adapters.llamaindex.stores.searches import acounted, counted
from fineflow.adapters.llamaindex.thread_affinity import blocks, known_arguments, may_leave, unblocked
from fineflow.ir import Effect, Effects, Op, Ref
from fineflow.runtime.queues.component_calls import has_limit

NODES, VECTORS, TEXTS, FORESEEN = "nodes", "vectors", "texts", "texts foreseen"
"""Leaves: the nodes made from the documents, and the vectors of their texts. The texts are known when stock has the
nodes (``TEXTS``), or predicted while it makes them (``FORESEEN``).
"""

_INSERTING = (
    *("insert", "ainsert", "insert_nodes", "ainsert_nodes", "_insert", "_validate_serializable"),
    *("_add_nodes_to_index", "_async_add_nodes_to_index", "_get_node_with_embedding", "_aget_node_with_embedding"),
    *("build_index_from_nodes", "_build_index_from_nodes", "refresh_ref_docs", "arefresh_ref_docs"),
    *("update_ref_doc", "aupdate_ref_doc", "delete_ref_doc", "adelete_ref_doc"),
    *("_delete_from_index_struct", "_adelete_from_index_struct", "_delete_from_docstore", "_adelete_from_docstore"),
)
_PIPELINE = (
    *("run", "arun", "_prepare_inputs", "_handle_duplicates", "_ahandle_duplicates", "_handle_upserts"),
    *("_ahandle_upserts", "_update_docstore", "_aupdate_docstore"),
)
_ADDING = ("add", "async_add")
_WRITES, _AWRITES = ("add", "delete", "delete_nodes"), ("async_add", "adelete", "adelete_nodes")
_STORING = ("add_documents", "async_add_documents")


nodes_made: ContextVar[Callable[[Any], None] | None] = ContextVar("fineflow_nodes_made", default=None)
"""Called with an index that is being built when its nodes are made, before they are embedded."""


@dataclass
class Building:
    """A ``VectorStoreIndex`` that is being built. Missing settings are LlamaIndex's global ones, as they are now."""

    kind: type
    transformations: Sequence[Any]
    model: Any
    context: Any
    inserted: int

    @classmethod
    def of(cls, kind: type, given: dict[str, Any]) -> Building:
        """Returns the building of a call of ``from_documents``, or of the class, with these arguments."""
        model = given.get("embed_model") or Settings._embed_model
        if given.get("use_async"):
            model = None  # stock calls its methods on an event loop of its own
        transformations = given.get("transformations") or Settings.transformations
        return cls(kind, transformations, model, given.get("storage_context"), given.get("insert_batch_size", 2048))

    def from_documents(self, documents: Any, **kwargs: Any) -> Any:
        return self.kind.from_documents(documents, **kwargs)  # type: ignore[attr-defined]

    def from_nodes(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind(*args, **kwargs)


@dataclass(frozen=True)
class Parts:
    """Parts of an object that ingests. at: index of the embedding model in the transformations, if it is one of them.

    inserted: number of nodes added to the store at once; 0: all.
    """

    transformations: Sequence[Any]
    model: Any
    stores: Sequence[Any]
    inserted: int = 0
    at: int | None = None


def built_class(kind: Any) -> bool:
    """Returns True if a class is ``VectorStoreIndex``, or a subclass that builds an index in the same way."""
    if not isinstance(kind, type) or not issubclass(kind, VectorStoreIndex):
        return False
    building = (*_INSERTING, "__init__", "__new__")
    made = getattr(kind.from_documents, "__func__", None) is getattr(BaseIndex.from_documents, "__func__", None)
    return made and (kind is VectorStoreIndex or all(_same(kind, name) for name in building))


def _same(kind: type, name: str) -> bool:
    return same(kind, VectorStoreIndex, name) or getattr(kind, name) is getattr(VectorStoreIndex, name)


def ingests(obj: Any) -> bool:
    """Returns True if an object ingests documents: a pipeline, an index, or an index that is being built."""
    return isinstance(obj, IngestionPipeline | VectorStoreIndex | Building)


def ingesting_part(obj: Any) -> str:
    """Returns the method under which all ingesting methods of an object are planned."""
    if isinstance(obj, Building):
        return "from_documents"
    return "insert_nodes" if isinstance(obj, VectorStoreIndex) else "run"


def parts_of(obj: Any) -> Parts | None:
    """Returns the parts of an object; None if its methods are not LlamaIndex's own."""
    if isinstance(obj, Building):
        stores = (None, None) if obj.context is None else (obj.context.vector_store, obj.context.docstore)
        return Parts(obj.transformations, obj.model, stores, obj.inserted)
    if isinstance(obj, VectorStoreIndex):
        if not as_written(obj, VectorStoreIndex, *_INSERTING):
            return None
        return Parts(obj._transformations, obj._embed_model, (obj._vector_store, obj._docstore), obj._insert_batch_size)
    if not as_written(obj, IngestionPipeline, *_PIPELINE):
        return None
    steps = obj.transformations
    at = next((i for i, step in enumerate(steps) if isinstance(step, BaseEmbedding)), None)
    return Parts(steps, None if at is None else steps[at], (), at=at)


def lower_ingestion(obj: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    """Appends stock's ingestion, and the embedding that runs ahead of it."""
    documents = Leaf(Ref("input"), TEXT)
    parts = parts_of(obj)
    assert parts is not None
    with b.inside(NODES):
        nodes = _lower_transformations(parts, documents, b)
    args = {"documents": nodes.ref}
    try:
        args["vectors"] = _lower_vectors(obj, parts, nodes, b).ref
    except NotLowered as why:
        b.note(b.leaf or "vectors", False, str(why))
    store = next((each for each in _stores(obj) if each is not None), None)
    name = "SimpleVectorStore" if store is None else type(store).__name__
    effects = Effects(Effect.WRITE, b.resource(obj if store is None else store), f"adds nodes to {name}")
    return b.add(Op.INGEST, args, component=obj, engine=name, effects=effects, kind=VALUE, by_stock=True)


def _stores(obj: Any) -> tuple[Any, ...]:
    parts = parts_of(obj)
    return (*(parts.stores if parts else ()), getattr(obj, "vector_store", None))


def _lower_transformations(parts: Parts, documents: Leaf, b: IndexBuilder) -> Leaf:
    """Appends the transformations, which stock runs. Later steps wait for user code among them: it may be a guard."""
    steps = parts.transformations[: parts.at]
    own = next((step for step in steps if not known(step, b)), None)
    if own is None:
        return b.fed(parts, {"documents": documents.ref}, "made")
    why = f"{type(own).__name__} is or holds code of your own, which nothing overtakes"
    return b.left_to_stock(own, {"documents": documents.ref}, why, DOCUMENTS)


def _lower_vectors(obj: Any, parts: Parts, nodes: Leaf, b: IndexBuilder) -> Leaf:
    if parts.model is None:
        raise NotLowered("nothing in it embeds, or its embedding model is not known before it is built")
    for store in filter(None, parts.stores):
        believed_class(store, b)
        believed(store, _ADDING if isinstance(store, BasePydanticVectorStore) else _STORING, b)
    early = _early(parts, b)
    if parts.at is not None and not early:
        raise NotLowered("the model gets all nodes at once, after the step before it has finished")
    with b.inside(FORESEEN if early else TEXTS, TEXTS):
        texts = b.fed(obj, {"nodes": nodes.ref}, "known")
    with b.inside(VECTORS):
        made = lower_texts(parts.model, texts, b)
        b.objects[b.leaf] = parts.model
    if early:
        cache = " (in a pipeline as long as its cache is empty or disabled)" if parts.at is not None else ""
        b.note(made.ref.name, True, f"begins while {type(_last(parts)).__name__} processes other nodes{cache}")
    if parts.inserted:
        b.note(made.ref.name, True, f"begins with the next {parts.inserted} nodes while some are added to the store")
    return made


def _last(parts: Parts) -> Any:
    """Returns the transformation whose texts are embedded."""
    steps = parts.transformations[: parts.at]
    return steps[-1] if steps else None


def _early(parts: Parts, b: IndexBuilder) -> bool:
    """Returns True if texts can be predicted while the last transformation is running."""
    steps = parts.transformations[: parts.at]
    return bool(steps) and all(known(step, b) for step in steps) and tapped(steps[-1], b)


def _cached(pipeline: Any) -> bool:
    """Returns True if a run may hit a pipeline's cache: unless the cache is disabled, or in memory and empty."""
    if pipeline.disable_cache:
        return False
    kept = pipeline.cache.cache
    return not isinstance(kept, MutableMappingKVStore) or any(kept._collections_mappings.values())


def shadow_ingestion(obj: Any, site: Site) -> Any:
    """Returns the copy of an object that stock runs for one call; for a ``Building``, its builder."""
    parts = parts_of(obj)
    assert parts is not None
    side = _Side(obj, parts, site)
    if isinstance(obj, Building):
        return _Builder(obj, side)
    if isinstance(obj, VectorStoreIndex):
        return side.filling(obj)
    shadow = obj.model_copy()
    shadow.__dict__["transformations"] = side.transformations()
    shadow.__dict__["vector_store"] = side.store(obj.vector_store)
    return shadow


class _Side:
    """Stock's side of one call: state that the copies share."""

    def __init__(self, obj: Any, parts: Parts, site: Site) -> None:
        self._parts, self._site, self._pipeline = parts, site, isinstance(obj, IngestionPipeline)
        self._wanted: Wanted | None = None
        self._batches: TextBatches | None = None
        self._tap: TextBatches | None = None  # set if texts are predicted
        leaf = next((each for each in (TEXTS, FORESEEN) if site.part(each).any_ahead()), None)
        here = site.here
        if here is None or leaf is None or (self._pipeline and _cached(obj)):
            return
        self._wanted = Wanted(here)
        nonempty = isinstance(obj, Building)
        self._batches = TextBatches(self._wanted, parts.model.embed_batch_size, parts.inserted, nonempty=nonempty)
        self._tap = self._batches if leaf == FORESEEN else None
        site.part(leaf).feed(self._wanted)

    def transformations(self) -> list[Any]:
        """Returns copies of the transformations; the last one before the embedding predicts its texts."""
        site, parts = self._site, self._parts
        last = len(parts.transformations) if parts.at is None else parts.at
        made = []
        for i, step in enumerate(parts.transformations):
            if i == parts.at:
                made.append(self.model(step))
            elif isinstance(step, BaseEmbedding):
                made.append(shadow_texts(step, site.at(""), None))
            else:
                batches = self._tap if i == last - 1 else None
                made.append(shadow_transformation(step, site.part("llm of an extractor"), batches, self._pipeline))
        return made

    def model(self, model: Any) -> Any:
        site = self._site
        wanted = self._wanted if model is self._parts.model else None
        return shadow_texts(model, site.part(VECTORS), wanted)

    def store(self, store: Any) -> Any:
        """Returns a store whose writes count against its limit, and whose async writes do not block the event loop."""
        keeps = store is None or (self._site.sync and not has_limit(store))
        return store if keeps else _Written(store, self._site)

    def index(self, index: Any) -> Any:
        """Returns a copy of an index, which reports the nodes that it gets."""
        made = copy.copy(index)
        made._embed_model = self.model(index._embed_model)
        made._vector_store = self.store(index._vector_store)
        for name in ("_add_nodes_to_index", "_async_add_nodes_to_index"):
            made.__dict__[name] = partial(self._adding, getattr(made, name))
        return made

    def filling(self, index: Any) -> Any:
        """Like ``index``, for an index that also runs the transformations."""
        made = self.index(index)
        made._transformations = self.transformations()
        return made

    def _adding(
        self, own: Callable[..., Any], struct: Any, nodes: Sequence[BaseNode], *args: Any, **kwargs: Any
    ) -> Any:
        site = self._site
        site.part(NODES).feed(None)
        if self._batches is not None:
            self._batches.end([_text(node) for node in nodes] if all(known_class(type(each)) for each in nodes) else [])
        return own(struct, nodes, *args, **kwargs)


def _text(node: BaseNode) -> str | None:
    return node.get_content(metadata_mode=MetadataMode.EMBED) if node.embedding is None else None


class _Builder:
    """Builds like ``Building``: runs stock's own code on an index of the user's class."""

    def __init__(self, building: Building, side: _Side) -> None:
        self._building, self._side = building, side

    def from_documents(self, documents: Any, **kwargs: Any) -> Any:
        theirs = kwargs.get("transformations") or Settings.transformations
        kwargs["transformations"] = self._side.transformations()
        make = partial(self._make, {"transformations": theirs})
        return BaseIndex.from_documents.__func__(make, documents, **kwargs)  # type: ignore[attr-defined]

    def from_nodes(self, *args: Any, **kwargs: Any) -> Any:
        return self._make({}, *args, **kwargs)

    def filling(self, index: Any) -> Any:
        return self._side.filling(index)

    def _make(self, instead: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        kind: Any = self._building.kind
        index = kind.__new__(kind)
        index.__dict__["build_index_from_nodes"] = MethodType(self._build, index)
        index.__init__(*args, **{**kwargs, **instead})
        index.__dict__.pop("build_index_from_nodes", None)
        return index

    def _build(self, index: Any, nodes: Any, **kwargs: Any) -> Any:
        del index.__dict__["build_index_from_nodes"]
        runs = self._side.index(index)
        if (reached := nodes_made.get()) is not None:
            reached(index)
        return runs.build_index_from_nodes(nodes, **kwargs)


class _Written(wrapt.ObjectProxy[Any]):
    """A vector store whose writes count as calls of it, each under a permit if it has a limit.

    Async writes that would block the event loop run in a thread.
    """

    def __init__(self, store: Any, site: Site) -> None:
        super().__init__(store)
        self._self_leaf, self._self_leaves = site.leaf, may_leave(store, site.options.trusting)

    def __getattr__(self, name: str) -> Any:
        own = getattr(self.__wrapped__, name)
        if name in _WRITES:
            return lambda *args, **kwargs: counted(self.__wrapped__, self._self_leaf, lambda: own(*args, **kwargs))
        return partial(self._self_written, name, own) if name in _AWRITES else own

    async def _self_written(self, name: str, own: Any, *args: Any, **kwargs: Any) -> Any:
        store = self.__wrapped__
        leaves = self._self_leaves and blocks(type(store), name) and known_arguments(args)
        call = partial(unblocked, own) if leaves else own
        return await acounted(store, self._self_leaf, lambda: call(*args, **kwargs))


def blocking_parts(obj: Any) -> Iterator[Any]:
    """Yields the components that an async call uses."""
    parts = parts_of(obj)
    if parts is None:
        yield obj
        return
    yield from parts.transformations
    yield from (getattr(step, "llm", None) for step in parts.transformations)
    yield from (parts.model, *_stores(obj))


def _row(base: type, methods: tuple[str, ...]) -> Row:
    return Row(base, methods, lower_ingestion, shadow_ingestion, components=blocking_parts, per_call=True)


def _lower_other(obj: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    return b.left_to_stock(obj, {"documents": Ref("input")}, "is not recognised: runs through its own methods")


ROWS = (
    _row(Building, ()),
    _row(VectorStoreIndex, _INSERTING),
    _row(IngestionPipeline, _PIPELINE),
    *(Row(base, (), _lower_other, components=blocking_parts) for base in (VectorStoreIndex, IngestionPipeline)),
)
