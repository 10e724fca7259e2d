from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import wrapt
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import (
    Runnable,
    RunnableGenerator,
    RunnableLambda,
    RunnablePassthrough,
    RunnableSequence,
    RunnableSerializable,
)

import fineflow
from fineflow.adapters.inner_calls.entry_wrappers import wrapped
from fineflow.testing.langchain import FakeChat
from fineflow.testing.routing import METHODS, Routing, inside, original

pytest_plugins = ["pytester"]


@pytest.fixture
def routing() -> Iterator[Routing]:
    routing = Routing(lambda runnable, **_: wrapt.ObjectProxy(runnable))
    routing.install()
    try:
        yield routing
    finally:
        routing.uninstall()


@pytest.fixture(autouse=True)
def no_other_wrappers() -> None:
    """Takes away those that calls inside functions have left on LangChain's classes in this process.

    Others' methods keep wrappers of their own: LlamaIndex's open spans in them.
    """
    todo: list[type] = [Runnable]
    while todo:
        kind = todo.pop()
        todo.extend(kind.__subclasses__())
        for name, method in list(vars(kind).items()):
            if wrapped(method) is not None:
                setattr(kind, name, inspect.unwrap(method))


def chain() -> Runnable[Any, Any]:
    return RunnablePassthrough() | RunnableLambda(lambda x: x + 1)


async def test_only_the_outermost_call_is_routed(routing: Routing) -> None:
    nested = RunnableLambda(lambda x: chain().invoke(x)) | chain()
    assert nested.invoke(1) == 3
    assert await nested.ainvoke(1) == 3
    assert routing.calls == {"invoke": 1, "ainvoke": 1}
    assert routing.types == {"langchain_core.runnables.base.RunnableSequence": 2}


@pytest.mark.filterwarnings("ignore:astream_log is deprecated")
async def test_every_way_to_run_is_routed(routing: Routing) -> None:
    runnable = chain()
    assert runnable.invoke(1) == await runnable.ainvoke(1) == 2
    assert runnable.batch([1, 2]) == await runnable.abatch([1, 2]) == [2, 3]
    assert sorted(runnable.batch_as_completed([1, 2])) == [(0, 2), (1, 3)]
    assert sorted([x async for x in runnable.abatch_as_completed([1, 2])]) == [(0, 2), (1, 3)]
    assert list(runnable.stream(1)) == [x async for x in runnable.astream(1)] == [2]
    assert list(runnable.transform(iter([1]))) == [2]

    async def inputs() -> AsyncIterator[int]:
        yield 1

    assert [x async for x in runnable.atransform(inputs())] == [2]
    assert [x async for x in runnable.astream_log(1)]
    events = [x["event"] async for x in runnable.astream_events(1, version="v2")]
    assert (events[0], events[-1]) == ("on_chain_start", "on_chain_end")
    assert routing.calls == dict.fromkeys(set(METHODS) - {"stream_events"}, 1)


async def test_a_consumer_is_outside_between_two_items(routing: Routing) -> None:
    def numbers(_: Iterator[int]) -> Iterator[int]:
        yield from (1, 2)

    async def anumbers(_: AsyncIterator[int]) -> AsyncIterator[int]:
        for i in (1, 2):
            yield i

    generator = RunnableGenerator(numbers, anumbers)
    for item in generator.stream(0):
        assert chain().invoke(item) == item + 1
    async for item in generator.astream(0):
        assert chain().invoke(item) == item + 1
    assert routing.calls == {"stream": 1, "invoke": 4, "astream": 1}


async def test_closing_a_stream_reaches_the_source(routing: Routing) -> None:
    closed = []

    def numbers(_: Iterator[int]) -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append("sync")

    async def anumbers(_: AsyncIterator[int]) -> AsyncIterator[int]:
        try:
            for i in range(100):
                yield i
        finally:
            closed.append("async")

    generator = RunnableGenerator(numbers, anumbers)
    stream = generator.stream(0)
    assert next(stream) == 0
    stream.close()
    astream = generator.astream(0)
    assert await anext(astream) == 0
    await astream.aclose()
    assert closed == ["sync", "async"]


