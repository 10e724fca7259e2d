"""Chains of langchain-classic run ahead inside, with the results, requests and traces of stock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.public.classic_apps import CLASSIC_APPS, chain_of, chat, map_reduce_summary, sequential
from benchmarks.public.written_apps import DOCUMENTS, retriever
from benchmarks.report import gain_explained
from langchain_classic.chains import LLMChain, RetrievalQA, SequentialChain, SimpleSequentialChain
from langchain_classic.chains.base import Chain
from langchain_classic.chains.question_answering import load_qa_chain
from langchain_classic.chains.summarize import load_summarize_chain
from langchain_classic.memory import ConversationBufferMemory
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers.schemas import Run
from langchain_core.tracers.stdout import FunctionCallbackHandler
from pipelines import ENTRIES

import fineflow
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
GIVEN = {"input_documents": DOCUMENTS}


@needs_virtual_threads
@pytest.mark.parametrize("name", CLASSIC_APPS)
def test_takes_its_critical_path(name: str) -> None:
    app = CLASSIC_APPS[name]
    value, stock = virtual_threads.run(lambda: app.make(1).invoke(app.value))
    assert stock == pytest.approx(app.stock, abs=0.02)
    fast = fineflow.optimize(app.make(1), strict=True)
    found, took = virtual_threads.run(lambda: fast.invoke(app.value))
    assert found == value
    assert gain_explained(fast) == pytest.approx(stock - took, abs=0.05)
    assert took <= 1.15 * app.path, (took, app.path)
    assert took <= stock * 1.02


@pytest.mark.parametrize("name", CLASSIC_APPS)
def test_same(name: str) -> None:
    app = CLASSIC_APPS[name]
    batch = [app.value] * (1 if name in ("ConversationalRetrievalChain", "history-aware RAG") else 2)  # one memory
    assert_same(lambda: app.make(0), app.value, strict=True, eager=True, entries=ENTRIES, batch=batch)


@pytest.mark.parametrize("kind", ["map_reduce", "map_rerank", "refine", "stuff"])
def test_same_with_intermediate_steps_and_other_keys(kind: str) -> None:
    extra = {} if kind == "stuff" else {"return_intermediate_steps": True}
    given = {**GIVEN, "question": "Where?", "existing_answer": ""}
    assert_same(lambda: load_qa_chain(chat(0), chain_type=kind, **extra), given, strict=True, eager=True)


@pytest.mark.parametrize("kind", ["map_reduce", "map_rerank"])
def test_a_failing_document_in_the_middle(kind: str) -> None:
    failing = FakeChat(answers={"Rome": ValueError("no")}, default="x\nScore: 1")
    entries = [entry for entry in ENTRIES if "batch" not in entry]  # where the others end depends on the moment
    given = {**GIVEN, "question": "?"}
    assert_same(lambda: load_qa_chain(failing, chain_type=kind), given, strict=True, eager=True, entries=entries)
    failing.meter.wait_idle()


# --- the older entry methods ----------------------------------------------------------------------------------------

OLDER: dict[str, Callable[[Any], Any]] = {
    "call": lambda chain: chain(GIVEN),
    "call, only outputs": lambda chain: chain(GIVEN, return_only_outputs=True),
    "run": lambda chain: chain.run(DOCUMENTS),
    "run, by name": lambda chain: chain.run(input_documents=DOCUMENTS),
    "invoke, only outputs": lambda chain: chain.invoke(GIVEN, return_only_outputs=True),
    "arun": lambda chain: asyncio.run(chain.arun(DOCUMENTS)),
    "acall": lambda chain: asyncio.run(chain.acall(GIVEN)),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_entry_methods(name: str) -> None:
    stock, traces = map_reduce_summary(0), []
    fast = fineflow.optimize(map_reduce_summary(0), strict=True, eager=True)
    values = []
    for chain in (stock, fast):
        told: list[str] = []
        chain.callbacks = [FunctionCallbackHandler(told.append)]
        values.append(OLDER[name](chain))
        traces.append([line.partition("] [")[0] for line in told])
    assert values[0] == values[1]
    assert traces[0] == traces[1] != []


@needs_virtual_threads
@pytest.mark.parametrize("name", list(OLDER)[:5])
def test_older_entry_methods_run_ahead(name: str) -> None:
    fast = fineflow.optimize(map_reduce_summary(1), strict=True)
    assert virtual_threads.run(lambda: OLDER[name](fast)).seconds == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("method", ["apply", "apply_and_parse"])
@pytest.mark.filterwarnings("ignore:The apply_and_parse method")
def test_apply(method: str) -> None:
    inputs, values, traces = [{"x": text} for text in "abc"], [], []
    for optimized in (False, True):
        told: list[str] = []
        chain = chain_of("Describe {x}", 0)
        made = fineflow.optimize(chain, strict=True, eager=True) if optimized else chain
        values.append(getattr(made, method)(inputs, callbacks=[FunctionCallbackHandler(told.append)]))
        traces.append([line.partition("] [")[0] for line in told])
    assert values[0] == values[1]
    assert traces[0] == traces[1] != []


@needs_virtual_threads
def test_apply_asks_together() -> None:
    fast = fineflow.optimize(chain_of("Describe {x}", 1), strict=True)
    assert virtual_threads.run(lambda: fast.apply([{"x": text} for text in "abc"])).seconds == 1
    assert virtual_threads.run(lambda: fast.run("a")).seconds == 1


def test_run_info_is_that_of_the_run() -> None:
    runs: list[Run] = []
    fast = fineflow.optimize(map_reduce_summary(0), strict=True, eager=True).with_listeners(on_end=runs.append)
    assert fast.invoke(GIVEN, include_run_info=True)["__run"].run_id == runs[0].id


# --- generate -------------------------------------------------------------------------------------------------------


def test_prompts_are_asked_together() -> None:
    gate = Gate()
    model = FakeChat(gate=gate, custom_get_token_ids=lambda text: [0])
    fast = fineflow.optimize(load_summarize_chain(model, chain_type="map_reduce"), strict=True)
    thread = threading.Thread(target=fast.invoke, args=(GIVEN,))
    thread.start()
    gate.wait_arrived(4)
    gate.open()
    thread.join(10)
    assert model.meter.calls == 5


@pytest.mark.parametrize(("config", "peak"), [({"max_concurrency": 2}, 2), ({}, 4)])
@needs_virtual_threads
def test_max_concurrency(config: Any, peak: int) -> None:
    model = chat(1)
    fast = fineflow.optimize(load_summarize_chain(model, chain_type="map_reduce"), strict=True, max_concurrency=2)
    unbounded = fineflow.optimize(load_summarize_chain(model, chain_type="map_reduce"), strict=True)
    made = fast if config else unbounded
    took = virtual_threads.run(lambda: made.invoke(GIVEN)).seconds
    assert model.meter.peak == peak
    assert took == pytest.approx(4 / peak + 1, abs=0.05)


def test_one_failure_leaves_nothing_running() -> None:
    gate = Gate()
    model = FakeChat(answers={"Lyon": ValueError("no")}, gate=gate)
    fast = fineflow.optimize(load_summarize_chain(model, chain_type="map_reduce"), strict=True)
    gate.let(4)
    with pytest.raises(ValueError, match=r"^no$"):
        fast.invoke(GIVEN)
    gate.open()
    model.meter.wait_idle()


def test_settings_of_generate_are_left_to_stock() -> None:
    def make() -> Any:
        model = FakeChat(default="one two three")
        chain = LLMChain(llm=model, prompt=PromptTemplate.from_template("{x}"), llm_kwargs={"stop": ["two"]})
        bare = LLMChain(llm=model, prompt=PromptTemplate.from_template("{x}"))
        return RunnableLambda(
            lambda xs: [
                bare.apply([{"x": x, "stop": ["three"]} for x in xs]),
                chain.llm.generate([[*_asks(x)] for x in xs], ["one"]).generations[0][0].text,
            ]
        )

    assert_same(make, ["a", "b"], strict=True, eager=True)


def _asks(text: str) -> Any:
    return PromptTemplate.from_template("{x}").invoke({"x": text}).to_messages()


# --- chains in functions --------------------------------------------------------------------------------------------


def test_memory_is_read_and_written_in_order() -> None:
    def make() -> Any:
        memory = ConversationBufferMemory(memory_key="history")
        chain = LLMChain(llm=chat(0), prompt=PromptTemplate.from_template("{history} {x}"), memory=memory)
        return RunnableLambda(lambda xs: [chain.run(x) for x in xs] + [memory.buffer])

    assert_same(make, ["a", "b", "c"], strict=True, eager=True, entries=("invoke", "stream", "batch"), batch=[["a"]])


class Own(Chain):
    """A chain of the user's own, which calls two others."""

    first: Any
    second: Any

    @property
    def input_keys(self) -> list[str]:
        return ["x"]

    @property
    def output_keys(self) -> list[str]:
        return ["y"]

    def _call(self, inputs: dict[str, Any], run_manager: Any = None) -> dict[str, Any]:
        return {"y": self.first.run(inputs["x"]) + self.second.run(inputs["x"])}


