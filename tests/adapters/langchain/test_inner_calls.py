"""Component calls inside user functions run ahead, with the results, requests and traces of stock."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import threading
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
from benchmarks.public import written_apps, written_functions, written_tools
from benchmarks.public.written_apps import Researcher
from benchmarks.report import gain_explained
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import BaseTool, tool
from pipelines import ENTRIES

import fineflow
from fineflow.adapters.core.durations import quick
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.inner_calls import inner_calls
from fineflow.adapters.inner_calls.finder import CallFinder
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.runtime import events
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

APPS = written_apps.APPS | written_functions.FUNCTIONS | written_tools.TOOLS
ASYNC_APPS = written_apps.ASYNC_APPS | written_tools.ASYNC_TOOLS
needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")


@needs_virtual_threads
@pytest.mark.parametrize("name", APPS)
def test_takes_its_critical_path(name: str) -> None:
    app = APPS[name]
    value, stock = virtual_threads.run(lambda: app.make(1).invoke(app.value))
    assert stock == pytest.approx(app.stock, abs=0.02)
    fast = fineflow.optimize(app.make(1), strict=True)
    found, took = virtual_threads.run(lambda: fast.invoke(app.value))
    assert found == value
    assert gain_explained(fast) == pytest.approx(stock - took, abs=0.05)
    assert took <= 1.15 * app.path, (took, app.path)
    assert took <= stock * 1.02


@needs_virtual_threads
@pytest.mark.parametrize("name", APPS)
def test_batch_takes_its_critical_path(name: str) -> None:
    app = APPS[name]
    inputs = [app.value] * 3
    value, stock = virtual_threads.run(lambda: app.make(1).batch(inputs))
    fast = fineflow.optimize(app.make(1), strict=True)
    found, took = virtual_threads.run(lambda: fast.batch(inputs))
    assert found == value
    assert took <= min(1.15 * app.path, 1.02 * stock), (took, app.path)


@pytest.mark.parametrize("name", APPS)
def test_same(name: str) -> None:
    app = APPS[name]
    assert_same(lambda: app.make(0), app.value, strict=True, eager=True, entries=ENTRIES)


@pytest.mark.parametrize("name", ASYNC_APPS)
def test_async_takes_its_critical_path(name: str) -> None:
    app = ASYNC_APPS[name]
    value, stock = virtual.run(app.make(1).ainvoke(app.value))
    assert stock == pytest.approx(app.stock)
    found, took = virtual.run(fineflow.optimize(app.make(1), strict=True).ainvoke(app.value))
    assert found == value
    assert took <= 1.02 * app.path, (took, app.path)


@pytest.mark.parametrize("name", ASYNC_APPS)
def test_async_batch_takes_its_critical_path(name: str) -> None:
    app = ASYNC_APPS[name]
    found, took = virtual.run(fineflow.optimize(app.make(1), strict=True).abatch([app.value] * 3))
    assert found == [asyncio.run(app.make(0).ainvoke(app.value))] * 3
    assert took <= 1.02 * app.path, (took, app.path)


@pytest.mark.parametrize("name", ASYNC_APPS)
def test_async_same(name: str) -> None:
    app = ASYNC_APPS[name]
    assert_same(lambda: app.make(0), app.value, strict=True, eager=True, entries=("ainvoke", "astream", "abatch"))


def summaries(model: FakeChat) -> Any:
    prompt = ChatPromptTemplate.from_template("Summarize {text}")

    def each(texts: list[str]) -> list[str]:
        return [(prompt | model | StrOutputParser()).invoke({"text": text}) for text in texts]

    return RunnableLambda(each)


def asummaries(model: FakeChat) -> Any:
    async def each(texts: list[str]) -> list[str]:
        return [(await model.ainvoke(text)).text for text in texts]

    return RunnableLambda(each)


MANY = [f"text {i}" for i in range(40)]


@pytest.mark.parametrize(
    ("config", "option", "peak"),
    [({"max_concurrency": 3}, None, 3), ({}, None, 16), ({}, 5, 5), ({"max_concurrency": 8}, 5, 8)],
)
def test_bounds_calls_under_way(config: Any, option: int | None, peak: int) -> None:
    model = FakeChat(prefill=1)
    fast = fineflow.optimize(asummaries(model), strict=True, max_concurrency=option)
    value, took = virtual.run(fast.ainvoke(MANY, config))
    assert value == ["ok"] * 40
    assert model.meter.peak == peak
    assert took == -(-40 // peak)
    assert model.meter.calls == 40


def test_a_walk_that_is_too_long_is_not_made_again_for_each_result(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    look = CallFinder.look

    def counted(self: Any) -> Any:
        found = look(self)
        looks.append(self.walk.steps)
        return found

    monkeypatch.setattr(CallFinder, "look", counted)
    model = FakeChat()

    def counts(texts: list[str]) -> int:
        model.invoke("first")
        rows = [int(each) for each in range(9_000)]
        for text in texts:
            model.invoke(text)
        return len(rows)

    assert fineflow.optimize(RunnableLambda(counts), strict=True, eager=True).invoke(MANY) == 9_000
    assert len([steps for steps in looks if steps > 9_000]) == 1


@pytest.mark.parametrize("steps", [1, 2])
def test_a_batch_shares_one_bound(steps: int) -> None:
    model = FakeChat(prefill=1)
    made = asummaries(model)
    fast = fineflow.optimize(made if steps == 1 else made | RunnableLambda(sorted), strict=True)
    value, took = virtual.run(fast.abatch([MANY[:6]] * 4, {"max_concurrency": 3}))
    assert value == [["ok"] * 6] * 4
    assert model.meter.peak == 3
    assert took == 8


@needs_virtual_threads
def test_a_batch_that_stock_runs_step_by_step() -> None:
    """Two functions with side effects: the first runs for all inputs before the second runs for any."""
    order: list[str] = []

    def app(model: FakeChat) -> Any:
        def first(texts: list[str]) -> list[str]:
            found = [model.invoke(text).text for text in texts]
            order.append("first")
            return found

        def second(texts: list[str]) -> list[str]:
            order.append("second")
            return [model.invoke(text).text for text in texts]

        return RunnableLambda(first) | second

    model = FakeChat(prefill=1, answers=lambda messages: messages[-1].text + "!")
    fast = fineflow.optimize(app(model), strict=True)
    inputs, configs = [["a", "b"], ["c", "d"]], [{"tags": ["one"]}, {"tags": ["two"]}]
    expected = app(FakeChat(answers=model.answers)).batch(inputs, configs)
    assert order == ["first", "first", "second", "second"]
    for run in (lambda: fast.batch(inputs, configs), lambda: asyncio.run(fast.abatch(inputs, configs))):
        order.clear()
        assert virtual_threads.run(run).value == expected
        assert order == ["first", "first", "second", "second"]


@pytest.mark.parametrize("entry", ["batch", "abatch"])
def test_a_batch_returns_exceptions(entry: str) -> None:
    def app() -> Any:
        model = FakeChat(answers=lambda m: ValueError("no") if m[-1].text == "b" else m[-1].text)
        return summaries_of(model) | RunnableLambda(sorted)

    def summaries_of(model: FakeChat) -> Any:
        return RunnableLambda(lambda texts: [model.invoke(text).text for text in texts])

    def run(app: Any, **more: Any) -> Any:
        inputs = [["a", "c"], ["a", "b"], ["d"]]
        return app.batch(inputs, **more) if entry == "batch" else asyncio.run(app.abatch(inputs, **more))

    fast = fineflow.optimize(app(), strict=True, eager=True)
    assert repr(run(fast, return_exceptions=True)) == repr(run(app(), return_exceptions=True))
    with pytest.raises(ValueError, match=r"^no$"):
        run(fast)


def test_starts_before_stock_gets_there() -> None:
    gate = Gate()
    model = FakeChat(gate=gate)
    fast = fineflow.optimize(summaries(model), strict=True)
    thread = threading.Thread(target=fast.invoke, args=(MANY[:5],))
    thread.start()
    gate.wait_arrived(5)
    gate.open()
    thread.join(10)
    assert model.meter.calls == 5


def test_a_failure_is_that_of_stock_and_ends_the_rest() -> None:
    gate = Gate()
    failing = FakeChat(answers={"text 1": ValueError("no")}, gate=gate)
    fast = fineflow.optimize(summaries(failing), strict=True)
    gate.let(5)
    with pytest.raises(ValueError, match=r"^no$"):
        fast.invoke(MANY[:5])
    gate.open()
    failing.meter.wait_idle()


def test_cancelling_ends_all_calls() -> None:
    async def run() -> None:
        model = FakeChat(gate=Gate())
        task = asyncio.create_task(fineflow.optimize(asummaries(model), strict=True).ainvoke(MANY[:5]))
        assert model.gate is not None
        await model.gate.arrived(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert model.meter.in_flight == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_timeout_ends_all_calls() -> None:
    model = FakeChat(gate=Gate())
    fast = fineflow.optimize(asummaries(model), strict=True, timeout=0.2)
    with pytest.raises(TimeoutError):
        asyncio.run(fast.ainvoke(MANY[:5]))
    assert model.meter.in_flight == 0


def test_what_stock_never_asks_for_is_cancelled() -> None:
    model, gate = FakeChat(prefill=0), Gate()
    slow = FakeChat(gate=gate)

    def leaves(texts: list[str]) -> str:
        for text in texts:
            answer = model.invoke(text)
            if answer.text == "ok":
                break
        other = slow.invoke("a")
        if answer.text == "ok" and texts:
            raise KeyError("left")
        return other.text

    with pytest.raises(KeyError):
        gate.open()
        fineflow.optimize(RunnableLambda(leaves), strict=True).invoke(MANY[:3])
    slow.meter.wait_idle()


def test_components_are_stock_elsewhere() -> None:
    model = FakeChat()
    fineflow.optimize(summaries(model), strict=True, eager=True).invoke(MANY[:3])
    assert model.invoke("x").text == "ok"
    assert asyncio.run(model.ainvoke("x")).text == "ok"
    assert inspect.iscoroutinefunction(FakeChat.ainvoke)
    assert list(inspect.signature(FakeChat.invoke).parameters) == ["self", "input", "config", "stop", "kwargs"]
    assert summaries(model).invoke(MANY[:2]) == ["ok", "ok"]


def test_explain_names_the_components() -> None:
    text = str(fineflow.explain(APPS["corrective RAG"].make(0), graphs=True))
    assert "calls of `grader` in it that need nothing from each other start together" in text
    assert "`answer` in it" not in text  # one call, outside of loops


def test_an_object_of_the_users_is_not_copied() -> None:
    made = APPS["service object"]
    service = Researcher(0)
    seen = []

    def run(self: Researcher, inputs: Any) -> Any:
        seen.append(self)
        return Researcher.run(self, inputs)

    bound = MethodType(run, service)
    assert fineflow.optimize(RunnableLambda(bound), strict=True).invoke(made.value) == service.run(made.value)
    assert seen == [service]


def test_code_that_no_walk_understands_may_change_what_later_walks_read() -> None:
    """A walk that begins when stock is behind such code would find calls that the function has passed by."""
    seen: list[str] = []

    class Adds:
        def __ror__(self, other: str) -> str:
            seen.extend("abc")
            return other

    model = FakeChat()
    ask = model | StrOutputParser()

    def loops_first(text: str) -> str:
        first = ask.invoke(text)
        for each in sorted(seen):
            ask.invoke(f"again {each}")
        added: Any = first | Adds()  # type: ignore[operator]
        return ask.invoke(f"{len(seen)} {added}")

    fast = fineflow.optimize(RunnableLambda(loops_first), strict=True, eager=True)
    fast.invoke("a")
    assert model.meter.calls == 2
    fast.invoke("a")
    assert model.meter.calls == 2 + 5


def test_arguments_that_change_meanwhile_are_asked_anew() -> None:
    """The function changes what a later call is given, where the walk cannot see it."""
    model = FakeChat(answers=lambda messages: messages[-1].text.upper())
    texts = ["a", "b", "c"]

    class Silent(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts[2] = "changed"

    log = logging.getLogger("changing")
    log.addHandler(Silent())
    log.setLevel(logging.INFO)

    def each(given: list[str]) -> list[str]:
        out = []
        for number in range(3):
            log.info("at %s", number)
            out.append(model.invoke(given[number]).text)
        return out

    assert fineflow.optimize(RunnableLambda(each), strict=True).invoke(texts) == ["A", "B", "CHANGED"]


def test_calls_that_take_no_time_are_left_to_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running ahead costs about a millisecond."""
    monkeypatch.setattr(inner_calls, "now", lambda: 0.0)
    model = FakeChat()
    fast = fineflow.optimize(summaries(model), strict=True)
    threads: set[str] = set()
    model.answers = lambda messages: (threads.add(threading.current_thread().name), "ok")[1]
    for _ in range(2):  # the first runs them ahead, the second lets stock measure them
        fast.invoke(MANY[:4])
    threads.clear()
    assert fast.invoke(MANY[:4]) == ["ok"] * 4
    assert threads == {threading.current_thread().name}


