"""Prometheus: ordinary instruments of a registry, and their sums over forked workers in multiprocess mode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from langchain_core.prompts import ChatPromptTemplate
from prometheus_client import CollectorRegistry, Counter
from telemetry_kit import QUESTION, app

import fineflow
import programs
from fineflow.runtime import recording, statistics
from fineflow.testing.langchain import FakeChat

CALL = {"entry": "invoke", "ahead": "true", "outcome": "finished"}


def test_ended_calls_are_in_the_registry() -> None:
    registry = CollectorRegistry()
    fast = fineflow.optimize(app(), strict=True)
    plain = fineflow.optimize(ChatPromptTemplate.from_template("{question}") | FakeChat())
    fineflow.telemetry.enable_prometheus(registry)
    try:
        fast.invoke(QUESTION)
        plain.invoke(QUESTION)
        fineflow.telemetry.enable_prometheus(registry)  # the same instruments go on
        fast.invoke(QUESTION)
        assert registry.get_sample_value("fineflow_calls_running") == 0
    finally:
        fineflow.telemetry.disable()
    fast.invoke(QUESTION)
    value = registry.get_sample_value
    assert value("fineflow_call_seconds_count", CALL) == 2
    assert value("fineflow_call_seconds_count", {**CALL, "ahead": "false"}) == 1
    assert value("fineflow_claims_total", {"result": "claimed"}) == 6
    assert value("fineflow_engine_run_seconds_count", {"engine": "FakeVectorStore"}) == 2
    assert value("fineflow_engine_batch_size_sum", {"engine": "FakeVectorStore"}) == 2
    assert value("fineflow_engine_wait_seconds_count", {"engine": "FakeVectorStore"}) == 2
    assert value("fineflow_engine_tokens_total", {"engine": "FakeChat", "type": "output"}) == 4
    saved = value("fineflow_call_saved_seconds_sum", {"entry": "invoke"})
    assert saved is not None and saved > 0.02
    assert not recording.recorders and not statistics.observers


def test_a_registry_with_other_metrics_of_these_names_is_refused() -> None:
    registry = CollectorRegistry()
    Counter("fineflow_claims", "of somebody else", registry=registry)
    with pytest.raises(ValueError, match="fineflow_claims"):
        fineflow.telemetry.enable_prometheus(registry)
    assert not recording.recorders


WORKERS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import fineflow
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from telemetry_kit import QUESTION, app

fineflow.telemetry.enable_prometheus()  # before the fork, as gunicorn's --preload does
fast = fineflow.optimize(app(), strict=True)
if sys.argv[2] == "called":
    fast.invoke(QUESTION)
workers = []
for number in range(3):
    pid = os.fork()
    if not pid:
        for _ in range(number + 1):
            fast.invoke(QUESTION)
        os._exit(0)
    workers.append(pid)
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers] == [0, 0, 0]
for pid in workers:
    multiprocess.mark_process_dead(pid)
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
call = {"entry": "invoke", "ahead": "true", "outcome": "finished"}
print(registry.get_sample_value("fineflow_call_seconds_count", call))
print(registry.get_sample_value("fineflow_claims_total", {"result": "claimed"}))
print(registry.get_sample_value("fineflow_engine_run_seconds_count", {"engine": "FakeVectorStore"}))
print(registry.get_sample_value("fineflow_calls_running"))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
@pytest.mark.parametrize("before", ["called", "untouched"])
def test_workers_are_added_up(tmp_path: Path, before: str) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = programs.run("-c", WORKERS, Path(__file__).parent, before, env=environment)
    assert done.returncode == 0, done.stderr
    calls = 7 if before == "called" else 6
    assert [float(line) for line in done.stdout.split()] == [calls, 3 * calls, calls, 0]
