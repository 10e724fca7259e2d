"""Every retriever of LlamaIndex, over fakes. ``Fakes`` says of which kind, and which calls take time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from index_shapes import WORDS, index, nodes
from llama_index.core import DocumentSummaryIndex, KeywordTableIndex, SummaryIndex, TreeIndex, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.document_summary import (
    DocumentSummaryIndexEmbeddingRetriever,
    DocumentSummaryIndexLLMRetriever,
)
from llama_index.core.indices.keyword_table.retrievers import (
    KeywordTableGPTRetriever,
    KeywordTableRAKERetriever,
    KeywordTableSimpleRetriever,
)
from llama_index.core.indices.list.retrievers import (
    SummaryIndexEmbeddingRetriever,
    SummaryIndexLLMRetriever,
    SummaryIndexRetriever,
)
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.indices.tree.all_leaf_retriever import TreeAllLeafRetriever
from llama_index.core.indices.tree.select_leaf_embedding_retriever import TreeSelectLeafEmbeddingRetriever
from llama_index.core.indices.tree.select_leaf_retriever import TreeSelectLeafRetriever
from llama_index.core.indices.tree.tree_root_retriever import TreeRootRetriever
from llama_index.core.indices.vector_store.retrievers import VectorIndexAutoRetriever
from llama_index.core.node_parser import HierarchicalNodeParser, get_leaf_nodes
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import (
    AutoMergingRetriever,
    QueryFusionRetriever,
    RecursiveRetriever,
    RouterRetriever,
    TransformRetriever,
)
from llama_index.core.schema import Document, IndexNode
from llama_index.core.selectors import LLMMultiSelector
from llama_index.core.storage import StorageContext
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.tools import RetrieverTool
from llama_index.core.vector_stores.types import MetadataInfo, VectorStoreInfo

from fineflow.testing.llamaindex.fakes import BlockingEmbedding, BlockingLLM, FakeEmbedding, FakeLLM, FakeStore

COUNT = 8  # nodes of an index


class TextEmbedding(FakeEmbedding):
    """Texts of nodes take the latency as well, and are counted."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vector(text)


class BlockingTextEmbedding(BlockingEmbedding):
    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_query_embedding(text)


class BlockingStore(FakeStore):
    """Its async method is the sync one, as in most stores."""

    async def aquery(self, query: Any, **kwargs: Any) -> Any:
        return self.query(query, **kwargs)


for _kind in (TextEmbedding, BlockingTextEmbedding, BlockingStore):
    _kind.__module__ = "fineflow.testing.llamaindex.fakes"  # believed, as the fakes are


class Fakes:
    """The components of one retriever. They begin to take time when ``slow`` is called: after indexes were made."""

    def __init__(self, manager: CallbackManager | None = None, *, blocking: bool = False) -> None:
        self.manager = manager or CallbackManager([])
        self.blocking = blocking
        self.made: list[Any] = []

    def _kept(self, component: Any) -> Any:
        self.made.append(component)
        return component

    def llm(self, default: str) -> Any:
        kind = BlockingLLM if self.blocking else FakeLLM
        return self._kept(kind(default=default, callback_manager=self.manager))

    def embedding(self) -> Any:
        kind = BlockingTextEmbedding if self.blocking else TextEmbedding
        return self._kept(kind(callback_manager=self.manager))

    def store(self) -> Any:
        return self._kept(BlockingStore() if self.blocking else FakeStore())

    def search(self, count: int = COUNT, top: int = 3) -> Any:
        made = index(self.embedding(), self.store(), self.manager, count).as_retriever(similarity_top_k=top)
        made.callback_manager = self.manager
        return made

    def slow(self, llm: float = 0.0, embed: float = 0.0, search: float = 0.0) -> None:
        """Seconds that a call of each takes from now on."""
        for component in self.made:
            if isinstance(component, FakeStore):
                component._latency = search
            else:
                component.latency = llm if hasattr(component, "complete") else embed


def _by(made: Any, fakes: Fakes) -> Any:
    made.callback_manager = fakes.manager
    return made


def fusion(fakes: Fakes) -> Any:
    llm = fakes.llm("river mill\nstone tower")
    parts = [fakes.search(), fakes.search(5)]
    return QueryFusionRetriever(parts, llm=llm, callback_manager=fakes.manager, use_async=False)


