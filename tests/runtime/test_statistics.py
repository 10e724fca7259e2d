"""Snapshots of what the runtime does, and their Prometheus text."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import math
import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import fineflow
import programs
from fineflow.ir import Op
from fineflow.protocols import CacheStatistics
from fineflow.runtime.queues.batch_queue import batch_queue_of
from fineflow.runtime.statistics import EngineStatistics, Histogram, QueryStatistics, Statistics, statistics, tally
from fineflow.testing.gates import Gate


class Engine:
    """Embeds to nothing, one batch at a time, when its gate lets it."""

    ops = frozenset({Op.EMBED})
    max_batch = 4

    def __init__(self, name: str, gate: Gate) -> None:
        self.name = name
        self.gate = gate

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        await self.gate.wait()
        if "bad" in items:
            raise ValueError("bad item")
        return list(items)

    async def aclose(self) -> None:
        """Nothing to free."""


COUNTED = """
import fineflow
from fineflow.backends.emulated import EmulatedLLM, LLMProfile
from fineflow.langchain import ChatEngine
from langchain_core.runnables import RunnableLambda

seen = []
chain = fineflow.optimize(RunnableLambda(seen.append))
for _ in range(2):
    chain.invoke("a")
    print(fineflow.statistics().queries.finished)
    ChatEngine(engine=EmulatedLLM(str, LLMProfile(0, 0, 0)))
"""


def test_calls_that_are_left_to_stock_count_once_there_is_a_model_on_an_engine() -> None:
    """They may reach it. Before that they go straight to the user's object."""
    done = programs.run("-c", COUNTED, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["0", "1"], "")


async def test_what_waits_runs_and_has_run() -> None:
    gate = Gate()
    queue = batch_queue_of(Engine("statistics 1", gate))
    first = asyncio.ensure_future(queue.submit_async(Op.EMBED, [1, 2]))
    await gate.arrived()
    rest = asyncio.ensure_future(queue.submit_async(Op.EMBED, [1, 2, 3, 4, 5]))
    while not queue.waiting:
        await asyncio.sleep(0)
    now = statistics().engines["statistics 1"]
    assert (now.queued, now.running, now.batches) == (5, 1, 0)
    gate.open()
    await first
    await rest
    with pytest.raises(ValueError, match="bad item"):
        await queue.submit_async(Op.EMBED, ["bad"])
    then = statistics().engines["statistics 1"]
    assert (then.queued, then.running, then.batches, then.failed) == (0, 0, 4, 1)
    assert (then.sizes.total, then.sizes.count) == (8, 4) and then.sizes.mean == 2
    sizes = dict(zip(then.sizes.bounds, then.sizes.counts, strict=False))
    assert (sizes[1.0], sizes[2.0], sizes[4.0]) == (2, 1, 1)
    assert then.waits.count == 3 and then.runs.count == 4  # three requests, the second in two batches
    assert now.batches == 0, "a snapshot does not change"


def test_a_snapshot_is_immutable() -> None:
    found = statistics()
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.queries.running = 7  # type: ignore[misc]
    with pytest.raises(TypeError):
        found.engines["x"] = None  # type: ignore[index]


def test_threads_count_without_losing_anything() -> None:
    def count() -> None:
        for _ in range(2000):
            tally("statistics 2").batch(1, (0.5,), 0.25, failed=False)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = statistics().engines["statistics 2"]
    assert (found.batches, found.waits.total, found.runs.total) == (16000, 8000.0, 4000.0)


def test_a_queue_that_is_gone_is_not_shown_as_waiting() -> None:
    batch_queue_of(Engine("statistics 3", Gate()))
    found = statistics().engines.get("statistics 3")
    assert found is None or (found.queued, found.running) == (0, 0)


SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?[0-9.e+-]+|\+Inf)')


