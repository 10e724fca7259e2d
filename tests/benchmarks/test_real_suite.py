"""Real engines in the benchmarks: schemes in turns, contention of cores, and the page that is made from results."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.apps import app
from benchmarks.harness import contention, interleaved, page, suites, tables
from benchmarks.harness.real_world import RealEngines, Scripted, Served
from benchmarks.harness.setting import Device

from fineflow.adapters.core.devices import engine_on
from fineflow.engines import BatchProfile, EmulatedEmbedding, EmulatedLLM, LLMProfile, SharedCores
from fineflow.ir import Op
from fineflow.protocols import Sampling
from fineflow.testing import virtual


def engines(**more: Any) -> Any:
    """Emulated engines in the place of real ones."""
    llm = EmulatedLLM(lambda prompt: "word " * 200, LLMProfile(0.002, 0.0, 0.0), name="llm", **more)
    embedder = EmulatedEmbedding(BatchProfile(0.005, 0.001, 16), name="embedder", **more)
    return SimpleNamespace(llm=llm, embedder=embedder)


def test_work_on_the_same_cores_gains_nothing_at_once() -> None:
    apart, _ = virtual.run(contention._rounds(engines(), 1))
    shared, _ = virtual.run(contention._rounds(engines(cores=SharedCores()), 1))
    assert contention.together(apart) == pytest.approx(2.0, rel=0.1)
    assert contention.together(shared) == pytest.approx(1.0, rel=0.05)
    assert shared["decode_while_embedding"] == pytest.approx(2 * shared["decode"], rel=0.1)
    assert apart["decode_while_embedding"] == pytest.approx(apart["decode"], rel=0.01)


def test_the_wrapped_engines_are_on_the_cores_of_the_wrapped_ones() -> None:
    """Otherwise plans would take them for devices of their own."""
    for cores, expected in ((SharedCores(), {"device": "cores"}), (None, {})):
        made = engines(cores=cores)
        assert engine_on(Scripted(made.llm, str)) == engine_on(Served(made.embedder, "embedder")) == expected
    scripted = Scripted(engines().llm, str)
    assert scripted.capacity == scripted.engine.capacity and not hasattr(scripted, "constraints")


def test_schemes_take_turns_on_the_same_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaved, "SCHEMES", ("stock", "fineflow"))
    made = engines()
    made.vectors = lambda texts: RealEngines.vectors(made, texts)
    made._vectors = {}
    found = interleaved._of_app(app("rag_fusion"), Device("transformers"), made, 3, 0.0)
    assert [each["scheme"] for each in found] == ["stock", "fineflow"]
    assert all(each["same_answer"] for each in found) and suites.differences(found) == []
    assert [len(each["seconds"]) for each in found] == [interleaved.LEAST] * 2  # its time was over
    assert {each["per_request"]["requests"] for each in found} == {2.0}


def test_calls_at_once_and_applications_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaved, "SCHEMES", ("stock", "fineflow"))
    made = engines()
    made.vectors = lambda texts: RealEngines.vectors(made, texts)
    made._vectors = {}
    monkeypatch.setattr(interleaved, "RealEngines", lambda device: made)
    of_app = interleaved._of_app

    async def closed() -> None:
        for engine in (made.llm, made.embedder):
            await engine.aclose()

    made.aclose = closed

    def failing(one: Any, *args: Any) -> Any:
        if one.name == "agent":
            raise ValueError("no agent")
        return of_app(one, *args)

    monkeypatch.setattr(interleaved, "_of_app", failing)
    found = interleaved.measure(
        ["agent", "rag_fusion"], Device("transformers"), rounds=1, seconds=0.0, threads=(), at_once=3
    )
    assert found["failed"] == ["agent"]
    assert {each["load"] for each in found["results"]} == {"3 at once"}
    assert all(len(each["seconds"]) == 3 and each["same_answer"] for each in found["results"])


@pytest.mark.engine
async def test_models_of_random_weights() -> None:
    made = RealEngines(Device("transformers", "tiny"))
    text = [delta.text async for delta in made.llm.generate(made.llm.encode("A bridge"), Sampling(max_tokens=4))]
    assert len(text) >= 1 and made.llm.context == 4096
    (vector,) = await made.embedder.execute(Op.EMBED, [("document", "a tower")])
    assert len(vector) == 32
    await made.aclose()


def test_an_input_is_cut_to_a_small_size() -> None:
    document = app("naive_rag").asked(0, 0)
    (small,) = interleaved.smaller(document)["documents"]
    assert interleaved.WORDS <= len(small.page_content.split()) < interleaved.WORDS + 100
    assert document["documents"][0].page_content.startswith(small.page_content)
    (node,) = interleaved.smaller(app("naive_rag_llamaindex").asked(0, 0))["documents"]
    assert node.text == small.page_content
    passages = app("repository_advanced").asked(0, 0)
    assert interleaved.smaller(passages)["documents"] == passages["documents"][: interleaved.DOCUMENTS]
    assert interleaved.smaller({"question": "Why?"}) == {"question": "Why?"}


def test_a_ratio_and_its_interval() -> None:
    assert interleaved.ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == (2.0, 2.0, 2.0)
    ratio, low, high = interleaved.ratio([1.0, 3.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    assert ratio == 2.0 and 1.0 <= low < 2.0 < high <= 3.0


def test_other_answers_are_told() -> None:
    results = [{"app": "x", "load": "alone", "scheme": name, "same_answer": name != "fineflow"} for name in ("a", "b")]
    assert suites.differences(results) == []
    results.append({"app": "x", "load": "alone", "scheme": "fineflow", "same_answer": False})
    assert suites.differences(results) == ["x, alone: the schemes gave different answers"]


def real_file() -> dict[str, Any]:
    results = [
        {"app": "rag_fusion", "scheme": name, "load": "alone", "seconds": [took, took]}
        for name, took in (("stock", 3.0), ("tuned", 2.5), ("fineflow", 2.0))
    ]
    contention = {"decode": 1.0, "embed": 1.0, "both": 1.9, "decode_beside": 1.5, "threads": 2}
    contention |= {"decode_while_embedding": 1.8, "embed_while_decoding": 1.9}
    told = {"hardware": "a machine", "versions": {"vllm": "1.0"}, "command": "the command", "seconds_taken": 120.0}
    return {**told, "results": results, "contention": [contention]}


def test_a_page_gets_its_tables_from_the_results() -> None:
    other = "<!-- measured: x -->\ny\n<!-- end of measured -->"
    text = f"a\n<!-- measured: vllm -->\nold | 1.00\n<!-- end of measured -->\n{other}"
    found = page.parts({"vllm": real_file()})
    shown = page.filled(text, found)
    assert "| `rag_fusion` | 2 | 3.00 | 2.50 | 2.00 | 1.50 (1.50 to 1.50) | 1.25 (1.25 to 1.25) |" in shown
    assert (
        "| in turn ÷ at once (2.00 at best) | 1.05 |" in shown and "a machine; vllm 1.0. `the command`, 2 min" in shown
    )
    assert "old" not in shown and shown.startswith("a\n") and shown.endswith(other)
    assert page.filled(shown, found) == shown
    assert "make bench-real`" in found["transformers"] and page.pictures({}) == {}


def test_tables_of_emulated_results() -> None:
    base = {"app": "rag_fusion", "load": "alone", "bound": 1.0, "rest": {"llm": 0.25}}
    took = {"stock": 2.0, "tuned": 1.5, "fineflow": 1.25, "fineflow-without-decode": 1.5}
    results = [{**base, "scheme": name, "mean": mean, "achieved": 1.0 / mean} for name, mean in took.items()]
    assert "| `rag_fusion` | - | 2.00 | 1.50 | 1.25 | 1.00 | 1.60 | 2.00 | 80.0 % |" in tables.alone(results)
    assert "| `decode` | `rag_fusion` | 1.20 | 1 of 1 |" in tables.passes(results)
    assert "| `rag_fusion` | 0.25 | llm +0.25 |" in tables.rest(results)
    assert "| limit ÷ fineflow, one call | ≥ 0.95 | 0 of 1 | 0.800 | 0.800 | 0.800 |" in tables.aims(results)


def test_a_file_of_results_has_one_a_line() -> None:
    text = suites.written({"device": "x", "results": [{"mean": 1.23456789}, {"mean": 2.0}]})
    assert json.loads(text) == {"device": "x", "results": [{"mean": 1.234568}, {"mean": 2.0}]}
    assert '  {"mean": 1.234568},\n  {"mean": 2.0}\n' in text
