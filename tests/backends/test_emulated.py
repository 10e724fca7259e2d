"""Emulated engines: time by the profile, iteration by iteration; real results, prefix cache, capacity, priority."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from fineflow.backends.emulated import CROSS_ENCODER, EMBEDDER, LLAMA_2_7B
from fineflow.engines import BatchProfile, EmulatedEmbedding, EmulatedLLM, EmulatedReranker, LLMProfile
from fineflow.errors import BackendError, RequestError
from fineflow.ir import Op
from fineflow.protocols import BatchEngine, Delta, LLMEngine, Message, Sampling
from fineflow.runtime import events
from fineflow.testing import virtual

ROUND = LLMProfile(iteration=1.0, prefill_token=0.01, decode_sequence=0.1, prefill_tokens=100, sequences=4, blocks=64)
WORDS = "w " * 32  # two blocks


def engine(answer: str = "a b c", profile: LLMProfile = ROUND) -> EmulatedLLM:
    return EmulatedLLM(lambda prompt: answer, profile)


async def say(llm: EmulatedLLM, prompt: str, priority: int = 0, **sampling: Any) -> tuple[float, list[Delta]]:
    """The moment at which an answer has ended, and its pieces."""
    found = [d async for d in llm.generate(llm.encode(prompt), Sampling(**sampling), priority=priority)]
    return asyncio.get_running_loop().time(), found


def timed(main: Coroutine[Any, Any, Any]) -> Any:
    return virtual.run(main).value


def about(seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-4)  # each iteration begins a microsecond after the one before


def test_they_are_engines() -> None:
    assert isinstance(engine(), LLMEngine)
    assert isinstance(EmulatedEmbedding(), BatchEngine) and isinstance(EmulatedReranker(), BatchEngine)


def test_an_answer_takes_its_prefill_and_an_iteration_per_further_token() -> None:
    end, deltas = timed(say(engine(), "w " * 20))
    assert end == about((1 + 0.2) + 2 * (1 + 0.1))
    assert [d.text for d in deltas] == ["a ", "b ", "c"]
    assert [d.finish_reason for d in deltas] == [None, None, "stop"]
    assert (deltas[-1].prompt_tokens, deltas[-1].cached_tokens) == (20, 0)


def test_requests_share_iterations() -> None:
    llm = engine()

    async def main() -> list[float]:
        return [end for end, _ in await asyncio.gather(say(llm, "x " * 10), say(llm, "y " * 20))]

    assert timed(main()) == [about((1 + 0.3) + 2 * (1 + 0.2))] * 2
    assert llm.iterations == 3


def test_long_prompts_are_prefilled_in_chunks() -> None:
    llm = engine("a")
    assert timed(say(llm, "w " * 250))[0] == about(3 + 2.5)
    assert llm.iterations == 3


@pytest.mark.parametrize(
    ("given", "text", "reason"),
    [({"max_tokens": 2}, "a b ", "length"), ({"stop": ("b",)}, "a ", "stop"), ({"stop": ("a",)}, "", "stop")],
)
def test_sampling_says_where_it_ends(given: dict[str, Any], text: str, reason: str) -> None:
    _, deltas = timed(say(engine(), "w", **given))
    assert "".join(d.text for d in deltas) == text
    assert deltas[-1].finish_reason == reason


def test_the_script_reads_the_rendered_prompt() -> None:
    llm = EmulatedLLM(lambda prompt: prompt.upper())
    text = llm.render_chat([Message("system", "be kind"), Message("user", "who?  I")])
    assert text == "<system>\nbe kind\n<user>\nwho?  I\n<assistant>\n"
    assert "".join(d.text for d in timed(say(llm, text))[1]) == text.upper()


def test_what_was_prefilled_is_not_prefilled_again() -> None:
    llm = engine("a")

    async def main() -> tuple[float, float, int]:
        await llm.prefill(llm.encode(WORDS))
        warm = asyncio.get_running_loop().time()
        end, deltas = await say(llm, WORDS + "and so on")
        return warm, end - warm, deltas[-1].cached_tokens

    warm, rest, cached = timed(main())
    assert (warm, rest, cached) == (about(1.32), about(1.03), 32)
    assert llm.cached(llm.encode(WORDS)) == 32 and llm.cached(llm.encode("other " + WORDS)) == 0
    assert virtual.run(llm.prefill(llm.encode(WORDS))).seconds == 0  # nothing is left to do
    llm.forget()
    assert llm.cached(llm.encode(WORDS)) == 0


def test_one_token_of_a_prompt_is_computed_always() -> None:
    llm = engine("a")
    timed(say(llm, WORDS))
    assert timed(say(llm, WORDS))[1][-1].cached_tokens == 16


def test_requests_side_by_side_both_prefill_what_neither_has_yet() -> None:
    llm = engine("a")

    async def main() -> list[float]:
        return [end for end, _ in await asyncio.gather(say(llm, WORDS + "one"), say(llm, WORDS + "two"))]

    assert timed(main()) == [about(1 + 0.66)] * 2
    assert llm.cached(llm.encode(WORDS)) == 32


def test_without_room_the_least_recently_used_goes_first() -> None:
    llm = engine("a", LLMProfile(1.0, 0.01, 0.1, blocks=4))
    first, second, third = (f"{name} " * 16 for name in "xyz")

    async def main() -> list[int]:
        for text in (first, second, first, third):
            await say(llm, text + "?")  # two blocks: one is kept
        return [llm.cached(llm.encode(text)) for text in (first, second, third)]

    assert timed(main()) == [16, 16, 16]
    timed(say(llm, "u " * 20))
    assert [llm.cached(llm.encode(text)) for text in (first, second, third)] == [16, 0, 16]


def test_requests_wait_for_room_by_priority() -> None:
    llm = engine("a", LLMProfile(1.0, 0.0, 0.0, blocks=2))

    async def main() -> list[float]:
        asked = [say(llm, f"{name} " * 20, priority) for name, priority in (("x", 0), ("y", 1), ("z", 2))]
        return [end for end, _ in await asyncio.gather(*asked)]

    assert timed(main()) == [about(3), about(2), about(1)]


def test_the_number_of_sequences_is_bounded() -> None:
    llm = engine("a", LLMProfile(1.0, 0.0, 0.0, sequences=2))

    async def main() -> list[float]:
        return [end for end, _ in await asyncio.gather(*(say(llm, "w") for _ in range(3)))]

    assert timed(main()) == [about(1), about(1), about(2)]


def test_what_can_never_have_room_is_refused() -> None:
    with pytest.raises(BackendError, match="room for 1 to 1024 tokens of prompt and answer, this request needs 2003"):
        timed(say(engine(), "w " * 2000))
    with pytest.raises(BackendError, match="this request needs 3"):
        timed(say(engine(), ""))


def test_closing_an_answer_frees_its_room() -> None:
    llm = engine("a b c d e f", LLMProfile(1.0, 0.0, 0.0, blocks=2))

    async def main() -> float:
        async with aclosing(llm.generate(llm.encode("w " * 20), Sampling())) as deltas:
            async for _ in deltas:
                break
        return (await say(llm, "x " * 20))[0]

    assert timed(main()) == about(1 + 6)


def test_a_prefill_that_is_cancelled_is_withdrawn() -> None:
    llm = engine("a", LLMProfile(1.0, 0.0, 0.0, blocks=2))

    async def main() -> float:
        warming = asyncio.ensure_future(llm.prefill(llm.encode(WORDS)))
        await asyncio.sleep(0.5)
        warming.cancel()
        return (await say(llm, "x " * 20))[0]

    assert timed(main()) == about(2)


def test_work_that_a_closed_loop_left_behind_is_dropped() -> None:
    llm = engine("a", LLMProfile(1.0, 0.0, 0.0, blocks=2))

    async def left() -> None:
        task = asyncio.ensure_future(say(llm, "w " * 20))
        await asyncio.sleep(0.5)
        assert not task.done()

    timed(left())
    assert timed(say(llm, "x " * 20))[0] == about(1)


@pytest.mark.parametrize("make", [EmulatedEmbedding, EmulatedReranker])
def test_a_batch_takes_what_its_profile_says(make: Callable[..., Any]) -> None:
    batches = make(BatchProfile(call=1.0, item=0.1))
    (op,) = batches.ops
    made = virtual.run(batches.execute(op, [("a b", "a"), ("a b", "a b c"), ("a b", "a")]))
    assert made.seconds == 1.3
    assert made.value[0] == made.value[2] != made.value[1]
    assert batches.batches == [3]
    with pytest.raises(ValueError, match="does not serve 'search'; it serves: "):
        virtual.run(batches.execute(Op.SEARCH, []))


def test_results_are_computed() -> None:
    ranked = virtual.run(EmulatedReranker().execute(Op.RERANK, [("red house", "a red roof"), ("red house", "sea")]))
    assert ranked.value == [0.5, 0.0]
    near, same, far = virtual.run(
        EmulatedEmbedding(dimensions=64).execute(
            Op.EMBED, [("query", "red house"), ("document", "red house"), ("document", "deep sea")]
        )
    ).value
    assert near == same and len(far) == 64
    assert sum(a * b for a, b in zip(near, far, strict=True)) < 0.6 < sum(a * a for a in near) == pytest.approx(1.0)


@pytest.mark.parametrize(("tokens", "milliseconds"), [(1000, 260.36), (1700, 414.09), (3000, 720.15)])
def test_the_profile_fits_the_single_prefills_of_the_paper(tokens: int, milliseconds: float) -> None:
    assert LLAMA_2_7B.seconds(tokens, 0) * 1000 == pytest.approx(milliseconds, rel=0.02)


@pytest.mark.parametrize(
    ("first", "second", "milliseconds"), [(200, 800, 291.92), (850, 850, 440.33), (2500, 500, 742.60)]
)
def test_the_profile_fits_the_split_prefills_of_the_paper(first: int, second: int, milliseconds: float) -> None:
    split = LLAMA_2_7B.seconds(first, 0) + LLAMA_2_7B.seconds(second, 0)
    assert split * 1000 == pytest.approx(milliseconds, rel=0.07)


@pytest.mark.parametrize(("batch", "seconds"), [(4, 1.8), (16, 1.35)])
def test_the_profile_fits_the_batches_of_the_paper(batch: int, seconds: float) -> None:
    assert EMBEDDER.seconds(batch) * 48 / batch == pytest.approx(seconds)
    assert CROSS_ENCODER.max_batch == 16


def test_work_is_told_on_the_virtual_clock() -> None:
    llm = engine("a b")

    async def main() -> None:
        await asyncio.sleep(10)
        await asyncio.gather(say(llm, "w " * 10), llm.prefill(llm.encode(WORDS)))

    with events.record() as seen:
        timed(main())
    assert [(i.lane, i.label) for i in seen] == [("emulated-llm", "prefill"), ("emulated-llm", "decode")]
    assert [(i.queued, i.start, i.end) for i in seen] == [
        (10, about(10), about(10 + 1.42)),
        (10, about(10), about(10 + 1.42 + 1.1)),
    ]


def test_it_writes_on_without_its_reader_and_gives_the_room_back() -> None:
    llm = engine("a b c d e f", LLMProfile(1.0, 0.0, 0.0, blocks=2))

    async def main() -> tuple[float, str]:
        async with aclosing(llm.generate(llm.encode("w " * 20), Sampling(max_tokens=5))) as deltas:
            first = await anext(deltas)
            end, _ = await say(llm, "x " * 20, max_tokens=1)  # needs all the room
            return end, first.text + "".join([delta.text async for delta in deltas])

    assert timed(main()) == (about(5 + 1), "a b c d e ")


def test_an_interval_says_with_which_iteration_a_request_began() -> None:
    llm = engine("a b", LLMProfile(1.0, 0.0, 0.0, sequences=1))

    async def main() -> None:
        await asyncio.gather(say(llm, "w"), say(llm, "x"))
        task = asyncio.ensure_future(say(llm, "y"))
        waiting = asyncio.ensure_future(say(llm, "z"))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await task

    with events.record() as seen:
        timed(main())
    assert sorted((i.batch, round(i.start - i.queued, 2), round(i.end - i.start, 2)) for i in seen) == [
        (-1, 0.5, 0),  # it never began
        (0, 0, 2),
        (2, 2, 2),
        (4, 0, 2),
    ]


def test_of_sampling_it_follows_what_ends_an_answer() -> None:
    llm = engine("one two three")

    def said(**sampling: Any) -> str:
        return "".join(delta.text for delta in timed(say(llm, WORDS, **sampling))[1])

    assert said(temperature=2.0, min_p=0.5, presence_penalty=1.0, seed=3) == "one two three"
    assert said(stop=("o",)) == ""
    assert said(stop=("o",), min_tokens=1) == "one tw"
    for settings, name in [
        ({"regex": "a"}, "regex"),
        ({"choices": ("a",), "extra": (("best_of", 2),)}, "choices, best_of"),
        ({"min_tokens": 4}, "min_tokens"),
    ]:
        with pytest.raises(RequestError, match=f"cannot follow {name}; leave it out"):
            said(**settings)
    assert EmulatedLLM(str, constraints={"regex"}).constraints == {"regex"}


def test_it_is_certain_of_its_words() -> None:
    _, deltas = timed(say(engine("one two"), WORDS, logprobs=2))
    assert [(each.token, each.logprob) for delta in deltas for each in delta.logprobs] == [("one ", 0.0), ("two", 0.0)]
