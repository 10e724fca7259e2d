"""Plain functions as objects: the same values, errors, runs and order of side effects, with calls in them ahead."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Generator
from contextvars import ContextVar
from typing import Any, TypedDict

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph

import fineflow
from fineflow.testing import virtual, virtual_threads
from fineflow.testing.differential import assert_same
from fineflow.testing.langchain import FakeChat
from fineflow.testing.recording import RecordingHandler, run_tree

needs_virtual_threads = pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
USER: ContextVar[str] = ContextVar("user", default="nobody")


def echo(messages: list[Any]) -> str:
    return f"re {messages[-1].content}"


model = FakeChat(answers=echo, prefill=1.0)
chain = ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()


def answers(questions: list[str], *, sep: str = "; ") -> str:
    """Answers several questions."""
    found = []
    for each in questions:
        found.append(chain.invoke({"question": each}))
    return sep.join(found)


async def aanswers(questions: list[str]) -> list[str]:
    return [await chain.ainvoke({"question": each}) for each in questions]


def told(question: str) -> Generator[str, str | None, int]:
    first, second = chain.invoke({"question": question}), chain.invoke({"question": f"not {question}"})
    more = yield first
    third, fourth = chain.invoke({"question": "third"}), chain.invoke({"question": "fourth"})
    yield f"{second} {third} {fourth} {more}"
    return 7


async def atold(question: str) -> AsyncIterator[str]:
    first = await chain.ainvoke({"question": question})
    second = await chain.ainvoke({"question": f"not {question}"})
    yield first
    third, fourth = await chain.ainvoke({"question": "third"}), await chain.ainvoke({"question": "fourth"})
    yield f"{second} {third} {fourth}"


class Assistant:
    """The chain is an attribute."""

    def __init__(self) -> None:
        self.chain = chain
        self.asked: list[str] = []

    @fineflow.optimize
    def both(self, question: str) -> list[str]:
        """Asks twice."""
        self.asked.append(question)
        return [self.chain.invoke({"question": question}), self.chain.invoke({"question": f"not {question}"})]

    def twice(self, question: str) -> list[str]:
        return [self.chain.invoke({"question": question}), self.chain.invoke({"question": f"not {question}"})]

    @fineflow.optimize
    @classmethod
    def of_class(cls, question: str) -> list[str]:
        return [chain.invoke({"question": question}), chain.invoke({"question": cls.__name__})]

    @fineflow.optimize(max_concurrency=1)
    @staticmethod
    def one_by_one(question: str) -> list[str]:
        return [chain.invoke({"question": question}), chain.invoke({"question": f"not {question}"})]


@fineflow.optimize
def halves(question: str, depth: int) -> str:
    """Calls itself by its name, which stands for the optimized function."""
    if not depth:
        return later.invoke({"question": question})
    return halves(f"{question} left", depth - 1) + halves(f"{question} right", depth - 1)


later = chain  # comes after the decorator, as the rest of a module may


@needs_virtual_threads
def test_calls_in_a_function_run_side_by_side() -> None:
    stock = virtual_threads.run(lambda: answers(["a", "b", "c"]))
    fast = virtual_threads.run(lambda: fineflow.optimize(answers, strict=True)(["a", "b", "c"]))
    assert (stock.seconds, fast.seconds) == (3.0, 1.0)
    assert fast.value == stock.value


def test_calls_in_an_async_function_run_side_by_side() -> None:
    stock = virtual.run(aanswers(["a", "b", "c"]))
    fast = virtual.run(fineflow.optimize(aanswers, strict=True)(["a", "b", "c"]))
    assert (stock.seconds, fast.seconds) == (3.0, 1.0)
    assert fast.value == stock.value


@needs_virtual_threads
def test_calls_in_a_generator_run_side_by_side_as_far_as_it_is_read() -> None:
    def read(func: Callable[[str], Any]) -> list[Any]:
        before = model.meter.calls
        made = func("a")
        found = [next(made)]
        asked = model.meter.calls - before
        found.append(made.send(None))
        try:
            next(made)
        except StopIteration as end:
            found.append(end.value)
        return [*found, asked]

    stock = virtual_threads.run(lambda: read(told))
    fast = virtual_threads.run(lambda: read(fineflow.optimize(told, strict=True)))
    assert fast.value == stock.value, "nothing behind a yield is asked for before its reader asks for more"
    assert (stock.seconds, fast.seconds) == (4.0, 2.0)


def test_calls_in_an_async_generator_run_side_by_side() -> None:
    async def read(func: Callable[[str], AsyncIterator[str]]) -> list[str]:
        return [each async for each in func("a")]

    stock = virtual.run(read(atold))
    fast = virtual.run(read(fineflow.optimize(atold, strict=True)))
    assert (stock.seconds, fast.seconds) == (4.0, 2.0)
    assert fast.value == stock.value


@needs_virtual_threads
@pytest.mark.parametrize("name", ["both", "twice", "of_class", "one_by_one"])
def test_calls_in_methods_run_side_by_side(name: str) -> None:
    assistant = Assistant()
    method = getattr(assistant, name)
    fast = fineflow.optimize(method) if name == "twice" else method
    found = virtual_threads.run(lambda: fast("a"))
    assert found.value == ["re a", f"re {'Assistant' if name == 'of_class' else 'not a'}"]
    assert assistant.asked == (["a"] if name == "both" else [])
    assert found.seconds == (2.0 if name == "one_by_one" else 1.0)


@needs_virtual_threads
def test_a_decorated_function_may_call_itself_and_what_is_defined_later() -> None:
    stock = inspect.unwrap(halves)
    assert virtual_threads.run(lambda: halves("q", 2)) == (stock("q", 2), 1.0)


@needs_virtual_threads
def test_graphs_in_a_function_run_side_by_side() -> None:
    class State(TypedDict):
        question: str
        answer: str

    builder = StateGraph(State)
    builder.add_node("answer", lambda state: {"answer": chain.invoke({"question": state["question"]})})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph = builder.compile()

    def both(question: str) -> list[Any]:
        return [graph.invoke({"question": question}), chain.invoke({"question": f"not {question}"})]

    stock = virtual_threads.run(lambda: both("a"))
    fast = virtual_threads.run(lambda: fineflow.optimize(both, strict=True)("a"))
    assert fast.value == stock.value
    assert fast.seconds <= stock.seconds


def as_seen(func: Any, *args: Any) -> tuple[Any, Any, list[Any]]:
    """Returns value, error and run tree of a call."""
    handler = RecordingHandler()
    try:
        value, error = func(handler, *args), None
    except Exception as raised:
        value, error = None, (type(raised), str(raised))
    return value, error, run_tree(handler)


def test_a_function_opens_no_run_and_raises_what_it_raises() -> None:
    quick = ChatPromptTemplate.from_template("{question}") | FakeChat(answers=echo) | StrOutputParser()

    def ask(handler: Any, fails: bool) -> list[str]:
        config: Any = {"callbacks": [handler], "tags": ["t"]}
        found = [quick.invoke({"question": each}, config) for each in ("a", "b")]
        if fails:
            raise LookupError(found[0])
        return found

    fast = fineflow.optimize(ask, strict=True, eager=True)
    for fails in (False, True):
        stock = as_seen(ask, fails)
        assert as_seen(fast, fails) == stock
        assert len(stock[2]) == 2


def test_in_a_run_its_calls_are_those_of_stock() -> None:
    def make(func: Any) -> Any:
        quick = ChatPromptTemplate.from_template("{question}") | FakeChat(answers=echo) | StrOutputParser()

        def ask(question: str) -> list[str]:
            return [quick.invoke({"question": question}), quick.invoke({"question": f"not {question}"})]

        return RunnableLambda(func(ask))

    seen = []
    for change in (lambda func: func, fineflow.optimize):
        handler = RecordingHandler()
        value = make(change).invoke("a", {"callbacks": [handler]})
        seen.append((value, run_tree(handler)))
    assert seen[0] == seen[1]
    assert_same(lambda: make(fineflow.optimize), "a", strict=True)


def test_context_variables_and_arguments_are_the_callers() -> None:
    quick = ChatPromptTemplate.from_template("{question}") | FakeChat(answers=echo) | StrOutputParser()

    def ask(questions: list[str]) -> list[str]:
        USER.set(f"{USER.get()}, then set inside")
        questions.append("c")
        return [quick.invoke({"question": each}) for each in questions]

    def seen(func: Any) -> Any:
        given = ["a", "b"]
        USER.set("caller")
        return func(given), given, USER.get()

    assert seen(fineflow.optimize(ask, eager=True)) == seen(ask)


def test_it_looks_as_the_function_does() -> None:
    fast = fineflow.optimize(answers)
    assert inspect.signature(fast) == inspect.signature(answers)
    assert (fast.__name__, fast.__doc__, fast.__module__) == ("answers", "Answers several questions.", __name__)
    assert inspect.isfunction(fast) and not inspect.iscoroutinefunction(fast)
    assert inspect.iscoroutinefunction(fineflow.optimize(aanswers))
    assert inspect.isgeneratorfunction(fineflow.optimize(told))
    assert inspect.isasyncgenfunction(fineflow.optimize(atold))
    assert inspect.ismethod(Assistant().both) and Assistant.both.__doc__ == "Asks twice."
    assert Assistant().both.__self__.asked == []


def test_it_is_copied_and_pickled_as_a_function_is() -> None:
    assert copy.deepcopy(halves) is copy.copy(halves) is halves
    assert pickle.loads(pickle.dumps(halves)) is halves
    assert pickle.loads(pickle.dumps(Assistant.both)) is Assistant.both


@pytest.mark.parametrize("func", [answers, aanswers, told, atold], ids=lambda func: func.__name__)
def test_wrong_arguments_are_refused_at_the_call(func: Any) -> None:
    with pytest.raises(TypeError) as stock:
        func()
    with pytest.raises(TypeError) as seen:
        fineflow.optimize(func)()
    assert str(seen.value) == str(stock.value)


def test_a_generator_gets_what_its_reader_sends_and_throws() -> None:
    def talk(question: str) -> Generator[str, str, str]:
        heard = yield chain_for(question) + chain_for(f"not {question}")
        try:
            yield heard
        except KeyError as error:
            yield f"caught {error}"
        return "over"

    quick = ChatPromptTemplate.from_template("{question}") | FakeChat(answers=echo) | StrOutputParser()

    def chain_for(question: str) -> str:
        return str(quick.invoke(question))

    def read(func: Any) -> list[Any]:
        made = func("a")
        found = [next(made), made.send("hello"), made.throw(KeyError("k"))]
        with pytest.raises(StopIteration) as end:
            next(made)
        return [*found, end.value.value]

    assert read(fineflow.optimize(talk, eager=True)) == read(talk)


def test_an_async_generator_gets_what_its_reader_sends() -> None:
    async def talk(question: str) -> Any:
        heard = yield question
        yield f"{heard} {await chain.ainvoke({'question': 'a'})} {await chain.ainvoke({'question': 'b'})}"

    async def read(func: Any) -> list[str]:
        made = func("q")
        return [await anext(made), await made.asend("hello")]

    assert virtual.run(read(fineflow.optimize(talk))).value == virtual.run(read(talk)).value


def test_explain_names_the_function_and_its_calls() -> None:
    fast = fineflow.optimize(answers)
    plan = fineflow.explain(fast, graphs=True)
    assert plan.name == "answers"
    assert "calls of `chain` in it that need nothing from each other start together" in str(plan)
    assert fineflow.explain(Assistant().both).name == "Assistant.both"
    assert "makes no component call" in str(fineflow.explain(lambda value: value + 1, graphs=True))


def test_a_function_that_gains_nothing_runs_as_it_is() -> None:
    def double(number: int) -> int:
        return 2 * number

    fast = fineflow.optimize(double, strict=True)
    assert fast(3) == 6
    assert not fast._self_current(True).follows


def test_cancelling_leaves_nothing_running() -> None:
    async def main() -> int:
        task = asyncio.ensure_future(fineflow.optimize(aanswers)(["x", "y"]))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    assert virtual.run(main()).value == 1