def router(fakes: Fakes) -> Any:
    found = [RetrieverTool.from_defaults(fakes.search(count), description=f"number {count}") for count in (4, 8)]
    both = json.dumps([{"choice": 1, "reason": "one"}, {"choice": 2, "reason": "two"}])
    return _by(RouterRetriever(LLMMultiSelector.from_defaults(llm=fakes.llm(both)), found, llm=fakes.llm("")), fakes)


def transform(fakes: Fakes) -> Any:
    hyde = HyDEQueryTransform(llm=fakes.llm("the bridge is in the town"))
    return TransformRetriever(fakes.search(), hyde, callback_manager=fakes.manager)


def auto_merging(fakes: Fakes) -> Any:
    document = Document(doc_id="whole", text=" ".join(node.text for node in nodes(4, 100)))
    parser = HierarchicalNodeParser.from_defaults(chunk_sizes=[512, 128])
    numbers = iter(range(1000))
    parsed = parser.get_nodes_from_documents([document])
    names = {node.node_id: f"part {next(numbers)}" for node in parsed}
    for node in parsed:
        node.id_ = names[node.node_id]
        for related in node.relationships.values():
            for each in related if isinstance(related, list) else [related]:
                each.node_id = names.get(each.node_id, each.node_id)
    docstore = SimpleDocumentStore()
    docstore.add_documents(parsed)
    context = StorageContext.from_defaults(docstore=docstore, vector_store=fakes.store())
    leaves = VectorStoreIndex(get_leaf_nodes(parsed), storage_context=context, embed_model=fakes.embedding())
    found = _by(leaves.as_retriever(similarity_top_k=6), fakes)
    return AutoMergingRetriever(found, context, callback_manager=fakes.manager)


def _linked(fakes: Fakes, **objects: Any) -> Any:
    named = [IndexNode(id_=f"link {key}", index_id=key, text=f"where is the bridge {key}") for key in objects]
    for node in named:
        node.obj = objects[node.index_id]
    return named


def recursive(fakes: Fakes) -> Any:
    context = StorageContext.from_defaults(vector_store=fakes.store())
    links = [IndexNode(id_=f"link {key}", index_id=key, text=f"where is the bridge {key}") for key in ("one", "two")]
    root = VectorStoreIndex([*links, *nodes(2)], storage_context=context, embed_model=fakes.embedding())
    parts = {"root": _by(root.as_retriever(similarity_top_k=4), fakes), "one": fakes.search(4)}
    engine = index(fakes.embedding(), fakes.store(), fakes.manager).as_query_engine(
        llm=fakes.llm("it is here"), response_mode="accumulate"
    )
    return RecursiveRetriever("root", parts, query_engine_dict={"two": engine}, callback_manager=fakes.manager)


def objects(fakes: Fakes) -> Any:
    engine = index(fakes.embedding(), fakes.store(), fakes.manager).as_query_engine(
        llm=fakes.llm("it is here"), response_mode="accumulate"
    )
    links = _linked(fakes, one=fakes.search(4), two=engine)
    context = StorageContext.from_defaults(vector_store=fakes.store())
    made = VectorStoreIndex(
        nodes(2), objects=links, storage_context=context, embed_model=fakes.embedding(), callback_manager=fakes.manager
    )
    return _by(made.as_retriever(similarity_top_k=4), fakes)


def _about(prompt: str) -> str:
    """A summary, another one for other texts."""
    facts = re.findall(r"Fact (\d+)", prompt)
    return " ".join(["about", *facts, *(WORDS[int(fact) % len(WORDS)] for fact in facts)])


CHOSEN = "Doc: 2, Relevance: 7\nDoc: 1, Relevance: 3"


def summary(fakes: Fakes) -> Any:
    return SummaryIndexRetriever(SummaryIndex(nodes(COUNT)), callback_manager=fakes.manager)


def summary_embedding(fakes: Fakes) -> Any:
    made = SummaryIndex(nodes(COUNT))
    return SummaryIndexEmbeddingRetriever(
        made, embed_model=fakes.embedding(), similarity_top_k=3, callback_manager=fakes.manager
    )


def summary_llm(fakes: Fakes) -> Any:
    made = SummaryIndex(nodes(COUNT))
    return SummaryIndexLLMRetriever(made, llm=fakes.llm(CHOSEN), choice_batch_size=2, callback_manager=fakes.manager)


