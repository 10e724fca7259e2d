"""Two sides in turns, calls of fineflow's functions, live memory: what figures of the micro-benchmarks rest on."""

from __future__ import annotations

import asyncio
import gc
import itertools
import pathlib
import statistics
import sys
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import fineflow
from fineflow.runtime.loop.runtime_loop import stop
from fineflow.testing import virtual_threads

SOURCE = str(pathlib.Path(fineflow.__file__).parent)
COUNTED = 5  # calls
FAKES = str(pathlib.Path(SOURCE) / "testing")


@dataclass(frozen=True)
class Figure:
    """One figure, the lower the better. ratio: what is recorded and compared. of: what it is a ratio or a count of.

    shown: what it was computed from, with units, for the reader; it depends on the machine.
    """

    name: str
    ratio: float
    of: str
    shown: str = ""


@dataclass
class Found:
    """The figures of a section. aims: what was asked of absolute times, and whether it held; no check rests on them."""

    figures: list[Figure] = field(default_factory=list)
    aims: dict[str, bool] = field(default_factory=dict)

    def add(self, name: str, ratio: float, of: str, shown: str = "") -> None:
        """Adds a figure."""
        self.figures.append(Figure(name, ratio, of, shown))


class Pair(NamedTuple):
    """Medians over the runs. stock, mine: seconds. ratio: of adjacent runs; more exact than that of the medians."""

    stock: float
    mine: float
    ratio: float


def in_turns(stock: Callable[[], float], mine: Callable[[], float], runs: int) -> Pair:
    """Measures both sides in turns, so that other load affects both. Each call returns its seconds."""
    found: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + 1):  # the first one warms up
        for side in (0, 1) if run % 2 else (1, 0):
            seconds = (stock, mine)[side]()
            if run:
                found[side].append(seconds)
    ratio = statistics.median(b / a for a, b in zip(*found, strict=True))
    return Pair(statistics.median(found[0]), statistics.median(found[1]), ratio)


def processor_seconds(call: Callable[[], Any], times: int = 1) -> float:
    """Returns the processor time of all threads per call; elapsed time would include other processes."""
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times


def repeated(method: Callable[[Any], Any], value: Any, times: int) -> Callable[[], float]:
    """Returns a measurement of a sync or async entry method: the processor seconds of one of ``times`` calls."""

    async def awaited() -> float:
        start = time.process_time()
        for _ in range(times):
            await method(value)
        return (time.process_time() - start) / times

    if getattr(method, "__name__", "").startswith("a"):
        return lambda: asyncio.run(awaited())
    return lambda: processor_seconds(lambda: method(value), times)


def calls_of_fineflow(call: Callable[[], Any]) -> int:
    """Returns how often functions of fineflow are entered or resumed, in all threads, in the least of several calls.

    The same in every run, but for how often coroutines are resumed. Some calls do more, such as to look at the object
    again; the first one plans.
    """
    numbers = itertools.count()

    def seen(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            if not (frame.f_code.co_filename.startswith(FAKES) or caller.startswith(FAKES)):  # stock has those, too
                next(numbers)

    stop()  # the runtime's thread starts again below, and is counted
    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        call()
        counts = []
        for _ in range(COUNTED):
            before = next(numbers)
            call()
            counts.append(next(numbers) - before - 1)
        return min(counts)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        stop()


class Held(NamedTuple):
    """Live memory: bytes, and blocks that Python has allocated for them."""

    size: float
    blocks: float


# What reads the states of threads, for virtual time: no part of what is measured.
_CLOCK = [tracemalloc.Filter(False, module.__file__ or "") for module in (virtual_threads, pathlib)]


async def held_meanwhile(
    begin: Callable[[], Awaitable[Any]], arrived: Callable[[], Awaitable[Any]]
) -> tuple[Held, Any]:
    """Returns what is held once ``begin`` has ``arrived``, and the task of ``begin``, which goes on.

    In virtual time (``virtual_threads``): so all that can happen meanwhile has, however busy the machine is.
    """
    gc.collect()
    tracemalloc.start()
    task = asyncio.ensure_future(begin())
    await arrived()
    await asyncio.sleep(1)  # virtual: over when nothing runs any more
    gc.collect()
    traces = tracemalloc.take_snapshot().filter_traces(_CLOCK).traces
    held = Held(sum(trace.size for trace in traces), len(traces))
    tracemalloc.stop()
    return held, task
