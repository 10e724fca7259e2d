"""Component calls inside the user's own LlamaIndex classes run ahead, with the results and the reports of stock."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from benchmarks.public.llamaindex_apps import APPS
from benchmarks.public.llamaindex_kit import QUESTION, App, Kit, nodes
from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import ChatMessage, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from test_workflows import observed

import fineflow
from fineflow.adapters.llamaindex import inner_calls
from fineflow.adapters.llamaindex.reading import reading_of
from fineflow.adapters.lookahead import aliases
from fineflow.errors import FineflowWarning
from fineflow.options import Options
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Gate, Meter
from fineflow.testing.leaks import left, settled
from fineflow.testing.llamaindex.differential import assert_same_index
from fineflow.testing.llamaindex.fakes import FakeLLM

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")


class Loop(CustomQueryEngine):
    """Engine whose one method is a function of a test. state: of the engine's own."""

    llm: Any
    retriever: Any = None
    index: Any = None
    state: Any = None

    def custom_query(self, query_str: str) -> str:
        raise NotImplementedError


@functools.cache
def kind_of(function: Any) -> type[Loop]:
    return type(function.__name__, (Loop,), {"custom_query": function, "__module__": __name__})


def engine(function: Callable[[Any, str], Any], kit: Kit, llm: Any = None, **more: Any) -> Loop:
    made = {"llm": llm or kit.llm(), "retriever": kit.retriever(nodes()), "index": kit.index(nodes()), **more}
    return kind_of(function)(callback_manager=kit.manager, **made)


def each_node(self: Any, query: str) -> str:
    said = []
    for node in self.retriever.retrieve(query):
        said.append(self.llm.complete(f"Summarize {node.text}").text)
    return "\n".join(said)


def first_relevant(self: Any, query: str) -> str:
    for node in self.retriever.retrieve(query):
        if "yes" in self.llm.complete(f"Relevant? DOC {node.text}").text:
            return str(node.text)
    return "nothing"


def until_enough(self: Any, query: str) -> str:
    found: list[str] = []
    for node in self.retriever.retrieve(query):
        found.append(self.llm.complete(f"Summarize {node.text}").text)
        if len(" ".join(found)) > 30:
            break
    return " ".join(found)


def refined(self: Any, query: str) -> str:
    answer = ""
    for node in self.retriever.retrieve(query):
        answer = self.llm.complete(f"Improve {answer} with {node.text}").text
    return answer


def twice(self: Any, query: str) -> str:
    return self.llm.complete(query).text + self.llm.complete(query).text


def counting(self: Any, query: str) -> str:
    said = []
    for node in self.retriever.retrieve(query):
        self.state.append(node.node_id)
        said.append(self.llm.complete(f"Summarize {node.text}").text)
        self.state.append(said[-1])
    return "".join(said)


def changing(self: Any, query: str) -> str:
    bundle = QueryBundle(query)
    first = self.retriever.retrieve(bundle)
    bundle.query_str = "another question"
    second = self.retriever.retrieve(bundle)
    for node in first:
        node.node.text = f"changed {node.node.text}"
    return self.llm.complete(" ".join(node.text for node in [*first, *second])).text


def caught(self: Any, query: str) -> str:
    said = []
    for node in self.retriever.retrieve(query):
        try:
            said.append(self.llm.complete(f"Summarize {node.text}").text)
        except ConnectionError as error:
            said.append(f"failed: {error}")
    return "\n".join(said)


def by_settings(self: Any, query: str) -> str:
    return "\n".join(Settings.llm.complete(f"Summarize {node.text}").text for node in self.retriever.retrieve(query))


def made_in_a_loop(self: Any, query: str) -> str:
    said = []
    for word in query.split():
        found = self.index.as_retriever(similarity_top_k=2).retrieve(word)
        said.append(self.llm.complete(f"Summarize {found[0].text}").text)
    return "\n".join(said)


def engines_in_a_loop(self: Any, query: str) -> str:
    ask = self.index.as_query_engine(llm=self.llm, similarity_top_k=2)
    return "\n".join(str(ask.query(f"{word} {query}")) for word in ("where", "when"))


def growing_chat(self: Any, query: str) -> str:
    """A history that each answer is added to."""
    history = [ChatMessage(role="user", content=query)]
    for number in range(3):
        answer = self.llm.chat(history).message
        history.append(answer)
        history.append(ChatMessage(role="user", content=f"More about {number}"))
    return str(self.llm.chat(history).message.content)


def synthesized(self: Any, query: str) -> str:
    """Nodes that are changed between two answers from them."""
    found = self.retriever.retrieve(query)
    maker = self.state[0] if self.state else None
    if maker is None:
        return "no synthesizer"
    first = str(maker.synthesize(query, found))
    found[0].node.text = "changed"
    return first + str(maker.synthesize(query, found)) + str(maker.synthesize("again", found))


FUNCTIONS = (
    *(each_node, first_relevant, until_enough, refined, twice, counting, changing, caught, by_settings),
    *(made_in_a_loop, engines_in_a_loop, growing_chat),
)


