"""Tenants do not share the cached prefixes of prompts, unless the runtime says so: in queues, engines and groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from test_sharing import PREFIX, PROFILE, ask, computed, engine, together

import fineflow
from fineflow.adapters.core.contexts import Context
from fineflow.backends.emulated import EmulatedLLM
from fineflow.cost_model.costs import costs
from fineflow.protocols import Delta, Sampling, salted
from fineflow.runtime.queues.instances import instances
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.testing import virtual


@pytest.fixture(autouse=True)
def _nothing_learned() -> None:
    costs.forget()


async def ask_as(tenant: str, llm: Any, prompt: str, *, after: float = 0.0) -> Delta:
    with fineflow.identity(tenant=tenant):
        return await ask(llm, prompt, after=after)


def asked_by(llm: Any, *tenants: str, apart: float = 0.0) -> list[int]:
    """Returns the prompt tokens that requests with one beginning compute, which tenants send in turn."""
    asked = (ask_as(each, llm, f"{PREFIX}question {i} here", after=i * apart) for i, each in enumerate(tenants))
    return computed(together(*asked)[0])


@pytest.mark.parametrize("apart", [0.0, 2.0])
@pytest.mark.parametrize("number", [1, 2])
def test_each_tenant_computes_a_common_beginning_once(number: int, apart: float) -> None:
    engines = [engine(f"llm-{i}") for i in range(number)]
    llm = instances(engines) if number > 1 else engines[0]
    assert asked_by(llm, "a", "b", "a", "b", apart=apart) == [963, 963, 3, 3]


def test_requests_without_a_tenant_share_with_no_tenant() -> None:
    assert asked_by(engine(), "", "a", "", "a", apart=2.0) == [963, 963, 3, 3]


def test_tenants_share_where_the_runtime_says_so() -> None:
    with fineflow.Runtime(share_prefixes=True):
        assert asked_by(engine(), "a", "b", "", apart=2.0) == [963, 3, 3]
    assert asked_by(engine(), "a", "b", apart=2.0) == [963, 963]


class Unsalted:
    """An engine without salts: all that it is asked goes to another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("salts", "inner"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def cached(self, tokens: Sequence[int]) -> int:
        return self.inner.cached(tokens)

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        await self.inner.prefill(tokens, priority=priority)

    async def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        async for delta in self.inner.generate(tokens, sampling, priority=priority):
            yield delta


def test_an_engine_without_salts_is_called_as_ever() -> None:
    assert asked_by(Unsalted(engine()), "a", "b", apart=2.0) == [963, 3]
    assert salted(Unsalted(engine()), "a") == {} == salted(engine(), "")


class Older(EmulatedLLM):
    """A user's subclass whose method is from before there were salts."""

    async def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:  # type: ignore[override]
        async for delta in super().generate(tokens, sampling, priority=priority):
            yield delta


def test_a_subclass_that_takes_no_salt_is_called_as_ever() -> None:
    older = Older(lambda _: "word", PROFILE)
    assert older.salts
    assert asked_by(older, "a", "b", apart=2.0) == [963, 3]


def test_a_waiting_prefill_is_covered_by_a_request_of_its_own_tenant_only() -> None:
    llm = engine(capacity=1100)  # room for one request

    async def prefill(tenant: str) -> None:
        with fineflow.identity(tenant=tenant):
            await llm_queue_of(llm).prefill(llm.encode(PREFIX))

    async def main() -> tuple[int, int]:
        first = asyncio.create_task(ask_as("c", llm, "other " * 900))
        await asyncio.sleep(0.1)
        prefills = [asyncio.create_task(prefill(tenant)) for tenant in ("a", "b")]
        await asyncio.sleep(0.1)
        asked = asyncio.create_task(ask_as("a", llm, f"{PREFIX}question"))
        await asyncio.wait(prefills, return_when=asyncio.FIRST_COMPLETED)
        ended = prefills[0].done(), prefills[1].done()
        await asyncio.gather(first, asked, *prefills)
        return ended

    assert virtual.run(main()).value == (True, False)


def test_contexts_fill_the_cache_of_their_tenant() -> None:
    llm = engine()

    async def main() -> list[int]:
        found = []
        for tenant in ("a", "a", "b"):
            with fineflow.identity(tenant=tenant):
                async with Context(llm) as context:
                    found.append(llm.cached(llm.encode(PREFIX), salt=tenant))
                    await context.fill(PREFIX)
                    assert context.cached() == 944
        return found

    assert virtual.run(main()).value == [0, 944, 0]


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_wrong_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"Runtime\(share_prefixes=\.\.\.\) is True or False"):
        fineflow.Runtime(share_prefixes=wrong)
