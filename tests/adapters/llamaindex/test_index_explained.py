"""explain() of LlamaIndex objects: the plan, the parts of containers, and what the last call took."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, index, scored
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.agent.workflow import AgentWorkflow, ReActAgent
from llama_index.core.indices.query.query_transform.base import IdentityQueryTransform
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.tools import QueryEngineTool
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

import fineflow
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedEmbedding, EmulatedLLM
from fineflow.explanation import Explanation
from fineflow.llamaindex import EngineEmbedding, EngineLLM
from fineflow.observe import Track, timeline_html
from fineflow.observe.plan_svg import family
from fineflow.runtime import events
from fineflow.runtime.call.trace import CLAIMED, STOCK, Step, steps
from fineflow.testing import virtual
from fineflow.testing.llamaindex.fakes import BlockingLLM, FakeEmbedding, FakeLLM, FakeStore

SECONDS = 0.05


def said(prompt: str) -> str:
    return "a stone bridge\na river mill" if "search quer" in prompt else answer(prompt)


def advanced(mode: str = "accumulate", latency: float = SECONDS) -> Any:
    llm = FakeLLM(answers=said, latency=latency, context_window=900, num_output=60)
    retriever = index(FakeEmbedding(latency=latency), FakeStore(latency=latency)).as_retriever(similarity_top_k=4)
    fusion = QueryFusionRetriever([retriever], llm=llm, num_queries=3, use_async=False, similarity_top_k=4)
    return RetrieverQueryEngine.from_args(fusion, llm=llm, response_mode=ResponseMode(mode))


class Asking(Workflow):
    """Asks an engine one question."""

    def __init__(self, engine: Any) -> None:
        super().__init__(timeout=30)
        self.engine = engine

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=str(await self.engine.aquery(ev.get("question"))))


async def _result_of(workflow: Any, **given: Any) -> Any:
    return await workflow.run(**given)


def by_name(plan: Explanation) -> dict[str, Step]:
    assert plan.trace is not None
    return {each.name: each for each in steps(plan.trace)}


@pytest.mark.parametrize("entry", ["query", "aquery"])
def test_what_each_step_of_the_last_call_took(entry: str) -> None:
    found = fineflow.optimize(advanced(), strict=True, eager=True)
    if entry == "query":
        found.query(QUESTION)
    else:
        asyncio.run(found.aquery(QUESTION))
    plan = fineflow.explain(found, last_run=True)
    assert plan.trace is not None
    assert plan.trace.entry == entry
    ran = by_name(plan)
    queries, search = ran["retriever/llm.decode"], ran["retriever/0.search"]
    assert queries.taken == search.taken == (CLAIMED,)
    assert queries.ran >= SECONDS and search.ran >= SECONDS
    assert search.ready >= SECONDS  # the query was embedded before
    each = ran["retriever.queries > for each item > 0.search"]
    assert each.taken == (CLAIMED, CLAIMED)
    assert each.times == 2
    assert ran["synthesizer.texts"].taken == (STOCK,)
    assert ran["synthesizer.answers"].ready >= queries.ran
    shown = str(plan)
    assert f"Last run: {entry} took " in shown
    assert re.search("claimed +retriever/0.search", shown)
    assert "ritical path" in shown
    assert "stays as it was" in plan.to_html()


def test_the_methods_of_the_part_that_was_called_are_told() -> None:
    found = fineflow.optimize(advanced(), strict=True)
    found.retrieve(QUESTION)
    plan = fineflow.explain(found, last_run=True)
    assert plan.entries == ("retrieve", "aretrieve")
    assert "Last run: retrieve took" in str(plan)
    assert fineflow.explain(found).entries == ("query", "aquery")
    synthesizer = fineflow.optimize(
        get_response_synthesizer(llm=FakeLLM(), response_mode=ResponseMode.ACCUMULATE), strict=True
    )
    synthesizer.synthesize(QUESTION, scored())
    assert "Last run: synthesize took" in str(fineflow.explain(synthesizer, last_run=True))


def test_what_is_asked_for_at_once_counts_as_a_gain() -> None:
    shown = str(fineflow.explain(index().as_query_engine(llm=FakeLLM(), response_mode="accumulate")))
    assert "synthesizer.answers: all requests run at once" in shown
    assert "aquery runs as stock" in shown
    assert "Every step needs the one before" not in shown
    assert "Your functions" not in shown


def test_the_parts_of_a_container_are_explained_with_their_last_calls() -> None:
    found = fineflow.optimize(TransformQueryEngine(advanced(), IdentityQueryTransform()), strict=True)
    before = fineflow.explain(found)
    assert [part.name for part in before.parts] == ["RetrieverQueryEngine (query engine)"]
    assert "each of them runs ahead by itself" in str(before)
    assert before.parts[0].trace is None
    found.query(QUESTION)
    after = fineflow.explain(found, last_run=True)
    assert after.parts[0].trace is not None
    assert str(after).count("Last run: query took") == 1
    assert by_name(after.parts[0])["retriever/0.search"].taken == (CLAIMED,)
    assert after.to_html().count("<iframe") == 1


def test_tools_and_workflows_show_the_last_calls_of_what_they_call() -> None:
    tool = fineflow.optimize(QueryEngineTool.from_defaults(advanced(), name="docs", description="d"), strict=True)
    with pytest.raises(ValueError, match="no call of this one has ended"):
        fineflow.explain(tool, last_run=True)
    tool.call(QUESTION)
    engine = fineflow.explain(tool, last_run=True).parts[0]
    assert by_name(engine)["retriever/0.search"].taken == (CLAIMED,)
    workflow = fineflow.optimize(Asking(advanced()), strict=True)
    asyncio.run(_result_of(workflow, question=QUESTION))
    assert str(fineflow.explain(workflow, last_run=True)).count("Last run: aquery took") == 1


@pytest.mark.parametrize("inside", [False, True])
def test_agents_show_the_last_calls_of_their_tools(inside: bool) -> None:
    use = f'Thought: look\nAction: docs\nAction Input: {{"input": "{QUESTION}"}}'
    done = "Thought: I can answer.\nAnswer: yes"
    llm = FakeLLM(answers=lambda text: done if "Observation: Response 1" in text else use)
    tool = QueryEngineTool.from_defaults(advanced(), name="docs", description="d")
    agent = ReActAgent(name="a", description="d", tools=[tool], llm=llm, streaming=False, system_prompt="s")
    made: Any = AgentWorkflow(agents=[agent]) if inside else agent
    found = fineflow.optimize(made, strict=True)
    asyncio.run(_result_of(found, user_msg=QUESTION))
    asyncio.run(_result_of(found, user_msg=QUESTION))
    assert str(fineflow.explain(found, last_run=True)).count("Last run: aquery took") == 1


def test_a_class_has_no_plan_and_it_is_said_what_to_explain() -> None:
    for given in (VectorStoreIndex, fineflow.optimize(VectorStoreIndex)):
        shown = str(fineflow.explain(given))
        assert shown.startswith("Plan for class VectorStoreIndex")
        assert "what a class builds depends on its arguments" in " ".join(shown.split())
        assert "explain an object of it" in " ".join(shown.split())
    shown = str(fineflow.explain(TransformQueryEngine))
    assert shown.startswith("Plan for class TransformQueryEngine")
    assert "explain an object of it" in " ".join(shown.split())


def test_what_is_done_in_threads_is_told() -> None:
    llm = BlockingLLM(default="ok")
    shown = str(fineflow.explain(index().as_query_engine(llm=llm, response_mode="simple_summarize")))
    assert "stock's aquery would block the event loop" in shown


def test_no_call_no_figures() -> None:
    class Plain(CustomQueryEngine):
        def custom_query(self, query_str: str) -> str:
            return query_str

    with pytest.raises(ValueError, match="which is not optimized"):
        fineflow.explain(advanced(), last_run=True)
    found = fineflow.optimize(advanced(), strict=True)
    with pytest.raises(ValueError, match="no call of this one has ended in which anything ran ahead"):
        fineflow.explain(found, last_run=True)
    plain = fineflow.optimize(Plain(), strict=True)
    plain.query(QUESTION)
    with pytest.raises(ValueError, match="no call of this one has ended"):
        fineflow.explain(plain, last_run=True)


def test_what_was_measured_is_predicted() -> None:
    found = fineflow.optimize(advanced(), strict=True)
    for _ in range(3):
        found.query(QUESTION)
    forecasts = fineflow.explain(found).forecasts
    assert forecasts is not None
    assert not forecasts.run.believed
    assert forecasts.run.each["retriever/llm.decode"] == pytest.approx(SECONDS, rel=0.9)
    alone, together = forecasts.written_sync.each["synthesizer.answers"], forecasts.run.each["synthesizer.answers"]
    assert alone == pytest.approx(4 * together)  # stock's sync method asks about one text after the other


def test_pictures_and_timelines_show_what_ran() -> None:
    found = fineflow.optimize(advanced(), strict=True)
    with events.record() as intervals:
        found.query(QUESTION)
    lanes = Counter(interval.lane for interval in intervals)
    assert lanes["FakeEmbedding"] == lanes["FakeStore"] == 3  # the query, and two more
    assert lanes["FakeLLM"] >= 1
    assert {interval.label for interval in intervals if interval.lane == "FakeLLM"} >= {"retriever/llm.decode"}
    page = timeline_html([Track("fineflow", intervals)])
    assert all(lane in page for lane in lanes)
    plan = fineflow.explain(found, last_run=True)
    assert plan.e_graph is not None
    assert family(plan.e_graph["synthesizer.texts"]) == "flow"
    assert "retriever.queries" in plan.to_mermaid()


def test_prefills_say_what_was_cached_already() -> None:
    """Beginnings that are in the cache are not sent: the constant one, and those of the refine prompts."""
    costs.forget()
    rules = " ".join(f"rule {number}" for number in range(200))
    llm = EngineLLM(engine=EmulatedLLM(lambda _: "a stone bridge in the north"))
    retriever = VectorStoreIndex.from_documents(
        [Document(text=f"text {number} " + "word " * 200) for number in range(3)],
        embed_model=EngineEmbedding(engine=EmulatedEmbedding()),
    ).as_retriever(similarity_top_k=3)
    engine = RetrieverQueryEngine.from_args(
        retriever,
        llm=llm,
        response_mode=ResponseMode.REFINE,
        text_qa_template=PromptTemplate(rules + " Context: {context_str} Question: {query_str}"),
        refine_template=PromptTemplate(
            rules + " Context: {context_msg} Question: {query_str} So far: {existing_answer}"
        ),
    )
    found = fineflow.optimize(engine, strict=True)

    async def ask() -> dict[str, Step]:
        await found.aquery("Where is it?")
        return by_name(fineflow.explain(found, last_run=True))

    async def twice() -> tuple[dict[str, Step], dict[str, Step]]:
        return await ask(), await ask()

    first, second = virtual.run(twice()).value
    begun, refined = "synthesizer.partial_prefill", "synthesizer.answers"
    assert first[begun].warmed == ("384 of 384 tokens prefilled",)
    assert re.fullmatch(r"\d{3} of \d{4} tokens prefilled", first[refined].warmed[0])  # the rules are cached by then
    assert second[begun].warmed == ("cached already: 384 of 384 tokens",)
    assert re.fullmatch(r"cached already: (\d{4}) of \1 tokens", second[refined].warmed[0])


class Lines(BaseRetriever):
    """A retriever of the user's, which works on the event loop."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return scored()[:1]


def test_names_classes_of_the_users_that_block_the_event_loop() -> None:
    llm = FakeLLM(answers=answer)
    plan = str(fineflow.explain(RetrieverQueryEngine.from_args(Lines(), llm=llm, response_mode=ResponseMode.COMPACT)))
    assert re.search(r"fineflow.external\(Lines\)\s+gains: work with which stock's aquery would block", plan)
    trusted = fineflow.optimize(RetrieverQueryEngine.from_args(Lines(), llm=llm), trust="interfaces")
    assert "external(Lines)" not in str(fineflow.explain(trusted))