class Counting(Own):
    """Counts its calls, too."""

    calls: int = 0

    def _call(self, inputs: dict[str, Any], run_manager: Any = None) -> dict[str, Any]:
        self.calls += 1
        return {"y": self.first.run(inputs["x"]) + self.second.run(inputs["x"])}


class Prefixed(LLMChain):
    """Overrides what a walk would otherwise take for the package's own."""

    def prep_prompts(self, input_list: Any, run_manager: Any = None) -> Any:
        changed = [{**each, "x": f"prefixed {each['x']}"} for each in input_list]
        return super().prep_prompts(changed, run_manager)


def test_classes_of_the_users_own() -> None:
    def make() -> Any:
        own = Counting(first=chain_of("First {x}", 0), second=chain_of("Second {x}", 0))
        prefixed = Prefixed(llm=chat(0), prompt=PromptTemplate.from_template("{x}"))
        return RunnableLambda(lambda xs: [[own.run(x), prefixed.run(x), own.calls] for x in xs])

    assert_same(make, ["a", "b"], strict=True, eager=True, entries=("invoke", "stream"))


@needs_virtual_threads
def test_a_chain_of_the_users_own_calls_two_others_at_once() -> None:
    def make() -> Own:
        return Own(first=chain_of("First {x}", 1), second=chain_of("Second {x}", 1))

    value = virtual_threads.run(lambda: make().invoke("a")).value
    assert virtual_threads.run(lambda: fineflow.optimize(make(), strict=True).invoke("a")) == (value, 1.0)

    own = make()
    loop = RunnableLambda(lambda xs: [own.run(x) for x in xs])
    assert virtual_threads.run(lambda: fineflow.optimize(loop, strict=True).invoke(["a", "b"])).seconds == 1.0


