"""The embedded engine with its real model: what it decodes, when it stops, what it keeps and what it leaves behind."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_transformers import QUESTIONS, chat, collect, engine, folder, torch  # noqa: F401

from fineflow.adapters.core.contexts import Context
from fineflow.backends.transformers import TransformersEngine
from fineflow.cost_model.costs import costs
from fineflow.errors import BackendError
from fineflow.ir import Op
from fineflow.protocols import Delta, LLMEngine, Measured, Message, Sampling
from fineflow.runtime import events
from fineflow.runtime.call.trace import Stamp
from fineflow.runtime.queues.llm_queue import LLMQueue
from fineflow.runtime.queues.policy import by_depth
from fineflow.runtime.queues.request_context import depth, query

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.engine

LONG = "The old bridge at Torstad was built long before the new road. " * 20


async def until(condition: Any) -> None:
    """Waits for something that another thread does at its next step."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


class Forwards:
    """Holds the model's forward passes at a gate and counts those that began."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.count = 0
        self.open = threading.Event()
        self.reached = threading.Event()
        self._handle = engine._hosting.model.register_forward_pre_hook(self._hook)

    def _hook(self, module: object, args: object) -> None:
        self.count += 1
        self.reached.set()
        assert self.open.wait(30)

    def __enter__(self) -> Forwards:
        return self

    def __exit__(self, *exc: object) -> None:
        self.open.set()
        self._handle.remove()


def test_it_is_an_engine(engine: TransformersEngine) -> None:
    assert isinstance(engine, LLMEngine)
    assert engine.can_prefill
    assert engine.block_size == (16 if engine.device.type == "cpu" else 256)
    assert engine.context == 2048
    assert "idle" in repr(TransformersEngine(engine.model_id))


async def test_concurrent_greedy_requests_are_those_of_generate(engine: TransformersEngine) -> None:
    prompts = [chat(engine, question) for question in QUESTIONS]
    found = await asyncio.gather(*(collect(engine, prompt, max_tokens=48) for prompt in prompts))
    reference = transformers.AutoModelForCausalLM.from_pretrained(engine.model_id, dtype="float32").eval()
    for prompt, completion in zip(prompts, found, strict=True):
        with torch.no_grad():
            whole = reference.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=48)[0]
        expected = whole[len(prompt) :].tolist()
        assert list(completion.tokens) == expected
        assert completion.text == engine.tokenizer.decode(expected, skip_special_tokens=True)
        assert completion.finish_reason == ("stop" if expected[-1] == 1 else "length")
        assert completion.prompt_tokens == len(prompt)


async def test_length_limit(engine: TransformersEngine) -> None:
    prompt = chat(engine, QUESTIONS[1])
    whole = await collect(engine, prompt, max_tokens=48)
    assert whole.finish_reason == "stop"
    cut = await collect(engine, prompt, max_tokens=3)
    assert (cut.finish_reason, cut.tokens) == ("length", whole.tokens[:3])


async def test_stop_string_across_tokens_ends_the_request_early(engine: TransformersEngine) -> None:
    prompt = chat(engine, QUESTIONS[1])
    whole = await collect(engine, prompt, max_tokens=48)
    middle = len(whole.text) // 2
    stop = whole.text[middle - 3 : middle + 4]
    deltas = [delta async for delta in engine.generate(prompt, Sampling(max_tokens=48, stop=("@@", stop)))]
    text = "".join(delta.text for delta in deltas)
    assert text == whole.text[: whole.text.index(stop)]
    assert deltas[-1].finish_reason == "stop"
    assert sum(len(delta.tokens) for delta in deltas) < len(whole.tokens)
    await until(lambda: engine.stats().requests == 0)


async def test_a_stop_string_that_never_completes_holds_nothing_back(engine: TransformersEngine) -> None:
    prompt = chat(engine, QUESTIONS[1])
    whole = await collect(engine, prompt, max_tokens=48)
    held = await collect(engine, prompt, max_tokens=48, stop=(whole.text[-4:] + "!!",))
    assert (held.text, held.finish_reason) == (whole.text, "stop")


async def test_closing_aborts_before_the_next_step_and_frees_the_blocks(engine: TransformersEngine) -> None:
    await engine.start()
    prompt = chat(engine, QUESTIONS[1])
    stream = engine.generate(prompt, Sampling(max_tokens=40))
    await anext(stream)
    with Forwards(engine) as forwards:
        await until(forwards.reached.is_set)
        await stream.aclose()
        forwards.open.set()
        await until(lambda: engine.stats().requests == 0)
        assert forwards.count == 1
    assert engine.stats().used == 0


async def test_the_cache_is_reported(engine: TransformersEngine) -> None:
    await engine.start()
    prompt = chat(engine, LONG)
    await collect(engine, prompt, max_tokens=4)
    await until(lambda: engine.stats().requests == 0)
    idle = engine.cache_statistics()
    assert idle is not None and isinstance(engine, Measured)
    assert idle.total == idle.free == engine.capacity  # what the prefix cache keeps is free
    stream = engine.generate(prompt, Sampling(max_tokens=1500, min_tokens=1500))  # has not ended when it is looked at
    await anext(stream)
    held = engine.cache_statistics()
    await stream.aclose()
    assert held is not None
    assert held.total - held.free >= len(prompt)
    await until(lambda: engine.stats().requests == 0)
    ended = engine.cache_statistics()
    assert ended is not None
    assert ended.queried - idle.queried == len(prompt)
    assert 0 < ended.hits - idle.hits < len(prompt)


async def test_cancelling_the_consumer_aborts(engine: TransformersEngine) -> None:
    task = asyncio.create_task(collect(engine, chat(engine, LONG), max_tokens=200, min_tokens=200))
    await until(lambda: engine.stats().requests == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: engine.stats().requests == 0)
    assert engine.stats().used == 0


async def test_prefill_makes_the_later_request_reuse_its_blocks(engine: TransformersEngine) -> None:
    prompt = chat(engine, LONG + QUESTIONS[0])
    known = prompt[: len(prompt) - 30]
    await engine.start()
    await engine.reset_prefix_cache()
    cold = await collect(engine, prompt, max_tokens=8)
    assert cold.cached_tokens == 0
    await engine.reset_prefix_cache()
    await engine.prefill(known)
    warm = await collect(engine, prompt, max_tokens=8)
    assert warm.cached_tokens == len(known) // engine.block_size * engine.block_size
    assert warm.tokens == cold.tokens


async def test_tenants_share_no_blocks(engine: TransformersEngine) -> None:
    """What one tenant's request has computed is computed again for another tenant; the answers are the same."""
    prompt = chat(engine, LONG + QUESTIONS[0])
    whole = len(prompt) // engine.block_size * engine.block_size
    await engine.start()
    await engine.reset_prefix_cache()
    found = []
    for salt in ("", "a", "b", "a", ""):
        deltas = [delta async for delta in engine.generate(prompt, Sampling(max_tokens=8), salt=salt)]
        found.append((deltas[-1].cached_tokens > 0, [token for delta in deltas for token in delta.tokens]))
    assert [cached for cached, _ in found] == [False, False, False, True, True]
    assert all(said == found[0][1] for _, said in found)
    assert [engine.cached(prompt, salt=salt) for salt in ("a", "c")] == [whole, 0]