def test_a_fault_of_ours_does_not_reach_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(inner_calls.InnerCalls, "_begin", fails)
    model = FakeChat()
    with pytest.warns(fineflow.FineflowWarning, match="the component calls inside each could not run ahead"):
        assert fineflow.optimize(summaries(model)).invoke(MANY[:3]) == ["ok"] * 3
    assert model.meter.calls == 3
    with pytest.raises(fineflow.PlanningError, match="RuntimeError: ours"):
        fineflow.optimize(summaries(FakeChat()), strict=True).invoke(MANY[:3])


@pytest.mark.parametrize("called", [(), ("a", None, "b"), (1, 2)])
def test_arguments_that_a_component_refuses_are_refused_by_it(called: Any) -> None:
    model = FakeChat()

    def each(texts: list[str]) -> str:
        for text in texts:
            model.invoke(text)
        return model.invoke(*called).text

    with pytest.raises(Exception) as stock:
        RunnableLambda(each).invoke(MANY[:2])
    with pytest.raises(type(stock.value)):
        fineflow.optimize(RunnableLambda(each), strict=True).invoke(MANY[:2])


def test_what_stock_makes_concurrently_never_waits() -> None:
    """More than run ahead at a time."""
    model = FakeChat(prefill=1)

    async def each(texts: list[str]) -> int:
        first = await model.ainvoke("first")
        return len([first, *await asyncio.gather(*[model.ainvoke(text) for text in texts])])

    for config in ({}, {"max_concurrency": 2}):
        fast = fineflow.optimize(RunnableLambda(each), strict=True)
        value, took = virtual.run(fast.ainvoke(MANY, config))  # type: ignore[arg-type]
        assert value == 41
        assert took <= 2


