"""Engines that are made of others, by name: functions that make them of the components that they are given."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from index_shapes import answer, index
from llama_index.core import SQLDatabase, StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.evaluation import EvaluationResult
from llama_index.core.evaluation.base import BaseEvaluator
from llama_index.core.evaluation.guideline import GuidelineEvaluator
from llama_index.core.graph_stores import SimpleGraphStore
from llama_index.core.indices.composability import ComposableGraph
from llama_index.core.indices.query.query_transform import HyDEQueryTransform, StepDecomposeQueryTransform
from llama_index.core.indices.struct_store.sql_query import NLSQLTableQueryEngine
from llama_index.core.objects import ObjectIndex, SimpleToolNodeMapping
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import (
    CitationQueryEngine,
    ComposableGraphQueryEngine,
    CustomQueryEngine,
    FLAREInstructQueryEngine,
    KnowledgeGraphQueryEngine,
    MultiStepQueryEngine,
    RetrieverRouterQueryEngine,
    RetryGuidelineQueryEngine,
    RetryQueryEngine,
    RetrySourceQueryEngine,
    RouterQueryEngine,
    SimpleMultiModalQueryEngine,
    SQLJoinQueryEngine,
    SubQuestionQueryEngine,
    ToolRetrieverRouterQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import TextNode
from llama_index.core.selectors import LLMMultiSelector, LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert

import fineflow

BOTH = json.dumps([{"choice": 1, "reason": "north"}, {"choice": 2, "reason": "south"}])
ONE = json.dumps([{"choice": 1, "reason": "north"}])
ASKED = json.dumps(
    [{"sub_question": "where is it", "tool_name": "north"}, {"sub_question": "what is it", "tool_name": "south"}]
)


@dataclass
class Parts:
    """What engines are made of. llm(said): a model that says a text, or what a function says of a prompt. embedding,
    store: make one. folder: for databases. memory: whether databases are in memory.
    """

    llm: Callable[[Any], Any]
    embedding: Callable[[], Any]
    store: Callable[[], Any]
    manager: CallbackManager
    folder: Path
    memory: bool = False
    slow: float = 0.0  # seconds that user code, databases and graphs take
    made: list[Any] = field(default_factory=list)

    def index(self, count: int = 5) -> VectorStoreIndex:
        return index(self.embedding(), self.store(), self.manager, count)

    def engine(self, mode: str = "accumulate", count: int = 5) -> Any:
        made = self.index(count).as_query_engine(llm=self.llm(answer), response_mode=mode, similarity_top_k=3)
        made.callback_manager = made._retriever.callback_manager = self.manager
        made._response_synthesizer.callback_manager = self.manager
        return made

    def tools(self) -> list[Any]:
        return [
            QueryEngineTool.from_defaults(self.engine(count=count), name=name, description=f"about the {name}")
            for name, count in (("north", 5), ("south", 3))
        ]

    def synthesizer(self, mode: Any = "compact") -> Any:
        return get_response_synthesizer(llm=self.llm(answer), callback_manager=self.manager, response_mode=mode)


@fineflow.external
class Evaluator(BaseEvaluator):
    """Passes the second answer."""

    def __init__(self, slow: float) -> None:
        self.slow, self.seen = slow, 0

    async def aevaluate(self, *args: Any, **kwargs: Any) -> EvaluationResult:
        time.sleep(self.slow)  # noqa: ASYNC251
        self.seen += 1
        return EvaluationResult(response=kwargs.get("response"), passing=self.seen > 1, feedback="say more")

    def _get_prompts(self) -> Any:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass


class Plain(CustomQueryEngine):
    """A query engine of the user's."""

    slow: float = 0.0

    def custom_query(self, query_str: str) -> str:
        time.sleep(self.slow)
        return f"said of {query_str}"


@fineflow.external
class SlowGraph(SimpleGraphStore):
    """A graph store that answers queries."""

    slow: float = 0.0

    def query(self, query: str, param_map: Any = None) -> Any:
        time.sleep(self.slow)
        return f"found for {query}"

    def get_schema(self, refresh: bool = False) -> str:
        return "towns and bridges"


@fineflow.external
class SlowDatabase(SQLDatabase):
    """A database that takes a while."""

    slow: float = 0.0

    def run_sql(self, command: str) -> Any:
        time.sleep(self.slow)
        return super().run_sql(command)


def database(parts: Parts) -> SQLDatabase:
    name = ":memory:" if parts.memory else str(parts.folder / f"{len(list(parts.folder.iterdir()))}.db")
    engine, metadata = create_engine(f"sqlite:///{name}"), MetaData()
    towns = Table("towns", metadata, Column("id", Integer, primary_key=True), Column("name", String(20)))
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(towns).values(id=1, name="Kelmora"))
    found = SlowDatabase(engine, include_tables=["towns"])
    found.slow = parts.slow
    return found


def tables(parts: Parts) -> Any:
    made = NLSQLTableQueryEngine(
        database(parts), llm=parts.llm("SELECT name FROM towns"), tables=["towns"], embed_model=parts.embedding()
    )
    made._llm = parts.llm(answer)
    made.callback_manager = made._sql_retriever.callback_manager = parts.manager
    return made


def joined(parts: Parts) -> Any:
    sql = QueryEngineTool.from_defaults(tables(parts), name="towns", description="towns")
    other = parts.tools()[0]
    selector = LLMSingleSelector.from_defaults(llm=parts.llm(ONE))
    return SQLJoinQueryEngine(
        sql, other, selector, llm=parts.llm(answer), callback_manager=parts.manager, verbose=False
    )


