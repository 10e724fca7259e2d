"""What is computed of iterations and batches is what the emulated engines do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks import waves
from fineflow.backends.emulated import EmulatedLLM
from fineflow.protocols import Sampling
from fineflow.testing import virtual


@pytest.mark.parametrize("chunk", [2048, 100])
def test_contexts_end_as_on_the_emulated_engine(chunk: int) -> None:
    model = waves.replace(waves.LLM, prefill_tokens=chunk)
    sizes = [150, 90, 240]
    llm = EmulatedLLM(lambda prompt: "word " * waves.app.CONTEXT, model, can_prefill=False)

    async def one(number: int, size: int) -> float:
        async for _ in llm.generate(llm.encode(f"prompt{number} " * size), Sampling()):
            pass
        return asyncio.get_running_loop().time()

    async def together() -> list[float]:
        begun = asyncio.get_running_loop().time()
        return [at - begun for at in await asyncio.gather(*(one(*each) for each in enumerate(sizes)))]

    assert waves.written(sizes, waves.at_most(3), model) == pytest.approx(
        sorted(virtual.run(together()).value), abs=1e-3
    )


def test_waves_are_admitted_in_turn() -> None:
    admit = waves.in_waves([(0, 2), (1, 5)])
    assert [admit(0, 0), admit(2, 0), admit(1, 1), admit(4, 1), admit(0, 5)] == [2, 0, 3, 0, 0]


def test_holding_back_gains_and_costs_the_llm(tmp_path: Path) -> None:
    assert waves.main(["--schedules", "20", "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    first, last, vectors, at_best = range(4)
    free, held, best = (found[name] for name in ("chunks of 2048", "at most 10", "best of 20 schedules"))
    assert held[vectors] < free[vectors] and best[vectors] < free[vectors]
    assert held[last] > free[last] and best[last] > free[last]
    assert all(each[first] < each[last] < each[at_best] <= each[vectors] for each in (free, held, best))
