"""vLLM with a real model: what it decodes, when it stops, what it keeps, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psutil")

from helpers_vllm import LONG, QUERIES, QUESTIONS, SEATS, SETTINGS, busy, chat, collect, processes, turns

import fineflow
from fineflow.adapters.core.contexts import Context
from fineflow.backends.vllm import VLLMEngine
from fineflow.cost_model.costs import costs
from fineflow.errors import RequestError
from fineflow.ir import Op
from fineflow.langchain import ChatEngine
from fineflow.protocols import Constrains, Limited, LLMEngine, Measured, PrefixCache, Sampling, Shares
from fineflow.runtime import events
from fineflow.runtime.call.trace import Stamp
from fineflow.runtime.loop.submission import run_async
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.runtime.queues.policy import fifo
from fineflow.runtime.queues.registry import set_policy

ONE = Sampling(max_tokens=1)
JSON = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


async def test_it_is_an_engine(engine: VLLMEngine) -> None:
    await engine.start()
    for protocol in (LLMEngine, PrefixCache, Limited, Constrains, Measured, Shares):
        assert isinstance(engine, protocol)
        assert protocol is Shares or isinstance(engine.shared, protocol)
    assert engine.can_prefill
    assert engine.block_size == 32
    assert engine.context == 2048
    assert engine.capacity is not None
    assert engine.capacity > 16 * engine.context
    assert "running" in repr(engine)


async def test_concurrent_greedy_requests_are_those_of_transformers(engine: VLLMEngine) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
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


async def test_length_limit_and_context(engine: VLLMEngine) -> None:
    prompt = chat(engine, QUERIES)
    whole = await collect(engine, prompt, max_tokens=48)
    assert whole.finish_reason == "stop"
    cut = await collect(engine, prompt, max_tokens=3)
    assert (cut.finish_reason, cut.tokens) == ("length", whole.tokens[:3])
    await engine.start()
    assert engine.context is not None
    long = (engine.encode(LONG) * 200)[: engine.context - 2]
    end = await collect(engine, long, max_tokens=50, extra=(("ignore_eos", True),))
    assert (end.finish_reason, len(end.tokens)) == ("length", 2)
    with pytest.raises(RequestError, match="takes prompts of 1 to 2047 tokens, this one has 2048"):
        await collect(engine, [*long, 5, 5])
    with pytest.raises(RequestError, match="this one has 0"):
        await collect(engine, [])


async def test_stop_strings_are_never_partly_given_out(engine: VLLMEngine) -> None:
    prompt = chat(engine, QUERIES)
    whole = await collect(engine, prompt, max_tokens=48)
    middle = len(whole.text) // 2
    stop = whole.text[middle - 3 : middle + 4]
    cut = await collect(engine, prompt, max_tokens=48, stop=("@@", stop))
    assert cut.text == whole.text.partition(stop)[0]
    assert cut.finish_reason == "stop"
    assert len(cut.tokens) < len(whole.tokens)
    said = ""
    for delta in cut.deltas:  # at no time more than what comes before the stop string
        said += delta.text
        assert cut.text.startswith(said)


async def test_sampling_follows_its_seed(engine: VLLMEngine) -> None:
    prompt = chat(engine, QUERIES)
    hot: dict[str, Any] = {"max_tokens": 24, "temperature": 2.0, "extra": (("ignore_eos", True),)}
    first, again, other = [await collect(engine, prompt, seed=seed, **hot) for seed in (7, 7, 8)]
    assert first.tokens == again.tokens != other.tokens
    narrow = await collect(engine, prompt, seed=7, top_k=1, **hot)
    assert narrow.tokens == (await collect(engine, prompt, max_tokens=24, extra=hot["extra"])).tokens
    assert (await collect(engine, prompt, seed=8, min_p=1.0, **hot)).tokens == narrow.tokens
    assert (await collect(engine, prompt, seed=8, top_p=1e-6, **hot)).tokens == narrow.tokens


async def test_penalties_and_least_length(engine: VLLMEngine) -> None:
    prompt = chat(engine, QUERIES)
    plain = await collect(engine, prompt, max_tokens=32)
    for settings in ({"repetition_penalty": 5.0}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert (await collect(engine, prompt, max_tokens=32, **settings)).tokens != plain.tokens
    assert len((await collect(engine, chat(engine, QUESTIONS[0]), max_tokens=20, min_tokens=20)).tokens) == 20


async def test_logprobs_are_those_of_the_tokens(engine: VLLMEngine) -> None:
    found = await collect(engine, chat(engine, QUESTIONS[0]), max_tokens=4, logprobs=2, temperature=0.0)
    each = [item for delta in found.deltas for item in delta.logprobs]
    assert len(each) == len(found.tokens)
    assert all(item.logprob <= 0 and len(item.top) == 2 for item in each)
    assert each[0].top[0] == (each[0].token, each[0].logprob)  # greedy: the likeliest one
    assert each[0].token.strip() in found.text
    own = await collect(engine, chat(engine, QUESTIONS[0]), max_tokens=4, logprobs=0)
    assert [item.top for delta in own.deltas for item in delta.logprobs] == [()] * len(own.tokens)
    assert not [item for delta in (await collect(engine, chat(engine, "x"))).deltas for item in delta.logprobs]


async def test_forms_of_the_output(engine: VLLMEngine) -> None:
    prompt = chat(engine, QUESTIONS[0])
    assert engine.constraints == {"schema", "regex", "choices"}
    chosen = await collect(engine, prompt, choices=("Torstad", "Kelmora"))
    assert chosen.text in ("Torstad", "Kelmora")
    assert re.fullmatch(r"[0-9]{3}", (await collect(engine, prompt, regex="[0-9]{3}")).text)
    found = await collect(engine, prompt, schema=json.dumps(JSON), max_tokens=200, stop=("\n\n\n\n",))
    assert re.match(r'\{\s*"n"\s*:\s*-?\d+', found.text)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"extra": (("beams", 3),)}, "knows no argument beams; .* logit_bias"),
        ({"extra": (("n", 3),)}, "knows no argument n;"),
        ({"top_p": 0.0}, "top_p"),
        ({"temperature": -1.0}, "temperature"),
        ({"regex": "[0-"}, "regex"),
        ({"schema": "{"}, "refuses the request"),
        ({"logprobs": 10_000}, "logprobs"),
    ],
)
async def test_what_cannot_be_followed_is_refused(engine: VLLMEngine, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        await collect(engine, chat(engine, "x"), **settings)
    assert (await collect(engine, chat(engine, "x"), max_tokens=2)).tokens  # and goes on


async def test_fields_of_vllms_own(engine: VLLMEngine) -> None:
    prompt = chat(engine, QUESTIONS[0])
    first = (await collect(engine, prompt, max_tokens=4)).tokens[0]
    other = await collect(engine, prompt, max_tokens=4, extra=(("logit_bias", {first: -100.0}),))
    assert other.tokens[0] != first


async def test_a_warmed_prefix_is_cached_and_sooner(engine: VLLMEngine) -> None:
    history = (engine.encode(LONG) * 200)[:1600]
    late = chat(engine, QUESTIONS[2])
    await collect(engine, late, max_tokens=2)
    firsts: dict[bool, list[float]] = {False: [], True: []}
    texts = set()
    for warm in (False, True) * 3:
        await engine.reset_prefix_cache()
        if warm:
            assert engine.cached(history) == 0
            await engine.prefill(history)
            assert engine.cached(history) == 1600
        found = await collect(engine, history + late, max_tokens=8)
        assert found.cached_tokens == (1600 if warm else 0)
        firsts[warm].append(found.first)
        texts.add(found.text)
    assert len(texts) == 1
    assert min(firsts[True]) < min(firsts[False])


async def test_tenants_share_no_blocks(engine: VLLMEngine) -> None:
    """What one tenant's request has computed is computed again for another tenant; the answers are the same."""
    prompt = (engine.encode(LONG) * 40)[:320] + chat(engine, QUESTIONS[0])
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