def test_a_component_that_holds_what_the_function_changes_is_left_to_stock() -> None:
    settings = {"k": 1}
    store = written_apps.retriever(0).vectorstore
    search = store.as_retriever()
    search.search_kwargs = settings

    def widens(queries: list[str]) -> list[int]:
        found = []
        for query in queries:
            found.append(len(search.invoke(query)))
            settings["k"] += 1
        return found

    fast = fineflow.optimize(RunnableLambda(widens), strict=True, eager=True)
    assert fast.invoke(["Paris", "Lyon", "Rome"]) == [1, 2, 3]
    settings["k"] = 1
    assert asyncio.run(fast.ainvoke(["Paris", "Lyon", "Rome"])) == [1, 2, 3]


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_state_of_the_users_object_counts_once(entry: str) -> None:
    service = written_functions.Assistant(0)
    fast = fineflow.optimize(RunnableLambda(service.run), strict=True, eager=True)
    questions = ["Paris?", "Lyon?", "Rome?"]
    value = fast.invoke(questions) if entry == "invoke" else asyncio.run(fast.ainvoke(questions))
    assert list(value) == questions
    assert service.calls == 3
    assert service.history == list(value.items())
    assert service.llm.meter.calls == 3


def test_components_made_inside_are_claimed_by_their_parts() -> None:
    """Each walk and each call of stock makes another object."""
    model = FakeChat(prefill=1)
    store = written_apps.retriever(1).vectorstore

    def each(texts: list[str]) -> list[Any]:
        made = []
        for text in texts:
            prompt = ChatPromptTemplate.from_template("Answer {text}")
            docs = store.as_retriever(search_kwargs={"k": 1}).invoke(text)
            made.append(((prompt | model.bind(stop=["x"])).invoke({"text": text}).text, len(docs)))
        return made

    fast = fineflow.optimize(RunnableLambda(each), strict=True)
    if not virtual_threads.available:
        pytest.skip("needs /proc")
    value, took = virtual_threads.run(lambda: fast.invoke(MANY[:4]))
    assert value == [("ok", 1)] * 4
    assert took <= 1.05
    assert model.meter.calls == 4