def flare(parts: Parts) -> Any:
    def said(prompt: str) -> str:
        return "done It is there." if "Existing Answer: It" in prompt else "It is [Search(where is the bridge)]."

    return FLAREInstructQueryEngine(parts.engine(), llm=parts.llm(said), callback_manager=parts.manager)


def by_tools(parts: Parts) -> Any:
    tools = parts.tools()
    mapping = SimpleToolNodeMapping.from_objects(tools)
    nodes = mapping.to_nodes(tools)
    for i, node in enumerate(nodes):
        node.node_id = f"tool {i}"
    context = StorageContext.from_defaults(vector_store=parts.store())
    held = VectorStoreIndex(nodes, embed_model=parts.embedding(), storage_context=context)
    made = ToolRetrieverRouterQueryEngine(
        ObjectIndex(held, mapping).as_retriever(similarity_top_k=2), llm=parts.llm(answer)
    )
    made.callback_manager = made._summarizer.callback_manager = parts.manager
    return made


def by_nodes(parts: Parts) -> Any:
    engine = parts.engine()
    node = TextNode(id_="north", text="about the bridge", metadata={"tool_name": "north"})
    context = StorageContext.from_defaults(vector_store=parts.store())
    held = VectorStoreIndex([node], embed_model=parts.embedding(), storage_context=context)
    return RetrieverRouterQueryEngine(
        held.as_retriever(), fineflow.pure(lambda node: engine), callback_manager=parts.manager
    )


def composed(parts: Parts) -> Any:
    indexes = [parts.index(count) for count in (4, 3)]
    graph = ComposableGraph.from_indices(
        SummaryIndex, indexes, index_summaries=["north", "south"], storage_context=indexes[0].storage_context
    )
    llm = parts.llm(answer)
    root = graph.root_index.as_query_engine(llm=llm)
    own = {graph.root_id: root, **{each.index_id: parts.engine() for each in indexes}}
    made = ComposableGraphQueryEngine(graph, custom_query_engines=own)
    made.callback_manager = root.callback_manager = root._retriever.callback_manager = parts.manager
    root._response_synthesizer.callback_manager = parts.manager
    return made


def knowledge(parts: Parts) -> Any:
    store = SlowGraph()
    store.slow = parts.slow
    made = KnowledgeGraphQueryEngine(
        storage_context=StorageContext.from_defaults(graph_store=store),
        llm=parts.llm(answer),
        graph_query_synthesis_prompt=PromptTemplate("{schema}: {query_str}"),
        response_synthesizer=parts.synthesizer(),
    )
    made.callback_manager = parts.manager
    return made


def router(parts: Parts) -> Any:
    made = RouterQueryEngine(LLMMultiSelector.from_defaults(llm=parts.llm(BOTH)), parts.tools(), llm=parts.llm(answer))
    made.callback_manager = made._summarizer.callback_manager = parts.manager
    return made


def sub_questions(parts: Parts) -> Any:
    generator = LLMQuestionGenerator.from_defaults(llm=parts.llm(ASKED))
    return SubQuestionQueryEngine(
        generator, parts.synthesizer(), parts.tools(), callback_manager=parts.manager, verbose=False
    )


def steps(parts: Parts) -> Any:
    transform = StepDecomposeQueryTransform(llm=parts.llm("where is the tower"))
    return MultiStepQueryEngine(parts.engine(), transform, parts.synthesizer(), num_steps=2, index_summary="facts")


def guided(parts: Parts) -> Any:
    said = '{"passing": true, "feedback": "good"}'
    evaluator = GuidelineEvaluator(llm=parts.llm(said))
    return RetryGuidelineQueryEngine(parts.engine(), evaluator, callback_manager=parts.manager)


ENGINES: dict[str, Callable[[Parts], Any]] = {
    "accumulate": lambda parts: parts.engine(),
    "tree": lambda parts: parts.engine("tree_summarize"),
    "compact": lambda parts: parts.engine("compact"),
    "router": router,
    "sub-questions": sub_questions,
    "hyde": lambda parts: TransformQueryEngine(
        parts.engine(), HyDEQueryTransform(llm=parts.llm("in town")), callback_manager=parts.manager
    ),
    "steps": steps,
    "citations": lambda parts: CitationQueryEngine(
        parts.index().as_retriever(), response_synthesizer=parts.synthesizer(), callback_manager=parts.manager
    ),
    "retry": lambda parts: RetryQueryEngine(parts.engine(), Evaluator(parts.slow), callback_manager=parts.manager),
    "retry with other sources": lambda parts: RetrySourceQueryEngine(
        parts.engine(), Evaluator(parts.slow), callback_manager=parts.manager
    ),
    "retry by guidelines": guided,
    "flare": flare,
    "tables": tables,
    "tables and another engine": joined,
    "chosen by a retriever": by_tools,
    "chosen by a node": by_nodes,
    "a graph of indexes": composed,
    "a knowledge graph": knowledge,
    "texts and pictures": lambda parts: SimpleMultiModalQueryEngine(
        parts.index().as_retriever(), parts.llm(answer), callback_manager=parts.manager
    ),
    "the user's own": lambda parts: Plain(callback_manager=parts.manager, slow=parts.slow),
}
