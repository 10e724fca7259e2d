"""Postprocessors that ask an LLM ask for all that is known to be asked at once; what is not known is stock's."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor import LLMRerank, StructuredLLMRerank
from llama_index.core.postprocessor.structured_llm_rerank import DocumentRelevanceList
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from processor_shapes import ASKING, BY_THREADS, engine_with, in_thread, model, optimized, said
from pydantic import PrivateAttr
from timed_index import ANSWER, EMBED, SEARCH, searcher, took

import fineflow
from fineflow.llamaindex import EngineLLM
from fineflow.testing import virtual_threads
from fineflow.testing.engines import GatedLLM
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import BlockingLLM, FakeLLM

WAIT = 10  # seconds; only a failing test waits this long


@pytest.mark.parametrize("kind", [FakeLLM, BlockingLLM])
@pytest.mark.parametrize("case", ASKING)
def test_all_is_asked_at_once_in_a_sync_call(case: str, kind: Any) -> None:
    make, calls = ASKING[case]
    gate = Gate()
    llm = kind(answers=said, gate=gate)
    engine = optimized(make(llm))
    call = in_thread(lambda: engine.query(QUESTION))
    gate.wait_arrived(calls)  # stock asks for the second when the first has been given
    gate.open()
    assert call.result(WAIT).response
    assert llm.meter.calls == calls
    assert engine._self_last.unclaimed == 0


@pytest.mark.parametrize("kind", [FakeLLM, BlockingLLM])
@pytest.mark.parametrize("case", ASKING)
async def test_all_is_asked_at_once_in_an_async_call(case: str, kind: Any) -> None:
    make, calls = ASKING[case]
    gate = Gate()
    llm = kind(answers=said, gate=gate)
    engine = optimized(make(llm))
    call = asyncio.create_task(engine.aquery(QUESTION))
    await gate.arrived(calls)  # stock asks four at a time, or one by one
    gate.open()
    assert (await call).response
    assert llm.meter.calls == calls
    assert engine._self_last.unclaimed == 0


def test_choices_on_an_engine_are_decoded_together() -> None:
    gate = Gate()
    backend = GatedLLM(said, gate=gate)
    backend.can_prefill = False  # no cache: else two of them wait until the first has computed what they share
    engine = optimized(LLMRerank(llm=EngineLLM(engine=backend), choice_batch_size=2))
    call = in_thread(lambda: engine.query(QUESTION))
    gate.wait_arrived(3)
    gate.open()
    assert call.result(WAIT).response
    assert backend.meter.calls == 3


async def test_a_cancelled_call_leaves_nothing_at_work() -> None:
    gate = Gate()
    llm = model(gate=gate)
    call = asyncio.create_task(optimized(LLMRerank(llm=llm, choice_batch_size=1)).aquery(QUESTION))
    await gate.arrived(6)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await llm.meter.idle()


# Virtual time


def timed(make: Callable[[Any], Any], llm: Any = None) -> Callable[[], Any]:
    def build() -> Any:
        processor = make(llm() if llm is not None else model(latency=ANSWER))
        return searcher().as_query_engine(
            llm=FakeLLM(answers=answer, latency=ANSWER, context_window=9000),
            similarity_top_k=6,
            node_postprocessors=[processor],
            response_mode="simple_summarize",
        )

    return build


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
@pytest.mark.parametrize("entry", ["query", "aquery"])
@pytest.mark.parametrize("case", ASKING)
def test_calls_take_what_their_critical_path_takes(case: str, entry: str) -> None:
    make, calls = ASKING[case]
    seconds = took(timed(make), entry, QUESTION)
    path = EMBED + SEARCH + ANSWER + ANSWER  # a vector, a search, all answers about nodes, and the answer
    rounds = calls if entry == "query" or case in BY_THREADS else -(-calls // 4)
    assert seconds.stock == pytest.approx(path + (rounds - 1) * ANSWER, abs=0.01)
    assert path <= seconds.optimized <= 1.15 * path


# What is left to stock


def parse(text: str, count: int) -> tuple[list[int], list[float]]:
    return [1], [float(len(text))]


def written(batch: list[Any]) -> str:
    return " | ".join(each.get_content() for each in batch)


@fineflow.pure
def purely(batch: list[Any]) -> str:
    return " | ".join(each.get_content() for each in batch)


class Counting(LLMRerank):
    """A class of the user's own."""

    def _get_node_batches(self, nodes: list[NodeWithScore]) -> Any:
        return super()._get_node_batches(nodes[:3])


def counting() -> Any:
    kind: Any = Counting
    return kind(llm=model(), choice_batch_size=1)


