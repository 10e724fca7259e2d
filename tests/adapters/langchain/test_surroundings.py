"""Same answer with what LangChain offers around a pipeline: overrides, callbacks, caches, listeners, early ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import get_debug, get_verbose, set_debug, set_llm_cache, set_verbose
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import (
    ConfigurableField,
    RunnableLambda,
    RunnablePassthrough,
    RunnablePick,
)
from pipelines import DIRECT, QUESTION, ask, echo, same, two

from fineflow import explain, external, optimize
from fineflow.testing.differential import observe
from fineflow.testing.langchain import FakeChat

# --- models that override ------------------------------------------------------------------------------------------


class OwnInvoke(FakeChat):
    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        return AIMessage("invoked: " + super().invoke(*args, **kwargs).text)


class OwnAinvoke(FakeChat):
    async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
        return AIMessage("awaited: " + (await super().ainvoke(*args, **kwargs)).text)


@external
class NoManager(FakeChat):
    def _generate(self, messages: Any, stop: Any = None, **kwargs: Any) -> ChatResult:  # type: ignore[override]
        assert "run_manager" not in kwargs
        return super()._generate(messages, stop, None)

    async def _agenerate(self, messages: Any, stop: Any = None) -> ChatResult:  # type: ignore[override]
        return await super()._agenerate(messages, stop)


@external
class OnlyGenerates(FakeChat):
    """Reports tokens to its run manager, retries, and has an async half that is the sync one in a thread."""

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if run_manager is not None:
            run_manager.on_text("thinking")
            run_manager.on_llm_new_token("tok")
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(echo(messages)), generation_info={"why": "done"})],
            llm_output={"model": "only"},
        )


@pytest.mark.parametrize("kind", [OwnInvoke, OwnAinvoke, NoManager, OnlyGenerates])
def test_models_that_override(kind: type[FakeChat]) -> None:
    same(lambda: two(kind(answers=echo)))


@pytest.mark.parametrize("kind", [OwnInvoke, OwnAinvoke])
def test_an_override_is_left_to_stock(kind: type[FakeChat]) -> None:
    assert "not recognised" in str(explain(two(kind(answers=echo)), graphs=True))


class Seen(BaseCallbackHandler):
    """Notes which kinds of events arrive."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.log.append(("start", kwargs.get("tags"), kwargs.get("metadata")))

    def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
        self.log.append("end")


def test_a_model_with_callbacks_tags_and_metadata_of_its_own() -> None:
    def make() -> Any:
        log: list[Any] = []
        return two(FakeChat(answers=echo, callbacks=[Seen(log)], tags=["mine"], metadata={"made": "by me"})), log

    same(make)


def test_handlers_that_raise() -> None:
    class Strict(BaseCallbackHandler):
        raise_error = True

        def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
            if "two" in messages[0][0].text:
                raise PermissionError("not allowed to ask that")

    same(two, config={"callbacks": [Strict()]}, entries=DIRECT)


# --- caches, limits, global switches -------------------------------------------------------------------------------


@contextmanager
def llm_cache() -> Iterator[None]:
    set_llm_cache(InMemoryCache())
    try:
        yield
    finally:
        set_llm_cache(None)


@pytest.mark.parametrize("entry", DIRECT)
def test_a_cache_is_asked_first(entry: str) -> None:
    for chain in (lambda model: model, lambda model: optimize(model, strict=True, eager=True)):
        model = FakeChat(answers=echo)
        mine = chain(two(model))
        with llm_cache():
            first = observe(mine, entry, QUESTION)
            second = observe(mine, entry, QUESTION)
        assert first.value == second.value and model.meter.calls == 2


def test_a_cache_of_the_models_own() -> None:
    for cache in (InMemoryCache(), False):
        model = FakeChat(answers=echo, cache=cache)
        mine = optimize(two(model), strict=True, eager=True)
        for _ in range(2):
            mine.invoke(QUESTION)
        assert model.meter.calls == (4 if cache is False else 2)
    same(lambda: two(FakeChat(answers=echo, cache=True)), entries=DIRECT)  # fails: there is no global cache


def test_a_rate_limiter_is_asked_as_often() -> None:
    class Counted(InMemoryRateLimiter):
        asked: int = 0

        def acquire(self, *, blocking: bool = True) -> bool:
            self.asked += 1
            return super().acquire(blocking=blocking)

        async def aacquire(self, *, blocking: bool = True) -> bool:
            self.asked += 1
            return await super().aacquire(blocking=blocking)

    limiters: list[Counted] = []

    def make() -> Any:
        limiters.append(Counted(requests_per_second=1e6, check_every_n_seconds=1e-4))
        return two(FakeChat(answers=echo, rate_limiter=limiters[-1]))

    same(make, entries=DIRECT)
    assert {limiter.asked for limiter in limiters} == {2}


