"""Needs of configurations, free memory, and best fit (RAGServe, section 4.3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fineflow.adaptation import Configuration, Space
from fineflow.adaptation.chooser import Situation, best_fit, middle
from fineflow.adaptation.memory import Memory, Need, Sizes
from fineflow.adaptation.speed import Speed
from fineflow.cost_model.costs import costs
from fineflow.cost_model.lines import Line
from fineflow.ir import Op
from fineflow.protocols import CacheStatistics

SIZES = Sizes(prompt=10, chunks=(100,) * 18, answer=20)
STUFF = Space(("stuff",), (2, 6), (40, 40))
BOTH = Space(("stuff", "map_reduce"), (2, 6), (40, 80))
RERANK = Space(("map_rerank",), (1, 3), (40, 40))


def at(free: int | None, left: float | None = None, chunks: int = 18) -> Situation:
    """A situation; a token takes a second."""
    sizes = Sizes(SIZES.prompt, SIZES.chunks[:chunks], SIZES.answer)
    return Situation(sizes, free, lambda need: float(need.prefilled), left)


def test_what_configurations_need() -> None:
    assert Need.of(Configuration(3), SIZES) == Need(at_once=330, single=330, prefilled=310, steps=20)
    assert Need.of(Configuration(3, "map_rerank"), SIZES) == Need(at_once=390, single=130, prefilled=330, steps=20)
    reduced = Need.of(Configuration(3, "map_reduce", 40), SIZES)
    assert reduced == Need(at_once=3 * 150, single=150, prefilled=330 + 130, steps=60)
    assert Need.of(Configuration(30), SIZES).prefilled == 10 + 1800  # no more than were found


@pytest.mark.parametrize(
    ("space", "free", "chosen"),
    [
        (STUFF, 10_000, Configuration(6)),
        (STUFF, 535, Configuration(5)),  # 10 + 500 + 20 fit, 630 do not
        (BOTH, 10_000, Configuration(6, "map_reduce", 80)),
        (BOTH, 1_000, Configuration(6, "map_reduce", 40)),  # 6 x 150
        (BOTH, 310, Configuration(2, "map_reduce", 40)),  # 2 x 150
        (RERANK, 10_000, Configuration(3, "map_rerank")),
        (RERANK, 300, Configuration(2, "map_rerank")),
    ],
)
def test_the_highest_configuration_that_fits_is_chosen(space: Space, free: int, chosen: Configuration) -> None:
    found = best_fit(space, at(free))
    assert found.configuration == chosen
    assert found.need.at_once <= free
    assert f"of {free} free tokens" in found.why


@pytest.mark.parametrize(
    ("space", "free", "chosen", "why"),
    [
        (BOTH, 160, Configuration(2, "map_reduce", 40), "the first summaries fit"),  # one of two requests does
        (STUFF, 140, Configuration(1), "as many chunks as do"),  # fewer than its space has
        (Space(("map_rerank",), (2, 3), (40, 40)), 140, Configuration(1, "map_rerank"), "as many chunks as do"),
        (Space(("map_reduce",), (2, 6), (40, 80)), 150, Configuration(2, "map_reduce", 40), "the first summaries fit"),
        (Space(("map_reduce",), (2, 6), (40, 80)), 90, Configuration(2, "map_reduce", 40), "it waits"),  # never stuff
        (STUFF, 0, Configuration(2), "it waits"),
        (RERANK, 0, Configuration(1, "map_rerank"), "it waits"),
        (BOTH, 0, Configuration(2, "map_reduce", 40), "it waits"),
    ],
)
def test_what_is_chosen_when_nothing_fits(space: Space, free: int, chosen: Configuration, why: str) -> None:
    found = best_fit(space, at(free))
    assert (found.configuration, why in found.why) == (chosen, True)


def test_a_deadline_leaves_out_what_takes_too_long() -> None:
    assert best_fit(STUFF, at(10_000, left=420.0)).configuration == Configuration(4)  # 410 s
    late = best_fit(STUFF, at(10_000, left=120.0))
    assert late.configuration == Configuration(1)  # 110 s, outside the space
    assert "ends in time" in late.why
    assert best_fit(STUFF, at(10_000, left=0.0)).configuration == Configuration(1)


@pytest.mark.parametrize(
    ("space", "free", "reach", "chosen"),
    [
        (STUFF, 10_000, 0.5, STUFF.middle),
        (BOTH, 10_000, 0.5, BOTH.middle),
        (RERANK, 10_000, 0.5, RERANK.middle),
        (STUFF, 10_000, 0.0, Configuration(2)),
        (STUFF, 10_000, 0.75, Configuration(5)),
        (STUFF, 335, 0.5, Configuration(3)),  # below the middle memory decides, as ever
        (STUFF, 140, 0.5, Configuration(1)),
    ],
)
def test_reach_bounds_how_high_a_query_goes(space: Space, free: int, reach: float, chosen: Configuration) -> None:
    found = best_fit(space, replace(at(free), reach=reach))
    assert found.configuration == chosen
    assert (f"the highest in the lower {100 * reach:g} % of its space" in found.why) == (chosen.num_chunks > 1)


def test_without_figures_reach_does_not_move_the_middle() -> None:
    assert best_fit(STUFF, replace(at(None), reach=0.5)).configuration == STUFF.middle


def test_without_figures_or_scheduling_the_middle_is_chosen() -> None:
    assert best_fit(STUFF, at(None)).configuration == Configuration(4)
    assert middle(STUFF, at(0)).configuration == Configuration(4)
    assert middle(BOTH, at(0)).configuration == Configuration(4, "map_reduce", 60)
    assert middle(BOTH, at(0, left=210.0)).configuration == Configuration(2)  # the first in time, not above the middle


def test_no_more_chunks_are_chosen_than_were_found() -> None:
    assert best_fit(STUFF, at(10_000, chunks=3)).configuration == Configuration(3)
    assert best_fit(STUFF, at(10_000, chunks=0)).configuration == Configuration(2)


def test_memory_is_what_the_engine_has_less_what_was_promised() -> None:
    free = 1000
    memory = Memory(lambda: CacheStatistics(1000, free, 0, 0))
    assert memory.free() == 1000
    with memory.promise(300), memory.promise(200):
        assert memory.free() == 500  # nothing of it is on the engine yet
        free = 400
        assert memory.free() == 400  # it is, with more
    assert memory.promised == 0
    with pytest.raises(ZeroDivisionError), memory.promise(5):
        raise ZeroDivisionError
    assert memory.promised == 0


def test_room_bounds_memory() -> None:
    memory = Memory(lambda: CacheStatistics(1000, 900, 0, 0), room=500)
    assert memory.free() == 400
    with memory.promise(600):
        assert memory.free() == 0
    unknown = Memory(lambda: None, room=500)
    assert unknown.free() == 500
    assert Memory(lambda: None).free() is None


def test_speed_is_the_cost_model_times_the_slowdown_of_recent_calls() -> None:
    costs.know("speedy", Op.PREFILL, Line(0.0, 0.01))
    costs.know("speedy", Op.DECODE, Line(0.0, 0.1))
    try:
        speed, need = Speed("speedy"), Need(0, 0, prefilled=100, steps=10)
        assert speed.seconds(need) == pytest.approx(2.0)
        for seconds in (4.0, 6.0, 8.0):
            speed.learn(need, seconds)
        assert speed.seconds(need) == pytest.approx(6.0)
    finally:
        costs.forget()
