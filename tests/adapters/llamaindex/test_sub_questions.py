"""Sub-questions are searched and answered while the model still writes the others; the answer is stock's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, index
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor import (
    LongContextReorder,
    MetadataReplacementPostProcessor,
    SimilarityPostprocessor,
)
from llama_index.core.query_engine import CustomQueryEngine, SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.tools import QueryEngineTool

import fineflow
from fineflow.llamaindex import EngineEmbedding, EngineLLM
from fineflow.testing.engines import GatedBatches, GatedLLM
from fineflow.testing.gates import Gate
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import BlockingLLM, FakeEmbedding, FakeLLM, FakeStore

pytestmark = pytest.mark.sweep

ASKED = [
    {"sub_question": "where is the tower", "tool_name": "north"},
    {"sub_question": "where is the mill", "tool_name": "south"},
    {"sub_question": "where is the church", "tool_name": "north"},
    {"sub_question": "where is the mill", "tool_name": "south"},
    {"sub_question": "where is the school", "tool_name": "nowhere"},
]
WRITTEN = {
    "list": json.dumps(ASKED),
    "for tools that are there": json.dumps(ASKED[:4]),
    "fenced": f"```json\n{json.dumps(ASKED, indent=2)}\n```",
    "items": json.dumps({"items": ASKED}, indent=4),
    "text around": f"Here they are: {json.dumps(ASKED)} and that is all",
    "one more": json.dumps(ASKED)[:-1] + ', {"sub_question": 3, "tool_name": "north"}]',
    "cut short": json.dumps(ASKED)[:100],
    "nothing": "I do not know",
    "empty": "[]",
}
WRITERS: dict[str, Callable[[str], Any]] = {
    "remote": lambda text: FakeLLM(default=text),
    "blocking": lambda text: BlockingLLM(default=text),
    "engine": lambda text: EngineLLM(engine=GatedLLM(text), max_tokens=400),
}
LLMS: dict[str, Callable[[], Any]] = {
    "remote": lambda: FakeLLM(answers=answer, context_window=900, num_output=60),
    "completion": lambda: FakeLLM(answers=answer, context_window=900, num_output=60, is_chat=False),
    "blocking": lambda: BlockingLLM(answers=answer, context_window=900, num_output=60),
    "engine": lambda: EngineLLM(engine=GatedLLM(answer), context_window=900, max_tokens=60),
}


def engine_of(
    written: str = "list",
    *,
    mode: str = "compact",
    llm: str = "remote",
    writer: str = "remote",
    use_async: bool = False,
    **settings: Any,
) -> Callable[[CallbackManager], Any]:
    def make(manager: CallbackManager) -> Any:
        tools = []
        for name, count in (("north", 8), ("south", 5)):
            made = index(FakeEmbedding(), count=count)
            part = made.as_query_engine(llm=LLMS[llm](), response_mode=mode, similarity_top_k=4, **settings)
            part.callback_manager = part._retriever.callback_manager = manager
            part._response_synthesizer.callback_manager = manager
            tools.append(QueryEngineTool.from_defaults(part, name=name, description=f"about the {name}"))
        asking = WRITERS[writer](WRITTEN[written])
        asking.callback_manager = manager
        return SubQuestionQueryEngine(
            LLMQuestionGenerator.from_defaults(llm=asking),
            get_response_synthesizer(llm=FakeLLM(answers=answer), callback_manager=manager),
            tools,
            callback_manager=manager,
            verbose=False,
            use_async=use_async,
        )

    return make


BOTH = ("query", "aquery")


@pytest.mark.parametrize("llm", LLMS)
@pytest.mark.parametrize(
    "mode", ["compact", "refine", "simple_summarize", "tree_summarize", "accumulate", "compact_accumulate"]
)
def test_every_synthesizer_on_every_kind_of_model(mode: str, llm: str) -> None:
    assert_same_index(engine_of(mode=mode, llm=llm), QUESTION, entries=BOTH)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("written", WRITTEN)
def test_whatever_the_model_writes(written: str, writer: str) -> None:
    assert_same_index(engine_of(written, writer=writer), QUESTION, entries=BOTH)


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize"])
def test_in_a_loop_of_their_own(mode: str) -> None:
    assert_same_index(engine_of(mode=mode, use_async=True), QUESTION, entries=BOTH, ordered=False)


class Own(SimilarityPostprocessor):
    """A postprocessor of the user's."""

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        return list(reversed(nodes))