async def test_a_prefill_is_its_tenants_own(engine: VLLMEngine) -> None:
    prompt = (engine.encode(LONG) * 40)[:330]
    whole = len(prompt) // engine.block_size * engine.block_size
    await engine.start()
    await engine.reset_prefix_cache()
    await engine.prefill(prompt, salt="a")
    assert [engine.cached(prompt, salt=salt) for salt in ("a", "b", "")] == [whole, 0, 0]
    await engine.prefill(prompt)
    assert [engine.cached(prompt, salt=salt) for salt in ("a", "b", "")] == [whole, 0, whole]


async def test_a_prefill_gives_way_to_the_whole_prompt(engine: VLLMEngine) -> None:
    history = (engine.encode(LONG) * 200)[:1600]
    await engine.reset_prefix_cache()
    async with busy(engine, SEATS):
        warming = asyncio.ensure_future(engine.prefill(history))
        await turns(lambda: engine.shared._warming)
        asking = asyncio.ensure_future(collect(engine, [*history, 5, 6], max_tokens=1))
        async with asyncio.timeout(20):
            await warming  # though it had no turn yet
        assert not asking.done()
    assert (await asking).finish_reason


async def test_higher_priority_first(engine: VLLMEngine) -> None:
    order: list[int] = []

    async def ask(priority: int) -> None:
        async with aclosing(engine.generate(chat(engine, f"No. {priority}"), ONE, priority=priority)) as deltas:
            async for _ in deltas:
                order.append(priority)

    async with busy(engine, SEATS - 1), busy(engine, 1) as last:
        asking = [asyncio.ensure_future(ask(priority)) for priority in (0, 9, -3, 5, 1)]
        await turns(lambda: engine.shared.host.gauges.waiting == len(asking))
        assert not order
        last.cancel()  # one place, which they get one after the other
        await asyncio.gather(*asking)
    assert order == [9, 5, 1, 0, -3]


