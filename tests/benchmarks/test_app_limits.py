"""Limits of calls: their seconds are those of the emulated engines, and no schedule beats them."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
from dataclasses import replace

import pytest
from benchmarks.harness.limits import Path, bound, count
from benchmarks.harness.setting import PAPER

from fineflow.engines import EmulatedEmbedding, EmulatedLLM
from fineflow.ir import Op
from fineflow.protocols import Sampling
from fineflow.testing import virtual

NEAR = 1e-4  # seconds: the emulated LLM waits a microsecond before each iteration


def words(count: int, first: str = "w") -> str:
    return " ".join(f"{first}{i}" for i in range(count))


def generated(engine: EmulatedLLM, text: str, out: int) -> float:
    async def run() -> None:
        async for _ in engine.generate(engine.encode(text), Sampling(max_tokens=out)):
            pass

    return virtual.run(run()).seconds


@pytest.mark.parametrize(("prompt", "out"), [(1, 1), (300, 1), (300, 40), (3000, 5)])
def test_a_request_takes_what_the_engine_takes(prompt: int, out: int) -> None:
    path = Path(PAPER)
    step = path.write("answer", [(prompt, None)], out)
    assert path.seconds == pytest.approx(generated(EmulatedLLM(lambda _: words(out)), words(prompt), out), abs=NEAR)
    assert step.first == pytest.approx(path.seconds - (out - 1) * step.pace)


def test_a_cached_beginning_is_not_prefilled() -> None:
    engine = EmulatedLLM(lambda _: words(4))
    generated(engine, words(65), 4)
    path = Path(PAPER)
    path.write("answer", [(64, None), (100, None)], 4, cached=64)
    assert path.seconds == pytest.approx(generated(engine, f"{words(64)} {words(100, 'v')}", 4), abs=NEAR)


def test_a_known_beginning_is_prefilled_meanwhile() -> None:
    path = Path(PAPER)
    found = path.wait("search", 1.0)
    path.write("answer", [(1000, None), (10, found)], 1)
    assert path.seconds == pytest.approx(1.0 + PAPER.llm.seconds(10, 0))


def test_a_prompt_is_not_split_where_that_would_take_longer() -> None:
    path = Path(PAPER)
    found = path.wait("search", 0.01)
    path.write("answer", [(10, None), (10, found)], 1)
    assert path.seconds == pytest.approx(0.01 + PAPER.llm.seconds(20, 0))


def test_of_a_text_that_is_being_written_only_the_last_tokens_are_left() -> None:
    path = Path(PAPER)
    draft = path.write("draft", [(10, None)], 100)
    path.write("answer", [(100, draft)], 1)
    assert draft.end + PAPER.llm.seconds(1, 0) <= path.seconds <= draft.end + PAPER.llm.seconds(4, 0)


def test_parts_of_a_list_are_known_while_it_is_written() -> None:
    path = Path(PAPER)
    lines = path.write("lines", [(10, None)], 30, items=[10, 10, 10])
    assert [item.end for item in lines.items] == pytest.approx(
        [lines.end - 20 * lines.pace, lines.end - 10 * lines.pace, lines.end]
    )
    with_parts = path.batch("vectors", "embedder", [(1, item) for item in lines.items])
    assert with_parts.end == pytest.approx(lines.end + PAPER.embedder.seconds(1))


@pytest.mark.parametrize("items", [1, 16, 17, 48, 49])
def test_a_batch_engine_takes_what_it_takes(items: int) -> None:
    engine = EmulatedEmbedding()

    async def run() -> None:
        for start in range(0, items, engine.max_batch):
            texts = [("document", "text")] * min(engine.max_batch, items - start)
            await engine.execute(Op.EMBED, texts)

    path = Path(PAPER)
    path.batch("vectors", "embedder", [(items, None)])
    assert path.seconds == pytest.approx(virtual.run(run()).seconds)


def test_items_that_arrive_late_are_divided_in_the_best_way() -> None:
    """Against all divisions of eight items into batches."""
    path = Path(PAPER)
    early, late = path.wait("a", 0.1), path.wait("b", 0.25)
    step = path.batch("vectors", "embedder", [(3, None), (3, early), (2, late)])
    arrivals = [0.0] * 3 + [0.1] * 3 + [0.25] * 2
    ends = []
    for cuts in itertools.product((False, True), repeat=7):
        batches, now = [[arrivals[0]]], 0.0
        for cut, at in zip(cuts, arrivals[1:], strict=True):
            batches += [[at]] if cut else []
            batches[-1] += [] if cut else [at]
        for batch in batches:
            now = max(now, batch[-1]) + PAPER.embedder.seconds(len(batch))
        ends.append(now)
    assert step.end == pytest.approx(min(ends))


@pytest.mark.parametrize("settings", [{}, {"sequences": 2}, {"prefill_tokens": 100}, {"sequences": 5}], ids=str)
def test_requests_of_a_call_end_no_sooner_than_beside_each_other(settings: dict[str, int]) -> None:
    """However the LLM divides them into iterations; and the limit of a request that is alone is sooner."""
    sizes, out = [300, 100, 700, 100, 500, 200], 12
    engine = EmulatedLLM(lambda _: words(out), replace(PAPER.llm, **settings))

    async def run() -> list[float]:
        loop = asyncio.get_running_loop()

        async def one(place: int, size: int) -> float:
            async for _ in engine.generate(engine.encode(words(size, f"p{place}_")), Sampling(max_tokens=out)):
                pass
            return loop.time() - began

        began = loop.time()
        return sorted(await asyncio.gather(*(one(*each) for each in enumerate(sizes))))

    path = Path(replace(PAPER, llms=1))
    alone = [path.write(f"request {i}", [(size, None)], out) for i, size in enumerate(sizes)]
    least = path.beside(alone)
    assert all(mine.end <= took for mine, took in zip(least, virtual.run(run()).value, strict=True))
    assert least[-1].end > max(step.end for step in alone) + sum(sizes[:2]) * PAPER.llm.prefill_token
    assert {*map(id, path.steps)} == {*map(id, least)}, "they stand for what they replace"


def test_a_call_that_brings_much_work_to_an_engine_takes_at_least_that() -> None:
    path = Path(PAPER)
    contexts = [path.write(f"context {i}", [(1000, None)], 20) for i in range(40)]
    path.write("answer", [(20 * len(contexts), contexts[-1])], 10)
    assert path.limit > path.seconds > 0
    work = 40 * 1000 * PAPER.llm.prefill_token / PAPER.llms
    assert path.limit > work
    assert sum(path.spent().values()) == pytest.approx(path.limit)


def test_no_order_on_one_device_beats_the_bound() -> None:
    """Mean times of jobs on one embedding model, in every order without preemption, against the bound."""
    chosen = random.Random(3)
    sizes, arrivals = [chosen.randint(1, 30) for _ in range(5)], [0.0, 0.1, 0.15, 0.3, 1.2]
    paths = []
    for size in sizes:
        paths.append(Path(PAPER))
        paths[-1].batch("vectors", "embedder", [(size, None)])
    work = [path.work()["embedder"] for path in paths]
    means = []
    for order in itertools.permutations(range(5)):
        now, took = 0.0, []
        for job in order:
            now = max(now, arrivals[job]) + work[job]
            took.append(now - arrivals[job])
        means.append(statistics.mean(took))
    assert bound(arrivals, paths) <= min(means) + 1e-9
    assert bound([1000.0 * i for i in range(5)], paths) == pytest.approx(statistics.mean(path.limit for path in paths))


def test_tokens_are_counted_as_the_engine_counts_them() -> None:
    engine = EmulatedLLM(lambda _: "")
    for text in ("", "one", " two  words\n", "a\n\nb c"):
        assert count(text) == len(engine.encode(text))


def test_the_path_is_told_by_engine() -> None:
    path = Path(PAPER)
    found = path.wait("search", 0.5)
    scores = path.batch("scores", "reranker", [(4, found)])
    path.write("answer", [(8, scores)], 3)
    assert path.spent() == pytest.approx(
        {"search": 0.5, "reranker": PAPER.reranker.seconds(4), "llm": path.seconds - scores.end}
    )