def test_an_overridden_method_makes_no_request_of_the_packages() -> None:
    asked: list[str] = []
    model = FakeChat(answers=lambda messages: asked.append(messages[0].text) or "ok")
    prefixed = Prefixed(llm=model, prompt=PromptTemplate.from_template("{x}"))
    fast = fineflow.optimize(RunnableLambda(lambda xs: [prefixed.run(x) for x in xs]), strict=True)
    assert fast.invoke(["a", "b", "c"]) == ["ok"] * 3
    assert sorted(asked) == ["prefixed a", "prefixed b", "prefixed c"]


def test_an_inner_function_goes_on_where_the_outer_walk_ends() -> None:
    """The outer chain's walk ends at a step that changes something; the summary's own one goes on from there."""
    noted: list[int] = []

    def note(text: str) -> str:
        noted.append(len(text))
        return text

    class Noted(LLMChain):
        def create_outputs(self, llm_result: Any) -> Any:
            made = super().create_outputs(llm_result)
            note(made[0][self.output_key])
            return made

    model = chat(0.01)
    first = Noted(llm=model, prompt=PromptTemplate.from_template("{topic}"), output_key="title")
    summary = load_summarize_chain(model, chain_type="map_reduce", output_key="summary")
    outputs = ["title", "summary"]
    chain = SequentialChain(
        chains=[first, summary], input_variables=["topic", "input_documents"], output_variables=outputs
    )
    stock = chain.invoke({"topic": "x", **GIVEN})
    if virtual_threads.available:
        fast = fineflow.optimize(chain, strict=True)
        found, took = virtual_threads.run(lambda: fast.invoke({"topic": "x", **GIVEN}))
        assert found == stock
        assert took <= 3.05
        assert len(noted) == 2
        assert model.meter.calls == 12


