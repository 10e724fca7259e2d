"""Segments of prompts: hashes where they end, on requests of every origin, and the order that follows from them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

import fineflow
from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.cost_model.costs import costs
from fineflow.langchain import ChatEngine
from fineflow.protocols import Sampling
from fineflow.runtime.queues.llm_queue import LLMQueue, llm_queue_of
from fineflow.runtime.queues.llm_request import LLMRequest
from fineflow.runtime.queues.prompts import INPUT, OUTPUT, TEXT, Lengths, Part, Prompt, Segment, segments_in
from fineflow.testing import virtual

RULES, DESIGN = "rule " * 160, "design " * 320


def count(text: str) -> int:
    return len(text.split())


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[LLMRequest]:
    """Returns the list of requests that join the queue of an engine from now on."""
    found: list[LLMRequest] = []
    join = LLMQueue._join

    def joined(*given: Any) -> LLMRequest:
        found.append(join(*given))
        return found[-1]

    monkeypatch.setattr(LLMQueue, "_join", joined)
    return found


def test_segments_end_where_the_parts_are_found_in_order() -> None:
    parts = [Part(TEXT, RULES), Part(INPUT, "not there"), Part(INPUT, DESIGN), Part(TEXT, "")]
    found = segments_in(f"<user>\n{RULES}{DESIGN}and more", parts, count)
    assert found == (Segment(TEXT, 161 - 4), Segment(INPUT, 481 - 5))


def test_a_hash_is_that_of_all_tokens_before_it() -> None:
    first, other = Prompt([*range(64), 1, 2], 16), Prompt([*range(40), *[9] * 40], 16)
    assert first.key(33) == other.key(40) is not None
    assert first.key(48) != other.key(48)
    assert first.key(15) is None and first.own == 2


def test_boundaries_are_the_ends_that_are_worth_it_and_the_half() -> None:
    prompt = Prompt(list(range(160)), 16, [Segment(TEXT, 20), Segment(INPUT, 50), Segment(TEXT, 130)])
    assert prompt.boundaries(32) == (prompt.key(130), prompt.key(80), prompt.key(50))
    assert Prompt(list(range(160)), 16).boundaries(32) == (prompt.key(80), prompt.key(40))
    assert Prompt(list(range(160)), 16).boundaries(100) == (prompt.key(80),)
    assert Prompt(list(range(160)), 16, shared=False).boundaries(32) == ()


def test_the_length_of_a_text_is_counted_once() -> None:
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return [0] * count(text)

    lengths = Lengths(encode)
    assert [lengths("a b"), lengths("a b"), lengths("c")] == [2, 2, 1] and asked == ["a b", "c"]


def test_requests_of_a_chain_carry_constant_text_and_values_of_the_moment(seen: list[LLMRequest]) -> None:
    """Two apps: what one prompt begins with is found in the other by the hash at the end of its segment."""
    engine = EmulatedLLM(lambda _: DESIGN)
    llm = ChatEngine(engine=engine, max_tokens=512)

    def ask(template: str) -> Any:
        return ChatPromptTemplate.from_template(template) | llm | StrOutputParser()

    write = RunnablePassthrough.assign(design=ask(RULES + "Design {task}")) | ask(RULES + "{design} Write {file}")
    review = RunnablePassthrough.assign(notes=ask("List {file}")) | ask(RULES + "{design} Review {file}")

    async def main() -> None:
        await fineflow.optimize(write, strict=True).ainvoke({"task": "a game", "file": "main.py"})
        await fineflow.optimize(review, strict=True).ainvoke({"design": DESIGN, "file": "all of them"})

    virtual.run(main())
    decoded = [each.prompt for each in seen if each.output]
    written, reviewed = (prompt for prompt in decoded if len(prompt) > 400)
    kinds = [[segment.kind for segment in prompt.segments] for prompt in (written, reviewed)]
    assert kinds == [[TEXT, INPUT, TEXT, INPUT]] * 2
    keys = [[prompt.key(segment.end) for segment in prompt.segments] for prompt in (written, reviewed)]
    assert keys[0][:2] == keys[1][:2] and None not in keys[0]
    assert keys[0][0] != keys[0][1]


def test_requests_of_a_semantic_function_carry_what_was_written_before(seen: list[LLMRequest]) -> None:
    engine = EmulatedLLM(lambda _: "word " * 64)

    @fineflow.semantic_function(engine=engine)
    def plan(task: str) -> None:
        """Plan {{input:task}} steps: {{output:steps}} risks: {{output:risks}}"""

    async def main() -> None:
        await plan(RULES).risks.aget()

    virtual.run(main())
    assert [s.kind for s in seen[-1].prompt.segments] == [TEXT, INPUT, TEXT, OUTPUT, TEXT]


def test_without_a_cache_no_segments_are_looked_for() -> None:
    engine = EmulatedLLM(lambda _: "fine", can_prefill=False)
    assert llm_queue_of(engine).segments(RULES, [Part(TEXT, RULES)]) == ()


@pytest.mark.parametrize("segments", [(Segment(TEXT, 995),), ()])
@pytest.mark.parametrize("blocks", [1024, 384])
def test_those_that_share_less_than_half_are_served_together(
    blocks: int, segments: Sequence[Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three apps with instructions of 1,000 tokens, in turns; an engine has room for two or three of their requests."""

    def seconds() -> float:
        costs.forget()
        profile = LLMProfile(0.0305, 0.00023, 0.0003, blocks=blocks)
        llm = EmulatedLLM(lambda _: "word " * 50, profile, capacity=6000)

        async def one(number: int) -> None:
            prompt = f"app{number % 3} " + "rule " * 999 + f"own{number} " + "text " * 1199
            source = llm_queue_of(llm).generate(llm.encode(prompt), Sampling(max_tokens=50), segments)
            assert [delta async for delta in source]

        async def main() -> None:
            await asyncio.gather(*map(one, range(36)))

        return virtual.run(main()).seconds

    together = seconds()
    monkeypatch.setattr(Prompt, "boundaries", lambda prompt, least: ())
    assert together < 0.97 * seconds()