class Prompt(PromptTemplate):
    """A template of the user's own."""

    def format(self, *args: Any, **kwargs: Any) -> str:
        return super().format(*args, **kwargs)


def own_prompt() -> Any:
    kind: Any = Prompt
    return kind("relevance score of {context_str} for {query_str}")


def put_on(of: str) -> Any:
    """LlamaIndex's own prompt, with a method put on it, or on the part of it that is used."""
    template: Any = copy.deepcopy(rerank()().choice_select_prompt)
    for each in [template] if of == "it" else [template.default_template, *(part for _, part in template.conditionals)]:
        each.__dict__["format"] = each.format
    return template


class Ranked(DocumentRelevanceList):
    """A class of the user's own."""


@fineflow.external
class Told(FakeLLM):
    """A model of the user's own."""


class Unknown(FakeLLM):
    """A model of the user's own, which may count its calls."""


def rerank(**settings: Any) -> Callable[[], Any]:
    return lambda: LLMRerank(**{"llm": model(is_chat=False), "choice_batch_size": 1, **settings})


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
@pytest.mark.parametrize(
    ("make", "ahead"),
    [
        (rerank(), True),
        (rerank(parse_choice_select_answer_fn=parse), False),
        (rerank(format_node_batch_fn=written), False),
        (rerank(format_node_batch_fn=purely), True),
        (rerank(choice_select_prompt=own_prompt()), False),
        (lambda: rerank(choice_select_prompt=put_on("it"))(), False),
        (lambda: rerank(choice_select_prompt=put_on("its parts"))(), False),
        (rerank(llm=Unknown(answers=said)), False),
        (rerank(llm=Told(answers=said)), True),
        (lambda: counting(), False),
        (lambda: StructuredLLMRerank(llm=model(), choice_batch_size=1, document_relevance_list_cls=Ranked), False),
    ],
)
def test_what_is_not_known_is_stocks(make: Callable[[], Any], ahead: bool) -> None:
    build = engine_with(make)
    assert_same_index(build, QUESTION)
    engine = build(CallbackManager([]))
    llm = engine._node_postprocessors[0].llm
    llm.latency = ANSWER
    assert virtual_threads.run(lambda: fineflow.optimize(engine, strict=True).query(QUESTION)).value.response
    assert (llm.meter.peak > 1) is ahead


def test_a_parser_of_the_users_is_no_guard_where_stock_asks_first() -> None:
    """Async methods of stock ask for all answers before they read one."""
    gate = Gate()
    llm = model(gate=gate)
    engine = optimized(LLMRerank(llm=llm, choice_batch_size=1, parse_choice_select_answer_fn=parse))

    async def ask() -> Any:
        call = asyncio.create_task(engine.aquery(QUESTION))
        await gate.arrived(6)
        gate.open()
        return await call

    assert len(asyncio.run(ask()).source_nodes) == 6


class Seen(TextNode):
    """A node of the user's own, which counts how often it is read."""

    _read: list[str] = PrivateAttr(default_factory=list)

    def get_content(self, *args: Any, **settings: Any) -> str:
        self._read.append(self.node_id)
        return super().get_content(*args, **settings)


class Finding(BaseRetriever):
    """Finds what it was given."""

    def __init__(self, found: list[Seen]) -> None:
        super().__init__()
        self._found = found

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=node, score=0.5) for node in self._found]


@pytest.mark.parametrize("entry", ["query", "aquery"])
def test_nodes_of_the_users_own_are_read_by_stock_alone(entry: str) -> None:
    read = []
    runs: list[Callable[[Any], Any]] = [lambda engine: engine, lambda engine: fineflow.optimize(engine, strict=True)]
    for run in runs:
        found, llm = [Seen(id_=f"node {i}", text=f"Fact {i} about it") for i in range(6)], model(is_chat=False)
        processor = LLMRerank(llm=llm, choice_batch_size=1)
        settings: dict[str, Any] = {
            "llm": model(),
            "node_postprocessors": [processor],
            "response_mode": "simple_summarize",
        }
        kind: Any = RetrieverQueryEngine
        engine = run(kind.from_args(Finding(found), **settings))
        response = engine.query(QUESTION) if entry == "query" else asyncio.run(engine.aquery(QUESTION))
        assert response.response
        assert llm.meter.calls == 6
        read.append([len(node._read) for node in found])
    assert read[0] == read[1]


def test_changes_after_optimize_count() -> None:
    first, second = model(), model()
    processor = LLMRerank(llm=first, choice_batch_size=1)
    engine = optimized(processor)
    engine.query(QUESTION)
    processor.llm = second
    processor.choice_batch_size = 3
    engine.query(QUESTION)
    assert (first.meter.calls, second.meter.calls) == (6, 2)
    assert engine._self_last.unclaimed == 0
