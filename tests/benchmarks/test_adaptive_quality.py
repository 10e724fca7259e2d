"""Scores, intervals, data and verdicts of the benchmark of adaptive configurations."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("transformers")

from benchmarks.adaptive_quality import calibration
from benchmarks.adaptive_quality.__main__ import main
from benchmarks.adaptive_quality.app import MOST_CHUNKS, chunked
from benchmarks.adaptive_quality.calibration import calibrated, cheapest, choice
from benchmarks.adaptive_quality.datasets import ENTITIES, KINDS, SEED, UNANSWERABLE, UNKNOWN, Question, bundled
from benchmarks.adaptive_quality.loaders import finsec, musique, qmsum, squad
from benchmarks.adaptive_quality.run import Measured, measure
from benchmarks.adaptive_quality.scores import difference_interval, exact_match, mean_interval, token_f1
from benchmarks.adaptive_quality.systems import TUNED, Reply, Tuned, grid
from benchmarks.adaptive_quality.verdict import frontier, judge
from benchmarks.adaptive_quality.world import make_corpus
from benchmarks.adaptive_sides import MIDDLE, OURS
from langchain_core.runnables import RunnableLambda
from tools.pictures.adaptive import ablation_chart, frontier_chart
from tools.pictures.quality import label, quality_chart
from tools.pictures.svg import PALETTES
from transformers import AutoTokenizer

from fineflow.adaptation import Configuration, Decision, Profile
from fineflow.adaptation.configuration import SYNTHESES
from fineflow.adaptation.mapping import FALLBACK
from fineflow.adaptation.profiler import Estimate
from fineflow.demo.data import default_model
from fineflow.testing import virtual

ROOT = Path(__file__).parents[2]


def question(text: str, answer: str = "yes") -> Question:
    return Question(text, (answer,), "single-hop", 1)


# Scores


@pytest.mark.parametrize(
    ("answer", "gold", "f1", "exact"),
    [
        ("The Kelmora Bridge.", "Kelmora Bridge", 1.0, True),
        ("Kelmora", "Kelmora Bridge", 2 / 3, False),
        ("1928 and 1950", "1950 and 1928", 1.0, False),
        ("1928, 1928 and 1950", "1928, 1950 and 1960", 2 * 3 / 8, False),
        ("", "Kelmora", 0.0, False),
        ("the", "a", 1.0, True),
    ],
)
def test_scores_are_those_of_squad(answer: str, gold: str, f1: float, exact: bool) -> None:
    assert token_f1(answer, [gold]) == pytest.approx(f1)
    assert exact_match(answer, [gold]) is exact


def test_the_best_gold_answer_counts() -> None:
    assert token_f1("Helen Kormar", ["Kormar", "Helen Kormar"]) == 1.0
    assert exact_match("Helen Kormar", ["Kormar", "Helen Kormar"])


def test_intervals_are_seeded_and_as_wide_as_the_noise() -> None:
    values = [float(i % 2) for i in range(400)]
    low, high = mean_interval(values, seed=3)
    assert (low, high) == mean_interval(values, seed=3)
    # The standard error of the mean is 0.5 / sqrt(400) = 0.025; 95 % are 1.96 of them on each side.
    assert low == pytest.approx(0.5 - 0.049, abs=0.008)
    assert high == pytest.approx(0.5 + 0.049, abs=0.008)
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


def test_differences_are_paired() -> None:
    first = [0.1 * (i % 10) + 0.05 for i in range(50)]
    second = [0.1 * (i % 10) for i in range(50)]
    assert difference_interval(first, second) == pytest.approx((0.05, 0.05))
    with pytest.raises(ValueError):
        difference_interval(first, second[1:])


# Data


def test_the_bundled_questions_are_balanced_and_the_same_every_time() -> None:
    data = bundled(9)
    assert data.questions == bundled(9).questions
    assert Counter(each.kind for each in data.questions) == dict.fromkeys(KINDS, 9)
    assert [each.kind for each in data.questions[:4]] == list(KINDS)
    for kind in ("list", "comparison"):
        assert Counter(each.pieces for each in data.questions if each.kind == kind) == {2: 3, 3: 3, 4: 3}
    text = "\n".join(data.documents)
    assert len({each.text for each in data.questions}) == len(data.questions)
    for each in data.questions:
        if each.kind == UNANSWERABLE:
            assert each.answers == (UNKNOWN,)
        elif each.kind == "list":
            assert all(part in text for part in each.answers[0].replace(" and ", ", ").split(", "))
        else:
            assert each.answers[0] in text


def test_too_many_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="ask for fewer"):
        bundled(5000)


def test_squad(tmp_path: Path) -> None:
    file = tmp_path / "dev-v2.0.json"
    spans = [{"text": "France", "answer_start": 0}, {"text": "France", "answer_start": 0}]
    asked = [
        {"id": "1", "question": "In what country is Normandy located?", "answers": spans, "is_impossible": False},
        {"id": "2", "question": "Who gave their name to Normandy in the 90s?", "answers": [], "is_impossible": True},
    ]
    paragraph = {"context": "Normandy is a region of France.", "qas": asked}
    file.write_text(json.dumps({"version": "v2.0", "data": [{"title": "Normans", "paragraphs": [paragraph]}]}))
    data = squad(file)
    assert list(data.documents) == ["Normandy is a region of France."]
    assert [each.answers for each in data.questions] == [("France",), (UNKNOWN,)]
    assert [each.kind for each in data.questions] == ["single-hop", UNANSWERABLE]


def test_musique(tmp_path: Path) -> None:
    file = tmp_path / "musique_full_v1.0_dev.jsonl"
    paragraphs = [
        {"idx": 0, "title": "Green", "paragraph_text": "Green is an album by Steve Hillage.", "is_supporting": True},
        {"idx": 1, "title": "Miquette", "paragraph_text": "She is his partner.", "is_supporting": True},
    ]
    hops = [
        {"id": 1, "question": "Green >> performer", "answer": "Steve Hillage", "paragraph_support_idx": 0},
        {"id": 2, "question": "#1 >> spouse", "answer": "Miquette Giraudy", "paragraph_support_idx": 1},
    ]
    one = {
        "id": "2hop__1_2",
        "paragraphs": paragraphs,
        "question": "Who is the spouse of the Green performer?",
        "question_decomposition": hops,
        "answer": "Miquette Giraudy",
        "answer_aliases": ["Giraudy"],
        "answerable": True,
    }
    other = {**one, "id": "2hop__3_4", "question": "Who is it?", "answerable": False}
    file.write_text("".join(json.dumps(each) + "\n" for each in (one, other)))
    data = musique(file)
    assert list(data.documents) == ["Green\nGreen is an album by Steve Hillage.", "Miquette\nShe is his partner."]
    assert data.questions[0] == Question(one["question"], ("Miquette Giraudy", "Giraudy"), "2 hops", 2)
    assert data.questions[1].answers == (UNKNOWN,)


def test_finsec(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "2023 Q3 AAPL.txt").write_text("Net sales were $81,797 million.")
    table = tmp_path / "qna_data.csv"
    table.write_text(
        "Question,Source Docs,Question Type,Source Chunk Type,Answer\n"
        "What were net sales?,*AAPL*,Single-Doc Single-Chunk RAG,Table,"
        '"$81,797 million.\n\nSOURCE(S): 2023 Q3 AAPL.pdf"\n'
    )
    hub = tmp_path / "rag_dataset.json"
    example = {"query": "What were net sales?", "reference_contexts": [], "reference_answer": "$81,797 million."}
    hub.write_text(json.dumps({"examples": [example]}))
    assert finsec(table).questions[0] == Question(
        "What were net sales?", ("$81,797 million.",), "Single-Doc Single-Chunk RAG"
    )
    assert finsec(hub).questions[0].answers == ("$81,797 million.",)
    assert list(finsec(hub).documents) == ["Net sales were $81,797 million."]
    (tmp_path / "docs" / "2023 Q3 AAPL.txt").unlink()
    with pytest.raises(ValueError, match="extract the text"):
        finsec(table)


@pytest.mark.parametrize("lines", [True, False], ids=["jsonl", "one meeting"])
def test_qmsum(tmp_path: Path, lines: bool) -> None:
    meeting = {
        "topic_list": [{"topic": "Remote", "relevant_text_span": [["0", "1"]]}],
        "general_query_list": [{"query": "Summarize the whole meeting.", "answer": "A remote was designed."}],
        "specific_query_list": [
            {"query": "What did the Chair say?", "answer": "To begin.", "relevant_text_span": [["0", "0"], ["1", "1"]]}
        ],
        "meeting_transcripts": [{"speaker": "Chair", "content": "Let us begin."}, {"speaker": "A", "content": "Yes."}],
    }
    file = tmp_path / ("val.jsonl" if lines else "meeting.json")
    file.write_text(json.dumps(meeting) + "\n")
    data = qmsum(file)
    assert list(data.documents) == ["Chair: Let us begin.\nA: Yes."]
    assert data.questions == [Question("What did the Chair say?", ("To begin.",), "summary", 2)]


@pytest.mark.parametrize("load", [squad, musique, finsec, qmsum])
def test_other_formats_are_named(tmp_path: Path, load: object) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r"other\.json: expected .*; got KeyError"):
        load(file)  # type: ignore[operator]


# Calibration


SIMPLE, HARD = Profile(False, False, 1, (30, 30)), Profile(True, True, 2, (30, 30))


class Answers:
    """A bench whose chain knows the answer of a question in some configurations. ``asked``: pairs, in order."""

    most = MOST_CHUNKS

    def __init__(self, known: Callable[[str, Configuration], bool]) -> None:
        self.known, self.asked = known, list[tuple[str, Configuration]]()

    def profiler(self) -> Answers:
        return self

    async def estimate(self, text: str, **settings: object) -> Estimate:
        return Estimate(HARD if text.startswith("which") else SIMPLE, 0.5 if "unsure" in text else 0.99, 0.0)

    def configured(self, configuration: Configuration) -> RunnableLambda[str, str]:
        async def answer(text: str) -> str:
            self.asked.append((text, configuration))
            return "yes" if self.known(text, configuration) else "no"

        return RunnableLambda(answer)


def test_calibration_asks_each_question_once_in_each_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chunks know the simple questions, four or more those of two pieces; summaries and single chunks know none."""

    def known(text: str, configuration: Configuration) -> bool:
        return configuration.synthesis == "stuff" and configuration.num_chunks >= (4 if text.startswith("which") else 2)

    bench = Answers(known)
    monkeypatch.setattr(calibration, "adaptive", lambda bench, settings: bench)
    asked = [question(f"{word}{i}", "yes") for i in range(4) for word in ("when", "which")]
    found = asyncio.run(calibrated(bench, asked))
    assert len(bench.asked) == len(set(bench.asked))
    assert {each for each, f1 in found.fixed.items() if f1 == 1.0} == {
        each for each in grid() if each.synthesis == "stuff" and each.num_chunks >= 4
    }
    assert found.best == Configuration(4)
    assert found.by_complexity == {"low": Configuration(2), "high": Configuration(4)}
    assert found.tuned == Tuned(("stuff",), 0.5)  # 2 and 4 chunks
    assert found.settings[found.tuned] == 1.0


