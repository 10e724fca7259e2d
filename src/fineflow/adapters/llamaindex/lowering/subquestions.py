"""Sub-questions: search and answer of each start ahead of stock, as soon as the model has written it.

Requires that the query engine of every tool is fully recognised: a vector search, postprocessors that only filter,
reorder or replace node texts, a docstore in this process, and a synthesizer whose answers are those of its model.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from llama_index.core.postprocessor import (
    LongContextReorder,
    MetadataReplacementPostProcessor,
    SimilarityPostprocessor,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.question_gen.output_parser import SubQuestionOutputParser
from llama_index.core.question_gen.prompts import build_tools_text
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import IndexNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.vector_stores.types import VectorStoreQueryResult

from fineflow.adapters.core.builder import TEXT, VALUE, Leaf, Symbol
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.builder import IndexBuilder, query_in
from fineflow.adapters.llamaindex.kernels.written import items_written
from fineflow.adapters.llamaindex.lowering.containers import ENGINE_METHODS, SUB_QUESTIONS, shadow_container
from fineflow.adapters.llamaindex.lowering.retrieval.vector_search import lower_search
from fineflow.adapters.llamaindex.lowering.synthesizers import Given, kind_of, lower_answers
from fineflow.adapters.llamaindex.methods import as_written, exactly, method
from fineflow.adapters.llamaindex.models.llms import Request, lower_asking, request, shadow_llm
from fineflow.adapters.text.json_items import JsonItems
from fineflow.ir import Effect, Effects, Graph, Op, Primitive, Ref
from fineflow.runtime.call.executor import Execution

TOOL, ASKS = "tool ", "_question_gen"
_FILTERS = (SimilarityPostprocessor, LongContextReorder, MetadataReplacementPostProcessor)
_PROCESSING = ("postprocess_nodes", "apostprocess_nodes", "_postprocess_nodes", "_apostprocess_nodes")
_GENERATING = ("generate", "agenerate")
_HEAD = re.compile(r"\s*(?:```json)?\s*\{\s*\"items\"\s*:\s*")
_RETRIEVED = ("_determine_nodes_to_fetch", "_insert_fetched_nodes_into_query_result", "_convert_nodes_to_scored_nodes")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that questions are addressed to."""

    name: str