async def test_abort_frees_the_cache(engine: VLLMEngine) -> None:
    host = engine.shared.host
    assert host is not None
    async with busy(engine, 1, prompt=(engine.encode(LONG) * 200)[:1600]):
        await turns(lambda: host.gauges.usage > 0.01)
        held = engine.cache_statistics()
        assert held is not None
        assert held.free < held.total - 1600
        assert 0.01 < held.usage < 0.2
    await turns(lambda: not host.busy)
    freed = engine.cache_statistics()
    assert freed is not None
    assert (freed.free, freed.usage) == (freed.total, 0.0)
    await collect(engine, chat(engine, "x"), max_tokens=2)  # whose steps are reported
    assert host.gauges.usage < 0.01
    assert host.llm.get_num_unfinished_requests() == 0


async def test_figures_are_in_the_statistics_and_in_traces(engine: VLLMEngine) -> None:
    prompt = (engine.encode(LONG) * 200)[:320]
    await engine.reset_prefix_cache()
    admission = llm_queue_of(engine)

    async def ask() -> Stamp:
        stamp = Stamp(events.now())
        events.about("answer", stamp)
        async for _ in admission.generate(prompt, Sampling(max_tokens=8, extra=(("ignore_eos", True),))):
            pass
        return stamp

    before = engine.cache_statistics()
    with events.record() as intervals:
        stamps = [await run_async(ask) for _ in range(2)]
    after = fineflow.statistics().engines["tiny"].cache
    assert before is not None
    assert after is not None
    assert (after.queried - before.queried, after.hits - before.hits) == (640, 288)
    assert f'fineflow_engine_cache_total_tokens{{engine="tiny"}} {after.total}' in fineflow.statistics().prometheus()
    assert [(each.lane, each.label) for each in intervals] == [("tiny", "answer")] * 2
    assert all(each.queued <= each.start < each.end for each in intervals)
    assert [stamp.begun for stamp in stamps] == [pytest.approx(each.start, abs=0.005) for each in intervals]
    assert costs.line("tiny", Op.PREFILL).each > 0