def test_calibration_takes_the_cheapest_settings_of_the_best_f1() -> None:
    good = {Tuned(("stuff",), 0.0): 0.5, Tuned(("map_rerank", "stuff"), 0.5): 0.895, Tuned(SYNTHESES, 1.0): 0.9}
    assert cheapest({each: good.get(each, 0.2) for each in TUNED}) == Tuned(("map_rerank", "stuff"), 0.5)


def test_calibration_chooses_as_adaptive_does() -> None:
    """With all memory free; a profile that is not used leads to the fallback."""
    assert choice(SIMPLE, Tuned()) == Configuration(3, "map_rerank")
    assert choice(SIMPLE, Tuned(("stuff",), 1.0)) == Configuration(3)
    assert choice(HARD, Tuned()).synthesis == "map_reduce"
    assert choice(None, Tuned(("stuff",), 0.5)) == Configuration(6)


@pytest.mark.parametrize("given", [["--rate", "0"], ["--load", "-1"], ["--rate", "1", "--load", "1"]])
def test_paces_that_are_none_are_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"--(rate|load)"):
        main(given)


# Measuring


def test_each_system_gets_the_same_questions_at_the_same_moments() -> None:
    asked = [question(f"q{i}", f"a{i}") for i in range(10)]
    begun: dict[str, list[tuple[str, float]]] = {"slow": [], "quick": []}
    resets: list[int] = []

    def system(name: str, seconds: float) -> object:
        async def ask(text: str) -> Reply:
            begun[name].append((text, asyncio.get_running_loop().time()))
            await asyncio.sleep(seconds)
            return Reply(text.replace("q", "a") if name == "quick" else "wrong")

        return ask

    async def run() -> dict[str, Measured]:
        asks = {"slow": system("slow", 2.0), "quick": system("quick", 0.5)}
        return await measure(asks, asked, rate=1.0, rounds=2, seed=5, reset=lambda: resets.append(1))  # type: ignore[arg-type]

    found = virtual.run(run()).value
    for name, seconds in (("slow", 2.0), ("quick", 0.5)):
        one = found[name]
        assert one.delays == pytest.approx([seconds] * 10)  # open loop: a slow answer delays no later question
        assert [each.text for each in one.questions] == [each.text for each in asked[0::2] + asked[1::2]]
    assert found["quick"].mean_f1 == 1.0 and found["slow"].mean_f1 == 0.0
    assert found["quick"].as_dict()["exact"] == 1.0
    assert len(resets) == 4  # before each part

    def gaps(name: str) -> list[float]:
        moments = [moment for _, moment in begun[name]]
        return [b - a for part in (moments[:5], moments[5:]) for a, b in itertools.pairwise(part)]

    assert gaps("slow") == pytest.approx(gaps("quick"))
    assert len(set(gaps("slow"))) == 8  # at random


