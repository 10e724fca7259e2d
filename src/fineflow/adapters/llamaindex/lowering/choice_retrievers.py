"""Retrievers that have a model choose among all nodes, a batch of them at a time: all batches are asked for at once.

Stock asks for one batch after the other, also in its async methods. The prompt of each depends on the query and on the
nodes alone.
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

from fineflow.adapters.core.builder import DOCUMENTS, Leaf
from fineflow.adapters.core.recognition import NotLowered
from fineflow.adapters.llamaindex.components.llm import EngineLLM
from fineflow.adapters.llamaindex.lowering.context import Place, Seen, part_of
from fineflow.adapters.llamaindex.lowering.prompts import check_template
from fineflow.adapters.llamaindex.methods import as_written, exactly, move
from fineflow.adapters.llamaindex.models.embeddings import query_text
from fineflow.adapters.llamaindex.models.llms import Request, ask, lane, model_effects, model_known, request, shadow_llm
from fineflow.ir import Effect, Effects, Op, Primitive
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.loop.workers import in_thread

SELECTING = "selecting"
_METHODS = ("retrieve", "aretrieve", "_retrieve", "_aretrieve")


@dataclass(frozen=True, slots=True)
class Selecting:
    """A class of such retrievers. ids: of the nodes that the model chooses among."""

    base: type
    ids: Callable[[Any], Sequence[str]]


_ROWS = (
    Selecting(SummaryIndexLLMRetriever, lambda index: index.index_struct.nodes),
    Selecting(DocumentSummaryIndexLLMRetriever, lambda index: index.index_struct.summary_ids),
)


def selecting_of(retriever: Any) -> Selecting | None:
    """How a retriever is recognised as one of these, if it is."""
    for row in _ROWS:
        if isinstance(retriever, row.base):
            return row if as_written(retriever, row.base, *_METHODS) else None
    return None


def lower_selecting(retriever: Any, query: Leaf, seen: Seen) -> Leaf:
    """One step for all choices of the model. Raises NotLowered."""
    b, llm = seen.b, retriever._llm
    if retriever._format_node_batch_fn is not default_format_node_batch_fn:
        raise NotLowered("its nodes are written by a function of your own")
    if retriever._parse_choice_select_answer_fn is not default_parse_choice_select_answer_fn:
        raise NotLowered("its answers are read by a function of your own, which no later question may overtake")
    check_template(retriever._choice_select_prompt)
    store = retriever._index.docstore
    if not (exactly(store, SimpleDocumentStore) and exactly(store._kvstore, SimpleKVStore)):
        raise NotLowered(f"nodes are read from {type(store).__name__}, once more than stock reads them")
    effects = model_effects(llm, b, "predict")
    reads = Effects(Effect.READ, b.resource(store), "reads nodes")
    ours = type(llm) is EngineLLM
    made = b.add(
        Op.DECODE,
        {"prompt": query.ref},
        name="choices",
        component=retriever,
        engine=lane(llm),
        effects=Effects(effects.kind, effects.resource, effects.reason, (reads,)),
        kind=DOCUMENTS,
        how=SELECTING,
        foreign=not ours,
        pieces=False,
    )
    seen.at(part_of(b.leaf, "llm"))
    b.note(
        made.ref.name, True, "the model is asked about all batches of nodes at once, where stock asks for one by one"
    )
    return made


def choices(p: Primitive, args: Mapping[str, Any], run: Execution) -> Any:
    """Asks the model about every batch of nodes. Its value is nobody's: stock chooses by the answers that it claims."""
    return run.spawn(_each(p, query_text(p, "prompt", args, run), run), p)


async def _each(p: Primitive, query: str, run: Execution) -> None:
    retriever = p.component
    row = selecting_of(retriever)
    ids = row.ids(retriever._index) if row is not None else ()
    for start in range(0, len(ids), retriever._choice_batch_size):
        wanted = await in_thread(partial(_wanted, retriever, ids[start : start + retriever._choice_batch_size], query))

        async def begin(entry: Any, wanted: Request = wanted) -> Any:
            entry.begun = True
            return await ask(retriever._llm, wanted, sync=True)  # as stock does, in async calls in a thread

        run.work(p, wanted.key, begin)


def _wanted(retriever: Any, ids: Sequence[str], query: str) -> Request:
    nodes = retriever._index.docstore.get_nodes(list(ids))
    arguments = {"context_str": retriever._format_node_batch_fn(nodes), "query_str": query}
    return request(retriever._llm, retriever._choice_select_prompt, arguments)


def shadow_selecting(retriever: Any, place: Place) -> Any:
    """A copy of a retriever whose model claims; in async calls it does not block the event loop."""
    made = copy.copy(retriever)
    if model_known(retriever._llm):
        made._llm = shadow_llm(retriever._llm, place.part("llm").leaf, place.claims, sync=place.sync)
    if not place.sync:
        move(made, "_aretrieve")
    return made
