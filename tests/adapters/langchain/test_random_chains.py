"""Same answer for chains that nobody wrote: random LCEL graphs, stock against optimized.

``FINEFLOW_FUZZ=5000`` (or ``make fuzz``) runs that many examples, other ones each time, through up to two entry points
each, instead of the bounded, repeatable suite.
"""

from __future__ import annotations

import gc
import pprint
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st
from random_chains import INPUT, OTHERS, Chain, chains
from random_draws import ALWAYS, ASYNC, NEVER
from random_functions import PURE
from random_steps import World, build

from fineflow import optimize
from fineflow.adapters.analysis import analyse
from fineflow.testing.differential import Observation, differences, observe
from fuzzing import LONGER, bounded

AGAIN = 12  # runs of stock: which chunk comes first from parallel steps is a race

ENTRIES = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")
_ECHO = (
    "UnboundLocalError"  # of a RunnableLambda whose input never came, as a step beside it failed: a race for the first
)
OPTIONS: tuple[dict[str, Any], ...] = ({"strict": True}, {"strict": True, "eager": True})


@pytest.fixture(scope="module", autouse=True)
def collecting_between_calls() -> Iterator[None]:
    """What a failing stream of stock's leaves behind is closed between calls, by ``run``.

    Python would close it wherever it happens to collect it. That means to wait for threads and to start others, with
    stock alone, too: inside of ``ThreadPoolExecutor.submit`` it never ends.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


def run(chain: Chain, entry: str, **options: Any) -> tuple[Observation, World]:
    world = World()
    runnable = build(chain.spec, world)
    given = [dict(value) for value in (INPUT, *OTHERS)] if "batch" in entry else dict(INPUT)
    seen = observe(optimize(runnable, **options) if options else runnable, entry, given, log=world.log)
    if "stream" in entry and seen.error is not None:
        gc.collect()
    return seen, world


def differing(chain: Chain, stock: Observation, other: Observation) -> list[str]:
    by_chance = chain.chance == ALWAYS or (chain.chance == ASYNC and stock.entry.startswith("a"))
    if by_chance or (stock.error is not None and ("stream" in stock.entry or "batch" in stock.entry)):
        # How far other steps get beside the one that fails is a race: the steps of a stream are all under way, and a
        # batch goes from step to step in stock. The error of a step that misses a key names those that were there.
        kinds = [(seen.error and seen.error["type"], seen.error is None and seen.value) for seen in (stock, other)]
        echo = "stream" in stock.entry and chain.concurrent and any(kind == _ECHO for kind, _ in kinds)
        if kinds[0] == kinds[1] or (echo and all(kind for kind, _ in kinds)):
            return []
        return [f"{kinds[0]} became {kinds[1]}"]
    return differences(stock, other, ordered_log=not chain.concurrent and "batch" not in stock.entry)


def compare(chain: Chain, entry: str) -> None:
    stock, counted = run(chain, entry)
    for options in OPTIONS:
        mine, mine_counted = run(chain, entry, **options)
        found = differing(chain, stock, mine)
        calls = [(world.calls, world.searches) for world in (counted, mine_counted)]
        if not found and stock.error is None and not chain.changes and chain.chance == NEVER and calls[0] != calls[1]:
            found = [f"there were {calls[1]} instead of {calls[0]} calls of models and stores"]
        if found and not differs_from_itself(chain, entry, stock, mine):
            raise AssertionError(f"{entry}, {options}:\n" + "\n\n".join(found))


def differs_from_itself(chain: Chain, entry: str, stock: Observation, mine: Observation) -> bool:
    for _ in range(AGAIN):
        again, _ = run(chain, entry)
        if differing(chain, stock, again) or ("stream" in entry and not differing(chain, again, mine)):
            event(f"stock differs from itself in {entry}")
            return True
    return False


@pytest.mark.parametrize("functions", PURE)
def test_the_pure_functions_are_found_to_be_pure(functions: dict[str, Any]) -> None:
    for name, function in functions.items():
        assert analyse(function).pure, name


@bounded(250)
@given(chains(), st.lists(st.sampled_from(ENTRIES), min_size=1, max_size=2 if LONGER else 1, unique=True))
def test_random_chain_is_the_same(chain: Chain, entries: list[str]) -> None:
    note(pprint.pformat(chain.spec, width=110))
    for entry in entries:
        if not ("stream" in entry and chain.streams_differ):
            compare(chain, entry)
    gc.collect()
