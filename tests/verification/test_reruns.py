"""The background thread: one call at a time, bounded, gone with the process, new in a forked child."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

import fineflow
import programs
from fineflow import Options, VerificationStatistics, Verify
from fineflow.adapters.core.verifying import quiet_spans
from fineflow.runtime.reruns import EQUAL, FULL, Reruns, repeating
from fineflow.testing.gates import Gate


def test_one_at_a_time_and_dropped_beyond_the_bound(counts: Reruns) -> None:
    gate, running, most = Gate(), [], []

    def job() -> str:
        running.append(1)
        most.append(len(running))
        gate.wait_sync()
        running.pop()
        return EQUAL

    counts.submit(job, 2)
    gate.wait_arrived()
    for _ in range(5):
        counts.submit(job, 2)
    assert (counts.statistics().waiting, counts.statistics().running) == (2, 1)
    assert not counts.settled(0)
    gate.open()
    assert counts.settled(10)
    assert max(most) == 1
    assert counts.statistics() == VerificationStatistics(equal=3, skipped={FULL: 3})


def test_without_room_to_wait_an_idle_thread_still_takes_one(counts: Reruns) -> None:
    counts.submit(lambda: EQUAL, 0)
    assert counts.settled(10)
    assert counts.statistics().equal == 1


def test_a_job_that_ends_the_thread_does_not(counts: Reruns) -> None:
    def exits() -> str:
        raise SystemExit(3)

    counts.submit(exits, 4)
    counts.submit(lambda: EQUAL, 4)
    assert counts.settled(10)
    assert counts.statistics().equal == 1
    assert counts.statistics().skipped == {"the verification itself failed (SystemExit)": 1}


def test_statistics_show_it(counts: Reruns) -> None:
    assert "verified" not in str(fineflow.statistics())
    counts.submit(lambda: EQUAL, 4)
    counts.skip("save may have effects")
    counts.settled(10)
    text = str(fineflow.statistics())
    assert "verified: 1 call, 1 equal, 0 different, 0 unsteady; 1 skipped\n  1 skipped: save may have effects" in text
    assert 'fineflow_verified_total{outcome="equal"} 1' in fineflow.statistics().prometheus()
    assert 'fineflow_verified_total{outcome="skipped"} 1' in fineflow.statistics().prometheus()


def test_reasons_are_bounded(counts: Reruns) -> None:
    for number in range(100):
        counts.skip(f"reason {number}")
    assert len(counts.statistics().skipped) == 65
    assert counts.statistics().skipped["other reasons"] == 36


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_thread_of_its_own(counts: Reruns) -> None:
    gate = Gate()
    counts.submit(lambda: gate.wait_sync() or EQUAL, 4)
    gate.wait_arrived()
    child = os.fork()
    if not child:
        from fineflow.runtime.reruns import reruns

        reruns().submit(lambda: EQUAL, 4)
        good = reruns().settled(10) and reruns().statistics() == VerificationStatistics(equal=1)
        os._exit(0 if good else 1)
    gate.open()
    assert os.waitpid(child, 0)[1] == 0


EXITS = """
import threading, time
import fineflow
from fineflow.testing.langchain import FakeChat
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel, RunnableLambda

def answer(messages):
    if not calls:
        calls.append(1)
        return "ok"
    begun.set()
    threading.Event().wait(60)  # a request under way when the process ends

calls, begun = [], threading.Event()
model = ChatPromptTemplate.from_template("{q}") | FakeChat(answers=answer)
chain = RunnableParallel(a=model, b=ChatPromptTemplate.from_template("{q}"))
fast = fineflow.optimize(chain, eager=True, verify=fineflow.Verify(1.0, exact=True))
fast.invoke({"q": "?"})
assert begun.wait(10)
print("done", flush=True)
"""


def test_the_process_ends_without_waiting_or_noise() -> None:
    done = programs.run("-c", EXITS, timeout=30, whole_exit=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("given", [-0.1, 1.5, float("nan"), True, "all"])
def test_a_share_is_from_0_to_1(given: Any) -> None:
    for make in (lambda: Options(verify=given), lambda: Verify(given), lambda: fineflow.instrument(verify=given)):
        with pytest.raises(ValueError, match="verify is a share of the calls from 0 to 1"):
            make()


def test_other_settings_are_checked() -> None:
    with pytest.raises(TypeError, match="report"):
        Verify(0.5, report="log")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="waiting"):
        Verify(0.5, waiting=-1)
    assert Options().verify is Options(verify=0).verify is Options(verify=Verify(0)).verify is None
    assert Options(verify=0.5).verify == Verify(0.5)


def test_without_verification_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any) -> None:
        raise AssertionError("verification was asked")

    monkeypatch.setattr("fineflow.adapters.core.proxy.chosen", asked)
    assert fineflow.optimize(RunnableLambda(len), eager=True).invoke("abc") == 3
    assert fineflow.optimize(RunnableLambda(len), eager=True, verify=0.0).invoke("abc") == 3


def test_spans_of_the_repetition_are_not_sampled() -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from contextvars import copy_context

    from opentelemetry import context
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter, provider = export.InMemorySpanExporter(), trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("app")

    def repeated() -> None:
        quiet_spans()
        assert context.get_value("suppress_instrumentation")
        with tracer.start_as_current_span("again"):
            pass

    with tracer.start_as_current_span("call"):
        copy_context().run(repeated)
    assert [span.name for span in exporter.get_finished_spans()] == ["call"]


def test_calls_that_are_repeated_are_not_routed(counts: Reruns) -> None:
    fineflow.instrument()
    try:
        token = repeating.set(True)
        assert RunnableLambda(len).invoke("abc") == 3
        repeating.reset(token)
        assert fineflow.status().calls == 0
        RunnableLambda(len).invoke("abc")
        assert fineflow.status().calls == 1
    finally:
        fineflow.uninstrument()


def test_the_thread_is_named_and_ends_with_the_process(counts: Reruns) -> None:
    seen: list[threading.Thread] = []
    counts.submit(lambda: seen.append(threading.current_thread()) or EQUAL, 4)
    counts.settled(10)
    assert seen[0].name == "fineflow-verify" and seen[0].daemon