FILTERS: dict[str, Callable[[], list[Any]]] = {
    "some nodes": lambda: [SimilarityPostprocessor(similarity_cutoff=0.2415)],
    "no nodes": lambda: [SimilarityPostprocessor(similarity_cutoff=2.0)],
    "another order": lambda: [LongContextReorder()],
    "other texts": lambda: [MetadataReplacementPostProcessor(target_metadata_key="window")],
    "all of it": lambda: [
        LongContextReorder(),
        MetadataReplacementPostProcessor(target_metadata_key="window"),
        SimilarityPostprocessor(similarity_cutoff=0.2415),
    ],
}


@pytest.mark.parametrize("mode", ["compact", "accumulate", "tree_summarize"])
@pytest.mark.parametrize("name", FILTERS)
def test_postprocessors_that_only_leave_out_reorder_or_replace(name: str, mode: str) -> None:
    def make(manager: CallbackManager) -> Any:
        made = engine_of(mode=mode, node_postprocessors=FILTERS[name]())(manager)
        for part in made._query_engines.values():
            for node in part._retriever._docstore.docs.values():
                node.metadata["window"] = f"around {node.node_id}"
        return made

    assert_same_index(make, QUESTION, entries=BOTH)
    plan = fineflow.explain(make(CallbackManager([])))
    assert [p.name for p in plan.e_graph or ()][-1] == "aggregate"


def test_nodes_are_left_as_stock_leaves_them() -> None:
    """Replacing texts changes nodes; what is done ahead changes copies of them."""
    gate = Gate()
    made = engine_of(node_postprocessors=FILTERS["other texts"]())(CallbackManager([]))
    stored = [n for part in made._query_engines.values() for n in part._retriever._docstore.docs.values()]
    before = [node.get_content() for node in stored]
    for node in stored:
        node.metadata["window"] = f"around {node.node_id}"
    for part in made._query_engines.values():
        part._response_synthesizer._llm = FakeLLM(answers=answer, gate=gate)
    # Stock searches for the first question at once; only the graph gets to the nodes of the others.
    made._query_engines["north"]._retriever._vector_store = FakeStore(gate=(searching := Gate()))
    call = threading.Thread(target=fineflow.optimize(made, strict=True).query, args=(QUESTION,))
    call.start()
    gate.wait_arrived(2)  # both questions for the south
    assert [node.get_content() for node in stored] == before
    searching.open()
    gate.open()
    call.join(10)
    assert not call.is_alive()


def test_a_tool_that_is_not_known_from_end_to_end_is_left_to_stock() -> None:
    make = engine_of(node_postprocessors=[Own()])
    assert_same_index(make, QUESTION, entries=BOTH)
    assert "Own after its search is not recognised" in str(fineflow.explain(make(CallbackManager([])), graphs=True))


def test_nothing_overtakes_a_tool_that_may_be_user_code() -> None:
    class Own(CustomQueryEngine):
        def custom_query(self, query_str: str) -> str:
            return f"said of {query_str}"

    def make(manager: CallbackManager) -> Any:
        made = engine_of()(manager)
        made._query_engines["south"] = Own(callback_manager=manager)
        return made

    assert_same_index(make, QUESTION, entries=BOTH)
    plan = fineflow.explain(make(CallbackManager([])))
    assert [p.name for p in plan.e_graph or ()] == ["SubQuestionQueryEngine"]


def test_a_docstore_that_may_be_anywhere_is_read_by_stock_alone() -> None:
    class Remote(SimpleKVStore):
        """Of an integration."""

    def make(manager: CallbackManager) -> Any:
        made = engine_of()(manager)
        for part in made._query_engines.values():
            part._retriever._docstore._kvstore.__class__ = Remote
        return made

    assert_same_index(make, QUESTION, entries=BOTH)
    shown = str(fineflow.explain(make(CallbackManager([])), graphs=True))
    assert "once more than in stock" in " ".join(shown.split())


