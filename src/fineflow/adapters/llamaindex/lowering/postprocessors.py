"""Node postprocessors: their primitives and their shadows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.postprocessor.types import BaseNodePostprocessor

from fineflow.adapters.core.builder import DOCUMENTS, Leaf, Symbol
from fineflow.adapters.core.devices import engine_on
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.adapters.llamaindex.builder import IndexBuilder, asked_for, nodes_in, query_in
from fineflow.adapters.llamaindex.inner_calls import looking_through
from fineflow.adapters.llamaindex.lowering import node_prompts
from fineflow.adapters.llamaindex.models.cross_encoders import scorer_of, shadow_cross_encoder
from fineflow.adapters.llamaindex.models.llms import in_turn
from fineflow.adapters.llamaindex.thread_affinity import off_loop
from fineflow.ir import Op


def lower_postprocessors(processors: Sequence[Any], nodes: Symbol, query: Leaf, b: IndexBuilder) -> Symbol:
    """Appends the postprocessors of an engine; returns the nodes that they leave."""
    for i, processor in enumerate(processors):
        with b.inside(f"postprocessor {i}"):
            nodes = b.lower(processor, asked_for(query, b.whole(nodes)))
    return nodes


def shadow_postprocessors(processors: Sequence[Any], site: Site) -> list[Any]:
    """Returns copies of the postprocessors of an engine, whose models are called ahead or through a queue.

    In async calls none of them blocks the event loop.
    """
    return [site.of(each, f"postprocessor {i}") for i, each in enumerate(processors)]


def _lower(processor: Any, value: Symbol, b: IndexBuilder) -> Leaf:
    """Appends a step that stock runs: it needs the whole result before it, and later steps need its whole result."""
    args = {"query": query_in(value).ref, "documents": nodes_in(value).ref}
    scorer = scorer_of(processor)
    if scorer is None and "rerank" not in type(processor).__name__.lower():
        why = "may be user code, and runs when stock runs it"
        return b.left_to_stock(processor, args, why, DOCUMENTS)
    held = scorer.engine if scorer is not None else getattr(processor, "engine", None)
    engine = getattr(held, "name", type(processor).__name__)
    return b.add(Op.RERANK, args, component=processor, engine=engine, kind=DOCUMENTS, by_stock=True, **engine_on(held))


def _shadow(processor: Any, site: Site) -> Any:
    scorer = scorer_of(processor)
    if scorer is not None:
        return shadow_cross_encoder(processor, scorer, site)
    looking_through(processor, site)
    processor = in_turn(processor, site)
    return processor if site.sync else off_loop(processor, "_apostprocess_nodes", site.options.trusting)


def queued(processor: Any) -> bool:
    """Returns True if the model of a postprocessor is called through the queue of an engine."""
    return scorer_of(processor) is not None


ROWS: tuple[Row, ...] = (
    *node_prompts.ROWS,
    Row(BaseNodePostprocessor, (), _lower, _shadow, components=lambda each: (each,)),
)
