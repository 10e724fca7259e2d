"""A caller that is interrupted, and what is kept of a call: nothing."""

from __future__ import annotations

import gc
import signal
import threading
from contextlib import suppress
from typing import Any

import pytest
from faults import ALONE, Boom, call, nothing_is_left, quick_collections, run, settled, trap  # noqa: F401
from faulty_steps import AT, KINDS, Bench
from langchain_core.runnables import RunnableLambda

import fineflow
from fineflow.adapters.core.claiming import Claiming
from fineflow.runtime.call import query
from fineflow.runtime.call.entry import Entry
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.streams import Stream
from fineflow.testing.gates import Trap

pytestmark = pytest.mark.sweep

# Interrupts.


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("entry", ["invoke", "stream"])
@pytest.mark.parametrize("kind", ALONE)
def test_an_interrupt_of_the_caller(kind: str, entry: str) -> None:
    """The step alone: where stock has threads of its own at work it waits for them, interrupted or not."""
    bench = Bench(kind, trap(kind))
    chain = fineflow.optimize(KINDS[kind](bench), strict=True, eager=True)
    main = threading.main_thread().ident
    assert main is not None and threading.current_thread() is threading.main_thread()

    def interrupt() -> None:
        bench.trap.wait_arrived(AT.get(kind, 1))
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    with nothing_is_left(bench):
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            call(chain, entry)
        helper.join()
        bench.trap.disarm()  # a thread cannot be interrupted: it ends alone
    assert call(chain, entry)


# Memory.


def kept() -> list[Any]:
    """What is still there of what calls are made of."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) in (query.Call, Execution, Entry, Stream, Claiming, Marked)]


class Marked(dict):  # type: ignore[type-arg]
    """A value whose end can be seen."""


@pytest.mark.parametrize("entry", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("how", ["returns", "raises"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_call_is_kept(kind: str, how: str, entry: str) -> None:
    before = {id(each) for each in kept()}
    bench = Bench(kind, trap(kind, Boom("no")) if how == "raises" else Trap(at=0))
    chain = fineflow.optimize(bench.chain() | RunnableLambda(Marked), strict=True, eager=True)
    with suppress(Exception):
        run(chain, entry)
    bench.trap.error = None
    assert settled(lambda: not [each for each in kept() if id(each) not in before])