def test_caches_of_engines_are_shown_while_these_exist() -> None:
    class Kept(Engine):
        found: CacheStatistics | None = CacheStatistics(total=1000, free=750, queried=400, hits=100)

        def cache_statistics(self) -> CacheStatistics | None:
            return self.found

    engines = [Kept("with a cache", Gate()), Kept("with a cache", Gate())]
    for engine in engines:
        batch_queue_of(engine)  # gone at once
    cache = statistics().engines["with a cache"].cache
    assert cache == CacheStatistics(2000, 1500, 800, 200)
    assert (cache.usage, cache.hit_rate) == (0.25, 0.25)
    assert 'fineflow_engine_cache_free_tokens{engine="with a cache"} 1500\n' in statistics().prometheus()
    assert 'fineflow_engine_cache_hits_tokens_total{engine="with a cache"} 200\n' in statistics().prometheus()
    engines[0].found = None  # it does not run
    assert statistics().engines["with a cache"].cache == CacheStatistics(1000, 750, 400, 100)
    del engine
    engines.clear()
    gc.collect()
    assert "with a cache" not in statistics().engines


def test_the_prometheus_text_follows_the_format() -> None:
    tally('odd "name"\n\\').batch(3, (0.02, 200.0), 0.5, failed=True)
    text = statistics().prometheus()
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    samples: dict[str, list[tuple[str, float]]] = {}
    helped = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split()[2]
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name == helped and name not in kinds
            kinds[name] = kind
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        samples.setdefault(found[1], []).append((found[2] or "", float(found[3])))
    for name in samples:
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert kinds.get(name) in ("gauge", "counter") or kinds[family] == "histogram"
        assert kinds.get(name) != "counter" or name.endswith("_total")
    odd = r'engine="odd \"name\"\n\\"'
    sizes = [value for labels, value in samples["fineflow_engine_batch_size_bucket"] if odd in labels]
    assert sizes == sorted(sizes) and sizes[-1] == 1
    assert (odd, 3.0) in samples["fineflow_engine_batch_size_sum"]
    assert (odd, 2.0) in samples["fineflow_engine_wait_seconds_count"]
    assert (odd, 1.0) in samples["fineflow_engine_failed_total"]
    assert {labels for labels, _ in samples["fineflow_queries_total"]} >= {'outcome="finished"', 'outcome="overloaded"'}
    assert math.isfinite(sum(value for _, value in samples["fineflow_queries_run_seconds_total"]))


def test_with_nothing_to_tell() -> None:
    found = Statistics(QueryStatistics(0, 0, 0, 0, 0, 0, 0.0, 0.0), dict[str, EngineStatistics]())
    assert "fineflow_queries_running 0\n" in found.prometheus()


async def test_batches_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    queue = batch_queue_of(Engine("statistics 4", Gate(opened=True)))
    await queue.submit_async(Op.EMBED, [1])
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, logger="fineflow"):
        await queue.submit_async(Op.EMBED, [1, 2, 3])
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "batch"]
    assert (told.engine, told.items, told.failed) == ("statistics 4", 3, False)


def test_it_is_the_same_from_everywhere() -> None:
    assert fineflow.statistics is statistics
    assert fineflow.Runtime().statistics().engines.keys() == statistics().engines.keys()


def test_prints_as_a_table() -> None:
    sizes, waits, runs = (
        Histogram((2.0,), (3, 0), 6.0),
        Histogram((1.0,), (3, 0), 0.03),
        Histogram((1.0,), (3, 0), 0.6),
    )
    engine = EngineStatistics("embedder", 4, 1, 3, 0, sizes, waits, runs)
    calls = QueryStatistics(2, 0, 7, 1, 0, 0, 0.0, 0.0)
    assert str(Statistics(calls, {"embedder": engine})).splitlines() == [
        "calls: 2 running, 0 waiting, 7 finished, 1 failed, 0 cancelled, 0 overloaded",
        "engine    batches  failed  items     wait       run  queued  running",
        "embedder        3       0    2.0  10.0 ms  200.0 ms       4        1",
    ]
    assert str(Statistics(calls, {})).count("\n") == 0
