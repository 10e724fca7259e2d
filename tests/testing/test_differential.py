from __future__ import annotations

import asyncio
import functools
import operator
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
import wrapt
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)

from fineflow.testing import virtual_threads
from fineflow.testing.differential import ALL, CONFIGS, PROBE, Observation, assert_same, beyond_races, observe
from fineflow.testing.langchain import FakeChat

INPUT = {"question": "What do cats do?"}


def identity(runnable: Any, **_: Any) -> Any:
    return wrapt.ObjectProxy(runnable)


def make() -> tuple[Runnable[Any, Any], list[str]]:
    log: list[str] = []

    def note(text: str) -> str:
        log.append(f"{PROBE.get()}: {text}")
        return text

    answer = ChatPromptTemplate.from_template("{question}") | FakeChat(default="They purr.") | StrOutputParser()
    return RunnablePassthrough.assign(answer=answer) | RunnablePassthrough.assign(
        noted=(lambda x: x["answer"]) | RunnableLambda(note)
    ), log


def broken() -> Runnable[Any, Any]:
    def users_function(x: Any) -> Any:
        raise ValueError(f"bad {x}") from KeyError("cause")

    return RunnablePassthrough() | users_function


class Tampering(wrapt.ObjectProxy):  # type: ignore[misc]
    """An optimizer gone wrong: passes results and config through functions."""

    def __init__(
        self, wrapped: Any, *, result: Callable[[Any], Any] = lambda x: x, config: Callable[[Any], Any] = lambda c: c
    ) -> None:
        super().__init__(wrapped)
        self._self_result, self._self_config = result, config

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return self._self_result(self.__wrapped__.invoke(input, self._self_config(config), **kwargs))

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return self._self_result(await self.__wrapped__.ainvoke(input, self._self_config(config), **kwargs))

    def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        for chunk in self.__wrapped__.stream(input, self._self_config(config), **kwargs):
            yield self._self_result(chunk)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_object_is_the_same_as_itself(name: str) -> None:
    assert_same(make, INPUT, optimize=identity, config=CONFIGS[name], exact_chunks=True)


@pytest.mark.parametrize("handler", ["sync", "async", None])
def test_with_every_kind_of_handler(handler: Any) -> None:
    assert_same(make, INPUT, optimize=identity, handler=handler, batch=[INPUT, {"question": "And dogs?"}])


def test_exceptions_are_the_same_as_themselves() -> None:
    # One input: of two that fail, stock may or may not have begun the second when the first fails.
    assert_same(broken, "x", optimize=identity, batch=["x"])


@pytest.mark.parametrize("entry", ALL)
def test_an_observation_has_everything(entry: str) -> None:
    chain, log = make()
    seen = observe(chain, entry, [INPUT] if "batch" in entry else INPUT, log=log)
    assert seen.error is None
    assert seen.log == ["caller: They purr."]
    assert seen.probe == "caller"
    assert seen.leftover == []
    assert [run.name for run in seen.runs] == ["RunnableSequence"]
    if entry == "astream_events":
        (root,) = seen.value
        assert root == observe(make()[0], entry, INPUT).value[0]
        assert "on_chat_model_stream" in str(root)
    else:
        assert "They purr." in str(seen.value)
    if "invoke" in entry:
        assert seen.keys == ["question", "answer", "noted"]
    if entry in ("stream", "astream"):
        assert seen.chunk_types == {"question": ["str"], "answer": ["TextAccessor"], "noted": ["str"]}
        assert [piece["value"] for piece in seen.chunks["answer"]] == ["They ", "purr."]


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream", "astream_events"])
def test_an_observed_error_names_the_users_function(entry: str) -> None:
    seen = observe(broken(), entry, "x")
    assert seen.error == {
        "type": "ValueError",
        "message": "bad x",
        "causes": [{"type": "KeyError", "message": "'cause'"}],
        "user frames": ["users_function"],
    }


@pytest.mark.parametrize("entry", ["invoke", "ainvoke"])
@pytest.mark.parametrize(
    ("field", "tampering"),
    [
        ("value", {"result": lambda x: {**x, "answer": "They bark."}}),
        ("value", {"result": lambda x: {**x, "more": 1}}),
        ("keys", {"result": lambda x: dict(reversed(x.items()))}),
        ("runs", {"config": lambda c: {**c, "tags": ["extra"]}}),
        ("runs", {"config": lambda c: {**c, "metadata": {"extra": 1}}}),
        ("runs", {"config": lambda c: {**c, "run_name": "other"}}),
        ("runs", {"config": lambda c: {}}),
        ("probe", {"result": lambda x: PROBE.set("changed") and x}),
        ("error", {"result": lambda x: [][1]}),
    ],
)
def test_what_differs_is_named(entry: str, field: str, tampering: Any) -> None:
    with pytest.raises(AssertionError, match=f"{entry}: {field} differs"):
        assert_same(make, INPUT, entries=[entry], optimize=lambda r: Tampering(r, **tampering))


def test_a_difference_is_shown_as_a_diff() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_same(
            make, INPUT, entries=["invoke"], optimize=lambda r: Tampering(r, result=lambda x: {**x, "answer": "No."})
        )
    text = str(caught.value)
    assert '-  "value": "They purr."' in text
    assert '+ "answer": "No.",' in text


def test_extra_token_events_are_noticed() -> None:
    """`stream` reports tokens where `invoke` does not."""

    class Streaming(Tampering):
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            chunks = list(self.__wrapped__.stream(input, config, **kwargs))
            total = AIMessageChunk(content="")
            for chunk in chunks:
                total += chunk
            return AIMessage(**total.model_dump(exclude={"type", "tool_call_chunks", "chunk_position"}))

    with pytest.raises(AssertionError, match=r"invoke: runs differs[\s\S]*\+.*on_llm_new_token"):
        assert_same(lambda: FakeChat(default="a b"), "x", entries=["invoke"], optimize=Streaming)


