"""Functions that keep their results: what a walk reads of their caches, and that it changes nothing there."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from typing import Any

import pytest

pytest.importorskip("langchain_openai")
from langchain.chat_models import init_chat_model
from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.adapters.lookahead.kept_results import kept_result
from fineflow.adapters.lookahead.values import Stop
from fineflow.testing import virtual
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat
from fineflow.testing.server import OpenAIServer


class Odd:
    """Objects that are compared by code of the user's."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def __hash__(self) -> int:
        return hash("a")


def made(*args: Any, **named: Any) -> Any:
    return {"made": (args, named)}


CACHES: dict[str, Callable[[Any], Any]] = {
    "unbounded": cache,
    "bounded": lru_cache(maxsize=8),
    "of one": lru_cache(maxsize=1),
    "default": lru_cache,
}
SELF = object()
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    *(((), {}), (("a",), {}), ((1,), {}), ((True,), {}), ((None,), {}), ((1.5, "b"), {})),
    *(((), {"a": 1}), (("a",), {"b": 2, "c": "d"}), ((SELF, "a"), {})),
]


@pytest.mark.parametrize("args, named", CALLS)
@pytest.mark.parametrize("kept", CACHES)
def test_the_result_of_the_same_call(kept: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    func = CACHES[kept](made)
    with pytest.raises(Stop):
        kept_result(func, args, named)
    for others in [*CALLS[::2], (args, named)]:
        result = func(*others[0], **others[1])
    before = func.cache_info()
    assert kept_result(func, args, named) is result
    assert func.cache_info() == before


@pytest.mark.parametrize("kept", CACHES)
def test_only_results_of_that_call(kept: str) -> None:
    func = CACHES[kept](made)
    for args, named in CALLS[1:]:
        with pytest.raises(Stop):
            kept_result(func, args, named)
        func(*args, **named)
        for other, other_named in CALLS:
            same = func.__wrapped__(*other, **other_named)
            try:
                assert kept_result(func, other, other_named) == same
            except Stop:
                continue
    func.cache_clear()
    with pytest.raises(Stop):
        kept_result(func, *CALLS[-1])


def test_types_of_arguments_and_code_that_compares() -> None:
    typed = lru_cache(typed=True)(made)
    typed(1)
    with pytest.raises(Stop):
        kept_result(typed, (1.0,), {})
    func = lru_cache(made)
    func(Odd())
    func((Odd(), "b"))
    for args in ((Odd(),), ("a",), ((Odd(), "b"),)):
        with pytest.raises(Stop):
            kept_result(func, args, {})


def model() -> FakeChat:
    return FakeChat(prefill=0.5)


@lru_cache(maxsize=1)
def get_model() -> FakeChat:
    return model()


@cache
def model_named(name: str, *, version: int) -> FakeChat:
    return FakeChat(prefill=0.5)


class Models:
    _own: FakeChat | None = None

    @cached_property
    def cached(self) -> FakeChat:
        return FakeChat(prefill=0.5)

    @property
    def lazy(self) -> FakeChat:
        if self._own is None:
            self._own = FakeChat(prefill=0.5)
        return self._own

    @functools.lru_cache  # noqa: B019
    def named(self, name: str) -> FakeChat:
        return FakeChat(prefill=0.5)


models = Models()
FOUND: dict[str, Callable[[], Any]] = {
    "lru_cache": get_model,
    "cache": lambda: model_named("small", version=2),
    "cached_property": lambda: models.cached,
    "property": lambda: models.lazy,
    "method": lambda: models.named("small"),
}


@pytest.mark.parametrize("how", FOUND)
def test_calls_of_a_component_that_is_made_once(how: str) -> None:
    """The first call makes it; from the next one on, calls that need nothing from each other start together."""
    find = FOUND[how]

    async def ask(question: str) -> list[Any]:
        return [(await find().ainvoke(f"{question} {number}")).content for number in range(3)]

    app = fineflow.optimize(RunnableLambda(ask), strict=True)
    runs = [virtual.run(app.ainvoke("tower")) for _ in range(3)]
    assert [run.value for run in runs] == [virtual.run(ask("tower")).value] * 3
    assert [run.seconds for run in runs[1:]] == pytest.approx([0.5, 0.5])


def test_a_model_that_init_chat_model_makes_once() -> None:
    """Both requests reach the server before it answers the first one."""
    gate = Gate()
    with OpenAIServer("ok", gate=gate) as server:

        @cache
        def served() -> Any:
            return init_chat_model("openai:tiny", base_url=server.url, api_key="key", max_retries=0)

        served()

        async def ask(question: str) -> list[str]:
            return [(await served().ainvoke(f"{question} {number}")).content for number in range(2)]

        async def run() -> list[str]:
            asking = asyncio.create_task(
                fineflow.optimize(RunnableLambda(ask), strict=True, eager=True).ainvoke("tower")
            )
            await gate.arrived(2)
            gate.open()
            return await asking

        assert asyncio.run(run()) == ["ok", "ok"]
