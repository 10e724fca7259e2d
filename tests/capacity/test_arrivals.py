"""Random arrivals, and traces in both formats."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest

from fineflow.backends.emulated import LLMProfile
from fineflow.capacity.arrivals import TraceRow, random_arrivals, read_trace, traced_arrivals
from fineflow.capacity.workload import CallShape, Workload, WorkStep
from fineflow.errors import UsageError

WORK = Workload(
    (CallShape((WorkStep("answer", "llm", prompt=100, cached=20, decoded=50),)),), {"llm": LLMProfile(0.1, 0.0, 0.0)}
)
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:47.1805900,396,109

2023-11-16 18:15:50.6805900,879,55
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 1500, "input_length": 1100, "output_length": 26, "hash_ids": [46, 47, 99]}
{"timestamp": 4000, "input_length": 512, "output_length": 1, "hash_ids": [46]}
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "trace"
    file.write_text(text)
    return file


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_the_rate_and_the_variation_of_random_arrivals(cv: float) -> None:
    times = [at for at, _ in random_arrivals(WORK, 50.0, 800.0, cv=cv)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(times) / 800 == pytest.approx(50, rel=0.05)
    assert stdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.05)


def test_a_trace_of_azure(tmp_path: Path) -> None:
    rows = read_trace(written(tmp_path, AZURE))
    assert rows == [
        TraceRow(0.0, 374, 44),
        TraceRow(pytest.approx(0.5), 396, 109),
        TraceRow(pytest.approx(4.0), 879, 55),
    ]


def test_a_trace_of_mooncake(tmp_path: Path) -> None:
    file = written(tmp_path, MOONCAKE)
    assert read_trace(file) == [TraceRow(0.0, 1200, 52), TraceRow(0.5, 1100, 26, 1024), TraceRow(3.0, 512, 1, 511)]
    assert all(row.cached == 0 for row in read_trace(file, cache=False))


def test_rows_scale_the_requests_of_an_app() -> None:
    rows = [TraceRow(0.0, 10, 30), TraceRow(1.0, 30, 10), TraceRow(2.0, 20, 20)]
    arrivals = traced_arrivals(WORK, rows, "llm", rate=4.0)
    assert [at for at, _ in arrivals] == [0.0, 0.25, 0.5]
    assert [(s.steps[0].prompt, s.steps[0].decoded, s.steps[0].cached) for _, s in arrivals] == [
        (50, 75, 10),
        (150, 25, 30),
        (100, 50, 20),
    ]


def test_rows_alone_are_requests() -> None:
    [(_, first), _] = traced_arrivals(None, [TraceRow(0.0, 7, 3), TraceRow(1.0, 9, 4)], "llm", rate=None)
    assert first == CallShape((WorkStep("request", "llm", 7, 0, 3),))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (AZURE.replace("879", "many"), 5),
        (AZURE.replace("396,109", "396"), 3),
        (AZURE.replace("47.18", "44.18"), 3),
        (AZURE.replace("374", "-1"), 2),
        (AZURE.replace("ContextTokens", "Tokens"), 1),
        (MOONCAKE.replace("1500", "500"), 2),
        (MOONCAKE.replace('"output_length": 1,', ""), 3),
        (MOONCAKE.replace("26", '"26"'), 2),
        (MOONCAKE.replace("[46, 47, 99]", "[46, [47]]"), 2),
        (MOONCAKE.replace("99]}", "99]"), 2),
        (MOONCAKE + "[]", 4),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(UsageError, match=rf"line {line}: expected .*; got "):
        read_trace(written(tmp_path, text))


@pytest.mark.parametrize("text", ["", "\n\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n"])
def test_an_empty_trace_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        read_trace(written(tmp_path, text))
