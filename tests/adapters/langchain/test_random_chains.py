"""Same answer for chains that nobody wrote: random LCEL graphs, stock against optimized.

``FINEFLOW_FUZZ=5000`` runs that many examples, other ones each time, instead of the bounded, repeatable suite.
"""

from __future__ import annotations

import os
import pprint
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from random_chains import INPUT, PURE_OF_DICT, PURE_OF_DOCS, PURE_OF_MESSAGE, PURE_OF_TEXT, Chain, World, build, chains

from fineflow import optimize
from fineflow.adapters.purity import analyse
from fineflow.testing.differential import Observation, differences, observe

LONGER = int(os.environ.get("FINEFLOW_FUZZ", "0"))
AGAIN = 4  # how often stock is observed before a difference counts: it may differ from itself


def run(chain: Chain, entry: str, **options: Any) -> tuple[Observation, World]:
    world = World()
    runnable = build(chain.spec, world)
    seen = observe(optimize(runnable, **options) if options else runnable, entry, dict(INPUT), log=world.log)
    return seen, world


def differing(chain: Chain, stock: Observation, other: Observation) -> list[str]:
    if "stream" in stock.entry and stock.error is not None:
        # The steps of a stream are all under way when one fails: how far the others had got by then is a race, and
        # the error of a step that misses a key names those that were there.
        kinds = [seen.error and seen.error["type"] for seen in (stock, other)]
        return [] if kinds[0] == kinds[1] else [f"{stock.error} became {other.error}"]
    return differences(stock, other, ordered_log=not chain.concurrent)


def compare(chain: Chain, entry: str, **options: Any) -> None:
    stock, counted = run(chain, entry)
    mine, mine_counted = run(chain, entry, **options)
    found = differing(chain, stock, mine)
    if not found and stock.error is None and not chain.changes and mine_counted.calls != counted.calls:
        found = [f"the models were called {mine_counted.calls} times instead of {counted.calls}"]
    if not found:
        return
    for _ in range(AGAIN):
        again, _ = run(chain, entry)
        if differing(chain, stock, again) or ("stream" in entry and not differing(chain, again, mine)):
            event(f"stock differs from itself in {entry}")
            return
    raise AssertionError(f"{entry}, {options}:\n" + "\n\n".join(found))


@pytest.mark.parametrize("functions", [PURE_OF_DICT, PURE_OF_TEXT, PURE_OF_DOCS, PURE_OF_MESSAGE])
def test_the_pure_functions_are_found_to_be_pure(functions: dict[str, Any]) -> None:
    for name, function in functions.items():
        assert analyse(function).pure, name


@settings(
    max_examples=LONGER or 60,
    derandomize=not LONGER,
    database=None,
    deadline=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)
@given(chains())
def test_random_chain_is_the_same(chain: Chain) -> None:
    note(pprint.pformat(chain.spec, width=110))
    for entry in ("invoke", "ainvoke"):
        compare(chain, entry, strict=True)
        compare(chain, entry, strict=True, eager=True)
    for entry in () if chain.chance else ("stream", "astream"):
        compare(chain, entry, strict=True, eager=True)