def failing(at: str) -> Callable[[str], Any]:
    def answer(prompt: str) -> Any:
        if "yes" in at or at not in prompt:
            return f"summary of {len(prompt)}"
        return ConnectionError("no route")

    return answer


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("at", ["nowhere", "Lyon", "Rivers"])
def test_same(function: Any, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, failures, reports, and what functions store."""
    states: list[list[str]] = []
    meters: list[Meter] = []

    def make(manager: CallbackManager) -> Any:
        kit = Kit(0, manager)
        states.append([])
        llm = kit.llm(failing(at))
        meters.append(llm.meter)
        monkeypatch.setattr(Settings, "_llm", llm)
        return engine(function, kit, llm, state=states[-1])

    assert_same_index(make, QUESTION, entries=("query", "aquery"))
    # The first object is the one that finds out about entry points.
    for stock, mine in ((1, 2), (3, 4)):
        assert states[mine] == states[stock]
        more = at != "nowhere" and function is not caught  # of what runs beside a call that fails
        assert meters[mine].calls == meters[stock].calls or (more and meters[mine].calls > meters[stock].calls)


def test_making_an_engine_early_does_not_change_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new engine sets its model's callback manager (llama-index-core 0.14.25); only stock's engines may do so."""
    own, sets, llm = FakeLLM.__setattr__, list[str](), FakeLLM()

    def counted(self: Any, name: str, value: Any) -> None:
        if self is llm:
            sets.append(name)
        own(self, name, value)

    monkeypatch.setattr(FakeLLM, "__setattr__", counted)
    seen = []
    for run in (lambda obj: obj, partial(fineflow.optimize, strict=True, eager=True)):
        kit = Kit(0)
        llm = kit.llm()
        made = run(engine(engines_in_a_loop, kit, llm))
        sets.clear()
        made.query(QUESTION)
        seen.append(list(sets))
    assert seen[1] == seen[0] == ["callback_manager"] * 2


def test_nodes_that_change_between_answers() -> None:
    def make(manager: CallbackManager) -> Any:
        kit = Kit(0, manager)
        maker = get_response_synthesizer(llm=kit.llm(), callback_manager=manager)
        return engine(synthesized, kit, state=[maker])

    assert "answer" in str(assert_same_index(make, QUESTION, entries=("query",))["query"].text)


@pytest.mark.parametrize("name", [name for name, app in APPS.items() if app.entry == "run"])
def test_workflows(name: str) -> None:
    app: App = APPS[name]
    assert seen(app.make(Kit(0))) == seen(fineflow.optimize(app.make(Kit(0)), strict=True, eager=True))


def seen(flow: Any) -> Any:
    return observed(flow, query_str=QUESTION)


@pytest.mark.parametrize("name", [name for name, app in APPS.items() if app.entry == "run"])
def test_a_workflow_that_fails(name: str) -> None:
    def made() -> Any:
        kit = Kit(0)
        flow = APPS[name].make(kit)
        flow.llm.answers = lambda prompt: ConnectionError("gone") if "town" in prompt or "Combine" in prompt else "yes"
        return flow

    stock, mine = seen(made()), seen(fineflow.optimize(made(), strict=True, eager=True))
    assert stock["result"] == ["ConnectionError", "gone"]
    assert mine["result"] == stock["result"] and mine["events"] == stock["events"]


class GatewayLLM(CustomLLM):
    """A model behind a company's gateway: a class of the user's own."""

    seconds: float = 0.0
    meter: Any = None

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        time.sleep(self.seconds)
        return CompletionResponse(text=f"{len(prompt)} letters")

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


class ApiRetriever(BaseRetriever):
    """A retriever of the user's own that calls one service."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        time.sleep(self.seconds)
        return [NodeWithScore(node=node, score=1.0) for node in nodes()]


def with_own_classes(seconds: float) -> Any:
    return engine(each_node, Kit(0), GatewayLLM(seconds=seconds), retriever=ApiRetriever(seconds))


@needs_virtual_threads
@pytest.mark.parametrize(("trust", "seconds"), [("packages", 4.0), ("interfaces", 2.0)])
def test_trust(trust: str, seconds: float) -> None:
    """Classes of the user's own run ahead if their interfaces are believed."""
    expected = with_own_classes(0).query(QUESTION).response
    fast = fineflow.optimize(with_own_classes(1), strict=True, trust=trust)
    ran = virtual_threads.run(lambda: fast.query(QUESTION).response)
    assert ran.value == expected
    assert ran.seconds == pytest.approx(seconds, abs=0.1)


@pytest.mark.parametrize("module", ["fineflow.testing.llamaindex.fakes", "numpy.somewhere"])
def test_classes_of_installed_packages_are_believed(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only LlamaIndex's own: any that is installed, and not in development mode."""
    for kind in (GatewayLLM, ApiRetriever):
        monkeypatch.setattr(kind, "__module__", module)
    assert reading_of(ApiRetriever(0), Options()).refused == ""
    monkeypatch.setattr(ApiRetriever, "__module__", "app.retrievers")
    assert "class of your own" in reading_of(ApiRetriever(0), Options()).refused


def test_many_callers() -> None:
    """One optimized engine serves many callers at once, sync and async."""
    fast: Any = fineflow.optimize(engine(each_node, Kit(0)), strict=True, eager=True)
    expected = [str(engine(each_node, Kit(0)).query(f"question {i}")) for i in range(16)]

    async def calls() -> list[str]:
        found = await asyncio.gather(*(fast.aquery(f"question {i}") for i in range(8)))
        more = await asyncio.gather(*(asyncio.to_thread(fast.query, f"question {i}") for i in range(8, 16)))
        return [str(each) for each in (*found, *more)]

    assert asyncio.run(calls()) == expected


def test_fast_calls_are_left_to_stock() -> None:
    """Calls that take no time are not worth running ahead; the first call may find that out."""
    llm = FakeLLM()
    fast = fineflow.optimize(engine(each_node, Kit(0), llm), strict=True)
    for _ in range(3):
        fast.query(QUESTION)
    before = llm.meter.calls
    fast.query(QUESTION)
    assert llm.meter.calls == before + 3
    assert llm.meter.peak == 1 or before == 0 or llm.meter.peak <= 3


def test_a_cancelled_call_leaves_nothing_behind() -> None:
    class Flow(CustomQueryEngine):
        llm: Any

        def custom_query(self, query_str: str) -> str:
            raise NotImplementedError

        async def acustom_query(self, query_str: str) -> str:
            return "".join([(await self.llm.acomplete(f"{query_str} {i}")).text for i in range(4)])

    gate = Gate()
    llm = FakeLLM(gate=gate)
    before = left()
    fast = fineflow.optimize(Flow(llm=llm), strict=True, eager=True)

    async def run() -> None:
        call = asyncio.create_task(fast.aquery(QUESTION))
        await gate.arrived(4)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await llm.meter.idle()

    asyncio.run(run())
    assert not settled(before=before)


def test_a_fault_of_ours_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("a fault")

    fast = fineflow.optimize(engine(each_node, Kit(0)), eager=True)
    fast.query(QUESTION)
    monkeypatch.setattr(inner_calls.IndexComponents, "method", broken)
    with pytest.warns(FineflowWarning, match="a fault"):
        answer = str(fast.query(QUESTION))
    assert answer == str(engine(each_node, Kit(0)).query(QUESTION))


@needs_virtual_threads
@pytest.mark.parametrize(("function", "seconds"), [(made_in_a_loop, 1.25), (engines_in_a_loop, 1.25)])
def test_components_made_in_the_function(function: Any, seconds: float) -> None:
    made = fineflow.optimize(engine(function, Kit(1)), strict=True)
    assert virtual_threads.run(lambda: made.query(QUESTION)).seconds == pytest.approx(seconds, abs=0.1)


def test_a_walk_looks_once_at_what_a_component_holds(monkeypatch: pytest.MonkeyPatch, walks: list[Any]) -> None:
    """The function changes the score of each document that its searches return: perhaps the store's own."""
    looked: list[tuple[int, int]] = []
    reach = aliases.reachable

    def counted(obj: Any, *args: Any) -> Any:
        if isinstance(obj, BaseRetriever):
            looked.append((len(walks), id(obj)))
        return reach(obj, *args)

    monkeypatch.setattr(aliases, "reachable", counted)
    app = APPS["fusion by hand"]
    assert str(fineflow.optimize(app.make(Kit(0)), eager=True).query(QUESTION)) == str(app.make(Kit(0)).query(QUESTION))
    assert looked
    assert len(set(looked)) == len(looked)


def test_explain_says_so() -> None:
    shown = str(fineflow.explain(engine(each_node, Kit(0)), graphs=True))
    assert "calls of `retriever`, `llm` in it that need nothing from each other start together" in " ".join(
        shown.split()
    )


class Asking(Workflow):
    """Asks several questions by hand, as tutorials of workflows do."""

    def __init__(self, llm: Any) -> None:
        super().__init__()
        self.llm = llm

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        said = [str(await self.llm.acomplete(f"{ev.query} {part}")) for part in range(3)]
        return StopEvent(result=" ".join(said))


@needs_virtual_threads
def test_explain_names_steps_of_workflows() -> None:
    flow: Any = fineflow.optimize(Asking(Kit(1).llm()), strict=True)
    before = str(fineflow.explain(flow))
    assert "Component calls inside of 1 step start as soon as their inputs are known" in before
    assert "ask  calls of `Asking`" not in before

    async def run() -> Any:
        return await flow.run(query="Who?")

    assert virtual_threads.run(lambda: asyncio.run(run())).seconds == pytest.approx(1, abs=0.1)
    after = fineflow.explain(flow)
    assert after.last is None  # of a workflow's run only the beginning is known
    assert [visit.saved for visit in after.visits.values()] == [pytest.approx(2, abs=0.1)]
    assert "3 calls of llm side by side" in str(after)


def test_explain_says_what_keeps_a_step_from_gaining() -> None:
    flow: Any = fineflow.optimize(Asking(GatewayLLM(seconds=0.0)), strict=True)
    shown = str(fineflow.explain(flow))
    assert "`GatewayLLM`" in shown
    assert "fineflow.external(GatewayLLM) gains" in shown
