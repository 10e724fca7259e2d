"""How telemetry is turned on and off: nothing by itself, one line, the extras, and OpenTelemetry's instrumentor."""

from __future__ import annotations

import subprocess
import sys

import pytest
from telemetry_kit import QUESTION, Kept, app

import fineflow
from fineflow.errors import installing
from fineflow.instrumentation.instrumentor import FineflowInstrumentor
from fineflow.runtime import events, recording, statistics

OFF = """
import sys
import fineflow
from langchain_core.runnables import RunnableLambda
fineflow.optimize(RunnableLambda(len) | str).invoke("abc")
ours = ("fineflow.telemetry.otel", "fineflow.telemetry.prometheus")  # LangSmith's client imports opentelemetry
print([name for name in sys.modules if name in ours or name.startswith("prometheus_client")])
"""

WITHOUT = """
import sys
sys.modules["opentelemetry"] = sys.modules["prometheus_client"] = None
import fineflow
for turn_on in (fineflow.telemetry.enable, fineflow.telemetry.enable_prometheus):
    try:
        turn_on()
    except ImportError as error:
        print(error)
"""


def output(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_imported_while_it_is_off() -> None:
    assert output(OFF).strip() == "[]"


def test_a_missing_library_names_its_extra() -> None:
    assert output(WITHOUT).splitlines() == [
        f"opentelemetry-api is not installed; it comes with: {installing('otel')}",
        f"prometheus-client is not installed; it comes with: {installing('prometheus')}",
    ]


def test_turning_it_off_leaves_nothing() -> None:
    fineflow.telemetry.disable()
    fineflow.telemetry.enable(Kept().tracer_provider)
    fineflow.telemetry.enable_prometheus()
    assert len(recording.recorders) == len(statistics.observers) == 1
    fineflow.telemetry.disable()
    assert not recording.recorders and not statistics.observers and not events.listening()


@pytest.mark.parametrize("routes", [True, False])
def test_opentelemetry_instrument_turns_it_on(monkeypatch: pytest.MonkeyPatch, routes: bool) -> None:
    made, kept, chain = FineflowInstrumentor(), Kept(), app()
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", kept.tracer_provider)
    made.instrument(skip_dep_check=True)  # as opentelemetry-instrument does
    assert not recording.recorders
    monkeypatch.setenv("FINEFLOW_INSTRUMENT" if routes else "FINEFLOW_TELEMETRY", "1")
    made.instrument(skip_dep_check=True)
    try:
        chain.invoke(QUESTION)
        assert len(kept.calls) == (1 if routes else 0)
        fineflow.optimize(chain).invoke(QUESTION)
        assert len(kept.calls) == (2 if routes else 1)
    finally:
        made.uninstrument()
    assert not recording.recorders and not made.is_instrumented_by_opentelemetry


def test_the_instrumentor_takes_providers_and_options() -> None:
    made, kept, chain = FineflowInstrumentor(), Kept(), app()
    made.instrument(tracer_provider=kept.tracer_provider, meter_provider=kept.meter_provider, strict=True)
    try:
        chain.invoke(QUESTION)
    finally:
        made.uninstrument()
    assert len(kept.calls) == 1 and kept.metrics()["fineflow.call.duration"][0].count == 1
