"""Node postprocessors: which primitives they are, and their shadows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from llama_index.core.postprocessor.types import BaseNodePostprocessor

from fineflow.adapters.core.builder import DOCUMENTS, Leaf
from fineflow.adapters.core.recognition import NotLowered
from fineflow.adapters.llamaindex.lowering.context import Place, Seen
from fineflow.adapters.llamaindex.lowering.node_prompts import lower_asking, shadow_asking
from fineflow.adapters.llamaindex.lowering.node_requests import asker_of
from fineflow.adapters.llamaindex.methods import off_loop
from fineflow.adapters.llamaindex.models.cross_encoders import scorer_of, shadow_cross_encoder
from fineflow.adapters.llamaindex.models.llms import in_turn
from fineflow.ir import Op


def lower_postprocessor(processor: Any, nodes: Leaf, query: Leaf, seen: Seen) -> Leaf:
    """A step of stock's: it needs all that comes before it, and what comes behind needs all of it.

    What it asks an LLM may run ahead inside of it.
    """
    args = {"query": query.ref, "documents": nodes.ref}
    seen.objects[seen.b.leaf] = processor
    row = asker_of(processor)
    if row is not None:
        mark = len(seen.b.primitives)
        try:
            return lower_asking(processor, row, nodes, query, seen)
        except NotLowered as why:
            del seen.b.primitives[mark:]
            return seen.opaque(processor, args, str(why), DOCUMENTS)
    scorer = scorer_of(processor)
    if scorer is None and "rerank" not in type(processor).__name__.lower():
        return seen.opaque(processor, args, "may be user code, and runs when stock runs it", DOCUMENTS)
    held = scorer.engine if scorer is not None else getattr(processor, "engine", None)
    engine = getattr(held, "name", type(processor).__name__)
    return seen.b.add(Op.RERANK, args, component=processor, engine=engine, kind=DOCUMENTS, by_stock=True)


def shadow_postprocessors(processors: Sequence[Any], place: Place) -> list[Any]:
    """Copies of the postprocessors of an engine, whose models are asked ahead or through an engine.

    None of them blocks the event loop.
    """
    return [_shadow(each, place.part(f"postprocessor {i}")) for i, each in enumerate(processors)]


def _shadow(processor: Any, place: Place) -> Any:
    if not isinstance(processor, BaseNodePostprocessor):
        return processor
    row = asker_of(processor)
    if row is not None:
        return shadow_asking(processor, row, place)
    scorer = scorer_of(processor)
    if scorer is not None:
        return shadow_cross_encoder(processor, scorer, sync=place.sync)
    processor = in_turn(processor, place)
    return processor if place.sync else off_loop(processor, "_apostprocess_nodes")


def queued(processor: Any) -> bool:
    """Whether its model is asked through the queue of an engine, in place of where stock asks it."""
    return scorer_of(processor) is not None


def called_in(processors: Iterable[Any]) -> Iterator[Any]:
    """What may be called by the async methods of postprocessors: themselves, and their LLMs."""
    for processor in processors:
        yield processor
        row = asker_of(processor)
        if row is not None and row.by_async:
            yield processor.llm