@pytest.mark.parametrize("switch", ["debug", "verbose"])
def test_global_switches(switch: str, capsys: pytest.CaptureFixture[str]) -> None:
    getter, setter = {"debug": (get_debug, set_debug), "verbose": (get_verbose, set_verbose)}[switch]
    before = getter()
    setter(True)
    try:
        printed = []
        for optimized in (False, True):
            mine = optimize(two(), strict=True, eager=True) if optimized else two()
            mine.invoke(QUESTION)
            printed.append([line for line in capsys.readouterr().out.splitlines() if "[" in line and "ms]" not in line])
        assert [_untimed(line) for line in printed[0]] == [_untimed(line) for line in printed[1]]
    finally:
        setter(before)


def _untimed(line: str) -> str:
    return line.split("lc_run--")[0]


# --- values --------------------------------------------------------------------------------------------------------


def test_partial_variables_that_are_functions() -> None:
    def make() -> Any:
        log: list[Any] = []

        def today() -> str:
            log.append("asked for the date")
            return "today"

        prompt = ask("{question} {date}").partial(date=today)
        return RunnablePassthrough.assign(a=prompt | FakeChat(answers=echo)) | RunnablePassthrough.assign(
            b=prompt | FakeChat(answers=echo)
        ), log

    same(make)


def test_variables_that_are_dicts() -> None:
    prompt = ChatPromptTemplate.from_template("{user} of {home!r} asks {question:>50}")
    value = {**QUESTION, "user": {"name": "Ann", "home": {"town": "Lyon"}}, "home": "elsewhere"}

    def make() -> Any:
        return RunnablePassthrough.assign(a=prompt | FakeChat(answers=echo) | StrOutputParser()) | (
            RunnablePassthrough.assign(user=RunnablePick("a") | FakeChat(answers=lambda m: '{"name": "Bob", "home": 1}')
            | JsonOutputParser())
            | RunnablePassthrough.assign(b=prompt | FakeChat(answers=echo) | StrOutputParser())
        )  # fmt: skip

    same(make, value, entries=DIRECT)


PICKS: dict[str, Any] = {
    "a missing key": RunnablePick("missing"),
    "some missing": RunnablePick(["missing", "a"]),
    "all missing": RunnablePick(["missing", "none"]),
    "an item of a list": RunnablePick("items") | RunnableLambda(itemgetter(1)),
    "two items": RunnableLambda(itemgetter("a", "question")),
    "an item that is not there": RunnablePick("items") | RunnableLambda(itemgetter(7)),
    "a key of a list": RunnablePick("items") | RunnableLambda(itemgetter("x")),
}


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("then", [None, "model"])
def test_picking(pick: str, then: str | None) -> None:
    def make() -> Any:
        end = RunnableLambda(str) | FakeChat(answers=echo) if then else RunnablePassthrough()
        return two() | RunnablePassthrough.assign(picked=PICKS[pick] | end, c=ask("{a}") | FakeChat(answers=echo))

    same(make, {**QUESTION, "items": ["one", "two"]}, entries=DIRECT)


# --- configuration -------------------------------------------------------------------------------------------------


def configurable() -> Any:
    model = FakeChat(answers=echo).configurable_fields(default=ConfigurableField(id="default"))
    other = FakeChat(answers=echo).configurable_alternatives(
        ConfigurableField(id="which"), default_key="usual", special=FakeChat(default="special")
    )
    return two(model, other)


@pytest.mark.parametrize("chosen", [{}, {"which": "special"}, {"default": "x", "which": "usual"}])
def test_configurable_models(chosen: dict[str, str]) -> None:
    same(configurable, config={"configurable": chosen})


def test_listeners() -> None:
    def make() -> Any:
        log: list[Any] = []
        model = FakeChat(answers=echo).with_listeners(
            on_start=lambda run: log.append(("start", run.name)), on_end=lambda run: log.append(("end", run.name))
        )
        return two(model).with_listeners(on_end=lambda run: log.append("all")), log

    same(make)


# --- ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_stream_that_is_left_early(taken: int) -> None:
    logs = []
    for optimized in (False, True):
        log: list[str] = []

        def after(chunks: Iterator[Any], log: list[str] = log) -> Iterator[Any]:
            try:
                for chunk in chunks:
                    log.append("chunk")
                    yield chunk
            finally:
                log.append("closed")

        chain = two() | ask("{a} {b}") | FakeChat(answers=echo) | after
        stream = (optimize(chain, strict=True, eager=True) if optimized else chain).stream(QUESTION)
        for _ in range(taken):
            next(stream)
        stream.close()
        logs.append(log)
    assert logs[0] == logs[1]


@pytest.mark.parametrize("taken", [0, 1, 3])
async def test_an_async_stream_that_is_left_early(taken: int) -> None:
    before = asyncio.all_tasks()
    stream = optimize(two() | ask("{a} {b}") | FakeChat(answers=echo), strict=True, eager=True).astream(QUESTION)
    for _ in range(taken):
        await anext(stream)
    await stream.aclose()
    assert asyncio.all_tasks() == before