async def test_a_prefill_is_its_tenants_own(engine: TransformersEngine) -> None:
    prompt = chat(engine, LONG)
    whole = len(prompt) // engine.block_size * engine.block_size
    await engine.start()
    await engine.reset_prefix_cache()
    await engine.prefill(prompt, salt="a")
    assert [engine.cached(prompt, salt=salt) for salt in ("a", "b", "")] == [whole, 0, 0]
    await engine.prefill(prompt)
    assert [engine.cached(prompt, salt=salt) for salt in ("a", "b", "")] == [whole, 0, whole]


async def test_what_is_kept_is_not_prefilled_again(engine: TransformersEngine) -> None:
    prompt = chat(engine, LONG)
    await engine.start()
    await engine.reset_prefix_cache()
    assert engine.cached(prompt) == 0
    await engine.prefill(prompt)
    assert engine.cached(prompt) == len(prompt) // engine.block_size * engine.block_size
    with events.record() as intervals:
        await engine.prefill(prompt)
        await engine.prefill(prompt[:40])
    assert intervals == []


async def test_requests_beyond_the_cache_take_turns(folder: Path) -> None:
    """Requests that do not fit together are interrupted and started again, with the same output."""
    small = transformers.ContinuousBatchingConfig(
        page_size=16, num_blocks=12, max_batch_tokens=64, max_requests_per_batch=8, auto_switch_to_flash=False
    )
    engine = TransformersEngine(folder, name="small", batching=small)
    try:
        prompts = [chat(engine, f"{number}. {QUESTIONS[1]}") for number in range(8)]
        alone = [await collect(engine, prompt, max_tokens=48) for prompt in prompts]
        together = await asyncio.gather(*(collect(engine, prompt, max_tokens=48) for prompt in prompts))
        assert [found.tokens for found in together] == [found.tokens for found in alone]
        await until(lambda: engine.stats().requests == 0)
        assert engine.stats().used == 0
    finally:
        await engine.aclose()