def test_usage_is_counted_around_calls_that_ran_ahead() -> None:
    usage: Any = {"input_tokens": 2, "output_tokens": 3, "total_tokens": 5}
    message = AIMessage("ok", usage_metadata=usage, response_metadata={"model_name": "fake"})

    def app() -> Any:
        model = GenericFakeChatModel(messages=itertools.repeat(message))

        def counts(texts: list[str]) -> Any:
            with get_usage_metadata_callback() as counted:
                for text in texts:
                    model.invoke(text)
            return counted.usage_metadata

        return RunnableLambda(counts)

    expected = app().invoke(MANY[:3])
    assert expected["fake"]["total_tokens"] == 15
    assert fineflow.optimize(app(), strict=True, eager=True).invoke(MANY[:3]) == expected


class Lookup(BaseTool):
    name: str = "lookup"
    description: str = "Looks up."
    model: Any = None

    def _run(self, query: str) -> str:
        return " ".join(self.model.invoke(f"{query} {number}").text for number in range(3))


@needs_virtual_threads
def test_a_tool_class_of_the_users_is_looked_through() -> None:
    model = FakeChat(prefill=1)
    fast = fineflow.optimize(RunnablePassthrough() | Lookup(model=model), strict=True)
    value, took = virtual_threads.run(lambda: fast.invoke({"query": "x"}))
    assert value == "ok ok ok"
    assert took <= 1.05


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
def test_tools_in_functions(entry: str) -> None:
    """Arguments that are checked, converted, defaulted or refused are stock's."""
    asked: list[str] = []
    model = FakeChat(answers=lambda messages: (asked.append(messages[-1].text), "ok")[1])

    @tool
    def ask(query: str, times: int = 2) -> str:
        """Asks."""
        return " ".join(model.invoke(f"{query} {number}").text for number in range(times))

    def run(given: list[Any]) -> list[Any]:
        made: list[Any] = []
        for each in given:
            try:
                made.append(ask.invoke(each))
            except Exception as error:
                made.append(type(error).__name__)
        return made

    given = [{"query": "a"}, {"query": "b", "times": "3"}, "c", {"query": 1}, {"query": "d", "times": 1}, {"other": 1}]
    call = {"name": "ask", "args": {"query": "e"}, "id": "1", "type": "tool_call"}
    app = RunnableLambda(run)
    expected = app.invoke([*given, call])
    requests, asked[:] = sorted(asked), []
    fast = fineflow.optimize(app, strict=True, eager=True)
    found = fast.invoke([*given, call]) if entry == "invoke" else asyncio.run(fast.ainvoke([*given, call]))
    assert found == expected
    assert sorted(asked) == requests


