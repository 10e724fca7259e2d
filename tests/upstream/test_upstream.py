"""LangChain's and LangGraph's own unit tests hold when every outermost call goes through ``fineflow.optimize``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

import baselines
import pytest
from upstream_suite import Run, fetch, run

pytestmark = pytest.mark.upstream

# The test spies on `fake.invoke` and calls `fake.invoke(...)`, then expects one call. The object it spies on is the
# one it enters by: routed, its call goes through the spy to the shim, and what any proxy must do next, to run the
# object's own method, goes through the spy a second time.
KNOWN = {"tests/unit_tests/runnables/test_runnable.py::test_default_method_implementations"}

# The same: they spy on `Pregel.stream` and `astream`, call `(a)stream_events(version="v3")`, and expect one call.
_KWARGS = "tests/test_stream_events_v3_kwarg_forwarding.py::"
_PASSED = ("control", "interrupt_before", "interrupt_after")
KNOWN_OF_GRAPHS = {
    *(f"{_KWARGS}TestAstreamV3KwargsDefaults::test_passed_values_reach_astream[{name}]" for name in _PASSED),
    *(f"{_KWARGS}TestStreamEventsV3SyncKwargsDefaults::test_passed_values_reach_stream[{name}]" for name in _PASSED),
    f"{_KWARGS}TestAstreamV3KwargsDefaults::test_omitted_values_arrive_as_none",
    f"{_KWARGS}TestStreamEventsV3SyncKwargsDefaults::test_omitted_values_arrive_as_none",
}

# Asserts that 1,000 calls take less than a second. Where each call starts a graph besides, or a thread, that takes a
# millisecond where two cores also run other tests. Calls that follow no plan are held to the bound.
TIMED = {"tests/unit_tests/language_models/chat_models/test_benchmark.py::test_benchmark_model"}

# Calls `tool.run(...)` on the thread of an event loop, which blockbuster watches. A sync call with a timeout is made in
# a thread of its own, for which its caller waits: whatever it waits for, blockbuster takes it for a block of the loop.
WAITING = {"tests/unit_tests/runnables/test_runnable.py::test_tool_from_runnable"}

ROUTED = ("-p", "fineflow.testing.routing")
# Calls follow a plan, and the graph gets the value of every step that stock runs.
FOLLOWED = (*ROUTED, "--fineflow-optimizer", "followed:optimize")
BOUNDED = (*ROUTED, "--fineflow-options", json.dumps({"timeout": 600}))


@dataclass(frozen=True)
class Suite:
    """Unit tests of a package. passed, routed: at least so many tests pass here, and so many calls are routed.

    loose: modules that need packages which are not installed are left out. known: tests that cannot hold when routed.
    tests: its tests, as arguments of pytest. part: which of them they are, if not all. environment: variables for them.
    """

    package: str
    passed: int
    routed: int
    loose: bool = False
    known: Set[str] = frozenset()
    tests: tuple[str, ...] = ("tests/unit_tests",)
    part: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return f"{self.package}-{self.part}" if self.part else self.package

    def run(self, *arguments: str, tests: tuple[str, ...] = ()) -> Run:
        loose = ("--continue-on-collection-errors",) if self.loose else ()
        return run(fetch(self.package), *loose, *arguments, tests=tests or self.tests, **self.environment)


_OTHERS = 0.6  # of those figures, on releases without a record: they have other tests

CORE = Suite("langchain-core", 2300, 2000, known=KNOWN)
RUNNABLES = Suite("langchain-core", 300, 450, known=KNOWN, tests=("tests/unit_tests/runnables",), part="runnables")
NO_DOCKER = {"NO_DOCKER": "true"}
# Its savers are those in memory and of SQLite, its caches likewise; PostgreSQL and Redis would need servers.
GRAPHS = Suite(
    "langgraph",
    2100,
    4000,
    known=KNOWN_OF_GRAPHS,
    tests=("tests", "--ignore=tests/test_pregel.py", "--ignore=tests/test_pregel_async.py"),
    environment=NO_DOCKER,
)
SUITES = [
    CORE,
    Suite("langchain-classic", 600, 280, loose=True),
    Suite("langchain", 1100, 650, loose=True),
    GRAPHS,
    Suite("langgraph", 470, 2200, tests=("tests/test_pregel.py",), part="pregel", environment=NO_DOCKER),
    Suite("langgraph", 320, 1150, tests=("tests/test_pregel_async.py",), part="async", environment=NO_DOCKER),
    Suite("langgraph-prebuilt", 250, 500, tests=("tests",), environment=NO_DOCKER),
]


@pytest.fixture(params=SUITES, ids=lambda suite: suite.name)
def suite(request: pytest.FixtureRequest) -> Suite:
    found: Suite = request.param
    return found


_baselines: dict[str, dict[str, str]] = {}


def baseline(suite: Suite, tests: Iterable[str]) -> dict[str, str]:
    """The outcomes without routing: those recorded for these versions and these tests, or else of a run."""
    if (found := baselines.outcomes(suite.name, tests)) is not None:
        return found
    if suite.name not in _baselines:
        print(f"{suite.name}: no record of these versions and tests; tests/upstream/baselines.py writes it")
        _baselines[suite.name] = suite.run().outcomes
    return _baselines[suite.name]


def test_same_outcomes_when_routed(suite: Suite) -> None:
    _same_outcomes(suite, ROUTED)


def test_same_outcomes_when_every_call_follows_a_plan() -> None:
    _same_outcomes(CORE, FOLLOWED, known=TIMED)


def test_same_outcomes_with_a_timeout() -> None:
    _same_outcomes(CORE, BOUNDED, known=TIMED | WAITING)


@pytest.mark.skipif(baselines.recorded(CORE.name) is not None, reason="its whole suite runs on recorded versions")
def test_same_outcomes_of_runnables_of_a_new_release() -> None:
    _same_outcomes(RUNNABLES, ROUTED, known=WAITING)


def _same_outcomes(suite: Suite, arguments: tuple[str, ...], known: Set[str] = frozenset()) -> None:
    routed = suite.run(*arguments)
    before = baseline(suite, routed.outcomes)
    total = sum(routed.calls.values())
    print(f"{suite.name}: {_counts(before)} without fineflow; {_counts(routed.outcomes)} when routed")
    print(f"routed {total} calls of {len(routed.types)} types: {routed.calls}")
    least = 1.0 if suite is RUNNABLES or baselines.recorded(suite.name) is not None else _OTHERS
    assert total >= least * suite.routed, "the plugin routed hardly anything"
    # Without routing nearly all pass here; what does not is held against neither side.
    found = list(before.values())
    assert found.count("passed") >= least * suite.passed and found.count("failed") <= 0.1 * len(found), _counts(before)

    different = _differences(before, routed.outcomes)
    unexpected = sorted(different - suite.known - known)
    if unexpected:
        # Some upstream tests compare clock times. A difference counts when it is there again with the machine quiet.
        print("again, alone:", *unexpected, sep="\n  ")
        again = suite.run(*arguments, tests=tuple(unexpected))
        unexpected = sorted(_differences(suite.run(tests=tuple(unexpected)).outcomes, again.outcomes))
        assert not unexpected, f"other outcome when routed: {unexpected}\n{again.output[-8000:]}"
    assert suite.known & before.keys() <= different, "a test listed as impossible passes: take it off the list"


@pytest.mark.parametrize(("suite", "error"), [(CORE, "Left contains one more item"), (GRAPHS, "assert 2 == 1")])
def test_the_known_differences_hold_for_a_proxy_that_does_nothing(suite: Suite, error: str) -> None:
    tests = tuple(sorted(suite.known))
    assert set(suite.run(tests=tests).outcomes.values()) == {"passed"}
    routed = suite.run(*ROUTED, "--fineflow-optimizer", "wrapt:ObjectProxy", tests=tests)
    assert set(routed.outcomes.values()) == {"failed"}
    assert error in routed.output


def _counts(outcomes: Mapping[str, str]) -> str:
    found = list(outcomes.values())
    return ", ".join(f"{found.count(outcome)} {outcome}" for outcome in sorted(set(found)))


def _differences(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {test for test in one.keys() | other.keys() if one.get(test) != other.get(test)}
