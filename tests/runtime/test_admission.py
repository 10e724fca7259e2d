"""The queue in front of an LLM: who is let in when, what a failure and a cancellation leave, and where requests go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from speaker import Speaker, ask, firsts, group, prompt, turns

from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.cost_model.costs import costs
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.protocols import Delta, Sampling
from fineflow.runtime.queues import registry
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.policy import (
    Policy,
    Take,
    Waiting,
    app_fifo,
    by_depth,
    by_path,
    by_start,
    fifo,
    per_invocation,
)
from fineflow.runtime.queues.registry import set_policy
from fineflow.testing import virtual


def test_without_a_capacity_all_go_to_the_engine_at_once() -> None:
    async def run() -> None:
        engine = Speaker()
        texts = await asyncio.gather(*(ask(llm_queue_of(engine), prompt(n)) for n in range(5)))
        assert texts == ["one two three"] * 5 and engine.most == 5

    assert virtual.run(run()).seconds == 3


def test_what_has_no_room_waits_and_is_reordered_by_the_policy() -> None:
    async def run() -> None:
        engine = Speaker(capacity=8)
        admission = llm_queue_of(engine)
        tasks = [ask(admission, prompt(1), query="a", depth=1), ask(admission, prompt(2), query="a", depth=1)]
        await turns()
        assert (admission.running, admission.waiting, admission.tokens) == (1, 1, 8)
        tasks += [ask(admission, prompt(3), query="a", depth=7), ask(admission, prompt(4), query="b", depth=2)]
        await asyncio.gather(*tasks)
        assert firsts(engine) == [1, 3, 2, 4] or firsts(engine) == [1, 3, 4, 2]
        assert engine.most == 1 and (admission.running, admission.waiting, admission.tokens) == (0, 0, 0)

    virtual.run(run())


def test_an_earlier_event_loop_decides_nothing_for_the_next_one() -> None:
    """As while ``fineflow.shutdown()`` ends that loop, and another thread makes a call already."""
    admission = LLMQueue(Speaker(capacity=8))
    before = virtual.VirtualTimeLoop()

    async def asked() -> None:
        ask(admission, prompt(1))
        while not admission.waiting:
            await asyncio.sleep(0)

    before.run_until_complete(asked())  # the decision comes some iterations later

    async def later() -> None:
        first = ask(admission, prompt(2))
        while [tuple(request.prompt.tokens) for request in admission._line] != [tuple(prompt(2))]:
            await asyncio.sleep(0)
        late = threading.Thread(target=before.run_until_complete, args=(turns(),))
        late.start()
        late.join()
        assert (admission.waiting, admission.running) == (1, 0)
        assert await first == "one two three"
        assert await ask(admission, prompt(3)) == "one two three"

    virtual.run(later())
    for task in asyncio.all_tasks(before):
        task.cancel()
    before.run_until_complete(turns())
    before.close()


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (by_start, [9, 3, 2, 1]),
        (by_depth, [9, 1, 2, 3]),
        (by_path, [9, 3, 2, 1]),
        (fifo, [9, 1, 2, 3]),
        (app_fifo, [9, 3, 1, 2]),
    ],
)
def test_every_policy_orders_what_waits(policy: Policy, order: list[int]) -> None:
    async def run() -> None:
        engine = Speaker(capacity=8)
        set_policy(engine, policy.__name__)
        admission = llm_queue_of(engine)
        tasks = [ask(admission, prompt(9))]
        await turns()
        tasks += [ask(admission, prompt(1), query="a", depth=5, path=1.0, started=2.0)]
        tasks += [ask(admission, prompt(2), query="a", depth=4, path=9.0, started=2.0)]
        tasks += [ask(admission, prompt(3), query="b", depth=2, path=3.0, started=1.0)]
        await asyncio.gather(*tasks)
        assert firsts(engine) == order

    virtual.run(run())


def test_one_invocation_at_a_time() -> None:
    async def run() -> None:
        engine = Speaker()
        admission = LLMQueue(engine, per_invocation)
        await asyncio.gather(*(ask(admission, prompt(n)) for n in range(3)))
        assert engine.most == 1

    assert virtual.run(run()).seconds == 9


def test_the_engine_gets_the_order_as_priority() -> None:
    async def run() -> None:
        engine = Speaker()
        set_policy(engine, by_depth)
        admission = llm_queue_of(engine)
        await asyncio.gather(ask(admission, prompt(1), depth=3), ask(admission, prompt(2), depth=5))
        set_policy(engine, fifo)
        await ask(admission, prompt(3), depth=3)
        await asyncio.gather(ask(admission, prompt(4), priority=-1), ask(admission, prompt(5), priority=1))
        assert engine.priorities[:3] == [3, 5, 0] and engine.priorities[3] < 0 < engine.priorities[4]
        set_policy(engine, by_start)
        await asyncio.gather(*(ask(admission, prompt(n), started=float(n)) for n in (6, 7)))
        assert engine.priorities[5] > engine.priorities[6]

    virtual.run(run())


def test_a_request_larger_than_the_capacity_runs_alone_and_is_not_overtaken_for_ever() -> None:
    async def run() -> None:
        engine = Speaker(capacity=16)
        admission = LLMQueue(engine, fifo)
        tasks = [ask(admission, prompt(1)), ask(admission, prompt(2, 40))]
        tasks += [ask(admission, prompt(n)) for n in range(3, 9)]  # which would fit beside the first
        await asyncio.gather(*tasks)
        assert firsts(engine)[:2] == [1, 2] and admission.tokens == 0

    virtual.run(run())


def test_a_shared_beginning_is_let_in_together_and_counts_once() -> None:
    async def run() -> None:
        engine = Speaker(capacity=32)
        admission = LLMQueue(engine, fifo)
        tasks = [ask(admission, prompt(7, 28))]
        await turns()
        long = prompt(1, 16)
        tasks += [ask(admission, [*long, 1]), ask(admission, prompt(2, 16)), ask(admission, [*long, 2])]
        await turns()
        assert admission.waiting == 3
        await asyncio.sleep(3.5)
        assert admission.tokens == 16 + 2 * 5  # the 16 once, and of each the last token and the output
        await asyncio.gather(*tasks)
        assert [tokens[-1] for tokens in engine.asked[1:]] == [1, 2, 215]

    virtual.run(run())


def test_cancelling_a_waiting_request_removes_it_and_closing_a_running_one_ends_it() -> None:
    async def run() -> None:
        engine = Speaker(capacity=8)
        admission = llm_queue_of(engine)
        first, second, third = (ask(admission, prompt(n)) for n in range(1, 4))
        await turns()
        second.cancel()
        await turns()
        assert admission.waiting == 1
        first.cancel()
        await turns()
        assert engine.running == 1 and firsts(engine) == [1, 3]  # the first was closed, the third took its place
        assert await third == "one two three"
        deltas = admission.generate(prompt(4), Sampling(max_tokens=4))
        assert (await anext(deltas)).text == "one "
        await deltas.aclose()
        assert (engine.running, admission.running, admission.tokens) == (0, 0, 0)

    virtual.run(run())


def test_an_error_of_a_single_engine_is_the_callers_as_the_same_object() -> None:
    async def run() -> None:
        engine = Speaker()
        engine.dies_after = 1
        admission = llm_queue_of(engine)
        with pytest.raises(BackendError) as found:
            await ask(admission, prompt(1))
        assert found.value is engine.error and admission.running == 0
        engine.dies_after = None
        assert await ask(admission, prompt(1)) == "one two three"

    virtual.run(run())


def test_a_policy_that_raises_fails_who_waits() -> None:
    def broken(waiting: Sequence[Waiting], slots: int) -> list[Take]:
        raise ZeroDivisionError("in a policy")

    async def run() -> None:
        admission = LLMQueue(Speaker(), broken)
        with pytest.raises(ZeroDivisionError, match="in a policy"):
            await ask(admission, prompt(1))
        admission.policy = fifo
        assert await ask(admission, prompt(1)) == "one two three"

    virtual.run(run())


def test_a_tenant_with_many_requests_does_not_hold_up_another() -> None:
    async def run() -> None:
        engine = Speaker(capacity=8)
        admission = LLMQueue(engine, fifo)
        tasks = [ask(admission, prompt(n), tenant="many") for n in range(1, 7)]
        await turns()
        tasks += [ask(admission, prompt(n), tenant="few") for n in (11, 12)]
        await asyncio.gather(*tasks)
        order = firsts(engine)
        assert order.index(11) <= 2 and order.index(12) <= 4
        assert [n for n in order if n < 10] == [1, 2, 3, 4, 5, 6]

    virtual.run(run())


def test_a_request_with_a_low_priority_is_served_in_the_end() -> None:
    async def run() -> list[int]:
        engine = Speaker(capacity=8)
        admission = LLMQueue(engine, fifo)
        tasks = [ask(admission, prompt(1), priority=1)]
        low = ask(admission, prompt(2), priority=0)
        for n in range(3, 60):  # always one more that is more important
            tasks.append(ask(admission, prompt(n), priority=1))
            await tasks[n - 3]
        await asyncio.gather(*tasks, low)
        return firsts(engine)

    assert virtual.run(run()).value.index(2) == 16  # it saw 16 pass


def test_nobody_waits_for_ever_in_the_queue_of_the_engine_itself() -> None:
    """The engine serves one at a time, strictly by priority; there are always deeper requests than the first."""

    async def run() -> int:
        engine = EmulatedLLM(lambda prompt: "yes", LLMProfile(1.0, 0.0, 0.0, sequences=1))
        admission = llm_queue_of(engine)
        deep = [ask(admission, engine.encode(f"deep {n}"), depth=3) for n in range(3)]
        shallow = ask(admission, engine.encode("shallow"), depth=0)
        for n in range(200):
            if shallow.done():
                return n
            await deep[n]
            deep.append(ask(admission, engine.encode(f"deeper {n}"), depth=3))
        return 200

    assert virtual.run(run()).value <= 3 * 16 + 3


def test_requests_go_to_where_the_fewest_tokens_are() -> None:
    async def run() -> None:
        engines, both = group()
        admission = llm_queue_of(both)
        await asyncio.gather(*(ask(admission, prompt(n, size)) for n, size in ((1, 40), (2, 8), (3, 8), (4, 8))))
        assert [firsts(engine) for engine in engines] == [[1], [2, 3, 4]]

    assert virtual.run(run()).seconds == 3


def test_a_known_beginning_draws_requests_to_its_instance() -> None:
    async def run() -> None:
        engines, both = group()
        admission = llm_queue_of(both)
        long = prompt(1, 40)
        await admission.prefill(long)
        other = ask(admission, prompt(2))
        await asyncio.gather(other, ask(admission, [*long, 1]), ask(admission, [*long, 2]))
        assert engines[0].prefilled and [tokens[0] for tokens in engines[0].asked] == [100, 100]
        assert firsts(engines[1]) == [2]

    virtual.run(run())


def test_instances_have_room_each_for_itself() -> None:
    async def run() -> None:
        engines, both = group(capacity=8)
        admission = llm_queue_of(both)
        tasks = [ask(admission, prompt(n)) for n in range(1, 6)]
        await turns()
        assert (admission.running, admission.waiting) == (2, 3)
        await asyncio.gather(*tasks)
        assert [engine.most for engine in engines] == [1, 1]

    assert virtual.run(run()).seconds == 9


@pytest.mark.parametrize("after", [0, 2])
def test_requests_of_a_lost_instance_go_on_elsewhere_and_nobody_notices(after: int) -> None:
    async def run() -> None:
        engines, both = group()
        engines[0].dies_after = after
        admission = llm_queue_of(both)
        found = await asyncio.gather(*(ask(admission, prompt(n)) for n in range(1, 5)))
        assert found == ["one two three"] * 4
        assert list(both.lost) == ["speakers[0]"] and admission.tokens == 0
        assert await ask(admission, prompt(9)) == "one two three" and len(engines[1].asked) == 5

    virtual.run(run())


def test_the_tokens_of_a_continued_answer_are_counted_once() -> None:
    async def run() -> list[Delta]:
        engines, both = group()
        engines[0].dies_after = 2
        engines[1].says = ("one two ", "three")  # the same, cut otherwise
        return [delta async for delta in llm_queue_of(both).generate(prompt(1), Sampling())]

    deltas = virtual.run(run()).value
    assert "".join(delta.text for delta in deltas) == "one two three"
    assert [delta.finish_reason for delta in deltas].count("stop") == 1
    assert all(delta.text or delta.tokens or delta.finish_reason for delta in deltas)  # none that says nothing


def test_an_answer_that_would_be_another_is_not_glued_together() -> None:
    async def run() -> None:
        engines, both = group()
        engines[0].dies_after = 1
        with pytest.raises(BackendError) as found:  # sampled: what follows would be another answer's end
            await ask(llm_queue_of(both), prompt(1), temperature=1.0)
        assert found.value is engines[0].error
        both.restore()
        engines[1].says = ("something ", "else")
        with pytest.raises(RequestError, match="decodes other text: 'something ' instead of 'one '"):
            await ask(llm_queue_of(both), prompt(1))
        assert list(both.lost) == ["speakers[0]"]

    virtual.run(run())


def test_when_no_instance_is_left_calls_say_so() -> None:
    async def run() -> None:
        engines, both = group(capacity=8)
        for engine in engines:
            engine.dies_after = 0
        admission = llm_queue_of(both)
        tasks = [ask(admission, prompt(n)) for n in range(5)]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, BackendError) for error in found)
        with pytest.raises(BackendError, match=r"no instance of engine 'speakers' is left \(speakers\[0\]: out of mem"):
            await ask(admission, prompt(1))
        with pytest.raises(BackendError, match="no instance"):
            await admission.prefill(prompt(1))
        for engine in engines:
            engine.dies_after = None
        both.restore()
        assert await ask(admission, prompt(1)) == "one two three"
        assert (admission.waiting, admission.running, admission.tokens) == (0, 0, 0)

    virtual.run(run())


def test_a_refused_request_takes_nobody_out_of_service() -> None:
    async def run() -> None:
        engines, both = group()
        for engine in engines:
            engine.dies_after, engine.error = 0, RequestError("too long")
        with pytest.raises(RequestError, match="too long"):
            await ask(llm_queue_of(both), prompt(1))
        assert not both.lost and sum(len(engine.asked) for engine in engines) == 1

    virtual.run(run())


def test_a_lost_prefill_is_done_elsewhere() -> None:
    async def run() -> None:
        engines, both = group()
        engines[0].dies_after = 0
        await llm_queue_of(both).prefill(prompt(1, 8))
        assert engines[1].prefilled == [tuple(prompt(1, 8))] and list(both.lost) == ["speakers[0]"]

    virtual.run(run())


def test_outputs_count_as_what_is_usual_where_an_engine_recovers() -> None:
    async def run() -> None:
        engine = Speaker("recovering", capacity=40)
        engine.says = [f"{n} " for n in range(20)]
        admission = LLMQueue(engine, fifo)
        for recovers, running in ((False, 1), (True, 4)):
            engine.recovers = recovers
            tasks = [ask(admission, prompt(n), more=1000) for n in range(8)]
            await turns()
            assert admission.running == running  # of 4 tokens and 1000, or 4 times 1.5
            if recovers:
                assert admission.tokens == 4 * (4 + 6)
                await asyncio.sleep(7.5)
                assert admission.tokens == 4 * (4 + 6 + 7)  # it is longer than was thought
                assert admission.running == 4
            await asyncio.gather(*tasks)
        assert (admission.running, admission.tokens) == (0, 0)

    for _ in range(4):
        costs.observe("recovering", Op.DECODE, 1, 0.1)
        costs.observe_size("recovering", Op.DECODE, "", 1)
        costs.observe("recovering", Op.DECODE, 2, 0.2)
        costs.observe_size("recovering", Op.DECODE, "", 2)
    virtual.run(run())


def test_a_prefill_that_waits_is_overtaken_by_the_request_for_the_whole_prompt() -> None:
    async def run() -> None:
        engine = Speaker(capacity=16)
        admission = LLMQueue(engine, by_depth)
        running = ask(admission, prompt(9, 12))
        await turns()
        beginning, other = prompt(1, 8), prompt(2, 8)
        prefills = [asyncio.ensure_future(admission.prefill(tokens)) for tokens in (beginning, other)]
        await turns()
        assert admission.waiting == 2 and not engine.prefilled
        whole = ask(admission, [*beginning, 7])
        await turns()
        assert prefills[0].done() and not prefills[1].done() and admission.waiting == 2
        await asyncio.gather(running, whole, *prefills)
        assert engine.prefilled == [tuple(other)]
        assert (admission.waiting, admission.running, admission.tokens) == (0, 0, 0)

    virtual.run(run())


def test_a_process_with_a_queue_admits_calls_also_where_no_component_of_ours_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_in_use", False)
    engines, _ = group()
    assert not registry.queues_in_use()
    llm_queue_of(engines[0])
    assert registry.queues_in_use()
