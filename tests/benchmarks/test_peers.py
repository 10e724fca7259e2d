"""The comparison with other libraries: what a peer loses of stock is found, with made-up peers."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

import programs

pytest.importorskip("langgraph")

from benchmarks.peers.__main__ import missing, summary
from benchmarks.peers.contenders import CONTENDERS, Apply, Contender
from benchmarks.peers.policies import POLICIES
from benchmarks.peers.seen import Seen, look, of
from benchmarks.peers.verdicts import Judged, Verdict, judge, judged

from fineflow.testing import virtual_threads

ROOT = Path(__file__).parents[2]
STEPS = "steps in line"

needs_threads = pytest.mark.skipif(not virtual_threads.available, reason="virtual time for threads needs /proc")


def policies(apply: Apply) -> dict[str, Judged]:
    """Returns the verdicts of a peer on each policy, without the graphs of examples."""
    stock, again, other = (of(each, ()) for each in (CONTENDERS["stock"].apply, CONTENDERS["stock"].apply, apply))
    return judged(stock, again, other)[STEPS]


def without_retries(graph: Any) -> Any:
    """Compiles a graph again as it is, but for the retry policies of its nodes."""
    builder = graph.builder
    builder.nodes = {name: dataclasses.replace(each, retry_policy=None) for name, each in builder.nodes.items()}
    return builder.compile(graph.checkpointer, cache=graph.cache, interrupt_before=graph.interrupt_before_nodes)


@needs_threads
def test_a_peer_that_drops_a_retry_policy_is_reported_so() -> None:
    found = policies(without_retries)
    lost = found.pop("retry policy")
    assert lost == (Verdict.LOST, "ConnectionError: the service of tags is busy")
    assert {each.verdict for each in found.values()} == {Verdict.KEPT}
    rows = {row[0]: row[1:] for row in summary({"peer": {STEPS: {"retry policy": lost, **found}}})}
    assert rows["retry policy"] == ("0 of 1",) and rows["checkpoints"] == ("1 of 1",)


@needs_threads
def test_a_peer_that_raises_is_reported_with_its_error() -> None:
    def refuses(graph: Any) -> Any:
        raise NotImplementedError(f"no {type(graph).__name__}")

    found = policies(refuses)
    assert set(found) == set(POLICIES)
    assert set(found.values()) == {(Verdict.LOST, "NotImplementedError: no CompiledStateGraph")}


@needs_threads
def test_fineflow_keeps_every_policy() -> None:
    assert set(policies(CONTENDERS["fineflow"].apply).values()) == {(Verdict.KEPT, "")}


@needs_threads
def test_an_error_is_what_was_seen_and_seconds_are_virtual() -> None:
    def fails() -> None:
        raise ValueError("one\ntwo")

    assert look(fails) == Seen(None, "ValueError: one")
    assert look(lambda: time.sleep(3600)) == Seen(None, seconds=3600.0)


@pytest.mark.parametrize(
    ("stock", "again", "other", "verdict", "why"),
    [
        ([1, 2], [1, 2], [1, 2], Verdict.KEPT, ""),
        ([1, 2], [1, 2], [2, 1], Verdict.REORDERED, ""),
        ([1, 2], [1, 2], [1], Verdict.LOST, "1 in place of 2"),
        ([1, 2], [1, 2], [1, 3], Verdict.LOST, "[1] 3 in place of 2"),
        ([1, 2, 3], [2, 1, 3], [3, 1, 2], Verdict.KEPT, ""),  # stock promises no order
        ([1, 2], [1, 3], [1, 4], Verdict.OPEN, "two runs of stock differ"),
        ([1, 2], [1, 3], [1, 3], Verdict.KEPT, ""),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1}, Verdict.LOST, "['b'] 'nothing' in place of 2"),
    ],
)
def test_verdicts(stock: Any, again: Any, other: Any, verdict: Verdict, why: str) -> None:
    assert judge(Seen(stock), Seen(again), Seen(other)) == (verdict, why)


def test_an_error_that_stock_raises_too_is_kept_and_one_that_is_missing_is_not() -> None:
    error = Seen(None, "ValueError: no")
    assert judge(error, error, error).verdict is Verdict.KEPT
    assert judge(error, error, Seen(1)) == (Verdict.LOST, "no error, where stock raises ValueError: no")


def test_a_peer_that_is_not_installed_is_left_out_with_a_line() -> None:
    peer = Contender("made up", lambda graph: graph, ("no-such-package-at-all",), "no-such-package-at-all")
    assert peer.versions() is None
    assert missing(peer) == "made up is left out, as it is not installed: pip install no-such-package-at-all"


@needs_threads
def test_the_benchmark_compares_in_processes_of_their_own(tmp_path: Path) -> None:
    """In virtual time: the figures are the same in every run."""
    figures = tmp_path / "figures.json"
    done = programs.run("-m", "benchmarks.peers", "--graphs", "article_review input", "--json", figures, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert found["seconds"]["stock"]["article_review input"] == pytest.approx(2.4)
    assert found["seconds"]["fineflow"]["article_review input"] == pytest.approx(1.2)
    for name, contender in CONTENDERS.items():
        assert (name in found["seconds"]) or missing(contender) in done.stdout