@needs_virtual_threads
def test_long_loops_are_walked_seldom_where_calls_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    model, walks = FakeChat(prefill=0.025), []
    look = inner_calls.InnerCalls._look

    def counted(calls: Any) -> None:
        walks.append(calls)
        look(calls)

    monkeypatch.setattr(inner_calls.InnerCalls, "_look", counted)

    def grade(texts: list[str]) -> str:
        answers = [model.invoke(text).text for text in texts]
        return str(model.invoke("all: " + " ".join(answers)).text)

    texts = [f"text {number}" for number in range(200)]
    ran = virtual_threads.run(lambda: fineflow.optimize(RunnableLambda(grade), strict=True).invoke(texts))
    rounds = -(-201 // 16)  # of 16 calls at a time; results come while stock makes the calls before, in any order
    assert len(walks) <= 2 * rounds
    assert ran.seconds <= 0.025 * (200 / 16 + 3)


@pytest.mark.parametrize(("others", "left_to_stock"), [(15, True), (0, False)])
def test_quick_calls_that_seem_slow_beside_others_are_left_to_stock(
    others: int, left_to_stock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them compute on one core: 16 calls of 2.5 ms take 40 ms each."""
    clock = [0.0]
    monkeypatch.setitem(events.__dict__, "perf_counter", lambda: clock[0])
    monkeypatch.setitem(events.__dict__, "process_time", lambda: clock[0])
    chain = RunnableLambda(str)
    call = FoundCall(chain, "invoke", None, (), {})
    call.begins()
    clock[0] = 0.04
    calls: Any = SimpleNamespace(_running=lambda but: others)
    inner_calls.InnerCalls._observe(calls, call, ahead=True)
    assert quick(chain, "invoke") is left_to_stock


def test_parts_of_what_has_nothing_to_gain_are_not_planned_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Any] = []
    plan = Planned._self_planned

    def counted(self: Any, way: Any) -> Any:
        planned.append(self.__wrapped__)
        return plan(self, way)

    monkeypatch.setattr(Planned, "_self_planned", counted)
    inner = (ChatPromptTemplate.from_template("Answer: {question}") | FakeChat()).with_config(run_name="answer")
    chain = (RunnablePassthrough.assign(answer=inner) | RunnablePassthrough.assign(again=inner)).with_config(tags=["a"])

    def ask(question: str) -> list[str]:
        first = chain.invoke({"question": question})["answer"].text
        return [first, chain.invoke({"question": first})["again"].text]

    app = RunnableLambda(ask)
    assert fineflow.optimize(app, strict=True).invoke("why?") == app.invoke("why?")
    assert all(each is app or each is chain for each in planned)
    assert any(each is chain for each in planned)


@needs_virtual_threads
def test_loops_of_slow_calls_go_on_with_each_result() -> None:
    first, second = FakeChat(prefill=1), FakeChat(prefill=1)

    def ask(texts: list[str]) -> list[str]:
        return [second.invoke(first.invoke(text).text + text).text for text in texts]

    ran = virtual_threads.run(
        lambda: fineflow.optimize(RunnableLambda(ask), strict=True).invoke([str(n) for n in range(12)])
    )
    assert ran.seconds == 2