async def test_two_objects_are_one_engine(engine: VLLMEngine, folder: Path) -> None:
    other = VLLMEngine(folder, name="tiny", **SETTINGS)
    different = VLLMEngine(folder, name="tiny", context=512, **SETTINGS)
    assert other.shared is engine.shared is not different.shared
    assert llm_queue_of(other) is llm_queue_of(engine)
    assert llm_queue_of(different) is not llm_queue_of(engine)
    set_policy(other, "fifo")
    assert llm_queue_of(engine).policy is fifo
    set_policy(other, "by_depth")
    await other.start()
    assert len([each for each in processes() if each.name() == "VLLM::EngineCore"]) == 1
    await other.aclose()
    await other.aclose()
    assert (await collect(engine, chat(engine, QUERIES), max_tokens=2)).tokens  # it has another user


def test_any_event_loop_will_do(engine: VLLMEngine) -> None:
    prompt = chat(engine, QUERIES)
    texts = {asyncio.run(collect(engine, prompt, max_tokens=8)).text for _ in range(2)}
    chat_model = ChatEngine(engine=engine, max_tokens=8)
    texts.add(chat_model.invoke(QUERIES).content)
    fineflow.shutdown()
    texts.add(chat_model.invoke(QUERIES).content)
    assert len(texts) == 1


async def test_forks_of_a_context_continue_from_its_blocks(engine: VLLMEngine) -> None:
    beginning = f"{LONG * 12} Forks of one context. "
    ends = ["Who founded Velmar Systems?", "What is Torstad known for?", "Where is Kelmora Bridge?"]
    async with Context(engine) as context:
        await context.fill(beginning)
        filled = (len(engine.encode(beginning)) - 4) // engine.block_size * engine.block_size
        assert filled >= 3 * engine.block_size
        assert context.cached() == filled

        async def ask(end: str) -> tuple[str, int, int]:
            fork = context.fork()
            await fork.fill(end)
            deltas = [delta async for delta in fork.stream(max_tokens=8)]
            await fork.free()
            return "".join(delta.text for delta in deltas), deltas[-1].prompt_tokens, deltas[-1].cached_tokens

        answers = await asyncio.gather(*map(ask, ends))
    assert all(cached >= filled for _, _, cached in answers)  # vLLM's own figure: no fork computes it again
    await turns(lambda: engine.shared.host.llm.get_num_unfinished_requests() == 0)
    for end, (said, prompt, _) in zip(ends, answers, strict=True):
        whole = await collect(engine, engine.encode(beginning + end), max_tokens=8)
        assert (said, prompt) == (whole.text, len(engine.encode(beginning + end)))


def test_semantic_functions_say_what_single_requests_say(engine: VLLMEngine) -> None:
    """In plain threads; the one that reads two texts gets them in the process of vLLM's client."""

    @fineflow.semantic_function(engine=engine, chat=True, max_tokens=24)
    def answer(question: str) -> None:
        """{{input:question}} {{output:text}}"""

    @fineflow.semantic_function(engine=engine, max_tokens=8)
    def combine(texts: list[Any]) -> None:
        """Texts: {{input:texts}} In short: {{output:text}}"""

    texts = [answer(question) for question in QUESTIONS[:2]]
    whole = combine(texts).get(timeout=60)

    async def alone() -> tuple[list[str], str]:
        found = [(await collect(engine, chat(engine, each), max_tokens=24)).text.strip() for each in QUESTIONS[:2]]
        prompt = f"Texts: {found[0]}\n\n{found[1]} In short:"
        return found, (await collect(engine, engine.encode(prompt), max_tokens=8)).text.strip()

    assert ([text.get() for text in texts], whole) == asyncio.run(run_async(alone))
