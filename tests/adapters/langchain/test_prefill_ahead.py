"""Prefilling ahead on the embedded engine with its real model: what is found cached, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.resources import files
from typing import Any

import pytest

pytest.importorskip("transformers")

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import Runnable, RunnableBranch, RunnableParallel, RunnablePassthrough, RunnablePick

import fineflow
from fineflow.adapters.langchain.components.chat import ChatEngine
from fineflow.adapters.langchain.components.completion import EngineLLM
from fineflow.backends.transformers import TransformersEngine
from fineflow.cost_model.costs import costs
from fineflow.cost_model.lines import Line
from fineflow.ir import Op
from fineflow.passes import PASSES, prefill
from fineflow.protocols import Delta
from fineflow.runtime.loop.submission import run_async, run_sync
from fineflow.testing.differential import assert_same
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

pytestmark = pytest.mark.engine

FACTS = "Torstad is known for its salt mines. The old bridge was built before the new road. "
RULES = FACTS * 6
VALUE: dict[str, Any] = {
    "question": "What is Torstad known for?",
    "document": FACTS * 5,
    "items": ["Torstad", "Kelmora", "Nelbury"],
    "history": [HumanMessage(FACTS * 3), AIMessage(FACTS * 2)],
}
WITHOUT = tuple(each for each in PASSES if each is not prefill)


@functools.cache
def engine() -> TransformersEngine:
    return TransformersEngine(str(files("fineflow.demo") / "data" / "tinylm"), name="tiny")


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    run_sync(engine().aclose)
    engine.cache_clear()


def llm() -> ChatEngine:
    return ChatEngine(engine=engine(), max_tokens=4)


def ask(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(text)


def late(name: str, gate: Gate | None = None) -> Runnable[Any, Any]:
    return ask(f"{name} {{question}}") | FakeChat(default=FACTS * 2, gate=gate) | StrOutputParser()


def chained(gate: Gate | None = None) -> Runnable[Any, Any]:
    values = {name: late(name, gate) for name in "ab"}
    return RunnablePassthrough.assign(**values) | ask(RULES + "{a}\n{b}\n{question}") | llm() | StrOutputParser()


def history(gate: Gate | None = None) -> Runnable[Any, Any]:
    parts = [("system", "Be kind."), MessagesPlaceholder("history"), ("human", "{context}\n\n{question}")]
    prompt = ChatPromptTemplate.from_messages(parts)
    return RunnablePassthrough.assign(context=late("context", gate)) | prompt | llm() | StrOutputParser()


def refine(gate: Gate | None = None) -> Runnable[Any, Any]:
    first = RunnablePassthrough.assign(a=late("start", gate))
    second = RunnablePassthrough.assign(b=ask("1. " + RULES + "{question} {a}") | llm() | StrOutputParser())
    return first | second | ask("2. " + RULES + "{question} {b}") | llm() | StrOutputParser()


def search_engine(gate: Gate | None = None) -> Runnable[Any, Any]:
    core = RunnablePassthrough.assign(context=late("search")) | ask("With. " + RULES + "{context}") | llm()
    alone = ask("Alone. " + RULES + "{question}") | llm()
    routed = RunnableBranch((lambda x: "salt" in x["judge"], core), alone)
    return RunnablePassthrough.assign(judge=late("judge", gate)) | routed | StrOutputParser()


def completion(gate: Gate | None = None) -> Runnable[Any, Any]:
    prompt = PromptTemplate.from_template(RULES + "{question} {a}")
    return RunnablePassthrough.assign(a=late("a", gate)) | prompt | EngineLLM(engine=engine(), max_tokens=4)


def siblings() -> Runnable[Any, Any]:
    return RunnableParallel({word: ask("{document} " + word + " {question}") | llm() for word in ("Who", "What")})


def mapped() -> Runnable[Any, Any]:
    return RunnablePick("items") | (ask(FACTS * 5 + "{item}") | llm() | StrOutputParser()).map()


LATE: dict[str, Callable[..., Runnable[Any, Any]]] = {
    "chained": chained,
    "history": history,
    "refine": refine,
    "search engine": search_engine,
    "completion": completion,
}
SHAPES: dict[str, Callable[..., Runnable[Any, Any]]] = {**LATE, "siblings": siblings, "map": mapped}


@pytest.mark.parametrize("passes", [WITHOUT, PASSES], ids=["off", "on"])
@pytest.mark.parametrize("name", ["chained", "search engine", "siblings", "map"])
def test_same_answer(name: str, passes: Any) -> None:
    assert_same(SHAPES[name], VALUE, strict=True, passes=passes, entries=("ainvoke",))


class Watched:
    """What the engine has done: prefills that have ended, and requests, as (tokens, cached)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[tuple[int, int]] = []
        self.prefills = Gate(opened=True)
        generate, begin = engine().generate, engine().prefill

        async def watched(*args: Any, **kwargs: Any) -> AsyncIterator[Delta]:
            async for delta in generate(*args, **kwargs):
                yield delta
            self.requests.append((delta.prompt_tokens, delta.cached_tokens))

        async def prefilled(*args: Any, **kwargs: Any) -> None:
            await begin(*args, **kwargs)
            await self.prefills.wait()

        monkeypatch.setattr(engine(), "generate", watched)
        monkeypatch.setattr(engine(), "prefill", prefilled)


