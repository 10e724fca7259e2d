"""Shadows of transformations that predict, while stock runs them, the texts that will be embedded after them.

A text is announced when this transformation can no longer change it. The node itself, with its id, is made by stock. If
a text differs from the prediction after all, stock finds no vector for it and embeds it itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from llama_index.core.extractors import (
    BaseExtractor,
    KeywordExtractor,
    QuestionsAnsweredExtractor,
    SummaryExtractor,
)
from llama_index.core.node_parser import MetadataAwareTextSplitter, NodeParser, SentenceSplitter, TokenTextSplitter
from llama_index.core.schema import BaseNode, Document, MetadataMode, TextNode, TransformComponent

from fineflow.adapters.core.own_state import keeps_state
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.builder import IndexBuilder
from fineflow.adapters.llamaindex.ingestion.text_vectors import TextBatches
from fineflow.adapters.llamaindex.methods import as_written, believed_class, instead
from fineflow.adapters.llamaindex.models.llms import model_known, shadow_llm
from fineflow.adapters.llamaindex.thread_affinity import off_loop

_PARSING = (
    *("__call__", "acall", "get_nodes_from_documents", "aget_nodes_from_documents"),
    *("_postprocess_parsed_nodes", "_aparse_nodes"),
)
_SPLITTING = ("_parse_nodes", "_get_metadata_str")
_SPLIT = "split_text_metadata_aware"
_EXTRACTING = ("__call__", "acall", "process_nodes", "aprocess_nodes", "_aextract_with_retry", "extract")
_LIBRARIES = frozenset({"llama_index", "fineflow", "tiktoken", "nltk", "transformers", "tokenizers"})


def _metadata(found: Any) -> Mapping[str, Any]:
    return dict(found)


def _summary(found: Any) -> Mapping[str, Any]:
    return {"section_summary": found} if found else {}


_EXTRACTORS: tuple[tuple[type, str, Callable[[Any], Mapping[str, Any]]], ...] = (
    (KeywordExtractor, "_aextract_keywords_from_node", _metadata),
    (QuestionsAnsweredExtractor, "_aextract_questions_from_node", _metadata),
    (SummaryExtractor, "_agenerate_node_summary", _summary),
)
"""Extractors that know a node's metadata once the model has answered: class, method, metadata from its result."""


def tapped(transform: Any, b: IndexBuilder) -> bool:
    """Returns True if a transformation can announce its texts while it makes them."""
    if _splits(transform):
        return _own_functions(transform)
    return _extractor(transform) is not None and _believed(transform.llm, b)


def plain_splitter(transform: Any) -> bool:
    """Returns True for a splitter of LlamaIndex's that runs no user code."""
    return _splits(transform) and _own_functions(transform)


def known(transform: Any, b: IndexBuilder) -> bool:
    """Returns True if a transformation has no user code, which nothing may overtake."""
    llm = getattr(transform, "llm", None)
    return _believed(transform, b) and _own_functions(transform) and (llm is None or _believed(llm, b))


def _believed(component: Any, b: IndexBuilder) -> bool:
    try:
        believed_class(component, b)
    except NotLowered:
        return False
    return True


def _splits(transform: Any) -> bool:
    """Returns True for a splitter that splits each document by itself."""
    if not as_written(transform, NodeParser, *_PARSING) or not as_written(
        transform, MetadataAwareTextSplitter, *_SPLITTING
    ):
        return False
    return any(as_written(transform, base, _SPLIT, "_split_text") for base in (SentenceSplitter, TokenTextSplitter))


def _own_functions(transform: Any) -> bool:
    """Returns True if all functions passed to a transformation are a library's, none the user's."""
    private = getattr(transform, "__pydantic_private__", None) or {}
    held = [getattr(transform, "id_func", None), private.get("_tokenizer"), private.get("_chunking_tokenizer_fn")]
    return all(function is None or _library(function) for function in held)


