"""Contexts that a map makes member by member: their beginning is prefilled in order while the map makes the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from fineflow.adapters.core.decoding import awarm
from fineflow.adapters.langchain.kernels.prefilling import partial_prefill
from fineflow.backends.emulated.profiles import LLAMA_2_7B, LLMProfile
from fineflow.cost_model.costs import costs
from fineflow.cost_model.lines import Line
from fineflow.engines import EmulatedLLM
from fineflow.errors import RequestError
from fineflow.explanation import Explanation
from fineflow.ir import Op, Primitive
from fineflow.langchain import ChatEngine
from fineflow.passes import PASSES, prefill
from fineflow.protocols import Delta, Sampling
from fineflow.runtime.call.trace import Warmed
from fineflow.testing import virtual
from fineflow.testing.differential import assert_same
from fineflow.testing.leaks import Left, settled

LENGTHS = (150, 40, 60, 300)  # tokens of the members, in order
NEW = 64  # tokens that are worth a prefill
QUICK = LLMProfile(0.0001, 0.000001, 0.000001)


def words(count: int, name: str) -> str:
    return " ".join(f"{name}{i}" for i in range(count))


def say(prompt: str) -> str:
    if "SUMMARIZE" not in prompt:
        return words(900 if "Other" in prompt else 8, "answer")
    text = prompt.rsplit("SUMMARIZE ", 1)[1].split()[0]
    return words(LENGTHS[int(text[-1])], text)


class Watched(EmulatedLLM):
    """Notes the tokens of its prefills and requests. fails: part of a prompt whose request fails."""

    def __init__(self, name: str, fails: str = "", profile: LLMProfile = LLAMA_2_7B) -> None:
        super().__init__(say, profile, name=name)
        self.prefills: list[int] = []
        self.prompts: list[tuple[int, int]] = []  # tokens, and those of them that were cached
        self.fails = fails

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        self.prefills.append(len(tokens))
        await super().prefill(tokens, priority=priority)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[Delta, None]:
        if self.fails and self.fails in self._text(tokens):
            raise RequestError("it fails")
        async for delta in super().generate(tokens, sampling, priority=priority):
            yield delta
        self.prompts.append((len(tokens), delta.cached_tokens))


class World:
    """Engines of one app: a small model makes the members, the core model answers."""

    def __init__(self, *, fails: str = "", one: bool = False, profile: LLMProfile = LLAMA_2_7B) -> None:
        self.core = Watched("core", profile=profile)
        self.small = self.core if one else Watched("small", fails, profile)

    def ask(self, text: str, engine: Watched) -> Runnable[Any, str]:
        return ChatPromptTemplate.from_template(text) | ChatEngine(engine=engine, max_tokens=2000) | StrOutputParser()

    @property
    def each(self) -> Runnable[Any, Any]:
        return RunnableLambda(parts) | self.ask("SUMMARIZE {text}", self.small).map()


def parts(x: dict[str, Any]) -> list[dict[str, str]]:
    return [{"text": text} for text in x["texts"]]


def joined(world: World) -> Runnable[Any, Any]:
    return {"context": world.each | RunnableLambda("\n\n".join)} | world.ask("Use {context} to answer.", world.core)


def in_a_dict(world: World) -> Runnable[Any, Any]:
    made = RunnableLambda(lambda x: {"context": "\n\n".join(f"- {one}" for one in x)})
    return world.each | made | world.ask("Use {context} to answer.", world.core)


def chosen(x: dict[str, Any]) -> list[str]:
    return [f"{one} {said}" for one, said in zip(x["texts"], x["said"], strict=True) if "t1" not in one]


def filtered(world: World) -> Runnable[Any, Any]:
    return (
        RunnablePassthrough.assign(said=world.each)
        | RunnablePassthrough.assign(kept=chosen)
        | RunnablePassthrough.assign(context=lambda x: "\n".join(x["kept"]))
        | world.ask("Use {context} to answer {question}.", world.core)
    )


SHAPES: dict[str, Callable[[World], Runnable[Any, Any]]] = {
    "joined": joined,
    "in a dict": in_a_dict,
    "filtered": filtered,
}


def given(number: int) -> dict[str, Any]:
    return {"texts": [f"n{number}t{i}" for i in range(len(LENGTHS))], "question": f"q{number}"}


async def calls(chain: Any, count: int, begun: int = 0) -> list[Any]:
    return [await chain.ainvoke(given(begun + number)) for number in range(count)]


@pytest.mark.parametrize("name", SHAPES)
def test_members_are_prefilled_in_order_once_the_map_was_measured(name: str) -> None:
    world, stock = World(), World()
    mine = fineflow.optimize(SHAPES[name](world), strict=True)

    async def main() -> tuple[list[Any], float]:
        answers = await calls(mine, 2)
        assert world.core.prefills == []  # how long it takes was not known
        begun = asyncio.get_running_loop().time()
        answers += await calls(mine, 1, 2)
        return answers, asyncio.get_running_loop().time() - begun

    answers, seconds = virtual.run(main()).value
    expected = virtual.run(calls(SHAPES[name](stock), 3))
    assert answers == expected.value and seconds < expected.seconds / 3
    assert world.core.prefills and world.core.prefills == sorted(world.core.prefills)
    assert len(world.core.prompts) == 3 and len(world.small.prompts) == 12
    tokens, cached = world.core.prompts[-1]
    first = sum(LENGTHS[:3]) if name != "filtered" else LENGTHS[0] + LENGTHS[2]
    assert first - NEW < cached < tokens - LENGTHS[3]


@pytest.mark.parametrize("name", SHAPES)
def test_same_answer(name: str) -> None:
    assert_same(lambda: SHAPES[name](World(profile=QUICK)), given(0), strict=True)


def test_a_beginning_is_shortened_to_what_fits_into_the_time() -> None:
    engine, text = Watched("core"), words(1000, "w")
    costs.know("core", Op.PREFILL, Line(LLAMA_2_7B.iteration, LLAMA_2_7B.prefill_token))
    fits = int((0.1 - LLAMA_2_7B.iteration) / LLAMA_2_7B.prefill_token) // engine.block_size * engine.block_size

    async def main() -> tuple[Warmed, float, Warmed]:
        begun = asyncio.get_running_loop().time()
        found = await awarm(engine, text, within=0.1)
        took = asyncio.get_running_loop().time() - begun
        return found, took, await awarm(engine, text, within=0.03)

    found, took, none = virtual.run(main()).value
    assert engine.prefills == [fits] and found == fits < 1000 and took <= 0.1 + 1e-4
    assert none == 0


def test_once_the_whole_prompt_is_there_nothing_of_it_is_rendered_or_prefilled() -> None:
    beginning = Primitive("llm.partial_prefill", Op.PARTIAL_PREFILL, {}, meta={"until": "llm.prefill"})
    run: Any = SimpleNamespace(values={"llm.prefill": None})
    assert partial_prefill(beginning, {}, run) == 0


def test_stays_off_where_the_engine_makes_the_members_itself() -> None:
    world = World(one=True)
    mine = fineflow.optimize(joined(world), strict=True)
    virtual.run(calls(mine, 3))
    assert not [p for p in mine_graph(mine) if p.meta.get("grows")]
    assert "itself writes the members of context.map" in str(fineflow.explain(mine, graphs=True))


def mine_graph(mine: Any) -> Any:
    found: Explanation = fineflow.explain(mine, graphs=True)
    return found.e_graph


def test_stays_off_under_load() -> None:
    world = World()
    mine = fineflow.optimize(joined(world), strict=True)

    async def main() -> None:
        await calls(mine, 2)
        other = fineflow.optimize(world.ask("Other {question}", world.core), strict=True)
        busy = asyncio.create_task(other.ainvoke({"question": "q"}))
        await asyncio.sleep(0.1)
        await calls(mine, 1, 2)
        assert not busy.done()
        await busy

    virtual.run(main())
    assert world.core.prefills == []


def test_after_a_member_that_failed_nothing_more_is_prefilled(left_before: Left) -> None:
    world = World(fails="n2t1")
    mine = fineflow.optimize(joined(world), strict=True)

    async def main() -> None:
        await calls(mine, 2)
        with pytest.raises(RequestError, match="it fails"):
            await calls(mine, 1, 2)

    virtual.run(main())
    assert len(world.core.prompts) == 2 and len(world.core.prefills) <= 1  # that of the member before it
    assert not world.core._running and not world.core._waiting
    assert not settled(before=left_before)


def test_a_cancelled_call_leaves_nothing_running(left_before: Left) -> None:
    world = World()
    mine = fineflow.optimize(joined(world), strict=True)

    async def main() -> None:
        await calls(mine, 2)
        call = asyncio.create_task(mine.ainvoke(given(2)))
        while not world.core.prefills:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0.5)
        before = len(world.core.prefills), world.small.iterations
        await asyncio.sleep(60)
        assert (len(world.core.prefills), world.small.iterations) == before
        assert not (world.core._running or world.core._waiting or world.small._running)

    virtual.run(main())
    assert not settled(before=left_before)


def test_the_last_run_tells_what_was_prefilled() -> None:
    world = World()
    mine = fineflow.optimize(joined(world), strict=True)
    virtual.run(calls(mine, 3))
    text = str(fineflow.explain(mine, last_run=True))
    assert "the first members of {context} are prefilled while context.map makes the others" in text
    (line,) = [line for line in text.splitlines() if "llm.growing_prefill" in line and "tokens prefilled" in line]
    assert f" of {world.core.prefills[-1]} tokens prefilled" in line and " 0 of " not in line


def test_without_the_pass_nothing_is_prefilled() -> None:
    world = World()
    mine = fineflow.optimize(joined(world), strict=True, passes=[each for each in PASSES if each is not prefill])
    virtual.run(calls(mine, 3))
    assert world.core.prefills == []
    assert all(p.op is not Op.PARTIAL_PREFILL for p in mine_graph(mine))
