"""The harness: applications give the same answer under every scheme, and no scheme beats their limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.__main__ import listed, main
from benchmarks.apps import EXAMPLES, NAMES, app
from benchmarks.harness.experiment import ALONE, Experiment, measure, rate_of
from benchmarks.harness.figures import goodput, interval
from benchmarks.harness.page import merged
from benchmarks.harness.plots import drawings
from benchmarks.harness.real_world import Scripted
from benchmarks.harness.schemes import scheme, schemes
from benchmarks.harness.setting import PAPER, Device, device

from fineflow.engines import EmulatedLLM
from fineflow.passes import PASSES
from fineflow.protocols import Delta, Sampling
from fineflow.runtime.queues.policy import POLICIES
from fineflow.testing import virtual, virtual_threads

pytest.importorskip("langchain_text_splitters")

ROUNDING = 1e-3  # tokens of prompts are counted to within a few


def figures(name: str, scheme: str, load: str = ALONE, requests: int = 1, **more: Any) -> dict[str, Any]:
    return measure(Experiment(name, scheme, load, Device("emulated"), requests, (0,), **more))


@pytest.mark.parametrize("name", NAMES)
def test_schemes_agree_and_none_beats_the_limit(name: str) -> None:
    found = {each: figures(name, each) for each in ("stock", "tuned", "fineflow")}
    assert len({each["answers"] for each in found.values()}) == 1
    for each in found.values():
        assert each["achieved"] <= 1 + ROUNDING
    assert found["fineflow"]["mean"] <= 1.02 * found["stock"]["mean"]
    spent = found["fineflow"]["spent"]
    assert sum(spent.values()) == pytest.approx(found["fineflow"]["mean"], rel=0.02)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_applications(name: str) -> None:
    stock, ours = figures(name, "stock-sync"), figures(name, "fineflow-sync")
    assert stock["answers"] == ours["answers"]
    assert ours["mean"] <= 1.02 * stock["mean"]
    assert stock["achieved"] <= 1 + ROUNDING and ours["achieved"] <= 1 + ROUNDING


def test_a_scheme_that_an_application_lacks_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    schemes = ("tuned", "stock", "stock-sync")
    assert main(["run", "--app", "example_guarded_router", "--rates", "alone", "--scheme", *schemes]) == 0
    told = capsys.readouterr()
    assert "has no version by hand: it is not run by tuned" in told.err
    assert "has no async methods that hold no thread: it is not run by stock\n" in told.err
    assert "stock-sync" in told.out


def test_lists_and_documents_gain() -> None:
    """The applications in which fineflow has something to gain: most of it is gained."""
    for name, least in (("advanced_rag", 1.2), ("repository_advanced", 1.2)):
        stock, ours = figures(name, "stock"), figures(name, "fineflow")
        assert stock["mean"] >= least * ours["mean"], name
        assert ours["achieved"] >= 0.9, name


def test_a_load_is_measured_beside_its_bound() -> None:
    found = figures("rag_fusion", "fineflow", "60%", requests=6)
    assert found["bound"] >= found["limit"] * (1 - 1e-9)
    assert found["mean"] >= found["bound"] and 0 < found["goodput"] <= found["throughput"]
    assert found["p50"] <= found["p95"] <= found["p99"]
    assert found["per_request"]["requests"] == 2
    low, high = found["mean_interval"]
    assert low <= found["mean"] <= high


def test_the_first_token_of_a_streamed_answer() -> None:
    found = figures("rag_fusion", "fineflow", stream=True)
    assert found["first_token_limit"] <= found["first_token"] < found["mean"]


@pytest.mark.skipif(not virtual_threads.available, reason="needs /proc")
def test_sync_methods_are_run_in_virtual_time() -> None:
    stock, ours = figures("rag_fusion", "stock-sync"), figures("rag_fusion", "fineflow-sync")
    assert stock["answers"] == ours["answers"] and ours["mean"] < stock["mean"]
    assert ours["mean"] == pytest.approx(figures("rag_fusion", "fineflow")["mean"], rel=0.02)


def test_the_page_shows_what_is_measured() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = {cells[1].strip(" `"): cells for line in page.splitlines() if len(cells := line.split("|")) == 11}
    assert set(NAMES) <= rows.keys()
    for name in ("rag_fusion", "conversational_rag", "repository_advanced"):
        found = [figures(name, each, requests=3) for each in ("stock", "fineflow")]
        shown = [float(rows[name][place]) for place in (3, 5, 6)]
        assert shown == pytest.approx([*(each["mean"] for each in found), found[0]["limit"]], abs=0.0051), name


def test_every_pass_and_policy_is_a_scheme() -> None:
    names = [each.name for each in schemes()]
    assert {f"fineflow-without-{each.__name__}" for each in PASSES} <= set(names)
    assert {f"fineflow-{each}" for each in POLICIES} <= set(names)
    assert len(scheme("fineflow-without-prune").passes) == len(PASSES) - 1
    with pytest.raises(ValueError, match="no scheme is called 'fast'; there are stock"):
        scheme("fast")


def test_a_share_of_the_load_is_one_of_the_busiest_engine() -> None:
    path = app("naive_rag").path(PAPER, app("naive_rag").asked(0, 0))
    assert rate_of(app("naive_rag"), PAPER, "50%") == pytest.approx(0.5 / path.work()["embedder"], rel=0.02)
    assert rate_of(app("naive_rag"), PAPER, "3") == 3.0


def test_devices_are_named() -> None:
    assert device("emulated").setting(PAPER) is PAPER
    ours = device("emulated:tinylm-epyc,minilm-epyc").setting(PAPER)
    assert ours.llm.iteration < PAPER.llm.iteration and ours.embedder.max_batch == 32
    for wrong in ("gpu", "emulated:nothing", "openai"):
        with pytest.raises(ValueError):
            device(wrong)


def test_a_real_engine_says_what_the_script_says() -> None:
    """An engine that would say something else, and more of it, decodes as many tokens as the script has."""
    inner = EmulatedLLM(lambda prompt: "another text of its own that is longer than that", can_prefill=False)
    engine = Scripted(inner, lambda prompt: f"It is  {len(prompt)}\nlong.")

    async def said() -> list[Delta]:
        tokens = engine.encode("How long?")
        return [delta async for delta in engine.generate(tokens, Sampling(max_tokens=50))]

    deltas, seconds = virtual.run(said())
    assert "".join(delta.text for delta in deltas) == "It is  9\nlong." and deltas[-1].finish_reason == "stop"
    assert sum(len(delta.tokens) for delta in deltas) == 4 == engine.written_tokens
    assert seconds == pytest.approx(inner.profile.seconds(2, 0) + 3 * inner.profile.seconds(0, 1), abs=1e-4)


def test_intervals_and_goodput() -> None:
    low, high = interval([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]], lambda values: sum(values) / len(values))
    assert 1.0 < low < 2.5 < high < 4.0
    assert goodput([[1.0, 5.0], [1.0, 1.0]], [10.0, 10.0], slo=2.0) == pytest.approx(3 / 20)


def test_the_command_writes_figures_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "figures.json", tmp_path / "pictures"
    schemes = ["stock", "tuned", "fineflow", "fineflow-without-decode", "fineflow-by_depth"]
    flags = ["--app", "rag_fusion", "--rates", ALONE, "50%", "--requests", "3", "--repeats", "1", "--jobs", "1"]
    assert main(["run", *flags, "--scheme", *schemes, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "limit / this" in shown and "no scheme can be faster than" in shown
    told = json.loads(file.read_text())
    assert {"hardware", "versions", "settings", "command", "device"} <= told.keys()
    assert len(told["results"]) == 2 * len(schemes) and merged([file, file]) == told["results"]
    assert main(["report", str(file), "--folder", str(folder)]) == 0
    names = {
        f"{name}-{mode}.svg"
        for name in ("achieved", "breakdown", "loads", "passes", "policies")
        for mode in ("dark", "light")
    }
    assert {path.name for path in folder.iterdir()} == names
    for svg in drawings(told["results"]).values():
        assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "rag_fusion" in (folder / "achieved-light.svg").read_text()


def test_wrong_names_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--app", "nothing"]) == 2
    assert "no application is called 'nothing'; there are search_generation" in capsys.readouterr().err
    assert main(["run", "--app", "rag_fusion", "--device", "transformers", "--time", "virtual"]) == 2
    assert "leave out --time virtual" in capsys.readouterr().err


def test_everything_is_listed() -> None:
    text = listed()
    assert all(name in text for name in (*NAMES, *EXAMPLES, "fineflow-without-decode", "under_load"))