def test_a_chain_of_dependent_chains_is_left_alone() -> None:
    chains = [chain_of("{x}", 1, "y"), chain_of("{y}", 1, "z")]
    for chain in (
        SequentialChain(chains=chains, input_variables=["x"], output_variables=["z"]),
        SimpleSequentialChain(chains=[chain_of("{x}", 1), chain_of("{y}", 1)]),
        RetrievalQA.from_chain_type(chat(1), retriever=retriever(1)),
    ):
        assert "Runs as stock" in str(fineflow.explain(chain))


def retrieval_qa(seconds: float, **settings: Any) -> Any:
    return RetrievalQA.from_chain_type(chat(seconds), retriever=retriever(seconds), **settings)


LOOPED: dict[str, tuple[Callable[[float], Any], Callable[[Any, str], Any], float]] = {
    "RetrievalQA": (retrieval_qa, lambda chain, x: chain.invoke({"query": x})["result"], 1.25),
    "RetrievalQA with sources": (
        lambda seconds: retrieval_qa(seconds, return_source_documents=True),
        lambda chain, x: [len(chain(x)["source_documents"]), chain({"query": x}, return_only_outputs=True)["result"]],
        1.25,
    ),
    "RetrievalQA, map_reduce": (
        lambda seconds: retrieval_qa(seconds, chain_type="map_reduce"),
        lambda chain, x: chain.run(x),
        4.25,  # stock reduces the answers, one question after the other
    ),
    "predict": (lambda seconds: chain_of("Describe {topic}", seconds), lambda chain, x: chain.predict(topic=x), 1),
    "SequentialChain": (sequential, lambda chain, x: chain({"review": x})["answer"], 2),
    "SimpleSequentialChain": (
        lambda seconds: SimpleSequentialChain(chains=[chain_of("{x}", seconds), chain_of("{y}", seconds)]),
        lambda chain, x: chain.run(x),
        2,
    ),
    "apply": (
        lambda seconds: chain_of("Describe {topic}", seconds),
        lambda chain, x: chain.apply([{"topic": x}, {"topic": x.upper()}]),
        1,
    ),
}


def looped(name: str, seconds: float) -> Any:
    make, one, _ = LOOPED[name]
    chain = make(seconds)
    return RunnableLambda(lambda xs: [one(chain, x) for x in xs])


@needs_virtual_threads
@pytest.mark.parametrize("name", LOOPED)
def test_loops(name: str) -> None:
    values = ["a", "bc", "def"]
    value, stock = virtual_threads.run(lambda: looped(name, 1).invoke(values))
    found, took = virtual_threads.run(lambda: fineflow.optimize(looped(name, 1), strict=True).invoke(values))
    assert found == value
    assert took == pytest.approx(LOOPED[name][2], abs=0.05) != stock


@pytest.mark.parametrize("name", LOOPED)
def test_loops_are_the_same(name: str) -> None:
    assert_same(lambda: looped(name, 0), ["a", "bc", "def"], strict=True, eager=True, entries=ENTRIES, batch=[["a"]])


def test_async_loops() -> None:
    qa = RetrievalQA.from_chain_type(chat(1), retriever=retriever(1))
    describe = chain_of("Describe {topic}", 1)

    async def answers(questions: list[str]) -> list[Any]:
        found = [await qa.ainvoke({"query": question}) for question in questions]
        found += [await describe.apredict(topic=question) for question in questions]
        return found + await describe.aapply([{"topic": question} for question in questions])

    chain = RunnableLambda(answers)
    value, stock = virtual.run(chain.ainvoke(["a", "b", "c"]))
    found, took = virtual.run(fineflow.optimize(chain, strict=True).ainvoke(["a", "b", "c"]))
    assert found == value
    assert (stock, took) == (pytest.approx(7.75), pytest.approx(1.25))


def test_documents_of_a_summary_are_not_changed() -> None:
    docs = [Document(page_content=text) for text in "abc"]
    fineflow.optimize(map_reduce_summary(0), strict=True, eager=True).invoke({"input_documents": docs})
    assert [doc.page_content for doc in docs] == ["a", "b", "c"]
