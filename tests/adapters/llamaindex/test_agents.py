"""Tools and agents: stock runs them, their engines and retrievers run sooner, and nothing holds up the event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from index_shapes import QUESTION, answer, engine_of, index
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.tools import FunctionTool, QueryEngineTool, RetrieverTool, ToolSelection
from workflows.errors import WorkflowCancelledByUser

import fineflow
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate
from fineflow.testing.leaks import left, settled
from fineflow.testing.llamaindex.fakes import BlockingEmbedding, BlockingLLM, FakeLLM, FakeStore
from fineflow.testing.llamaindex.recording import Legacy, recording, shown
from fineflow.testing.stalls import held

NOBODY = CallbackManager([])
THOUGHT = 'Thought: I need to use a tool.\nAction: town\nAction Input: {"input": "where is the bridge"}'
DONE = "Thought: I can answer without using any more tools.\nAnswer: "


def react(prompt: str) -> str:
    """Asks the tool, and then says what it was told."""
    seen = re.findall(r"Observation: (Response 1: The answer number \d+)", prompt)
    return f"{DONE}{seen[-1]}" if seen else THOUGHT


def react_any(prompt: str) -> str:
    return f"{DONE}The answer number 1" if "Observation: The answer" in prompt else THOUGHT


class Calling(FakeLLM, FunctionCallingLLM):
    """A model that calls one of its tools after the other, and then says what they returned."""

    @property
    def metadata(self) -> LLMMetadata:
        return super().metadata.model_copy(update={"is_function_calling_model": True})

    def _prepare_chat_with_tools(self, tools: Sequence[Any], **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        return {"messages": kwargs["chat_history"], "names": [tool.metadata.name for tool in tools]}

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        told = [message.content for message in messages if message.role.value == "tool"]
        names = kwargs["names"][len(told) : len(told) + 1]
        calls = [{"id": f"call {name}", "name": name} for name in names]
        said = "" if calls else " and ".join(str(text)[:40] for text in told)
        return ChatResponse(
            message=ChatMessage(
                role="assistant", content=said, additional_kwargs={"tool_calls": calls} if calls else {}
            )
        )

    def get_tool_calls_from_response(self, response: ChatResponse, **_: Any) -> list[ToolSelection]:  # type: ignore[override]
        calls = response.message.additional_kwargs.get("tool_calls", [])
        return [
            ToolSelection(tool_id=each["id"], tool_name=each["name"], tool_kwargs={"input": QUESTION}) for each in calls
        ]


def town(make: Callable[[CallbackManager], Any] | None = None, name: str = "town") -> QueryEngineTool:
    engine = (make or engine_of("accumulate"))(NOBODY)
    return QueryEngineTool.from_defaults(engine, name=name, description=f"about the {name}")


def facts() -> RetrieverTool:
    return RetrieverTool.from_defaults(
        index().as_retriever(similarity_top_k=2),
        [SimilarityPostprocessor(similarity_cutoff=0.0)],
        name="facts",
        description="facts",
    )


def function_agent(*tools: Any, **settings: Any) -> FunctionAgent:
    return FunctionAgent(
        name="guide", description="guides", tools=list(tools), llm=Calling(), streaming=False, **settings
    )


def react_agent(*tools: Any) -> ReActAgent:
    return ReActAgent(name="thinker", description="thinks", tools=list(tools), llm=FakeLLM(answers=react))


def several() -> AgentWorkflow:
    agents = [function_agent(town(), facts(), can_handoff_to=[]), react_agent(town())]
    return AgentWorkflow(agents=agents, root_agent="guide")


AGENTS: dict[str, Callable[[], Any]] = {
    "functions": lambda: function_agent(town(), facts(), FunctionTool.from_defaults(lambda input: input, name="echo")),
    "thoughts": lambda: react_agent(town()),
    "several": several,
}


def observed(agent: Any) -> dict[str, Any]:
    """What a caller can see of a run: events, result, spans."""

    async def run() -> tuple[list[Any], Any]:
        handler = agent.run(user_msg=QUESTION)
        events = [event async for event in handler.stream_events()]
        result = await handler
        return [(type(event).__name__, event.model_dump_json(exclude={"tool_id"})) for event in events], result

    with recording() as recorder:
        events, result = asyncio.run(run())
    return {
        "events": sorted(map(unnumbered, events)),
        "result": str(result),
        "tools": sorted((call.tool_name, call.tool_output.content) for call in result.tool_calls),
        "spans": unnumbered(recorder.tree(False)),
    }


def unnumbered(value: Any) -> str:
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "id", repr(value))


@pytest.mark.parametrize("kind", AGENTS)
def test_a_run_is_that_of_stock(kind: str) -> None:
    stock, ours = observed(AGENTS[kind]()), observed(fineflow.optimize(AGENTS[kind](), strict=True))
    assert ours == stock
    assert any("The answer number" in content for _, content in ours["tools"])


def test_tools_of_an_agent_run_sooner() -> None:
    gate = Gate()
    llm = FakeLLM(answers=answer, gate=gate, context_window=900, num_output=60)
    agent = function_agent(town(engine_of("tree_summarize", lambda: llm)))
    tool: Any = next(iter(agent.tools or ()))
    optimized = fineflow.optimize(agent, strict=True)

    async def run() -> Any:
        handler = optimized.run(user_msg=QUESTION)
        await gate.arrived(1)
        gate.open()
        return await handler

    assert asyncio.run(run()).tool_calls
    made: Any = optimized
    last = made._self_parts[id(tool)]._self_parts[id(tool.query_engine)]._self_last
    assert last is not None and not last.unclaimed
    assert agent.tools == [tool]  # the user's agent stays as it is
    assert type(tool) is QueryEngineTool
    assert type(tool.query_engine).__name__ == "RetrieverQueryEngine"


def test_changes_to_an_agent_count_from_the_next_run_on() -> None:
    agent = function_agent(town())
    optimized: Any = fineflow.optimize(agent, strict=True)
    assert {name for name, _ in observed(optimized)["tools"]} == {"town"}
    agent.tools.append(facts())  # type: ignore[union-attr]
    assert {name for name, _ in observed(optimized)["tools"]} == {"town", "facts"}
    agent.tools = [facts()]
    assert {name for name, _ in observed(optimized)["tools"]} == {"facts"}


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
@pytest.mark.parametrize("kind", ["functions", "thoughts"])
def test_the_event_loop_is_not_held(kind: str) -> None:
    engine = index(BlockingEmbedding(latency=0.5), FakeStore()).as_query_engine(
        llm=BlockingLLM(answers=answer, latency=0.5), response_mode="compact", similarity_top_k=2
    )
    tool = QueryEngineTool.from_defaults(engine, name="town", description="about the town")
    thinker = ReActAgent(tools=[tool], llm=BlockingLLM(answers=react_any, latency=0.5))
    agent = function_agent(tool) if kind == "functions" else thinker
    optimized: Any = fineflow.optimize(agent, strict=True)

    async def run(agent: Any) -> Any:
        return str(await agent.run(user_msg=QUESTION))

    seen = held(lambda: run(optimized))
    assert "The answer number" in seen.value
    assert seen.seconds < 0.1, f"{seen.by} held the loop for {seen.seconds:.3f} s"
    assert held(lambda: run(agent), warm=False).seconds >= 0.5


def test_an_agent_of_your_own_is_left_to_stock() -> None:
    class Own(FunctionAgent):
        pass

    agent = Own(tools=[town()], llm=Calling(), streaming=False)
    optimized: Any = fineflow.optimize(agent, strict=True)
    assert optimized._self_runs() is agent
    assert observed(optimized)["tools"]


# Tools


@pytest.mark.parametrize("make", [town, facts], ids=["query engine", "retriever"])
def test_a_tool_says_what_stock_says(make: Callable[[], Any]) -> None:
    def told(tool: Any, entry: str) -> Any:
        handler = Legacy()
        with recording() as recorder:
            call = getattr(tool, entry)(QUESTION)
            output = asyncio.run(call) if entry == "acall" else call
        return [
            output.content,
            output.tool_name,
            output.raw_input,
            shown(output.raw_output),
            recorder.tree(False),
            handler.tree(False),
        ]

    optimized = fineflow.optimize(make(), strict=True)
    assert isinstance(optimized, QueryEngineTool | RetrieverTool)
    for entry in ("call", "acall", "__call__"):
        assert told(optimized, entry) == told(make(), entry)
    assert optimized.metadata.name in ("town", "facts")
    assert "stock runs it" in str(fineflow.explain(optimized, graphs=True))


def test_a_tool_answers_side_by_side_in_a_sync_call() -> None:
    gate = Gate()
    tool = fineflow.optimize(town(engine_of("accumulate", lambda: FakeLLM(answers=answer, gate=gate))), strict=True)
    call = asyncio.run(_arrived(tool, gate))
    assert call.content


async def _arrived(tool: Any, gate: Gate) -> Any:
    call = asyncio.create_task(asyncio.to_thread(tool.call, QUESTION))
    await gate.arrived(6)  # stock asks for the second answer when the first has been given
    gate.open()
    return await call


def test_other_tools_and_lists_are_left_as_they_are() -> None:
    class Own(QueryEngineTool):
        def call(self, *args: Any, **kwargs: Any) -> Any:
            return super().call(*args, **kwargs)

    own = Own(town().query_engine, town().metadata)
    echo = FunctionTool.from_defaults(lambda input: input, name="echo")
    for each in (own, echo, [town()]):
        with pytest.warns(fineflow.FineflowWarning, match="it is left as it is"):
            assert fineflow.optimize(each) is each


def test_optimized_tools_in_a_sub_question_engine_are_those_of_the_user() -> None:
    tool = fineflow.optimize(town())
    generator = LLMQuestionGenerator.from_defaults(llm=FakeLLM())
    engine = SubQuestionQueryEngine.from_defaults([tool], FakeLLM(), generator, use_async=False, verbose=False)
    assert engine._query_engines["town"] is tool.query_engine


def test_a_run_that_is_cancelled_leaves_nothing_at_work() -> None:
    gate = Gate()
    llm = FakeLLM(answers=answer, gate=gate, context_window=900, num_output=60)
    agent = fineflow.optimize(function_agent(town(engine_of("tree_summarize", lambda: llm))), strict=True)

    async def run() -> None:
        handler = agent.run(user_msg=QUESTION)
        await gate.arrived(1)
        await handler.cancel_run()
        with pytest.raises(WorkflowCancelledByUser):
            await handler
        await llm.meter.idle()

    asyncio.run(run())
    before = left()
    gate.close()
    gate.arrivals = 0
    asyncio.run(run())
    assert not settled(before=before)