def test_what_calls_wait_for_profiles_is_told_apart_by_the_search() -> None:
    """Of three calls of two seconds, two searched longer than they were profiled."""

    def reply(searched: float, profiled: float, waited: float) -> Reply:
        made = Decision("?", Configuration(1), FALLBACK, "profile", "", searched=searched, profiled=profiled)
        made.waited = waited
        return Reply("", made)

    replies = [reply(0.5, 0.3, 0.0), reply(0.5, 0.4, 0.04), reply(0.1, 0.5, 0.4)]
    one = Measured("mine", [question(str(i)) for i in range(3)], replies, [2.0] * 3, [0.0] * 3, [1.0] * 3)
    found = one.profiler()
    assert found["share"] == pytest.approx(1.2 / 6)
    assert found["critical_share"] == pytest.approx(0.44 / 6)
    assert found["hidden"] == pytest.approx(2 / 3)
    assert found["hidden_share"] == pytest.approx(0.04 / 4)


# Verdicts


def measured(name: str, f1: float, delay: float, number: int = 40) -> Measured:
    asked = [question(f"q{i}") for i in range(number)]
    right = [1.0 if i < f1 * number else 0.0 for i in range(number)]
    return Measured(name, asked, [Reply("")] * number, [delay] * number, [0.0] * number, right)