def learned() -> None:
    """Teaches how long an arm's prefill takes, and its choice."""
    costs.know(engine().name, Op.PREFILL, Line(0.0, 1e-6))
    for _ in range(3):
        costs.observe_wait(engine().name, "branch", 60.0)


PREFILLS = {"chained": 1, "history": 1, "refine": 2, "search engine": 2, "completion": 1}
"""How many prefills there are before the first late value."""


@pytest.mark.parametrize("name", PREFILLS)
async def test_what_was_prefilled_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the passes nothing of these prompts is cached; with them all but what came last is."""
    await run_async(engine().start)
    gate, watched = Gate(), Watched(monkeypatch)
    learned()
    await run_async(engine().reset_prefix_cache)
    task = asyncio.create_task(fineflow.optimize(LATE[name](gate), strict=True).ainvoke(VALUE))
    await watched.prefills.arrived(PREFILLS[name])
    gate.open()
    await task
    tokens, cached = watched.requests[-1]
    assert cached > tokens // 3


@pytest.mark.parametrize("name", ["chained", "search engine"])
async def test_a_cancelled_call_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled between prefilling and decoding: no request, no block in use; what is kept anybody may take over."""
    await run_async(engine().start)
    gate, watched = Gate(), Watched(monkeypatch)
    learned()
    await run_async(engine().reset_prefix_cache)
    task = asyncio.create_task(fineflow.optimize(LATE[name](gate), strict=True).ainvoke(VALUE))
    await watched.prefills.arrived(PREFILLS[name])
    assert engine().stats().kept or engine().stats().used
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await idle()
    await run_async(engine().reset_prefix_cache)
    assert engine().stats().kept == 0


async def test_a_failed_call_leaves_nothing() -> None:
    await run_async(engine().start)
    broken = RunnablePassthrough.assign(
        a=ask("{question}") | FakeChat(answers={"": ValueError("no")}) | StrOutputParser()
    )
    chain = broken | ask(RULES + "{a}") | llm()
    with pytest.raises(ValueError, match="no"):
        await fineflow.optimize(chain, strict=True).ainvoke(VALUE)
    await idle()


async def test_cancelling_ends_a_prefill_that_is_running() -> None:
    await run_async(engine().start)
    await run_async(engine().reset_prefix_cache)
    gate, reached, go_on = Gate(), Gate(), Gate()

    def held(module: object, args: object) -> None:
        reached.wait_sync()
        go_on.wait_sync()

    reached.open()
    hook = engine()._hosting.model.register_forward_pre_hook(held)
    try:
        task = asyncio.create_task(fineflow.optimize(chained(gate), strict=True).ainvoke(VALUE))
        await reached.arrived(1)
        assert engine().stats().requests == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        go_on.open()
        hook.remove()
    await idle()


async def idle() -> None:
    async with asyncio.timeout(30):
        while (found := engine().stats()).requests or found.used:
            await asyncio.sleep(0)