async def test_prefilled_prompts_start_sooner(engine: TransformersEngine) -> None:
    """In CPU time of this process, of which other load on the machine takes nothing."""
    if engine.device.type != "cpu":
        pytest.skip("on a GPU a pass over these 700 tokens takes as long as one over 20")
    prompt = chat(engine, LONG + LONG)

    async def first_token() -> float:
        begin = time.process_time()
        stream = engine.generate(prompt, Sampling(max_tokens=2))
        await anext(stream)
        found = time.process_time() - begin
        await stream.aclose()
        return found

    cold, warm = [], []
    for _ in range(3):
        await engine.reset_prefix_cache()
        cold.append(await first_token())
        await engine.reset_prefix_cache()
        await engine.prefill(prompt[:-20])
        warm.append(await first_token())
    assert min(warm) < min(cold)


async def test_less_than_a_block_is_not_prefilled(engine: TransformersEngine) -> None:
    await engine.start()
    await engine.reset_prefix_cache()
    await engine.prefill(chat(engine, "hi")[:15])
    assert engine.stats().kept == 0


async def test_reset_also_forgets_blocks_in_use(engine: TransformersEngine) -> None:
    prompt = chat(engine, LONG)
    stream = engine.generate(prompt, Sampling(max_tokens=50, min_tokens=50))
    await anext(stream)
    await engine.reset_prefix_cache()
    other = await collect(engine, prompt, max_tokens=2)
    assert other.cached_tokens <= 16  # transformers names a block of the running request for each that it fills
    await stream.aclose()


async def test_higher_priority_goes_first(engine: TransformersEngine) -> None:
    await engine.start()
    await until(lambda: engine.stats().requests == 0)  # the gate is for "running": what was closed just now is gone
    order: list[str] = []

    async def ask(label: str, priority: int) -> None:
        async for _ in engine.generate(chat(engine, f"{label} " + LONG), Sampling(max_tokens=1), priority=priority):
            order.append(label)

    with Forwards(engine) as forwards:
        first = asyncio.create_task(ask("running", 0))
        await until(forwards.reached.is_set)
        # Prompts of some 300 tokens in batches of 512: they cannot all be prefilled in one step.
        tasks = [asyncio.create_task(ask(label, priority)) for label, priority in [("low", 0), ("mid", 1), ("high", 2)]]
        manager = engine._hosting.manager
        assert manager is not None
        await until(lambda: manager.input_queue.qsize() == 3)
        forwards.open.set()
        await asyncio.gather(first, *tasks)
    assert order == ["running", "high", "mid", "low"]


async def test_sampling_follows_the_seed_whatever_else_is_in_the_batch(engine: TransformersEngine) -> None:
    prompt = chat(engine, QUESTIONS[1])
    greedy = await collect(engine, prompt, max_tokens=16)
    alone = await collect(engine, prompt, max_tokens=16, temperature=4.0, seed=7)
    again, other, unsampled, single = await asyncio.gather(
        collect(engine, prompt, max_tokens=16, temperature=4.0, seed=7),
        collect(engine, prompt, max_tokens=16, temperature=4.0, seed=8),
        collect(engine, prompt, max_tokens=16),
        collect(engine, prompt, max_tokens=16, temperature=4.0, top_k=1, seed=9),
    )
    assert again.tokens == alone.tokens
    assert other.tokens != alone.tokens
    assert unsampled.tokens == greedy.tokens == single.tokens


