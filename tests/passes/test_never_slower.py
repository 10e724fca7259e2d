"""No pass makes a chain slower than stock: random chains with random latencies, in virtual time.

``FINEFLOW_FUZZ=2000`` runs that many examples, other ones each time, instead of the bounded, repeatable suite.
"""

from __future__ import annotations

import pprint
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, note
from timed_chains import INPUT, Spec, Times, World, at_once, build, chains, times

import fineflow
from fineflow.cost_model.costs import costs
from fineflow.engines import BatchProfile, LLMProfile
from fineflow.passes import PASSES, Pass, stages
from fineflow.testing import virtual
from fuzzing import bounded

BOUND = 1.02


def seconds(spec: Spec, at: Times, passes: Sequence[Pass] | None, eager: bool = True) -> tuple[Any, list[float]]:
    """What a chain answers, and what two calls of it take; optimized unless ``passes`` is None."""
    costs.forget()  # what another example's models took
    chain = build(spec, World(at))
    if passes is not None:
        chain = fineflow.optimize(chain, passes=passes, strict=True, eager=eager)
    runs = [virtual.run(chain.ainvoke(dict(INPUT))) for _ in range(2)]
    return runs[0].value, [run.seconds for run in runs]


def check(spec: Spec, at: Times, passes: Sequence[Pass]) -> None:
    value, stock = seconds(spec, at, None)
    same, mine = seconds(spec, at, passes)
    assert same == value
    for what, theirs, ours in zip(("first", "second"), stock, mine, strict=True):
        assert ours <= BOUND * theirs + 1e-4, f"{what} call: {ours:.4f} s, stock {theirs:.4f} s"


@bounded(40)
@given(chains(), times())
def test_all_passes_together(spec: Spec, at: Times) -> None:
    note(pprint.pformat((spec, at), width=110))
    check(spec, at, PASSES)


@bounded(40)
@given(chains().map(at_once), times(cores=True))
def test_engines_that_share_the_cores_of_one_processor(spec: Spec, at: Times) -> None:
    """Work moved beside other work gains nothing there; nor may it lose."""
    note(pprint.pformat((spec, at), width=110))
    check(spec, at, PASSES)


@pytest.mark.parametrize("each", PASSES, ids=lambda each: each.__name__)
@bounded(40)
@given(chains(), times())
def test_each_pass_alone(each: Pass, spec: Spec, at: Times) -> None:
    note(pprint.pformat((spec, at), width=110))
    check(spec, at, (each,))


REMOTE = ((0.2, 0.005), (0.2, 0.005), (0.2, 0.005))
QUICK, SLOW = BatchProfile(0.1, 0.02, 16), BatchProfile(0.1, 0.001, 2)


@pytest.mark.parametrize("passes", [(), (stages,), PASSES], ids=["none", "stages", "all"])
@pytest.mark.parametrize(
    ("spec", "at"),
    [
        (
            (
                "sequence",
                ("assign", (("k1", ("ask", ("topic",), 1, True, "text")),)),
                ("assign", (("k2", ("retrieve", "k1", 1, True, True, 1)),)),
            ),
            Times(REMOTE, 0.2, QUICK, SLOW, 1.0),
        ),
        (
            (
                "sequence",
                ("parallel", (("k1", ("retrieve", "question", 2, True, True, 5)),)),
                ("retrieve", "topic", None, False, True, 5),
            ),
            Times(REMOTE, 0.0, QUICK, BatchProfile(0.0, 0.02, 4), 0.2),
        ),
    ],
    ids=["searches for what a model wrote go in one batch", "stages that stock does not wait for are not done again"],
)
def test_stock_finds_what_the_graph_has_begun(spec: Spec, at: Times, passes: Sequence[Pass]) -> None:
    check(spec, at, passes)
    mine: Any = fineflow.optimize(build(spec, World(at)), passes=passes, strict=True, eager=True)
    virtual.run(mine.ainvoke(dict(INPUT)))
    assert mine._self_last.missed == 0 and not mine._self_last.surprises


def test_user_code_that_is_over_at_once_is_not_waited_for() -> None:
    """The prompt's beginning must not be under way when the request itself comes."""
    spec = ("sequence", ("opaque", 0.0), ("assign", (("k1", ("ask", ("question",), 0, True, "text")),)))
    more = (("assign", ((f"k{i}", ("ask", ("question",), 1, False, "text")),)) for i in (2, 3))
    models = (LLMProfile(0.03, 0.00023, 0.0003), (0.0, 0.0), (0.0, 0.0))
    check((*spec, *more), Times(models, 0.0, QUICK, None, 0.0), PASSES)