def _lower_sub_questions(engine: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    """Appends the primitives that run ahead. Raises NotLowered if there are none."""
    try:
        return _lowered(engine, query_in(value), b)
    except NotLowered as why:
        raise NotLowered(f"its parts run ahead by themselves ({why})") from why


def _lowered(engine: Any, query: Leaf, b: IndexBuilder) -> Leaf:
    written = _asked(engine, engine._question_gen, query, b)
    found: dict[str, Ref] = {}
    for tool, part in engine._query_engines.items():
        name = str(tool)
        with b.inside(f"{TOOL}{name}"):
            b.objects[b.leaf] = part
            inner = b.body(by_sync=b.by_sync and not engine._use_async)
            try:
                output = lower_tool(part, Leaf(Ref("item"), TEXT), None, inner)
            except NotLowered as why:
                # It may be user code, which nothing overtakes, and the order of the questions is not known yet.
                raise NotLowered(f"{why}; so stock answers all questions") from why
            questions = b.add(
                Op.PARSE,
                {"text": written.ref},
                name="questions",
                component=Tool(name),
                kind=VALUE,
                items="questions",
                kernel=_questions,
            )
            body = Graph(tuple(inner.primitives), output.ref, ("item",), tuple(inner.notes))
            given, batched = {"items": questions.ref}, bool(engine._use_async)
            mapped = b.add(Op.MAP, given, name="each", body=body, kind=TEXT, batched=batched)
            found[name] = mapped.ref
    if not found:
        raise NotLowered("it has no tools")
    return b.add(Op.AGGREGATE, found, component=engine, kind=TEXT, how="sub-questions", batched=bool(engine._use_async))


def _asked(engine: Any, generator: Any, query: Leaf, b: IndexBuilder) -> Leaf:
    """Appends the model that writes the questions."""
    if not as_written(generator, LLMQuestionGenerator, *_GENERATING):
        raise NotLowered(f"{type(generator).__name__} is not recognised: its questions are known when it returns them")
    return lower_asking(generator, ASKS, _request, SubQuestionOutputParser, query, engine, b)


def lower_tool(engine: Any, question: Leaf, vector: Leaf | None, b: IndexBuilder) -> Leaf:
    """Appends search and answers for one question. vector: that of the question, if it is known.

    Raises NotLowered if the engine is not fully recognised.
    """
    if not as_written(engine, RetrieverQueryEngine, *ENGINE_METHODS):
        raise NotLowered(f"{type(engine).__name__} is not fully recognised")
    for i, processor in enumerate(engine._node_postprocessors):
        if not any(as_written(processor, base, *_PROCESSING) for base in _FILTERS):
            raise NotLowered(f"{type(processor).__name__} after its search is not recognised")
        with b.inside(f"postprocessor {i}"):
            b.objects[b.leaf] = processor
    retriever, synthesizer = engine._retriever, engine._response_synthesizer
    with b.inside("retriever"):
        found, _ = lower_search(retriever, question, vector, b)
        if not as_written(retriever, VectorIndexRetriever, *_RETRIEVED) or retriever.object_map:
            raise NotLowered("its retriever has its own way to turn search results into nodes")
        store = retriever._docstore
        if not (exactly(store, SimpleDocumentStore) and exactly(store._kvstore, SimpleKVStore)):
            raise NotLowered(f"nodes would be read from {type(store).__name__} once more than in stock")
        effects = Effects(Effect.READ, b.resource(store), "reads nodes")
        args = {"found": found.ref, "query": question.ref}
        texts = b.add(Op.PARSE, args, name="texts", component=engine, effects=effects, kind=VALUE, kernel=_texts)
    with b.inside("synthesizer"):
        kind = kind_of(synthesizer)
        if kind is None or synthesizer._streaming:
            raise NotLowered("its synthesizer streams, or is not recognised")
        return lower_answers(synthesizer, kind, texts, b)


def shadow_with_tools(asks: str, obj: Any, site: Site) -> Any:
    """Returns a copy of a container; engines that the graph runs ahead claim their answers.

    asks: attribute with the object whose model writes the questions, or chooses the engines.
    """
    made = shadow_container(obj, site)
    parts = obj._query_engines
    for name, engine in parts.items() if isinstance(parts, dict) else enumerate(parts):
        tool = site.part(f"{TOOL}{name}")
        if tool.part("synthesizer").any_ahead():
            made._query_engines[name] = tool.of(engine)
    if (asked := site.part(asks)).any_ahead():
        holder = made.__dict__[asks] = copy.copy(getattr(obj, asks))
        holder._llm = shadow_llm(holder._llm, asked.part("llm"))
    return made


# Running ahead


def _request(p: Primitive, args: Mapping[str, Any], run: Execution) -> Request:
    """Returns the request that stock will send to the model."""
    engine, query = p.component, args["key:query_str"]
    generator = engine._question_gen
    arguments = {"tools_str": build_tools_text(engine._metadatas), "query_str": query}
    prompt = generator._prompt.model_copy(update={"output_parser": None})  # the parser adds no text, but opens a span
    return request(generator._llm, prompt, arguments)


class Questions:
    """Reader of the questions for one tool in a model's text; each is final once its JSON object has closed."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._items = JsonItems(str)
        self._read = 0
        self._found: list[str] = []

    def so_far(self, text: str) -> list[str]:
        """Returns the questions that are final in an incomplete text."""
        if not self._read:
            head = _HEAD.match(text)
            if head is None and not text.lstrip(" \n`json").startswith("["):
                return []
            self._read = head.end() if head is not None else 0
        pieces, self._read = text[self._read :], len(text)
        self._found += _for(self._tool, list(self._items.push(pieces)))
        return self._found

    def all(self, text: str) -> list[str]:
        """Returns the questions in the complete text. Raises what the parser raises."""
        parse = method(SubQuestionOutputParser, "parse")
        assert parse is not None
        parsed = parse.function(SubQuestionOutputParser(), text).parsed_output
        return [each.sub_question for each in parsed if each.tool_name == self._tool.name]


def _for(tool: Tool, items: list[Any]) -> list[str]:
    asked = [item for item in items if isinstance(item, dict) and item.get("tool_name") == tool.name]
    return [item["sub_question"] for item in asked if isinstance(item.get("sub_question"), str)]


def _questions(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    """Returns the questions for one tool in the model's text, releasing each once it is final."""
    return items_written(p, args["text"], Questions(p.component), run)


def _texts(p: Primitive, args: Mapping[str, Any], run: Execution) -> Given | None:
    return texts_of(p.component, args["query"], args["found"])


def texts_of(engine: Any, query: str, result: Any) -> Given | None:
    """Returns what stock will pass to the synthesizer for a search result; None to leave it to stock.

    Works on a copy of the result, which stock fills in in place.
    """
    retriever = engine._retriever
    found = VectorStoreQueryResult(
        nodes=list(result.nodes) if result.nodes else result.nodes, similarities=result.similarities, ids=result.ids
    )
    wanted = retriever._determine_nodes_to_fetch(found)
    if wanted:
        fetched = retriever._docstore.get_nodes(node_ids=wanted, raise_error=False)
        found.nodes = retriever._insert_fetched_nodes_into_query_result(found, fetched)
    scored = retriever._convert_nodes_to_scored_nodes(found)
    nodes = {each.node.node_id: each.node for each in reversed(scored)}
    if len(nodes) != len(scored) or any(isinstance(node, IndexNode) for node in nodes.values()):
        return None
    scored = _processed(engine._node_postprocessors, scored, query)
    if not scored:  # without nodes stock sends no request
        return None
    return Given(query, tuple(each.node.get_content(metadata_mode=MetadataMode.LLM) for each in scored), {})


def _processed(processors: Sequence[Any], scored: list[NodeWithScore], query: str) -> list[NodeWithScore]:
    """Returns the nodes that the postprocessors leave; runs them on copies, as some change nodes in place."""
    if processors:
        scored = [NodeWithScore(node=each.node.model_copy(), score=each.score) for each in scored]
    for processor in processors:
        inner = method(type(processor), "_postprocess_nodes")
        assert inner is not None
        scored = inner.function(processor, scored, QueryBundle(query))
    return scored


ROWS = (replace(SUB_QUESTIONS, lower=_lower_sub_questions, shadow=partial(shadow_with_tools, ASKS)),)
