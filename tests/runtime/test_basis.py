"""What a plan was decided with: when somebody looks whether it still holds, and what counts as a difference."""

from __future__ import annotations

from fineflow.cost_model.basis import Basis, basis
from fineflow.cost_model.costs import Costs
from fineflow.ir import Op


def asked(costs: Costs) -> Basis:
    with basis(costs) as found:
        costs.predict("e", Op.SEARCH, name="s")
        costs.split_penalty("e", 400)
    return found


def test_what_was_asked_is_asked_again() -> None:
    costs = Costs()
    found = asked(costs)
    assert not found.differs()
    for _ in range(3):
        costs.observe("e", Op.SEARCH, None, 0.031, "s")  # the prior is 30 ms
    assert not found.differs()
    for _ in range(3):
        costs.observe("e", Op.SEARCH, None, 0.5, "s")
    assert found.differs()


def test_what_nobody_asked_for_makes_no_difference() -> None:
    costs = Costs()
    found = asked(costs)
    for _ in range(5):
        costs.observe("other", Op.SEARCH, None, 2.0, "s")
    assert not found.differs()


def test_the_questions_of_a_question_are_not_kept() -> None:
    costs = Costs()
    with basis(costs) as found:
        costs.predict("e", Op.DECODE, name="d")  # which asks for a line, and a size
    assert [method for method, _, _ in found._asked] == ["predict"]


def looks(found: Basis, calls: int) -> list[int]:
    seen = []
    for call in range(1, calls + 1):
        if found.due():
            seen.append(call)
            found.differs()
    return seen


def test_somebody_looks_often_at_first_and_at_least_every_sixteen_calls() -> None:
    assert looks(asked(Costs()), 70) == [1, 3, 7, 15, 31, 47, 63]


def test_plans_that_change_again_and_again_change_ever_more_rarely() -> None:
    costs, calls = Costs(), []
    found = asked(costs)
    for _ in range(9):
        later = asked(costs)
        later.follow(found)
        found = later
        calls.append(looks(found, 300)[0])
    assert calls == [2, 4, 8, 16, 32, 64, 128, 256, 256]
