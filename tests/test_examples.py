"""Every example runs as a user runs it, and what it prints is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from example_scripts import by_python

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

pytestmark = pytest.mark.engine


def run(name: str, kept: Path) -> str:
    """What the example prints. It runs in an empty folder of its own, and no hub is asked for anything."""
    done = by_python(ROOT / "examples" / f"{name}.py", kept)
    assert done.returncode == 0, done.stderr
    assert "FineflowWarning" not in done.stderr
    assert "never awaited" not in done.stderr
    assert not done.left
    return done.stdout


def figure(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in\n{text}"
    return float(found[1])


def test_quickstart(of_all_workers: Path) -> None:
    said = run("quickstart", of_all_workers)
    assert "equal: True" in said
    assert "Helen Kormar" in said
    assert re.search(r"context/retriever\.\w+ .*does not wait for category/llm.decode", said)
    assert figure(r"stock (\d+) ms", said) > 0
    assert figure(r"fineflow (\d+) ms", said) > 0


def test_conversational_rag(of_all_workers: Path) -> None:
    said = run("conversational_rag", of_all_workers)
    assert "what comes before {context} is prefilled at once" in said
    assert said.count("equal: True") == 2
    assert "equal: False" not in said
    # Nothing was in the cache before. With the optimized chain all of the history is, but for its last few tokens.
    assert "15 turns, stock" in said
    assert figure(r"15 turns, stock .*; (\d+) of \d+ prompt tokens", said) == 0
    ready = figure(r"15 turns, fineflow .*; (\d+) of \d+ prompt tokens", said)
    assert ready > 0.8 * figure(r"15 turns, fineflow .* of (\d+) prompt tokens", said)


def test_bring_your_own(of_all_workers: Path) -> None:
    said = run("bring_your_own", of_all_workers)
    text = " ".join(said.split())
    kept = r"kept in order: `guard` at bring_your_own.py:\d+ calls \.append\(\) on a value that it did not create"
    assert re.search(rf"documents/retriever.search {kept}; it may be a guard", text)
    assert re.search(rf"allowed/guard.call {kept}; \d later steps wait for it", text)
    assert re.search(r"documents/keywords.call +bring_your_own.py:\d+ +declared pure", said)
    assert re.search(r"answer/context/join.call +bring_your_own.py:\d+ +reads documents, joins strings", said)
    assert "guard: secrets stay here; left the process before that: []" in said
    assert "equal: True" in said
    assert figure(r"stock ([\d.]+) s", said) >= 0.9  # three calls of 0.3 s one after the other
    assert figure(r"fineflow ([\d.]+) s", said) > 0


def test_custom_pass(of_all_workers: Path) -> None:
    said = run("custom_pass", of_all_workers)
    place = "context/multi_query/queries/llm.decode"
    early = f"decode: {place}: each line goes to" in said
    cores = f"decode refused: {place}: context/multi_query.searches needs the cores" in said
    assert early is not cores  # depends on whether the model has a processor of its own
    assert "read_whole: context/multi_query/queries/llm.decode: the output of tinylm is read as a whole" in said
    assert "equal: True" in said
    variants = re.findall(r"^(\S.*?) +\d+ ms$", said, re.MULTILINE)
    assert variants[:3] == ["stock", "fineflow", "with read_whole"]
    assert [name for name in variants if name.startswith("without ")] == variants[3:] != []


def test_streaming_and_callbacks(of_all_workers: Path) -> None:
    said = run("streaming_and_callbacks", of_all_workers)
    for look in ("chunks", "events", "callbacks", "run tree"):
        assert f"{look} equal: True" in said
    assert "which does not stream: 0" in said
    assert re.search(r"streamed answer: .+ \+ .+", said)  # in several pieces
    assert "chain: RunnableAssign<answer>  mine seq:step:3" in said


def test_semantic_functions(of_all_workers: Path) -> None:
    said = run("semantic_functions", of_all_workers)
    text = " ".join(said.split())
    assert "write~2.code.decode does not wait for write.code.decode, whose result it does not use" in text
    assert "equal: True" in said
    assert "verdict: 72 lines, well done; <Recorder: 0 calls of stock, 1 of fineflow>" in said
    assert figure(r"as a program ([\d.]+) s", said) > 0 < figure(r"one at a time ([\d.]+) s", said)
    assert "error: plan.files.json failed: ValueError: expected an object with 'folders' at $" in said


def test_index_then_ask(of_all_workers: Path) -> None:
    said = run("index_then_ask", of_all_workers)
    assert "equal: True" in said
    # 0.6 s to embed, 0.4 s to write queries, 0.06 s for their vectors, 0.4 s to answer
    assert figure(r"fineflow (\d+) ms", said) > 0 and figure(r"stock (\d+) ms", said) >= 1460


def test_adaptive_rag(of_all_workers: Path) -> None:
    said = run("adaptive_rag", of_all_workers)
    assert "profile   complexity low, joint reasoning no, pieces 1" in said
    assert said.count("the highest of its space that fits") == 2
    assert said.count("answer    Helen Kormar") == 1
    assert "always map_reduce with 2 chunks: " in said


def test_every_example_is_here_and_in_the_list() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    tests = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES:
        assert f"]({path.name})" in listed
        assert f'run("{path.stem}", of_all_workers)' in tests
