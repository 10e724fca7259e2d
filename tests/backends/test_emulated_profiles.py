"""Shipped profiles: emulated engines reproduce within 10 % what was measured, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fineflow.backends.emulated import BatchProfile, LLMProfile, load_profile, profile_data
from fineflow.cost_model.costs import Costs
from fineflow.engines import (
    EmulatedEmbedding,
    EmulatedLLM,
    EmulatedSearch,
    batch_profile,
    llm_profile,
    profile_names,
)
from fineflow.ir import Op
from fineflow.profiling import _llm_profile, prefill_seconds
from fineflow.protocols import BatchEngine, Sampling
from fineflow.testing import virtual

CLOSE = 0.10
STEPS = 20
ROWS = [(name, row) for name in profile_names() for row in profile_data(name)["measured"]]


async def prefills(llm: EmulatedLLM, tokens: list[int]) -> None:
    """One request after another, each for its own tokens only."""
    for number, count in enumerate(tokens):
        async for _ in llm.generate(llm.encode(f"{number} " * count), Sampling(max_tokens=1)):
            pass


async def step(llm: EmulatedLLM, count: int) -> float:
    """Seconds of a step that decodes so many sequences."""
    moments: list[float] = []

    async def one(number: int) -> None:
        async for _ in llm.generate(llm.encode(f"{number} "), Sampling(max_tokens=STEPS)):
            moments.append(asyncio.get_running_loop().time())

    await asyncio.gather(*(one(number) for number in range(count)))
    return (max(moments) - min(moments)) / (STEPS - 1)


async def batches(engine: BatchEngine, items: int, batch: int) -> None:
    for _ in range(items // batch):
        await engine.execute(Op.EMBED, [("document", "a text")] * batch)


def emulated_seconds(name: str, row: dict[str, Any]) -> float:
    if row["what"] == "batches":
        return virtual.run(batches(EmulatedEmbedding(batch_profile(name)), row["items"], row["batch"])).seconds
    llm = EmulatedLLM(lambda prompt: "word " * STEPS, llm_profile(name))
    if row["what"] == "prefill":
        return virtual.run(prefills(llm, row["tokens"])).seconds
    low = int(row["together"])  # on average: some answers end earlier than others
    below, above = (virtual.run(step(llm, count)).value for count in (low, low + 1))
    return below + (above - below) * (row["together"] - low)


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(ROWS)])
def test_the_emulator_takes_what_was_measured(name: str, row: dict[str, Any]) -> None:
    assert emulated_seconds(name, row) == pytest.approx(row["seconds"], rel=CLOSE)


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_says_where_it_is_from_and_teaches_the_cost_model(name: str) -> None:
    data = profile_data(name)
    assert len(data["source"]) > 20 and data["measured"]
    known = Costs()
    known.load(Path(__file__).parents[2] / "src/fineflow/backends/emulated/profiles" / f"{name}.json")
    for row in data["lines"]:
        assert known.measured(row["engine"], Op(row["op"]))
    assert isinstance(load_profile(name), LLMProfile | BatchProfile)


def test_tokens_that_cost_nothing_are_found() -> None:
    """On a GPU, up to some hundred tokens of a prompt take as long as one."""
    rows = profile_data("llama-8b-h100")["measured"]
    prefills = [(float(sum(row["tokens"])), row["seconds"]) for row in rows if row["what"] == "prefill"]
    found = _llm_profile(prefills, [(row["together"], row["seconds"]) for row in rows if row["what"] == "step"])
    assert found.free == llm_profile("llama-8b-h100").free
    assert found.seconds(found.free, 0) == found.seconds(1, 0) < found.seconds(found.free + 1, 0)
    assert max(abs(prefill_seconds(found, round(tokens)) / took - 1) for tokens, took in prefills) < 0.04
    exact = [(tokens, prefill_seconds(found, round(tokens))) for tokens, _ in prefills]
    steps = [(count, found.seconds(0, count)) for count in (1, 8, 64)]
    again = _llm_profile(exact, steps)
    assert again.free == pytest.approx(found.free, abs=16)
    assert again.prefill_token == pytest.approx(found.prefill_token, rel=0.02)


def test_profiles_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no profile is called 'gpt'; shipped are ayo-embedder, .*given as a Path"):
        llm_profile("gpt")
    with pytest.raises(ValueError, match="is a profile of a batch engine; expected one of an LLM"):
        llm_profile("ayo-embedder")
    with pytest.raises(ValueError, match="is a profile of an LLM; expected one of a batch engine"):
        batch_profile("llama-2-7b")
    file = tmp_path / "mine.json"
    file.write_text("[]")
    with pytest.raises(ValueError, match="expected a profile as 'fineflow profile' writes it"):
        llm_profile(file)
    file.write_text('{"source": "", "emulated": {"kind": "tool"}}')
    with pytest.raises(ValueError, match=r"'emulated' needs a kind \('llm' or 'batch'\)"):
        llm_profile(file)


def test_a_search_finds_what_is_near_and_takes_its_time() -> None:
    store = EmulatedSearch([([1.0, 0.0], "east"), ([0.0, 1.0], "north"), ([0.6, 0.8], "north-east")])
    found = virtual.run(store.execute(Op.SEARCH, [([0.0, 2.0], 2), ([1.0, 0.1], 1)]))
    assert found == ([["north", "north-east"], ["east"]], 0.03)
    assert isinstance(store, BatchEngine) and store.batches == [2]