@pytest.mark.parametrize("name", ["get_document", "get", "format_messages"])
def test_methods_put_on_what_is_read_ahead_are_called_as_often_as_by_stock(name: str) -> None:
    seen = []
    for way in (lambda engine: engine, lambda engine: fineflow.optimize(engine, strict=True, eager=True)):
        made, calls = engine_of()(CallbackManager([])), []
        docstore = made._query_engines["north"]._retriever._docstore
        holders = {"get_document": docstore, "get": docstore._kvstore, "format_messages": made._question_gen._prompt}
        own = getattr(holder := holders[name], name)

        def put(*args: Any, own: Any = own, calls: list[Any] = calls, **kwargs: Any) -> Any:
            calls.append(args)
            return own(*args, **kwargs)

        holder.__dict__[name] = put
        seen.append((str(way(made).query(QUESTION)), len(calls)))
    assert seen[0] == seen[1]
    assert seen[0][1] > 0


def test_tools_and_models_that_are_replaced_later_are_used() -> None:
    found = fineflow.optimize(engine_of()(CallbackManager([])), strict=True)
    found.query(QUESTION)
    north = found._query_engines["north"]
    found._query_engines["south"] = index(FakeEmbedding()).as_query_engine(llm=FakeLLM(default="of the new south"))
    north._response_synthesizer._llm = FakeLLM(default="of the new north")
    sources = str(found.query(QUESTION).source_nodes)
    assert sources.count("of the new south") == sources.count("of the new north") == 2
    assert found._self_last.unclaimed == 0


def test_answers_are_claimed_and_none_is_given_in_vain() -> None:
    gate = Gate()
    made = fineflow.optimize(engine_of(mode="refine")(CallbackManager([])), strict=True)
    for part in made._query_engines.values():
        part._response_synthesizer._llm = FakeLLM(answers=answer, gate=gate, context_window=900, num_output=60)
    call = threading.Thread(target=made.query, args=(QUESTION,))
    call.start()
    gate.wait_arrived(4)  # stock is at the first question, the graph at the first answer to each
    gate.open()
    call.join(10)
    assert not call.is_alive()
    assert made._self_last.unclaimed == 0
    assert made._self_last.claimed >= 3 * 3  # a vector, a search and an answer for each of the other questions


def test_sync_calls_answer_questions_side_by_side() -> None:
    gate = Gate()
    made = engine_of()(CallbackManager([]))
    for part in made._query_engines.values():
        part._response_synthesizer._llm = FakeLLM(answers=answer, gate=gate)
    call = threading.Thread(target=fineflow.optimize(made, strict=True).query, args=(QUESTION,))
    call.start()
    gate.wait_arrived(4)  # stock asks for the second when the first has been answered
    gate.open()
    call.join(10)
    assert not call.is_alive()


def test_a_question_is_answered_while_the_next_is_written() -> None:
    tokens, answered, store = Gate(), threading.Event(), FakeStore()

    def said(prompt: str) -> str:
        if "where is the tower" in prompt:
            answered.set()
        return answer(prompt)

    part = index(EngineEmbedding(GatedBatches()), store).as_query_engine(llm=FakeLLM(answers=said))
    writer = EngineLLM(engine=GatedLLM(json.dumps(ASKED[:3:2]), token_gate=tokens), max_tokens=200)
    made = SubQuestionQueryEngine(
        LLMQuestionGenerator.from_defaults(llm=writer),
        get_response_synthesizer(llm=FakeLLM()),
        [QueryEngineTool.from_defaults(part, name="north", description="north")],
        verbose=False,
    )
    call = threading.Thread(target=fineflow.optimize(made, strict=True).query, args=(QUESTION,))
    call.start()
    tokens.let(7)  # the first object is closed, the second has not begun
    assert answered.wait(10), "the first question was not answered before the second was written"
    assert store.meter.labels == ["where is the tower"]
    tokens.open()
    call.join(10)
    assert not call.is_alive()
    assert store.meter.calls == 2