def _library(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or getattr(type(owner), "__module__", "")
    return str(module).partition(".")[0] in _LIBRARIES


def _extractor(transform: Any) -> tuple[str, Callable[[Any], Mapping[str, Any]]] | None:
    """Returns the method that processes one node, and the metadata in its result; None if not recognised."""
    if not as_written(transform, BaseExtractor, *_EXTRACTING) or transform.max_retries or not transform.raise_on_error:
        return None  # it may process all nodes again, or discard results
    for base, name, metadata in _EXTRACTORS:
        if as_written(transform, base, "aextract", name):
            alone = base is not SummaryExtractor or list(transform.summaries) == ["self"]
            return (name, metadata) if alone else None
    return None


def shadow_transformation(transform: Any, site: Site, batches: TextBatches | None, whole: bool) -> Any:
    """Returns a copy of a transformation that announces its texts to ``batches``; in async calls it runs off the loop.

    whole: True if there are no other texts than these.
    """
    made = transform
    if batches is not None and _splits(transform):
        made = _tapped_splitter(transform, batches, whole)
    elif batches is not None and (row := _extractor(transform)) is not None:
        made = _tapped_extractor(transform, *row, batches, whole)
    if site.sync or not isinstance(transform, TransformComponent):
        return made
    asks = isinstance(transform, BaseExtractor) and not keeps_state(type(transform))
    if asks and model_known(llm := getattr(transform, "llm", None)):
        made = transform.model_copy() if made is transform else made
        made.__dict__["llm"] = shadow_llm(llm, site)
    return off_loop(off_loop(made, "_aparse_nodes", site.options.trusting), "acall", site.options.trusting)


def _tapped_splitter(parser: Any, batches: TextBatches, whole: bool) -> Any:
    made = parser.model_copy()
    at: list[BaseNode] = []  # the document that is being split

    def parse_nodes(own: Any, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> Any:
        found = own(_Noting(nodes, at), show_progress=show_progress, **kwargs)
        if whole:
            batches.end()
        return found

    def split_text(own: Any, text: str, metadata_str: str) -> Any:
        found = own(text, metadata_str)
        if not at or type(at[-1]) not in (Document, TextNode):
            batches.lose()
            return found
        for each in _texts(at[-1], found, parser.include_metadata):
            batches.add(each)
        return found

    instead(made, "_parse_nodes", lambda own: partial(parse_nodes, own))
    instead(made, _SPLIT, lambda own: partial(split_text, own))
    return made


class _Noting(Sequence[Any]):
    """Sequence of documents that puts the one being iterated over into ``at``."""

    def __init__(self, nodes: Sequence[Any], at: list[BaseNode]) -> None:
        self._nodes, self._at = nodes, at

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, index: Any) -> Any:
        return self._nodes[index]

    def __iter__(self) -> Iterator[Any]:
        for node in self._nodes:
            self._at[:] = [node]
            yield node
        self._at.clear()


def _texts(document: Any, splits: Sequence[str], with_metadata: bool) -> Iterator[str | None]:
    """Yields the texts to embed for the splits of a document, with the node settings of ``build_nodes_from_splits``."""
    node = TextNode(
        text="",
        excluded_embed_metadata_keys=document.excluded_embed_metadata_keys,
        metadata_seperator=document.metadata_separator,  # sic: the name that LlamaIndex passes
        metadata_template=document.metadata_template,
        text_template=document.text_template,
        metadata=dict(document.metadata) if with_metadata else {},
    )
    for text in splits:
        node.text = text
        yield None if document.embedding is not None else node.get_content(metadata_mode=MetadataMode.EMBED)


def _tapped_extractor(
    extractor: Any, name: str, metadata: Callable[[Any], Mapping[str, Any]], batches: TextBatches, whole: bool
) -> Any:
    made, order = extractor.model_copy(), _InOrder(batches)

    async def aextract(own: Any, nodes: Sequence[BaseNode]) -> Any:
        order.begin(nodes)
        found = await own(nodes)
        if whole:
            batches.end()
        return found

    async def each(own: Any, node: BaseNode) -> Any:
        found = await own(node)
        order.ended(node, _with(extractor, node, metadata(found)))
        return found

    instead(made, "aextract", lambda own: partial(aextract, own))
    instead(made, name, lambda own: partial(each, own))
    return made


def _with(extractor: Any, node: BaseNode, metadata: Mapping[str, Any]) -> str:
    """Returns the text to embed for a node, with the changes that ``aprocess_nodes`` makes."""
    changed: Any = node.model_copy()
    changed.metadata = {**node.metadata, **metadata}
    if not extractor.disable_template_rewrite and isinstance(node, TextNode):
        changed.text_template = extractor.node_text_template
    return str(changed.get_content(metadata_mode=MetadataMode.EMBED))


class _InOrder:
    """Announces texts in the order of their nodes, whatever the order in which they are ready."""

    def __init__(self, batches: TextBatches) -> None:
        self._batches = batches
        self.begin(())

    def begin(self, nodes: Sequence[BaseNode]) -> None:
        self._texts: dict[int, str] = {}
        self._next = 0
        self._places = {id(node): i for i, node in enumerate(nodes)}
        if len(self._places) < len(nodes):  # a node in the list twice is changed twice
            self._places = {}

    def ended(self, node: BaseNode, text: str) -> None:
        place = self._places.get(id(node))
        if place is None:
            return
        self._texts[place] = text
        while self._next in self._texts:
            self._batches.add(self._texts.pop(self._next))
            self._next += 1
