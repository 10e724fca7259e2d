"""Latency models: what they learn, what they do before, and that they are cheap and survive threads."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.micro.measure import calls_of_fineflow

from fineflow.cost_model.costs import Costs, costs
from fineflow.cost_model.lines import PRIORS, SIZES, SPLIT_PENALTY, Line, fit
from fineflow.ir import Op
from fineflow.runtime import events

PREFILL = PRIORS[Op.PREFILL]


@pytest.fixture(autouse=True)
def unlearned() -> Iterator[None]:
    costs.forget()
    yield
    costs.forget()


def measured(line: Line, sizes: list[int], *, noise: float = 0.0, outliers: float = 0.0) -> list[tuple[float, float]]:
    """What an engine like this would show: some noise, and a share of calls that took up to 50 times as long."""
    chance = random.Random(7)
    found = []
    for size in sizes:
        seconds = line.at(size) * (1 + chance.uniform(-noise, noise))
        found.append((float(size), seconds * (chance.uniform(3, 50) if chance.random() < outliers else 1.0)))
    return found


def taught(line: Line, op: Op = Op.EMBED, sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)) -> Costs:
    learning = Costs()
    for size in sizes * 3:
        learning.observe("engine", op, size, line.at(size))
    return learning


def loaded(profile: str) -> Costs:
    made = Costs()
    made.load(profile)
    return made


@pytest.mark.parametrize("true", [Line(0.02, 0.0002), Line(0.005, 0.01), Line(0.3, 0.0005)], ids=str)
def test_known_parameters_are_found(true: Line) -> None:
    sizes = [random.Random(i).randrange(1, 2000) for i in range(64)]
    exact = fit(measured(true, sizes), PREFILL)
    assert (exact.fixed, exact.each) == (pytest.approx(true.fixed), pytest.approx(true.each))
    rough = fit(measured(true, sizes, noise=0.05, outliers=0.15), PREFILL)
    for size in (100, 1000, 2000):
        assert rough.at(size) == pytest.approx(true.at(size), rel=0.1)


def test_sizes_that_are_alike_scale_the_prior() -> None:
    line = fit([(500.0, 1.0), (510.0, 1.0), (490.0, 1.0)], Line(0.1, 0.0002))
    assert line.at(500) == pytest.approx(1.0)
    assert line.fixed / line.each == pytest.approx(500)


def test_one_odd_size_among_equal_ones_decides_nothing() -> None:
    line = fit([(16.0, 0.1)] * 20 + [(32.0, 9.0)], PRIORS[Op.RERANK])
    assert line.at(16) == pytest.approx(0.1)
    assert line.at(32) < 0.3


def test_neither_part_is_negative() -> None:
    falling = fit([(1.0, 0.4), (2.0, 0.3), (4.0, 0.2), (8.0, 0.1)], PREFILL)
    assert (falling.fixed, falling.each) == (pytest.approx(0.25), 0.0)
    convex = fit([(float(n), n * n / 100) for n in (1, 2, 4, 8, 16)], PREFILL)
    assert convex.fixed == 0 and convex.each > 0


def test_what_has_no_size_is_a_robust_mean() -> None:
    learning = Costs()
    for seconds in (5.0, 0.1, 0.1, 9.0, 0.12, 0.08):
        learning.observe("store", Op.SEARCH, None, seconds)
    assert learning.predict("store", Op.SEARCH) == pytest.approx(0.1)
    assert learning.predict("store", Op.SEARCH, size=40) == pytest.approx(0.1)


def test_nothing_to_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one measurement"):
        fit([], PREFILL)


def test_priors_hold_until_three_measurements() -> None:
    learning = Costs()
    believed = PRIORS[Op.DECODE].at(SIZES[Op.DECODE])
    assert learning.predict("llm", Op.DECODE) == learning.predict(None, Op.DECODE) == believed
    for _ in range(2):
        learning.observe("llm", Op.DECODE, 100, 30.0)
    assert learning.predict("llm", Op.DECODE) == believed and not learning.measured("llm", Op.DECODE)
    learning.observe("llm", Op.DECODE, 100, 0.5)
    learning.observe("llm", Op.DECODE, 100, 0.5)
    learning.observe("llm", Op.DECODE, 100, 0.5)
    assert learning.predict("llm", Op.DECODE, size=100) == pytest.approx(0.5)
    assert learning.measured("llm", Op.PARTIAL_DECODE)  # the same work
    assert not learning.measured("other", Op.DECODE) and not learning.measured("llm", Op.PREFILL)
    assert learning.predict("llm", Op.RECORD) == 0.0


def test_the_window_follows_a_change() -> None:
    learning = taught(Line(1.0, 0.5))
    for size in (1, 2, 4, 8, 16, 32) * 20:
        learning.observe("engine", Op.EMBED, size, Line(0.1, 0.01).at(size))
    assert learning.predict("engine", Op.EMBED, size=20) == pytest.approx(0.3)


def test_a_component_that_tells_no_size_predicts_what_it_took() -> None:
    learning = Costs()
    for _ in range(3):
        learning.observe("foreign", Op.DECODE, None, 2.5)
    assert learning.predict("foreign", Op.DECODE) == pytest.approx(2.5)


def test_the_first_measurement_is_cold_and_counts_only_until_there_is_another() -> None:
    learning = Costs()
    for seconds in (4.0, 0.2, 0.2):
        learning.observe("foreign", Op.DECODE, None, seconds, "title/llm.decode")
        learning.observe("", Op.CALL, None, seconds, "own.call")
    assert learning.predict("foreign", Op.DECODE, name="title/llm.decode") == pytest.approx(0.2)
    assert learning.predict("foreign", Op.DECODE, name="other/llm.decode") == pytest.approx(0.2)
    assert learning.predict("", Op.CALL, name="own.call") == pytest.approx(0.2)
    again = loaded(learning.to_json())
    again.observe("", Op.CALL, None, 4.0, "own.call")  # the first of the next process
    assert again.predict("", Op.CALL, name="own.call") < 0.5


def test_the_first_batch_does_not_bend_the_line() -> None:
    learning = Costs()
    for size, seconds in ((1, 9.0), (4, 0.4), (8, 0.8)):
        learning.observe("engine", Op.EMBED, size, seconds)
    assert learning.predict("engine", Op.EMBED, size=16) == pytest.approx(1.6)


def test_calls_of_unknown_size_are_told_apart_by_who_makes_them() -> None:
    learning = Costs()
    learning.observe("foreign", Op.DECODE, None, 9.0, "first/llm.decode")
    for _ in range(3):
        learning.observe("foreign", Op.DECODE, None, 4.0, "essay/llm.decode")
        learning.observe("foreign", Op.DECODE, None, 1.0, "title/llm.decode")
    assert learning.predict("foreign", Op.PARTIAL_DECODE, name="essay/llm.decode") == pytest.approx(4.0)
    assert learning.predict("foreign", Op.DECODE, name="title/llm.decode") == pytest.approx(1.0)
    assert learning.predict("foreign", Op.DECODE, name="other/llm.decode") == pytest.approx(2.5)
    learning.observe("foreign", Op.DECODE, None, 1000.0, "title/llm.decode")  # somebody closed the laptop
    assert learning.predict("foreign", Op.DECODE, name="title/llm.decode") == pytest.approx(1.5)
    again = loaded(learning.to_json())
    assert again.predict("foreign", Op.DECODE, name="essay/llm.decode") == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("line", "batch"),
    [
        (Line(0.010, 0.010), 16),  # 9 texts already give 90 % of the best throughput
        (Line(0.010, 0.200), 1),
        (Line(1.0, 0.001), 64),  # larger would pay, but is not known: twice the largest that was seen
        (Line(0.5, 0.0), 32),
    ],
    ids=str,
)
def test_efficient_batch(line: Line, batch: int) -> None:
    assert taught(line).efficient_batch("engine", Op.EMBED) == batch


def test_efficient_batch_is_not_known_without_measurements() -> None:
    assert Costs().efficient_batch("engine", Op.EMBED) is None
    assert taught(Line(0.1, 0.1), sizes=(1,)).efficient_batch("engine", Op.EMBED) is None


def test_splitting_a_prefill_costs_its_fixed_part_again() -> None:
    assert Costs().split_penalty("engine", 1000) == pytest.approx(SPLIT_PENALTY * PREFILL.at(1000))
    learning = taught(Line(0.03, 0.001), Op.PREFILL, (100, 200, 400, 800))
    assert learning.split_penalty("engine", 1000) == pytest.approx(0.03)


def test_typical_sizes() -> None:
    learning = Costs()
    assert learning.size("llm", Op.DECODE, "answer/llm.decode") == SIZES[Op.DECODE]
    for steps in (10, 20, 30):
        learning.observe_size("llm", Op.PARTIAL_DECODE, "expand/llm.decode", steps)
    learning.observe_size("llm", Op.PREFILL, "expand/llm.decode", 700)
    assert learning.size("llm", Op.DECODE, "expand/llm.decode") == pytest.approx(20)
    assert learning.size("llm", Op.PREFILL, "expand/llm.prefill") == 700  # one place, whichever part of it told
    assert learning.size("llm", Op.DECODE, "answer/llm.decode") == pytest.approx(20)  # as others on that engine
    assert learning.size("llm", Op.PARTIAL_PREFILL, "expand/llm.prefill") == SIZES[Op.PARTIAL_PREFILL]


def test_learning_under_threads() -> None:
    learning = Costs()
    true = Line(0.02, 0.003)
    ready = threading.Barrier(8)
    failed: list[BaseException] = []

    def teach(number: int) -> None:
        try:
            ready.wait(10)
            for i in range(300):
                size = (number * 31 + i * 7) % 60 + 1
                learning.observe("engine", Op.EMBED, size, true.at(size))
                learning.observe_size("engine", Op.EMBED, f"step{number}.embed", size)
                if not i % 50:
                    learning.predict("engine", Op.EMBED, size=10)
                    learning.to_json()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=teach, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failed
    assert learning.predict("engine", Op.EMBED, size=10) == pytest.approx(0.05)


def test_a_profile_is_kept_and_counts_as_measured() -> None:
    learning = taught(Line(0.01, 0.01))
    learning.observe("llm", Op.DECODE, 10, 1.0)  # once is not enough to be kept
    learning.observe_size("engine", Op.EMBED, "find.embed", 12)
    again = loaded(learning.to_json())
    assert again.measured("engine", Op.EMBED) and not again.measured("llm", Op.DECODE)
    assert again.predict("engine", Op.EMBED, name="find.embed") == pytest.approx(0.13)
    assert again.efficient_batch("engine", Op.EMBED) == 16
    assert json.loads(again.to_json()) == json.loads(learning.to_json())
    for _ in range(3):  # three measurements at one size: the shape of the profile stays
        again.observe("engine", Op.EMBED, 9, 0.2)
    assert again.predict("engine", Op.EMBED, size=19) == pytest.approx(0.4)


BROKEN = (
    "",
    "[]",
    '{"version": 2}',
    '{"version": 1, "lines": [{"engine": "a", "op": "fly"}], "sizes": [], "took": []}',
    '{"version": 1, "lines": [{"engine": "a", "op": "embed", "fixed": -1, "each": 0, "largest": 0}], '
    '"sizes": [], "took": []}',
)


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_profile_is_one_clear_error_and_changes_nothing(text: str) -> None:
    learning = taught(Line(0.01, 0.01))
    with pytest.raises(ValueError, match=r"expected a cost profile as Costs.to_json\(\) writes it"):
        learning.load(text)
    assert learning.predict("engine", Op.EMBED, size=9) == pytest.approx(0.1)


def test_events_teach_the_process() -> None:
    for _ in range(3):
        events.measured("some-engine", Op.PREFILL, 100, 0.25)
    events.sized("some-engine", Op.PREFILL, 300, "answer/llm.decode")
    assert costs.predict("some-engine", Op.PREFILL, size=100) == pytest.approx(0.25)
    assert costs.size("some-engine", Op.PREFILL, "answer/llm.prefill") == 300


def test_observing_is_cheap() -> None:
    """However much was observed before: the fit is made when somebody asks for it."""
    learning = Costs()
    for _ in range(2000):
        learning.observe("engine", Op.EMBED, 8, 0.1)
    assert calls_of_fineflow(lambda: learning.observe("engine", Op.EMBED, 8, 0.1)) <= 5


def test_a_step_takes_longer_for_each_sequence_beside() -> None:
    known = Costs()
    for steps in (20, 40, 80):
        for together in (1, 2, 4, 8):
            seconds = 0.005 + steps * (0.01 + 0.002 * (together - 1))
            known.observe("llm", Op.DECODE, steps, seconds, together=together)
    line = known.line("llm", Op.DECODE)
    assert (line.fixed, line.each, line.beside) == (
        pytest.approx(0.005, rel=0.1),
        pytest.approx(0.01, rel=0.05),
        pytest.approx(0.002, rel=0.05),
    )
    assert known.predict("llm", Op.DECODE, size=50, together=4) == pytest.approx(0.805, rel=0.05)
    assert loaded(known.to_json()).line("llm", Op.DECODE) == line


def test_outliers_do_not_decide_what_company_costs() -> None:
    known = Costs()
    for i in range(40):
        together = 1 + i % 4
        stalled = 1.0 if i % 10 == 0 else 0.0
        known.observe("llm", Op.DECODE, 50, 50 * (0.01 + 0.003 * (together - 1)) + stalled, together=together)
    assert known.line("llm", Op.DECODE).beside == pytest.approx(0.003, rel=0.1)


def test_alone_nothing_is_known_of_company() -> None:
    known = Costs()
    for steps in (10, 20, 40):
        known.observe("llm", Op.DECODE, steps, 0.01 * steps)
    assert known.line("llm", Op.DECODE).beside == 0.0


def test_a_profile_is_loaded_from_a_file(tmp_path: Path) -> None:
    known = Costs()
    known.load(json.dumps({"version": 1, "lines": [], "sizes": [], "took": []}))
    row = {"engine": "e", "op": "embed", "fixed": 0.1, "each": 0.01, "largest": 16}  # as before there was company
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"version": 1, "source": "a machine", "lines": [row], "sizes": [], "took": []}))
    known.load(file)
    assert known.predict("e", Op.EMBED, size=10) == pytest.approx(0.2)
