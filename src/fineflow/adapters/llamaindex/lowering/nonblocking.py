"""Replacements of async LlamaIndex methods that block between awaits: the same steps, the blocking ones in threads.

Each function does what the method beside it in ``_REPLACED`` does in llama-index-core 0.14.25, and replaces it on the
copy that stock runs for one call. A method that is overridden is not replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.indices.struct_store.sql_retriever import NLSQLRetriever
from llama_index.core.query_engine import KnowledgeGraphQueryEngine, MultiStepQueryEngine, TransformQueryEngine
from llama_index.core.query_engine.router_query_engine import (
    ToolRetrieverRouterQueryEngine,
    acombine_responses,
    combine_responses,
)
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.utils import print_text

from fineflow.adapters.llamaindex.methods import method, same
from fineflow.adapters.llamaindex.thread_affinity import blocks, unblocked
from fineflow.runtime.loop.workers import in_thread

AHEAD = "_fineflow_ahead"
"""Attribute of a copy: a function that makes a part which is only known during the call run ahead."""

_graphs = logging.getLogger(KnowledgeGraphQueryEngine.__module__)
_tables = logging.getLogger(NLSQLRetriever.__module__)


async def _transformed(engine: Any, query_bundle: Any) -> Any:
    transform, metadata = engine._query_transform, engine._transform_metadata
    query_bundle = await in_thread(lambda: transform.run(query_bundle, metadata=metadata))
    return await engine._query_engine.aquery(query_bundle)


async def _synthesized(engine: Any, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None) -> Any:
    transform, metadata = engine._query_transform, engine._transform_metadata
    query_bundle = await in_thread(lambda: transform.run(query_bundle, metadata=metadata))
    return await engine._query_engine.asynthesize(
        query_bundle=query_bundle, nodes=nodes, additional_source_nodes=additional_source_nodes
    )


async def _in_steps(engine: Any, query_bundle: Any) -> Any:
    with _query_event(engine, query_bundle) as event:
        nodes, sources, metadata = await in_thread(lambda: engine._query_multistep(query_bundle))
        response = await engine._response_synthesizer.asynthesize(
            query=query_bundle, nodes=nodes, additional_source_nodes=sources
        )
        response.metadata = metadata
        event.on_end(payload={EventPayload.RESPONSE: response})
    return response


async def _by_tools(engine: Any, query_bundle: Any) -> Any:
    with _query_event(engine, query_bundle) as event:
        tools = await in_thread(lambda: engine._retriever.retrieve(query_bundle))
        responses = await asyncio.gather(*[_part(engine, tool).aquery(query_bundle) for tool in tools])
        if len(responses) > 1:
            response = await acombine_responses(engine._summarizer, responses, query_bundle)
        else:
            response = responses[0]
        return _chosen_by(tools, response, event)


def _by_tools_in_turn(engine: Any, query_bundle: Any) -> Any:
    with _query_event(engine, query_bundle) as event:
        tools = engine._retriever.retrieve(query_bundle)
        responses = [_part(engine, tool).query(query_bundle) for tool in tools]
        several = len(responses) > 1
        response = combine_responses(engine._summarizer, responses, query_bundle) if several else responses[0]
        return _chosen_by(tools, response, event)


def _part(engine: Any, tool: Any) -> Any:
    """Returns the engine of a retrieved tool as one that runs ahead."""
    return engine.__dict__[AHEAD](tool.query_engine)


def _chosen_by(tools: Any, response: Any, event: Any) -> Any:
    response.metadata = response.metadata or {}
    response.metadata["retrieved_tools"] = tools
    event.on_end(payload={EventPayload.RESPONSE: response})
    return response


def _query_event(engine: Any, query_bundle: Any) -> Any:
    return engine.callback_manager.event(CBEventType.QUERY, payload={EventPayload.QUERY_STR: query_bundle.query_str})


async def _from_graph(engine: Any, query_bundle: Any) -> list[NodeWithScore]:
    asked, store = query_bundle.query_str, engine.graph_store
    wanted = await engine.agenerate_query(asked)
    _shown(engine, "Graph Store Query", wanted)
    with engine.callback_manager.event(CBEventType.RETRIEVE, payload={EventPayload.QUERY_STR: wanted}) as event:
        found = await in_thread(lambda: store.query(query=wanted))
        _shown(engine, "Graph Store Response", found)
        event.on_end(payload={EventPayload.RESPONSE: found})
    text = engine._graph_response_answer_prompt.format(query_str=asked, kg_query_str=wanted, kg_response_str=found)
    metadata = {
        "query_str": asked,
        "graph_store_query": wanted,
        "graph_store_response": found,
        "graph_schema": engine._graph_schema,
    }
    return [NodeWithScore(node=TextNode(text=text, metadata=metadata), score=1.0)]


def _shown(engine: Any, what: str, value: Any) -> None:
    if engine._verbose:
        print_text(f"{what}:\n{value}\n", color="yellow")
    _graphs.debug(f"{what}:\n{value}")


async def _from_tables(retriever: Any, str_or_query_bundle: Any) -> Any:
    query = QueryBundle(str_or_query_bundle) if isinstance(str_or_query_bundle, str) else str_or_query_bundle
    tables = await in_thread(lambda: retriever._get_table_context(query))
    _tables.info(f"> Table desc str: {tables}")
    said = await retriever._llm.apredict(
        retriever._text_to_sql_prompt,
        query_str=query.query_str,
        schema=tables,
        dialect=retriever._sql_database.dialect,
    )
    wanted = await in_thread(lambda: retriever._sql_parser.parse_response_to_sql(said, query))
    _tables.debug(f"> Predicted SQL query: {wanted}")
    if retriever._sql_only:
        return [NodeWithScore(node=TextNode(text=f"{wanted}"))], {"sql_query": wanted}
    try:
        runs = retriever._sql_retriever
        run = runs.aretrieve_with_metadata
        here = not blocks(type(runs), "aretrieve_with_metadata")
        nodes, metadata = await (run(wanted) if here else unblocked(run, wanted))
    except BaseException as error:
        if not retriever._handle_sql_errors:
            raise
        nodes, metadata = [NodeWithScore(node=TextNode(text=f"Error: {error!s}"))], {}
    return nodes, {"sql_query": wanted, **metadata}


_Replaced = tuple[tuple[type, str, Callable[..., Any]], ...]
_REPLACED: _Replaced = (
    (TransformQueryEngine, "_aquery", _transformed),
    (TransformQueryEngine, "asynthesize", _synthesized),
    (MultiStepQueryEngine, "_aquery", _in_steps),
    (ToolRetrieverRouterQueryEngine, "_aquery", _by_tools),
    (KnowledgeGraphQueryEngine, "_aretrieve", _from_graph),
    (NLSQLRetriever, "aretrieve_with_metadata", _from_tables),
)
_REPLACED_SYNC: _Replaced = ((ToolRetrieverRouterQueryEngine, "_query", _by_tools_in_turn),)


def replace(made: Any, *, sync: bool) -> None:
    """Puts the replacements on the copy of one call: those of sync methods, or those of async ones."""
    kind = type(made)
    for base, name, stands_in in _REPLACED_SYNC if sync else _REPLACED:
        if issubclass(kind, base) and name not in vars(made) and same(kind, base, name):
            found = method(kind, name)
            assert found is not None
            made.__dict__[name] = found.around(made, stands_in)
