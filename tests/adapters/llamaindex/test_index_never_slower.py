"""Random query engines with random latencies: stock's answer, and never slower than stock, in virtual time.

``FINEFLOW_FUZZ=500`` runs that many examples, other ones each time, instead of the bounded, repeatable suite.
"""

from __future__ import annotations

import json
import pprint
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from hypothesis import assume, given, note
from hypothesis import strategies as st
from index_shapes import QUESTION, answer, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.selectors import LLMMultiSelector
from llama_index.core.tools import QueryEngineTool
from timed_index import took

from fineflow.testing import virtual_threads
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import BlockingLLM, FakeEmbedding, FakeLLM, FakeStore
from fuzzing import bounded

BOUND = 1.02
MODES = ("compact", "refine", "tree_summarize", "simple_summarize", "accumulate", "compact_accumulate")

Spec = tuple[Any, ...]


def build(spec: Spec, manager: CallbackManager, real: bool) -> Any:
    """The engine of a specification. real: with its latencies."""
    return _Builder(manager, real).engine(spec)


class _Builder:
    def __init__(self, manager: CallbackManager, real: bool) -> None:
        self.manager, self.real = manager, real

    def llm(self, seconds: float, said: Any = answer, blocking: bool = False) -> Any:
        asked = {"answers": said} if callable(said) else {"default": said}
        kind: Any = BlockingLLM if blocking else FakeLLM
        return kind(
            latency=seconds * self.real, context_window=900, num_output=60, callback_manager=self.manager, **asked
        )

    def index(self, times: Spec) -> Any:
        embed, search, count = times
        embedding = FakeEmbedding(latency=embed * self.real, callback_manager=self.manager)
        return index(embedding, FakeStore(latency=search * self.real), self.manager, count)

    def engine(self, spec: Spec) -> Any:
        made = getattr(self, spec[0])(*spec[1:])
        made.callback_manager = self.manager
        return made

    def search(self, mode: str, seconds: float, times: Spec, use_async: bool, blocking: bool) -> Any:
        made = self.index(times).as_query_engine(
            llm=self.llm(seconds, blocking=blocking), response_mode=mode, similarity_top_k=4, use_async=use_async
        )
        made._retriever.callback_manager = made._response_synthesizer.callback_manager = self.manager
        return made

    def fused(self, mode: str, seconds: float, asks: float, times: tuple[Spec, ...], use_async: bool) -> Any:
        retrievers = [self.index(each).as_retriever(similarity_top_k=3) for each in times]
        for each in retrievers:
            each.callback_manager = self.manager
        writes = self.llm(asks, "river mill\nstone tower\nchurch garden")
        found = QueryFusionRetriever(retrievers, llm=writes, use_async=use_async, callback_manager=self.manager)
        return RetrieverQueryEngine.from_args(
            found, llm=self.llm(seconds), response_synthesizer=self.sums(mode, seconds)
        )

    def sums(self, mode: Any, seconds: float) -> Any:
        return get_response_synthesizer(llm=self.llm(seconds), response_mode=mode, callback_manager=self.manager)

    def tools(self, parts: tuple[Spec, ...]) -> list[Any]:
        return [
            QueryEngineTool.from_defaults(self.engine(part), name=f"tool{i}", description=f"about {i}")
            for i, part in enumerate(parts)
        ]

    def questions(self, asks: float, parts: tuple[Spec, ...], each: int, mode: str, use_async: bool) -> Any:
        asked = [
            {"sub_question": f"where is number {i}", "tool_name": f"tool{i % len(parts)}"}
            for i in range(each * len(parts))
        ]
        return SubQuestionQueryEngine(
            LLMQuestionGenerator.from_defaults(llm=self.llm(asks, json.dumps(asked))),
            self.sums(mode, asks),
            self.tools(parts),
            verbose=False,
            use_async=use_async,
        )

    def router(self, asks: float, parts: tuple[Spec, ...], chosen: int) -> Any:
        said = json.dumps([{"choice": 1 + i, "reason": "it"} for i in range(min(chosen, len(parts)))])
        made = RouterQueryEngine(
            LLMMultiSelector.from_defaults(llm=self.llm(asks, said)), self.tools(parts), llm=self.llm(asks)
        )
        made._summarizer.callback_manager = self.manager
        return made

    def hyde(self, asks: float, part: Spec) -> Any:
        return TransformQueryEngine(self.engine(part), HyDEQueryTransform(llm=self.llm(asks, "in the old town")))

    def citations(self, mode: str, seconds: float, times: Spec) -> Any:
        retriever = self.index(times).as_retriever()
        retriever.callback_manager = self.manager
        return CitationQueryEngine(
            retriever,
            llm=self.llm(seconds),
            response_synthesizer=self.sums(mode, seconds),
            callback_manager=self.manager,
        )


second = st.sampled_from((0.0, 0.01, 0.1, 0.5, 1.0))
times = st.tuples(second, second, st.sampled_from((2, 5, 8)))
modes = st.sampled_from(MODES)
simple = st.one_of(
    st.tuples(st.just("search"), modes, second, times, st.booleans(), st.booleans()),
    st.tuples(st.just("citations"), modes, second, times),
    st.tuples(
        st.just("fused"), modes, second, second, st.lists(times, min_size=1, max_size=3).map(tuple), st.booleans()
    ),
)


def around(parts: st.SearchStrategy[Spec]) -> st.SearchStrategy[Spec]:
    several = st.lists(parts, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.tuples(st.just("questions"), second, several, st.sampled_from((1, 2)), modes, st.booleans()),
        st.tuples(st.just("router"), second, several, st.sampled_from((1, 2, 3))),
        st.tuples(st.just("hyde"), second, parts),
    )


engines = st.recursive(simple, around, max_leaves=4)


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
@pytest.mark.parametrize("entry", ["query", "aquery"])
@bounded(20)
@given(engines)
def test_never_slower_than_stock(entry: str, spec: Spec) -> None:
    note(pprint.pformat(spec, width=110))
    for eager in (False, True):
        seconds = took(lambda: build(spec, CallbackManager([]), True), entry, QUESTION, eager=eager)
        assert seconds.optimized <= BOUND * seconds.stock + 1e-4, f"eager: {eager}"


@bounded(20)
@given(engines)
def test_the_same_as_stock(spec: Spec) -> None:
    note(pprint.pformat(spec, width=110))
    assume(str(spec).count("citations") < 2)  # the ids of their nodes are new in each call, and in no order
    assert_same_index(
        lambda manager: build(spec, manager, False), QUESTION, entries=("query", "aquery"), ordered=not _loops(spec)
    )


def _loops(spec: Spec) -> bool:
    """Whether sync calls of stock run loops of their own, so that things happen in any order."""
    own = spec[0] in ("fused", "search", "questions") and True in spec[-2:]
    return own or any(_loops(part) for each in spec for part in _specs(each))


def _specs(value: Any) -> list[Spec]:
    if not isinstance(value, tuple):
        return []
    if value and isinstance(value[0], str):
        return [value]
    return [found for each in value for found in _specs(each)]