async def test_death_of_the_thread_reaches_every_waiter_and_the_next_use_restarts(engine: TransformersEngine) -> None:
    await engine.start()
    prompt = chat(engine, QUESTIONS[1])
    expected = await collect(engine, prompt, max_tokens=8)

    def fail(module: object, args: object) -> None:
        raise RuntimeError("out of memory")

    handle = engine._hosting.model.register_forward_pre_hook(fail)
    found = await asyncio.gather(*(collect(engine, prompt, max_tokens=8) for _ in range(3)), return_exceptions=True)
    handle.remove()
    for error in found:
        assert isinstance(error, BackendError)
        assert "out of memory" in str(error)
        assert isinstance(error.__cause__, RuntimeError)
    assert (await collect(engine, prompt, max_tokens=8)).tokens == expected.tokens


async def test_nothing_is_left_after_aclose(folder: Path) -> None:
    engine = TransformersEngine(folder, name="closing")
    stream = engine.generate(chat(engine, LONG), Sampling(max_tokens=200, min_tokens=200))
    await anext(stream)
    assert any(thread.name == "fineflow-closing" for thread in threading.enumerate())
    await engine.aclose()
    with pytest.raises(BackendError, match="closing"):
        async for _ in stream:
            pass
    assert not any(thread.name == "fineflow-closing" for thread in threading.enumerate())
    await engine.aclose()
    again = await collect(engine, chat(engine, QUESTIONS[0]), max_tokens=2)
    assert again.completion_tokens == 2
    await engine.aclose()


async def test_intervals_are_reported_while_somebody_listens(engine: TransformersEngine) -> None:
    await engine.start()
    prompt = chat(engine, LONG)
    with events.record() as intervals, events.labelled("my call"):
        await engine.prefill(prompt)
        deltas: list[Delta] = [delta async for delta in engine.generate(prompt, Sampling(max_tokens=3))]
    assert deltas
    assert [(i.lane, i.label, i.origin) for i in intervals] == [
        ("tiny", "prefill", "my call"),
        ("tiny", "decode", "my call"),
    ]
    assert all(i.queued <= i.start <= i.end for i in intervals)


