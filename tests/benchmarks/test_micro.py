"""The micro-benchmarks: what is measured, and the check against the record."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import main
from benchmarks.micro import batching, measure, memory, program, queries, record
from benchmarks.micro.measure import Figure, Found
from benchmarks.micro.record import RecordError

import fineflow
import programs
from fineflow.testing import virtual_threads

ROOT = Path(__file__).parents[2]


class Sections:
    """Made-up sections, whose figures come one list after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, *ratios: dict[str, float]) -> None:
        self.measured = 0
        self._ratios = ratios
        monkeypatch.setattr(program, "measure", self._measure)
        monkeypatch.setattr(program, "SECTIONS", ("calls",))
        monkeypatch.setattr(program, "load", lambda: record.load(path))
        monkeypatch.setattr(program, "save", lambda figures, **how: record.save(figures, path, **how))

    def _measure(self, section: str, runs: int) -> Found:
        found = self._ratios[min(self.measured, len(self._ratios) - 1)]
        self.measured += 1
        return Found([Figure(name, ratio, "fineflow / stock", "1 and 2 us") for name, ratio in found.items()])


def flags(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"sections": [], "runs": 1, "record": False, "check": False, "json": None, **given})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A record of two ratios and a count."""
    path = tmp_path / "record.json"
    record.save([Figure("invoke", 1.0, "fineflow / stock"), Figure("calls", 100, "calls of fineflow")], path)
    return path


def test_a_regression_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = Sections(monkeypatch, path, {"invoke": 1.21, "calls": 100})
    assert program.main(flags(check=True)) == 1
    assert "REGRESSION  invoke: 1.210 (fineflow / stock), 1.21 times the record 1.000" in capsys.readouterr().out
    assert sections.measured == 2  # once more, in case the machine was at fault


def test_within_20_percent_the_check_passes(
    monkeypatch: pytest.MonkeyPatch, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = Sections(monkeypatch, path, {"invoke": 1.19, "calls": 119})
    assert program.main(flags(check=True)) == 0
    assert "no figure is more than 20 % above its record" in capsys.readouterr().out
    assert sections.measured == 1


def test_a_figure_that_is_low_the_second_time_is_none(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    Sections(monkeypatch, path, {"invoke": 1.5, "calls": 100}, {"invoke": 1.1, "calls": 100})
    assert program.main(flags(check=True)) == 0


def test_without_check_a_regression_is_only_shown(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    Sections(monkeypatch, path, {"invoke": 9.0, "calls": 100})
    assert program.main(flags()) == 0


def test_a_figure_without_a_record_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Sections(monkeypatch, path, {"invoke": 1.0, "calls": 100, "new": 1.0})
    assert program.main(flags(check=True)) == 1
    assert "REGRESSION  new: has no record; python -m benchmarks micro --record adds it" in capsys.readouterr().out


def test_a_missing_record_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.json"
    sections = Sections(monkeypatch, missing, {"invoke": 1.0})
    assert program.main(flags(check=True)) == 2
    said = capsys.readouterr().err
    assert said == (
        f"python -m benchmarks micro: there is no record {missing}: python -m benchmarks micro --record writes it\n"
    )
    assert sections.measured == 0


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"figures": {"a": {}}}', '{"figures": {"a": {"ratio": "much"}}}'])
def test_a_broken_record_is_explained(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(RecordError, match="is not a record of ratios"):
        record.load(path)


def test_what_is_recorded_is_ratios_and_counts(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    Sections(monkeypatch, path, {"invoke": 1.5})
    assert program.main(flags(record=True, sections=["calls"])) == 0
    written = json.loads(path.read_text())
    assert written["figures"]["invoke"] == {"ratio": 1.5, "of": "fineflow / stock"}
    assert written["figures"]["calls"]["ratio"] == 100  # of a section that was not measured
    assert "us" not in path.read_text().replace("fineflow", "")
    assert program.main(flags(record=True)) == 0
    assert set(record.load(path)) == {"invoke"}


def test_the_record_of_the_repository_has_every_section() -> None:
    """Figures of each section by what only it has; none is an absolute time."""
    recorded = record.load()
    for name in ("plan, nine assigns", "invoke, nothing to gain", "processor time, 1,000 at once"):
        assert recorded[name] > 0
    for name in ("batches of 64 queries at once", "memory of a query in flight", "opentelemetry, 16 steps, invoke"):
        assert recorded[name] > 0
    written = json.loads(record.RECORD.read_text(encoding="utf-8"))["figures"].values()
    assert all(set(each) == {"ratio", "of"} for each in written)
    assert not [each for each in written if "second" in each["of"] or each["of"].split()[0] in ("us", "ms")]


def test_a_side_that_costs_twice_as_much_has_the_ratio_two() -> None:
    turns: list[str] = []
    one = lambda: turns.append("stock") or 1.0  # noqa: E731
    other = lambda: turns.append("mine") or 2.0  # noqa: E731
    assert measure.in_turns(one, other, 4) == (1.0, 2.0, 2.0)
    assert turns.count("stock") == turns.count("mine") == 5 and turns[:4] in (
        ["mine", "stock", "stock", "mine"],
        ["stock", "mine", "mine", "stock"],
    )


def test_calls_of_fineflow_are_counted_in_all_threads() -> None:
    """In a process of its own: threads of other tests may call fineflow meanwhile."""
    program = """
