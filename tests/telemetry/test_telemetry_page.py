"""The examples of docs/telemetry.md, as they are there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import programs

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
from app import app

def get(path, query=""):
    return b"".join(app({"PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": "GET"}, lambda *_: None)).decode()

assert get("/", "one") == get("/", "two") == "ok"
print(get("/metrics"))
"""

PROXIES = """
import fineflow
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from langchain_core.prompts import ChatPromptTemplate
from fineflow.testing.langchain import FakeChat

fineflow.telemetry.enable()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
fineflow.optimize(ChatPromptTemplate.from_template("{x}") | FakeChat()).invoke({"x": "y"})
"""


def run(*arguments: str, **environment: str) -> str:
    done = programs.run(*arguments, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def block(containing: str) -> str:
    (found,) = [text for text in BLOCKS if containing in text]
    return found


def test_the_example_prints_spans_and_metrics() -> None:
    said = run("-c", block("ConsoleSpanExporter"))
    spans, end, decoder = [], 0, json.JSONDecoder()
    while said[end:].lstrip().startswith("{"):
        start = end + len(said[end:]) - len(said[end:].lstrip())
        span, end = decoder.raw_decode(said, start)
        spans.append(span)
    # The prompts have spans of their own where the machine is so busy that they take long.
    names = sorted(span["name"] for span in spans if span["name"] != "call ChatPromptTemplate")
    assert names == [*["chat FakeChat"] * 2, "invoke_workflow RunnableSequence", "request", "retrieval FakeVectorStore"]
    (call,) = [span for span in spans if span["name"].startswith("invoke_workflow")]
    (request,) = [span for span in spans if span["name"] == "request"]
    assert call["parent_id"] == request["context"]["span_id"]
    assert call["attributes"]["fineflow.saved_seconds"] > 0.15
    assert 'fineflow_call_seconds_count{ahead="true",entry="invoke",outcome="finished"} 1.0' in said


def test_the_app_with_workers_serves_its_metrics(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(block("# app.py"))
    (tmp_path / "metrics").mkdir()
    said = run("-c", WORKER, str(tmp_path), PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "metrics"))
    assert 'fineflow_call_seconds_count{ahead="true",entry="invoke",outcome="finished"} 2.0' in said


def test_providers_may_be_set_later() -> None:
    assert '"name": "invoke_workflow RunnableSequence"' in run("-c", PROXIES)