def test_the_verdict_compares_with_the_quickest_that_is_as_good() -> None:
    fixed = [measured("fast", 0.5, 0.1), measured("good", 0.8, 0.3), measured("best", 0.9, 0.8)]
    verdict = judge(measured("mine", 0.8, 0.2), fixed)
    assert verdict.equal_or_better == ("good", "best")
    assert (verdict.against, verdict.quicker) == ("good", True)
    assert verdict.ratio == pytest.approx(1.5)
    assert verdict.similar == "fast" and verdict.as_good
    assert "1.50 times as fast as good" in str(verdict)


def test_the_verdict_says_if_another_is_better() -> None:
    verdict = judge(measured("mine", 0.5, 0.3), [measured("quick", 0.9, 0.1), measured("slow", 0.5, 0.9)])
    assert not verdict.quicker and not verdict.as_good
    assert (verdict.against, verdict.similar) == ("quick", "quick")


def test_without_an_equal_one_the_best_counts() -> None:
    verdict = judge(measured("mine", 0.9, 0.3), [measured("a", 0.5, 0.1), measured("b", 0.8, 0.6)])
    assert (verdict.equal_or_better, verdict.against) == ((), "b")
    assert verdict.ratio == pytest.approx(2.0)
    assert "none has an equal or better F1" in str(verdict)