def tree(fakes: Fakes, said: str = "ANSWER: 2") -> TreeIndex:
    quick = FakeLLM(answers=_about)
    made = TreeIndex(nodes(COUNT), llm=quick, num_children=3)
    renamed = {old: f"tree {i}" for i, old in enumerate(made.index_struct.all_nodes.values())}
    held = {old: made.docstore.get_node(old) for old in renamed}
    struct = made.index_struct
    struct.all_nodes = {i: renamed[old] for i, old in struct.all_nodes.items()}
    struct.root_nodes = {i: renamed[old] for i, old in struct.root_nodes.items()}
    struct.node_id_to_children_ids = {
        renamed[old]: [renamed[each] for each in children] for old, children in struct.node_id_to_children_ids.items()
    }
    for old, node in held.items():
        node.id_ = renamed[old]
        made.docstore.add_documents([node])
    made._llm = fakes.llm(said)
    return made


def tree_select(fakes: Fakes) -> Any:
    return TreeSelectLeafRetriever(tree(fakes), callback_manager=fakes.manager)


def tree_select_two(fakes: Fakes) -> Any:
    return TreeSelectLeafRetriever(tree(fakes, "1, 2"), child_branch_factor=2, callback_manager=fakes.manager)


def tree_embedding(fakes: Fakes) -> Any:
    return TreeSelectLeafEmbeddingRetriever(
        tree(fakes), embed_model=fakes.embedding(), child_branch_factor=2, callback_manager=fakes.manager
    )


def tree_all(fakes: Fakes) -> Any:
    return TreeAllLeafRetriever(tree(fakes), callback_manager=fakes.manager)


def tree_root(fakes: Fakes) -> Any:
    return TreeRootRetriever(tree(fakes), callback_manager=fakes.manager)


def _keywords(fakes: Fakes) -> Any:
    return KeywordTableIndex(nodes(COUNT), llm=FakeLLM(default="KEYWORDS: bridge, river, mill"))


def keyword_simple(fakes: Fakes) -> Any:
    return KeywordTableSimpleRetriever(_keywords(fakes), callback_manager=fakes.manager)


def keyword_rake(fakes: Fakes) -> Any:
    return KeywordTableRAKERetriever(_keywords(fakes), callback_manager=fakes.manager)


def keyword_gpt(fakes: Fakes) -> Any:
    llm = fakes.llm("KEYWORDS: bridge, tower")
    return KeywordTableGPTRetriever(_keywords(fakes), llm=llm, callback_manager=fakes.manager)


def _document_summary(fakes: Fakes) -> Any:
    quick = FakeLLM(answers=_about)
    documents = [Document(doc_id=f"doc {i}", text=node.text) for i, node in enumerate(nodes(COUNT, 40))]
    made = DocumentSummaryIndex.from_documents(
        documents,
        llm=quick,
        embed_model=fakes.embedding(),
        response_synthesizer=get_response_synthesizer(llm=quick),
        storage_context=StorageContext.from_defaults(vector_store=fakes.store()),
    )
    return made


def document_llm(fakes: Fakes) -> Any:
    return DocumentSummaryIndexLLMRetriever(
        _document_summary(fakes),
        llm=fakes.llm(CHOSEN),
        choice_batch_size=3,
        choice_top_k=3,
        callback_manager=fakes.manager,
    )


def document_embedding(fakes: Fakes) -> Any:
    made = _document_summary(fakes)
    return DocumentSummaryIndexEmbeddingRetriever(
        made, similarity_top_k=2, embed_model=fakes.embedding(), callback_manager=fakes.manager
    )


def auto(fakes: Fakes) -> Any:
    told = VectorStoreInfo(
        content_info="facts", metadata_info=[MetadataInfo(name="number", type="int", description="its number")]
    )
    spec = json.dumps({"query": "mill", "filters": [{"key": "number", "value": 3, "operator": ">"}], "top_k": 2})
    made = index(fakes.embedding(), fakes.store(), fakes.manager)
    return VectorIndexAutoRetriever(made, told, llm=fakes.llm(spec), callback_manager=fakes.manager)


def bm25(fakes: Fakes) -> Any:
    from llama_index.retrievers.bm25 import BM25Retriever

    return BM25Retriever(nodes=nodes(COUNT), similarity_top_k=3, callback_manager=fakes.manager)


SHAPES: dict[str, Callable[[Fakes], Any]] = {
    "vector": Fakes.search,
    **{
        make.__name__: make
        for make in (
            *(fusion, router, transform, auto_merging, recursive, objects, summary, summary_embedding, summary_llm),
            *(tree_select, tree_select_two, tree_embedding, tree_all, tree_root, keyword_simple, keyword_rake),
            *(keyword_gpt, document_llm, document_embedding, auto, bm25),
        )
    },
}
