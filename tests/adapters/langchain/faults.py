"""What tests with faults have in common: calls of every entry point, what a caller is told, what is left behind."""

from __future__ import annotations

import asyncio
import gc
import traceback
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from faulty_steps import AT, KINDS, QUESTION, RAISING, Bench

import fineflow
from fineflow.runtime.call import query
from fineflow.runtime.loop import workers
from fineflow.runtime.loop.runtime_loop import engine_loop
from fineflow.runtime.queues.batch_queue import batch_queue_of
from fineflow.testing import virtual_threads
from fineflow.testing.gates import Trap

HANGING = [kind for kind in KINDS if kind not in RAISING]
ALONE = ["prefill", "decode", "decode, streaming", "embed", "search", "rerank", "call", "declared read", "tool"]
needs_virtual_threads = pytest.mark.skipif(
    not virtual_threads.available, reason="the machine does not tell what threads do"
)
SYNC = ("invoke", "stream", "batch")
ASYNC = ("ainvoke", "astream", "abatch", "astream_events")


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """What was there before these tests is not looked through for garbage each time."""
    gc.collect()
    gc.freeze()


class Boom(Exception):
    """What components raise here."""


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes an async test one whose loops and threads have virtual time.

    A call that is cancelled stops at once: it takes no virtual time, however loaded the machine is.
    """

    @needs_virtual_threads
    @wraps(test)
    def run_virtually(*args: Any, **kwargs: Any) -> None:
        virtual_threads.run(lambda: asyncio.run(test(*args, **kwargs)))

    return run_virtually


def trap(kind: str, error: BaseException | None = None) -> Trap:
    return Trap(error, at=AT.get(kind, 1))


def optimized(bench: Bench) -> Any:
    return fineflow.optimize(bench.chain(), strict=True, eager=True)


def call(runnable: Any, entry: str) -> Any:
    if entry == "stream":
        return list(runnable.stream(QUESTION))
    return runnable.batch([QUESTION])[0] if entry == "batch" else runnable.invoke(QUESTION)


async def acall(runnable: Any, entry: str) -> Any:
    if entry == "astream":
        return [chunk async for chunk in runnable.astream(QUESTION)]
    if entry == "astream_events":
        return [event["event"] async for event in runnable.astream_events(QUESTION, version="v2")]
    return (await runnable.abatch([QUESTION]))[0] if entry == "abatch" else await runnable.ainvoke(QUESTION)


def run(runnable: Any, entry: str) -> Any:
    return call(runnable, entry) if entry in SYNC else asyncio.run(acall(runnable, entry))


# What a caller sees of an exception.


def told(error: BaseException) -> dict[str, Any]:
    """Everything about an exception but the frames of libraries: its type and text, and the chain behind it."""
    chain: list[Any] = []
    seen: BaseException | None = error
    while seen is not None:
        chain.append((type(seen), str(seen), seen.__suppress_context__, getattr(seen, "__notes__", [])))
        chain.append("cause" if seen.__cause__ is not None else "context")
        seen = seen.__cause__ or seen.__context__
    frames = [(Path(f.filename).name, f.name) for f in traceback.extract_tb(error.__traceback__)]
    # A model that puts its answer together from pieces is asked for the pieces, whatever stock asks for.
    own = [f for f in frames if f[0] in ("faults.py", "faulty_steps.py", "test_failures.py")]
    return {"chain": chain, "own frames": own, "raised in": frames[-1], "args": repr(error.args)}


def caught(runnable: Any, entry: str) -> Any:
    """The exception of a call; its value if it has none."""
    try:
        return run(runnable, entry)
    except BaseException as error:
        return error


# What is left of a call.


@contextmanager
def nothing_is_left(bench: Bench) -> Iterator[None]:
    """No call, no work in a component or thread, nothing in queues, no task on the runtime's loop."""
    calls: list[weakref.ref[Any]] = []
    busy = set(workers._pool._busy)  # what earlier tests have left
    made = query.Call.__post_init__

    def noted(self: Any) -> None:
        calls.append(weakref.ref(self))
        made(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query.Call, "__post_init__", noted)
        yield
    gc.collect()  # streams that stock began for nothing
    bench.meter.wait_idle()
    assert batch_queue_of(bench.batches).waiting == 0
    assert settled(lambda: not engine_tasks()), engine_tasks()
    assert settled(lambda: not workers._pool._busy - busy)
    assert settled(lambda: all(over(ref()) for ref in calls))
    assert settled(lambda: not any(ref() for ref in calls) or gc.collect() < 0)


def over(made: Any) -> bool:
    return made is None or (made.claims.closed and not made.tasks and not made.waiting and not made.fed)


def engine_tasks() -> list[Any]:
    return [task for task in asyncio.all_tasks(engine_loop()) if not task.done()]


def settled(holds: Callable[[], Any], timeout: float = 10.0) -> bool:
    """Whether it holds soon, looking after each turn of the runtime's loop: what was cancelled has ended by then."""
    deadline = monotonic() + timeout
    while not holds():
        if monotonic() > deadline:
            return False
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), engine_loop()).result(10)
    return True


def works(chain: Any, bench: Bench, entry: str) -> None:
    """The next call of the same object gives what stock gives."""
    bench.trap.disarm()
    bench.side_gate.open()
    bench.late_gate.open()
    expected = caught(Bench(bench.kind, Trap(at=0)).chain(), entry)
    found = caught(chain, entry)
    if isinstance(expected, Exception):
        assert told(found)["chain"] == told(expected)["chain"]
    elif "stream" not in entry:
        assert found == expected