def test_the_frontier_leaves_out_what_another_one_beats() -> None:
    points = {"a": (0.1, 0.5), "b": (0.2, 0.4), "c": (0.3, 0.8), "d": (0.3, 0.7), "e": (0.9, 0.8)}
    assert frontier(points) == ["a", "c"]


# The chart


def test_the_chart_of_the_documentation_shows_the_kept_figures() -> None:
    figures = json.loads((ROOT / "benchmarks/notebooks/adaptive_quality.json").read_text(encoding="utf-8"))
    for palette in PALETTES:
        shown = (ROOT / f"docs/images/quality-{palette.name}.svg").read_text(encoding="utf-8")
        assert shown == quality_chart(figures, palette), "draw it again: make pictures"
    for name in ("stuff 4", "adaptive", "by complexity"):
        assert f">{name}</text>" in shown


def test_the_charts_of_the_emulated_comparison_show_the_kept_figures() -> None:
    datasets = json.loads((ROOT / "benchmarks/notebooks/adaptive.json").read_text(encoding="utf-8"))["datasets"]
    said = (ROOT / "docs/adaptive.md").read_text(encoding="utf-8")
    for palette in PALETTES:
        for name, draw in (("frontier", frontier_chart), ("ablation", ablation_chart)):
            shown = (ROOT / f"docs/images/adaptive-{name}-{palette.name}.svg").read_text(encoding="utf-8")
            assert shown == draw(datasets, palette), "draw it again: make pictures"
    for name, found in datasets.items():
        for side, shown in ((OURS, "1"), (MIDDLE, "0.5")):
            start, judged = f"| {name}, {found['rate']:g} | {shown} |", found["judged"][side]
            row = next(line for line in said.splitlines() if line.startswith(start))
            assert f"| {judged['ratio']:.2f} |" in row
            assert f"{judged['rates'][1] / found['rate']:.2f} times" in row


@pytest.mark.parametrize("name", [str(each) for each in grid()])
def test_each_fixed_configuration_has_a_short_name(name: str) -> None:
    assert re.fullmatch(r"(stuff|rerank) \d+|reduce \d+/\d+", label(name))


def test_longer_chunks_hold_several_paragraphs() -> None:
    data, count = bundled(4), AutoTokenizer.from_pretrained(default_model())
    short, long = chunked(data), chunked(data, 300)
    means = [fmean(len(count(text)["input_ids"]) for text in each) for each in (short, long)]
    assert 4 * means[0] <= means[1] <= 300
    assert " ".join(long).split() == " ".join(short).split()


def test_no_more_chunks_than_fit_are_chosen() -> None:
    assert max(each.num_chunks for each in grid(3) if each.synthesis == "stuff") == 3
    assert choice(HARD, Tuned(("stuff",), 1.0), 3).num_chunks == 3


@pytest.mark.engine
def test_the_benchmark_runs_on_the_bundled_model(tmp_path: Path) -> None:
    """The order of quality is that of the model; bounds on time are the benchmark's to report."""
    file = tmp_path / "figures.json"
    main(["--each", "2", "--calibration", "1", "--distill", "4", "--runs", "1", "--json", str(file)])
    figures = json.loads(file.read_text())
    assert figures["profiles"]["values"]["none"] == 0
    assert figures["profiles"]["values"]["work_s"] < figures["profiles"]["whole"]["work_s"]
    found = figures["systems"]
    assert len(found) == len(grid()) + 4
    one, four = (found[f"stuff, {number} chunk{'s' * (number > 1)}"]["f1_by_kind"] for number in (1, 4))
    assert one["single-hop"] == four["single-hop"] == 1.0
    assert four["list"] > one["list"]
    assert found["adaptive"]["profiler"]["share"] > 0
    assert found["adaptive, distilled"]["profiler"]["share"] < found["adaptive, calibrated"]["profiler"]["share"]


def test_the_corpus_of_the_demo_is_what_the_generator_makes() -> None:
    corpus = make_corpus(seed=SEED, docs=ENTITIES, questions=60)
    kept = json.loads((default_model().parent / "corpus.json").read_text(encoding="utf-8"))
    assert kept["documents"] == [{key: each[key] for key in ("title", "text")} for each in corpus["documents"]]
    assert kept["questions"] == [{key: each[key] for key in ("question", "answer")} for each in corpus["questions"]]
