"""Requests with a common prefix: one computes it and the others follow; they share an instance unless load says not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import fineflow
from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.cost_model.costs import costs
from fineflow.ir import Op
from fineflow.protocols import Delta, Sampling
from fineflow.runtime.queues import request_context
from fineflow.runtime.queues.instances import instances
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.runtime.queues.placement import Asked, Instance, roomiest
from fineflow.runtime.queues.prompts import Prompt
from fineflow.testing import virtual

PROFILE = LLMProfile(iteration=0.02, prefill_token=0.001, decode_sequence=0.0, prefill_tokens=256, blocks=4096)
PREFIX = "common " * 960


@pytest.fixture(autouse=True)
def _nothing_learned() -> None:
    costs.forget()


def engine(name: str = "llm", *, words: int = 4, **settings: Any) -> EmulatedLLM:
    return EmulatedLLM(lambda _: " ".join(["word"] * words), PROFILE, name=name, **settings)


async def ask(llm: Any, prompt: str, *, after: float = 0.0, priority: int = 0, limit: int = 8) -> Delta:
    """Returns the last piece of the answer."""
    await asyncio.sleep(after)
    with fineflow.identity(priority=priority):
        pieces = [delta async for delta in llm_queue_of(llm).generate(llm.encode(prompt), Sampling(max_tokens=limit))]
    return pieces[-1]


def computed(deltas: Sequence[Delta]) -> list[int]:
    """Returns the prompt tokens that each request computed."""
    return [delta.prompt_tokens - delta.cached_tokens for delta in deltas]


def together(*asked: Any) -> tuple[list[Delta], float]:
    async def main() -> list[Delta]:
        return await asyncio.gather(*map(asyncio.ensure_future, asked))

    found = virtual.run(main())
    return found.value, found.seconds


@pytest.mark.parametrize("capacity", [None, 8000])
def test_one_computes_the_prefix_and_the_others_follow(capacity: int | None) -> None:
    llm = engine(capacity=capacity)
    deltas, seconds = together(*(ask(llm, f"{PREFIX}question {i} here") for i in range(8)))
    assert computed(deltas) == [963] + [3] * 7
    assert seconds < 1.3  # not 8 times 0.96


def test_a_prefix_made_at_run_time_is_shared_across_apps_too() -> None:
    llm = engine()
    first = [ask(llm, f"{PREFIX}first app {i}") for i in range(2)]
    deltas, _ = together(*first, *(ask(llm, f"{PREFIX}other one {i}", after=0.3) for i in range(2)))
    assert computed(deltas) == [963, 3, 3, 3]


def test_a_prefix_of_a_prefix_is_followed_in_turn() -> None:
    llm = engine()
    role = PREFIX + "role " * 480
    deltas, _ = together(*(ask(llm, prompt) for prompt in (f"{PREFIX}a", f"{role}b", f"{role}c", f"{PREFIX}d")))
    assert computed(deltas) == [961, 481, 1, 1]


@pytest.mark.parametrize(("asks", "number", "runs"), [("other", 1, False), ("mine", 1, True), ("other", 2, True)])
def test_nothing_is_prefilled_ahead_where_other_queries_have_work_on_every_instance(
    asks: str, number: int, runs: bool
) -> None:
    engines = [engine(f"llm-{i}", words=64) for i in range(number)]
    llm = instances(engines, name="llms") if number > 1 else engines[0]

    async def of(query: str, work: Any) -> Any:
        request_context.query.set(query)
        return await work

    async def ahead() -> tuple[bool, int]:
        await asyncio.sleep(0.3)  # virtual: while the other one decodes
        tokens = llm.encode(PREFIX)
        return await llm_queue_of(llm).prefill_ahead(tokens), max(each.cached(tokens) for each in engines)

    async def main() -> Any:
        asked = of(asks, ask(llm, "something else", limit=64))
        return await asyncio.gather(*map(asyncio.ensure_future, (asked, of("mine", ahead()))))

    _, (ran, cached) = virtual.run(main()).value
    assert ran is runs
    assert cached == (960 if runs else 0)


def test_a_short_prefix_is_not_worth_an_iteration() -> None:
    llm = engine()
    short = "common " * 16
    deltas, seconds = together(*(ask(llm, f"{short}question {i}") for i in range(2)))
    assert computed(deltas) == [18, 18] and seconds < 0.14


def test_a_prefix_is_computed_once_where_that_saves_no_time() -> None:
    """Up to 768 tokens cost an iteration nothing: each request would compute them again in the same time."""
    llm = EmulatedLLM(lambda _: "word", replace(PROFILE, prefill_tokens=1024, free=768), name="llm")
    for i in range(8):
        together(ask(llm, f"other{i} " * (40 + 80 * i)))
    assert costs.measured("llm", Op.PREFILL) and 400 * costs.line("llm", Op.PREFILL).each < 0.02
    deltas, _ = together(*(ask(llm, f"{'common ' * 400}question {i}") for i in range(4)))
    assert computed(deltas) == [402] + [2] * 3


def test_an_engine_that_shares_at_once_is_left_to_it() -> None:
    llm: Any = engine()
    llm.shares_at_once = True
    deltas, _ = together(*(ask(llm, f"{PREFIX}question {i}") for i in range(2)))
    assert computed(deltas) == [962, 962]


def test_without_a_cache_nobody_waits() -> None:
    llm = engine(can_prefill=False)
    deltas, _ = together(*(ask(llm, f"{PREFIX}question {i}") for i in range(2)))
    assert computed(deltas) == [962, 962]


def test_an_urgent_request_does_not_wait_for_one_that_is_not() -> None:
    llm = engine()
    deltas, _ = together(ask(llm, f"{PREFIX}one"), ask(llm, f"{PREFIX}two", after=0.3, priority=1))
    assert computed(deltas)[1] > 400


def test_followers_go_on_when_the_first_is_cancelled() -> None:
    llm = engine()

    async def main() -> list[Delta]:
        tasks = [asyncio.create_task(ask(llm, f"{PREFIX}question {i}")) for i in range(3)]
        await asyncio.sleep(0.1)
        tasks[0].cancel()
        return await asyncio.gather(*tasks[1:])

    assert computed(virtual.run(main()).value) == [962, 2]


def test_a_busy_group_keeps_a_prefix_together_and_an_idle_one_spreads_it() -> None:
    request = Asked(Prompt([*range(960), 1], 16), 20)
    holder, other = (Instance(engine(name, capacity=8000)) for name in ("holder", "other"))
    holder.begin(21, request.prompt)
    for _ in range(9):
        holder.begin(100)
        other.begin(100)
    assert roomiest([holder, other], request)[0] is holder  # 10 run there, 9 would wait for the prefix there
    assert roomiest([holder, other], request, affinity=False)[0] is other
    for _ in range(60):
        holder.begin(100)
    idle = Instance(engine("idle"))
    assert roomiest([holder, idle], request)[0] is idle


def test_the_prefix_of_a_running_request_is_no_load_for_those_that_share_it() -> None:
    request = Asked(Prompt([*range(960), 1], 16), 20)
    holder, idle = Instance(engine("holder")), Instance(engine("idle"))
    holder.begin(21, request.prompt)
    assert roomiest([idle, holder], request)[0] is holder


def test_what_the_engine_has_dropped_from_its_cache_is_not_known() -> None:
    request = Asked(Prompt([*range(960), 1], 16), 20)
    before, idle = Instance(engine("before")), Instance(engine("idle"))
    before.begin(21, request.prompt)
    before.end(21, request.prompt)
    assert before.known(request.prompt) == 0  # it ran elsewhere: the cache is empty
    assert roomiest([before, idle], request)[0] is idle


def test_each_app_keeps_its_instance_while_both_are_busy() -> None:
    """Round robin computes every prefix on every instance."""
    group = instances([engine(f"llm {i}", capacity=4000, words=40) for i in range(2)])
    apps = [f"app {i} " + PREFIX for i in range(2)]
    asked = [ask(group, f"{apps[i % 2]}question {i} x", after=0.05 * i, limit=64) for i in range(30)]
    deltas, _ = together(*asked)
    assert sum(tokens > 100 for tokens in computed(deltas)) == 2


def test_a_request_waits_for_the_full_instance_with_its_prefix_if_that_costs_less() -> None:
    group = instances([engine(f"llm {i}", capacity=4000, words=300) for i in range(2)])
    queue, own = llm_queue_of(group), "own " * 960

    async def main() -> None:
        tasks = [asyncio.create_task(ask(group, f"{own}other {i}", limit=300)) for i in range(2)]
        tasks += [asyncio.create_task(ask(group, f"{PREFIX}one {i}", after=2.5, limit=300)) for i in range(11)]
        await asyncio.sleep(5.5)
        assert [each.running for each in queue.instances] == [2, 10] and queue.waiting == 1
        assert queue.instances[0].load + 962 + 300 <= 4000  # where it has room
        await asyncio.gather(*tasks)  # when the others have ended, their instance is idle: then it goes there

    virtual.run(main())


def test_what_waits_for_an_instance_already_counts() -> None:
    request = Asked(Prompt([*range(960), 1], 16), 20)
    full, other = Instance(engine("full", capacity=2000)), Instance(engine("other", capacity=2000))
    full.begin(1030, request.prompt)
    other.begin(100)
    assert roomiest([full, other], request, waiting={}) == (other, full)
    assert roomiest([full, other], request, waiting={full: 2000}) == (other, None)
    assert roomiest([full, other], request) == (other, None)