async def test_it_teaches_the_cost_model(engine: TransformersEngine) -> None:
    """Prefills by the tokens that are computed, decodes by their steps; sizes whatever was cached."""
    tokens = engine.encode(LONG)
    for length in (64, 128, 192, 256):
        await engine.reset_prefix_cache()
        await collect(engine, tokens[:length], max_tokens=length // 16)
    assert costs.measured("tiny", Op.PREFILL) and costs.measured("tiny", Op.DECODE)
    assert costs.line("tiny", Op.PREFILL).largest == 256
    assert costs.line("tiny", Op.DECODE).largest <= 16
    assert 0 < costs.predict("tiny", Op.DECODE, size=16) < 10
    assert costs.size("tiny", Op.PREFILL) == 160
    await collect(engine, tokens[:256], max_tokens=4)  # most of it is cached now
    assert costs.size("tiny", Op.PREFILL) == pytest.approx((64 + 128 + 192 + 256 + 256) / 5)


async def test_it_says_when_it_began(engine: TransformersEngine) -> None:
    stamp = Stamp(events.now())
    events.about("llm.decode", stamp)
    await collect(engine, chat(engine, QUESTIONS[0]), max_tokens=4)
    assert stamp.begun is not None
    assert stamp.ready <= stamp.begun <= events.now()


async def test_a_request_overtakes_the_prefill_of_its_own_beginning(engine: TransformersEngine) -> None:
    """What the prefill has computed by then is shared; the rest is computed once, by the request."""
    await engine.start()
    await engine.reset_prefix_cache()
    prompt = engine.encode(LONG * 3)
    other = engine.encode(LONG[5:])
    assert len(prompt) > 512  # more than one step
    with Forwards(engine) as forwards:
        begun = asyncio.create_task(engine.prefill(prompt[:-20]))
        unrelated = asyncio.create_task(engine.prefill(other))
        await asyncio.to_thread(forwards.reached.wait, 30)
        request = asyncio.create_task(collect(engine, prompt, max_tokens=1))
        await begun  # though no forward pass has ended
        forwards.open.set()
        found = await request
        await unrelated
    assert found.cached_tokens >= 256
    assert engine.cached(other) > 0
    await until(lambda: engine.stats().requests == 0)
    assert engine.stats().used == 0


def small_cache(folder: Path, blocks: int) -> TransformersEngine:
    batching = transformers.ContinuousBatchingConfig(
        page_size=16, num_blocks=blocks, max_batch_tokens=64, max_requests_per_batch=8, auto_switch_to_flash=False
    )
    return TransformersEngine(folder, name="small", batching=batching)


async def test_what_does_not_fit_into_the_cache_waits_where_it_can_be_reordered(folder: Path) -> None:
    """The budget of its queue is what transformers lets into the cache, so that it interrupts no request."""
    engine = small_cache(folder, 12)
    try:
        assert engine.capacity == 10 * 16  # 15 % are kept free
        prompts = [chat(engine, f"{number}. {QUESTIONS[1]}") for number in range(6)]
        alone = [await collect(engine, prompt, max_tokens=30) for prompt in prompts]
        assert engine.capacity == 160 and {len(prompt) for prompt in prompts} == {25}  # there is room for two
        admission, order, used = LLMQueue(engine, by_depth), [], []

        async def ask(number: int) -> tuple[int, ...]:
            query.set("all of one")
            depth.set(number)
            tokens: list[int] = []
            async for delta in admission.generate(prompts[number], Sampling(max_tokens=30)):
                if not tokens:
                    order.append(number)
                tokens += delta.tokens
                used.append(engine.stats().used)
            return tuple(tokens)

        tasks = [asyncio.create_task(ask(number)) for number in range(6)]
        await until(lambda: admission.waiting == 4)
        assert admission.running == 2
        assert await asyncio.gather(*tasks) == [found.tokens for found in alone]
        assert order[2:] == sorted(order[2:], reverse=True) and len(order) == 6
        assert max(used) <= 10
    finally:
        await engine.aclose()


async def test_an_answer_that_nobody_reads_ends_and_gives_its_cache_back(engine: TransformersEngine) -> None:
    """The manager is not held up by a reader; ``max_tokens`` bounds what is kept for it."""
    prompt = chat(engine, QUESTIONS[1])
    whole = await collect(engine, prompt, max_tokens=20)
    stream = engine.generate(prompt, Sampling(max_tokens=20))
    tokens = (await anext(stream)).tokens
    await until(lambda: engine.stats().requests == 0)
    assert engine.stats().used == 0
    rest = [delta async for delta in stream]
    assert tokens + tuple(token for delta in rest for token in delta.tokens) == whole.tokens
    assert rest[-1].finish_reason == whole.finish_reason


async def test_intervals_say_with_which_step_of_the_model_a_request_began(engine: TransformersEngine) -> None:
    await engine.start()
    with events.record() as intervals, Forwards(engine) as forwards:
        first = asyncio.create_task(collect(engine, chat(engine, QUESTIONS[0]), max_tokens=4))
        await until(forwards.reached.is_set)
        second = asyncio.create_task(collect(engine, chat(engine, QUESTIONS[1]), max_tokens=4))
        manager = engine._hosting.manager
        assert manager is not None
        await until(lambda: manager.input_queue.qsize() == 1)
        forwards.open.set()
        await asyncio.gather(first, second)
    one, other = sorted(intervals, key=lambda i: i.start)
    assert one.batch >= 0 and other.batch == one.batch + 1
    assert one.start <= other.queued <= other.start


async def test_forks_of_a_context_continue_from_its_blocks(engine: TransformersEngine) -> None:
    await engine.reset_prefix_cache()
    question = [Message("user", LONG + QUESTIONS[2])]
    beginning = engine.render_chat(question, add_generation_prompt=False)
    ends = [engine.render_chat(question)[len(beginning) :], "\nAnswer: ", "\nSo "]
    before = engine.stats()
    async with Context(engine) as context:
        await context.fill(beginning)
        filled = context.cached()
        assert filled == (len(engine.encode(beginning)) - 4) // engine.block_size * engine.block_size

        async def ask(end: str) -> tuple[str, int]:
            fork = await context.fork().fill(end)
            deltas = [delta async for delta in fork.stream(max_tokens=24)]
            assert fork.text == beginning + end + "".join(delta.text for delta in deltas)
            await fork.free()
            return "".join(delta.text for delta in deltas), deltas[-1].cached_tokens

        answers = await asyncio.gather(*map(ask, ends))
    assert all(cached >= filled for _, cached in answers)  # computed for the parent, and for no fork again
    assert engine.stats().requests == before.requests == 0
    await engine.reset_prefix_cache()
    for end, (said, _) in zip(ends, answers, strict=True):
        assert said == (await collect(engine, engine.encode(beginning + end), max_tokens=24)).text