def test_classes_made_later_are_routed(routing: Routing) -> None:
    class Plain(Runnable[Any, Any]):
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            return "plain"

    class Model(RunnableSerializable[Any, Any]):
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            return "model"

    class Derived(Model):
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            return super().invoke(input, config) + "s"

    assert [Plain().invoke(1), Model().invoke(1), Derived().invoke(1)] == ["plain", "model", "models"]
    assert routing.calls == {"invoke": 3}
    assert len(routing.types) == 3


def test_a_call_of_a_base_method_is_not_routed(routing: Routing) -> None:
    """It asks for that method, and the optimized object could only offer its own."""

    class Twice(RunnablePassthrough[int]):
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            return 2 * input

    assert RunnablePassthrough.invoke(Twice(), 3) == 3
    assert routing.calls == {}
    assert Twice().invoke(3) == 6
    assert routing.calls == {"invoke": 1}


def test_methods_keep_identity_kind_and_signature(routing: Routing) -> None:
    assert type(chain()).invoke is RunnableSequence.invoke
    assert FakeChat.ainvoke is BaseChatModel.ainvoke
    assert RunnableLambda.invoke is not Runnable.invoke
    assert inspect.iscoroutinefunction(BaseChatModel.ainvoke)
    assert inspect.isasyncgenfunction(RunnableSequence.astream)
    assert inspect.isgeneratorfunction(RunnableSequence.stream)
    assert "config" in inspect.signature(RunnableSequence.invoke).parameters
    assert inspect.isabstract(Runnable)


def test_uninstalling_puts_everything_back() -> None:
    before = {(cls, name): vars(cls)[name] for cls in (Runnable, RunnableSequence) for name in vars(cls)}
    routing = Routing(lambda runnable: runnable)
    routing.install()
    shim = RunnableSequence.invoke
    assert original(shim) is inspect.unwrap(shim) is before[RunnableSequence, "invoke"]
    with pytest.raises(RuntimeError, match="routed already"):
        Routing(lambda runnable: runnable).install()
    routing.uninstall()
    assert {(cls, name): vars(cls)[name] for cls in (Runnable, RunnableSequence) for name in vars(cls)} == before
    assert original(RunnableSequence.invoke) is RunnableSequence.invoke


def test_calls_inside_are_not_routed(routing: Routing) -> None:
    with inside():
        assert chain().invoke(1) == 2
    assert routing.calls == {}


def test_exceptions_pass_and_leave_the_context_as_it_was(routing: Routing) -> None:
    failing = RunnableLambda(lambda x: 1 // x)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failing.invoke(0)
    with pytest.raises(ZeroDivisionError):
        list(failing.stream(0))
    assert routing.calls == {"invoke": 2, "stream": 1}


def test_the_plugin_reports_and_refuses_bad_options(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(fineflow.__file__).parents[1]))
    pytester.makepyfile(
        """
        from langchain_core.runnables import RunnableLambda

        def test_one():
            assert RunnableLambda(lambda x: x + 1).invoke(1) == 2
        """
    )
    arguments = ("-p", "fineflow.testing.routing", "--fineflow-optimizer", "wrapt:ObjectProxy")
    done = pytester.runpytest_subprocess(*arguments, "--fineflow-report=report.json")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["fineflow routed 1 calls of 1 object types (invoke 1)"])
    assert '"invoke": 1' in (pytester.path / "report.json").read_text()
    done = pytester.runpytest_subprocess(*arguments, "--fineflow-options", "[1]")
    done.stderr.fnmatch_lines(["*--fineflow-options expects a JSON object, got*"])
    done = pytester.runpytest_subprocess("-p", "fineflow.testing.routing", "--fineflow-optimizer", "nowhere:f")
    done.stderr.fnmatch_lines(["*--fineflow-optimizer expects 'module:function', got 'nowhere:f'*"])
