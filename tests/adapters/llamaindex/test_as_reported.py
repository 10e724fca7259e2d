"""Handlers see queries and nodes as they were when stock would have reported them, also of calls ahead."""

from __future__ import annotations

from inspect import BoundArguments
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from benchmarks.public.llamaindex_kit import Kit, nodes
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.instrumentation import root_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle

import fineflow

SEEN: list[tuple[str, Any]] = []


def shown(value: Any) -> Any:
    """The parts that LlamaIndex changes in place, as they are now."""
    if isinstance(value, QueryBundle):
        return value.query_str, value.embedding is not None
    if isinstance(value, list) and value and isinstance(value[0], NodeWithScore):
        return [(each.node.get_content(), each.score, dict(each.node.metadata)) for each in value]
    return None


class Events(BaseEventHandler):
    def handle(self, event: Any, **kwargs: Any) -> None:
        SEEN.extend((type(event).__name__, shown(part)) for part in vars(event).values())


class Spans(BaseSpanHandler[Any]):
    def new_span(self, id_: str, bound_args: Any, *args: Any, **kwargs: Any) -> None:
        self._note(f"new {id_.split('-')[0]}", bound_args, None)

    def prepare_to_exit_span(
        self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **kwargs: Any
    ) -> None:
        self._note(f"exit {id_.split('-')[0]}", bound_args, result)

    def prepare_to_drop_span(self, *args: Any, **kwargs: Any) -> None: ...

    def span_enter(self, id_: str, bound_args: Any, *args: Any, **kwargs: Any) -> None:
        self.new_span(id_, bound_args)

    def span_exit(self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **kwargs: Any) -> None:
        self.prepare_to_exit_span(id_, bound_args, instance, result)

    @staticmethod
    def _note(name: str, bound: BoundArguments, result: Any) -> None:
        SEEN.extend((name, shown(part)) for part in (*bound.arguments.values(), result))


class Both(BaseRetriever):
    """Asks two retrievers with the query that it gets."""

    def __init__(self, one: Any, other: Any) -> None:
        self._one, self._other = one, other
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [*self._one.retrieve(query_bundle), *self._other.retrieve(query_bundle)]


class Twice(CustomQueryEngine):
    """Asks an engine, whose postprocessor changes the nodes, two questions."""

    engine: Any

    def custom_query(self, query_str: str) -> str:
        return f"{self.engine.query(query_str)} {self.engine.query(query_str + ' in France')}"


def asking_two() -> Any:
    kit = Kit(0.01)
    both = Both(kit.retriever(nodes()), kit.retriever(nodes(), k=2))
    return RetrieverQueryEngine.from_args(both, llm=kit.llm())


def replacing() -> Any:
    kit = Kit(0.01)
    found = nodes()
    for node in found:
        node.metadata["window"] = f"around {node.text}"
    post = MetadataReplacementPostProcessor(target_metadata_key="window")
    return Twice(engine=kit.engine(found, node_postprocessors=[post]))


def seen(engine: Any) -> list[tuple[str, Any]]:
    SEEN.clear()
    handlers = Events(), Spans()
    root_dispatcher.add_event_handler(handlers[0])
    root_dispatcher.add_span_handler(handlers[1])
    try:
        engine.query("where is Paris")
    finally:
        root_dispatcher.event_handlers.remove(handlers[0])
        root_dispatcher.span_handlers.remove(handlers[1])
    return [each for each in SEEN if each[1] is not None]


@pytest.mark.parametrize("make", [asking_two, replacing])
def test_what_changes_later_is_reported_as_it_was(make: Any) -> None:
    engine = fineflow.optimize(make(), trust="interfaces", strict=True)
    assert seen(engine) == seen(make())
