"""Retrievers whose model chooses among all nodes, one request per batch of nodes: all requests run concurrently.

Stock sends one request after the other, also in its async methods. Each prompt depends only on the query and the nodes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llama_index.core.indices.document_summary import DocumentSummaryIndexLLMRetriever
from llama_index.core.indices.list.retrievers import SummaryIndexLLMRetriever
from llama_index.core.indices.utils import default_format_node_batch_fn, default_parse_choice_select_answer_fn
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.storage.kvstore import SimpleKVStore

from fineflow.adapters.core.builder import DOCUMENTS, Leaf, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.core.trust import NotLowered
from fineflow.adapters.llamaindex.builder import IndexBuilder, query_in
from fineflow.adapters.llamaindex.lowering.prompts import check_template
from fineflow.adapters.llamaindex.methods import exactly
from fineflow.adapters.llamaindex.models.embeddings import query_text
from fineflow.adapters.llamaindex.models.llms import (
    Request,
    lower_requests,
    model_effects,
    model_known,
    request,
    requested,
    shadow_llm,
)
from fineflow.adapters.llamaindex.thread_affinity import check_may_leave, may_leave, move
from fineflow.ir import Effect, Effects, Op, Primitive
from fineflow.runtime import events
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.loop.workers import in_thread


def _lower_selecting(retriever: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    """Appends one step for all choices of the model. Raises NotLowered."""
    query = query_in(value)
    llm = retriever._llm
    if retriever._format_node_batch_fn is not default_format_node_batch_fn:
        raise NotLowered("its nodes are formatted by a function of your own")
    if retriever._parse_choice_select_answer_fn is not default_parse_choice_select_answer_fn:
        raise NotLowered("its answers are parsed by a function of your own, which no later request may overtake")
    check_may_leave(retriever, b)
    check_template(retriever._choice_select_prompt)
    store = retriever._index.docstore
    if not (exactly(store, SimpleDocumentStore) and exactly(store._kvstore, SimpleKVStore)):
        raise NotLowered(f"nodes would be read from {type(store).__name__} once more than in stock")
    effects = model_effects(llm, b, "predict")
    reads = Effects(Effect.READ, b.resource(store), "reads nodes")
    effects = Effects(effects.kind, effects.resource, effects.reason, (reads,))
    more = {"kind": DOCUMENTS, "how": "selecting", "kernel": _choices, "several": True}
    made = lower_requests(retriever, llm, {"prompt": query.ref}, b, "choices", effects, **more)
    b.note(made.ref.name, True, "requests for all batches of nodes run at once, where stock sends them one by one")
    return made


def _choices(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    """Sends the request for each batch of nodes. Has no value of its own: stock claims the answers."""
    return run.spawn(_each(p, query_text(p, "prompt", args, run), run), p)


async def _each(p: Primitive, query: str, run: Execution) -> None:
    retriever = p.component
    ids = next((row.ids(retriever._index) for row in ROWS if row.matches(retriever)), ())
    starts = range(0, len(ids), retriever._choice_batch_size)
    events.sized("", Op.MAP, len(starts), p.name)
    for start in starts:
        wanted = await in_thread(partial(_wanted, retriever, ids[start : start + retriever._choice_batch_size], query))
        requested(p, retriever._llm, wanted, run, sync=True)  # stock uses the sync method in async calls too


def _wanted(retriever: Any, ids: Sequence[str], query: str) -> Request:
    nodes = retriever._index.docstore.get_nodes(list(ids))
    arguments = {"context_str": retriever._format_node_batch_fn(nodes), "query_str": query}
    return request(retriever._llm, retriever._choice_select_prompt, arguments)


def _shadow_selecting(retriever: Any, site: Site) -> Any:
    """Returns a copy of a retriever whose model claims; in async calls it does not block the event loop."""
    made = copy.copy(retriever)
    if model_known(retriever._llm):
        made._llm = shadow_llm(retriever._llm, site.part("llm"))
    if not site.sync and may_leave(retriever, site.options.trusting):
        move(made, "_aretrieve")
    return made


@dataclass(frozen=True, slots=True)
class Selecting(Row):
    """A class of such retrievers. ids: returns the ids of the nodes of an index that the model chooses among."""

    ids: Callable[[Any], Sequence[str]] = lambda index: ()


def _selecting(base: type, ids: Callable[[Any], Sequence[str]]) -> Selecting:
    return Selecting(
        base,
        ("retrieve", "aretrieve", "_retrieve", "_aretrieve"),
        _lower_selecting,
        _shadow_selecting,
        components=lambda retriever: (retriever,),
        composite=True,
        ids=ids,
    )


ROWS = (
    _selecting(SummaryIndexLLMRetriever, lambda index: index.index_struct.nodes),
    _selecting(DocumentSummaryIndexLLMRetriever, lambda index: index.index_struct.summary_ids),
)