import fineflow
from benchmarks.micro import measure, queries
stock = queries.chain()
mine = fineflow.optimize(stock, strict=True)
value = {"question": "Who?", "topic": "towns"}
assert measure.calls_of_fineflow(lambda: stock.invoke(value)) == 0
once = measure.calls_of_fineflow(lambda: mine.invoke(value))
twice = measure.calls_of_fineflow(lambda: [mine.invoke(value) for _ in range(2)])
assert once > 100 and abs(twice - 2 * once) < 0.2 * once, (once, twice)
"""
    done = programs.run("-c", program, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_graph_of_many_queries() -> None:
    assert len(fineflow.explain(queries.chain()).e_graph.primitives) == queries.PRIMITIVES


def test_queries_at_once_share_batches() -> None:
    found = {each.name: each.ratio for each in batching.measured(1, 16).figures}
    assert found["batches of 16 queries at once"] <= 0.5


def test_many_queries_at_once_leave_nothing() -> None:
    """In a process of its own: what is left is counted all over it. What the queries cost is another matter."""
    program = """
from benchmarks.micro import queries
found = queries.measured(1, (1, 100))
print([each.name for each in found.figures])
assert [held for text, held in found.aims.items() if text.startswith("nothing is left")] == [True], found.aims
"""
    done = programs.run("-c", program, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "processor time, 100 at once" in done.stdout


@pytest.mark.skipif(not virtual_threads.available, reason="virtual time for threads needs /proc")
def test_memory_is_measured_when_nothing_runs_any_more() -> None:
    """The same in two measurements, however busy the machine is, but for what caches keep."""
    one, other = (memory.memory(20, optimized=True) for _ in range(2))
    assert one.size == pytest.approx(other.size, rel=0.1) and one.size < 150 * 1024
    assert one.blocks == pytest.approx(other.blocks, rel=0.1) and one.blocks > 100


@pytest.mark.parametrize("section", ["planning", "calls", "telemetry"])
def test_a_section_is_measured(section: str) -> None:
    found = program.measure(section, 1)
    assert len(found.figures) >= 10 and all(each.ratio > 0 for each in found.figures)
    assert len({each.name for each in found.figures}) == len(found.figures)


def test_the_command_names_its_sections(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["micro", "no-such-section"])
    assert ended.value.code == 2 and "planning" in capsys.readouterr().err


def test_a_section_is_measured_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "figures.json"
    assert main(["micro", "batching", "--json", str(figures)]) == 0
    assert json.loads(figures.read_text())["hardware"] in capsys.readouterr().out
    assert len(json.loads(figures.read_text())["figures"]) == 2