def test_chunks_are_compared_by_type_and_sum_unless_told_otherwise() -> None:
    class Regrouping(Tampering):
        def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            yield functools.reduce(operator.add, self.__wrapped__.stream(input, config, **kwargs))

    def contents(chunks: Iterator[Any]) -> Iterator[str]:
        for chunk in chunks:
            yield chunk.content

    def text() -> Runnable[Any, Any]:
        return FakeChat(default="a b c") | RunnableGenerator(contents)

    assert_same(text, "x", entries=["stream"], optimize=Regrouping)
    with pytest.raises(AssertionError, match="stream: chunks differs"):
        assert_same(text, "x", entries=["stream"], optimize=Regrouping, exact_chunks=True)
    with pytest.raises(AssertionError, match="stream: chunk_types differs"):
        assert_same(text, "x", entries=["stream"], optimize=lambda r: Tampering(r, result=lambda c: [c]))


def test_side_effects_are_compared_in_order_unless_told_otherwise() -> None:
    def logging() -> tuple[Runnable[Any, Any], list[int]]:
        log: list[int] = []
        return RunnableLambda(lambda x: log.extend(x)), log

    class Reversing(Tampering):
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            return self.__wrapped__.invoke(input[::-1], None, **kwargs)

    given: dict[str, Any] = {"entries": ["invoke"], "optimize": Reversing, "handler": None}
    with pytest.raises(AssertionError, match="log differs"):
        assert_same(logging, [1, 2], **given)
    assert_same(logging, [1, 2], ordered_log=False, **given)


def test_a_task_left_behind_is_noticed() -> None:
    class Leaking(Tampering):
        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            self._self_task = asyncio.ensure_future(asyncio.Event().wait())
            return await self.__wrapped__.ainvoke(input, config, **kwargs)

    with pytest.raises(AssertionError, match=r"leftover differs[\s\S]*Event.wait"):
        assert_same(make, INPUT, entries=["ainvoke"], optimize=Leaking)


def test_a_stream_that_fails_later_than_stock_is_noticed() -> None:
    """A generator without a sync function refuses `stream` at the call, not at the first item."""

    async def numbers(_: Any) -> AsyncIterator[int]:
        yield 1

    class Lazy(Tampering):
        def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            yield from self.__wrapped__.stream(input, config, **kwargs)

    assert_same(lambda: RunnableGenerator(numbers), 0, optimize=identity)
    with pytest.raises(AssertionError, match="stream: started differs"):
        assert_same(lambda: RunnableGenerator(numbers), 0, entries=["stream"], optimize=Lazy)


def test_options_reach_the_optimizer() -> None:
    seen: list[dict[str, Any]] = []

    def optimize(runnable: Any, **options: Any) -> Any:
        seen.append(options)
        return runnable

    assert_same(make, INPUT, entries=["invoke"], optimize=optimize, eager=True)
    assert seen == [{"eager": True}]


def test_a_call_that_hangs_fails_the_test() -> None:
    async def wait(_: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"has not ended after 0.05 s"):
        observe(RunnableLambda(wait), "ainvoke", 1, timeout=0.05)


def test_an_unknown_entry_point_is_refused() -> None:
    with pytest.raises(ValueError, match="entry must be one of invoke, stream"):
        observe(RunnablePassthrough(), "run", 1)


def test_a_pipeline_in_place_of_what_makes_one_is_refused() -> None:
    pipeline: Any = RunnablePassthrough()
    with pytest.raises(
        TypeError, match=r"expects a function that makes the pipeline, .* got RunnablePassthrough: write"
    ):
        assert_same(pipeline, 1)


def test_how_far_others_get_beside_a_failure_is_compared_when_all_are_at_rest() -> None:
    failed: dict[str, Any] = {"error": {"type": "ValueError"}}
    stock, ours = Observation("ainvoke", **failed), Observation("ainvoke", leftover=["a"], **failed)
    assert beyond_races(stock, ours, (lambda **_: stock, lambda **_: stock)) == []
    assert len(beyond_races(stock, ours, (lambda **_: stock, lambda **_: ours))) == 1


@pytest.mark.parametrize("change", [{"error": None}, {"value": "ours"}, {"probe": "ours"}])
def test_what_depends_on_no_race_is_compared_at_once(change: dict[str, Any]) -> None:
    stock = Observation("ainvoke", error={"type": "ValueError"})
    ours = replace(stock, leftover=["a"], **change)
    assert beyond_races(stock, ours, (pytest.fail, pytest.fail))


class Beside(BaseRetriever):
    """Takes a moment that is another one each time, beside a step that fails."""

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        time.sleep(random.uniform(0, 0.005))
        return [Document(query)]


def _failing(_: Any) -> Any:
    time.sleep(0.002)
    raise ValueError("no")


@pytest.mark.skipif(not virtual_threads.available, reason="the machine does not tell what threads do")
@pytest.mark.parametrize("entry", ALL)
@pytest.mark.parametrize("handler", ["sync", "async"])
def test_at_rest_a_failing_call_is_the_same_each_time(entry: str, handler: Literal["sync", "async"]) -> None:
    pipeline = RunnableParallel(
        one=Beside() | RunnablePassthrough() | RunnableLambda(len), fails=_failing, two=Beside()
    )
    given = ["q", "r"] if "batch" in entry else "q"
    seen = [observe(pipeline, entry, given, handler=handler, at_rest=True) for _ in range(5)]
    assert seen[0].error is not None
    assert all(each == seen[0] for each in seen)
    assert "Document" in repr(seen[0])  # what went on beside the failure has ended
