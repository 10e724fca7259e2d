"""Loaders of public question-answering sets from files that the user has, in their published formats.

Each takes the path of a file and returns a ``Dataset``. Each raises ValueError, naming the file, if it has another
format. Nothing is downloaded.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.adaptive_quality.datasets import UNANSWERABLE, UNKNOWN, Dataset, Question

_TEXTS = (".txt", ".md")


def squad(path: Path) -> Dataset:
    """Loads SQuAD 1.1 or 2.0: one JSON object, ``data`` → ``paragraphs`` → ``context`` and ``qas``."""
    documents, questions = [], []
    with _format(path, "SQuAD: a JSON object with data, paragraphs, qas"):
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                documents.append(paragraph["context"])
                for one in paragraph["qas"]:
                    gold = tuple(dict.fromkeys(answer["text"] for answer in one["answers"]))
                    kind = UNANSWERABLE if one.get("is_impossible") else "single-hop"
                    questions.append(Question(one["question"], gold or (UNKNOWN,), kind, 1))
    return Dataset("squad", "Paragraphs of Wikipedia articles", documents, questions)


def musique(path: Path) -> Dataset:
    """Loads MuSiQue (``ans`` or ``full``): JSON lines with ``paragraphs``, ``question``, ``answer``."""
    documents: dict[str, None] = {}  # questions share paragraphs
    questions = []
    with _format(path, "MuSiQue: JSON lines with paragraphs, question, answer"):
        for one in _lines(path):
            documents |= dict.fromkeys(f"{each['title']}\n{each['paragraph_text']}" for each in one["paragraphs"])
            hops = len(one["question_decomposition"])
            if one.get("answerable", True):
                gold = (one["answer"], *one.get("answer_aliases", ()))
                questions.append(Question(one["question"], gold, f"{hops} hops", hops))
            else:
                questions.append(Question(one["question"], (UNKNOWN,), UNANSWERABLE, hops))
    return Dataset("musique", "Paragraphs of Wikipedia articles", list(documents), questions)


def finsec(path: Path) -> Dataset:
    """Loads Docugami's KG-RAG set of SEC filings: its table of questions, or LlamaHub's ``rag_dataset.json``.

    The filings are read from text files (.txt, .md) below the file's folder: the set has PDFs, of which you have to
    extract the text first.
    """
    read = _llama_dataset if path.suffix == ".json" else _questions_and_answers
    with _format(path, "KG-RAG: a CSV file with Question, Question Type, Answer, or LlamaHub's JSON with examples"):
        questions = list(read(path))
    documents = [file.read_text(encoding="utf-8") for file in sorted(path.parent.rglob("*")) if file.suffix in _TEXTS]
    if not documents:
        raise ValueError(f"{path.parent}: no .txt or .md files; extract the text of the filings into some, next to it")
    return Dataset("finsec", "Quarterly financial reports of large companies", documents, questions)


def _questions_and_answers(path: Path) -> Iterator[Question]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield Question(row["Question"], (_without_sources(row["Answer"]),), row["Question Type"])


def _llama_dataset(path: Path) -> Iterator[Question]:
    for row in json.loads(path.read_text(encoding="utf-8"))["examples"]:
        yield Question(row["query"], (_without_sources(row["reference_answer"]),), "document level")


def _without_sources(answer: str) -> str:
    """Returns an answer without its list of files at the end, which no question asks for."""
    kept = [line for line in answer.splitlines() if not line.strip().startswith("SOURCE(S):")]
    return "\n".join(kept).strip()


def qmsum(path: Path) -> Dataset:
    """Loads QMSum: one meeting as JSON, or one in each line, with transcripts, general and specific queries.

    Each meeting is one document. The questions are the specific queries: the general ones ("Summarize the whole
    meeting") do not say which meeting they mean.
    """
    documents, questions = [], []
    with _format(path, "QMSum: meetings with meeting_transcripts, general_query_list and specific_query_list"):
        for meeting in _lines(path) if path.suffix == ".jsonl" else [json.loads(path.read_text(encoding="utf-8"))]:
            documents.append(
                "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"])
            )
            for one in meeting["specific_query_list"]:
                questions.append(Question(one["query"], (one["answer"],), "summary", len(one["relevant_text_span"])))
    return Dataset("qmsum", "Transcripts of meetings", documents, questions)


LOADERS: Mapping[str, Callable[[Path], Dataset]] = {
    "squad": squad,
    "musique": musique,
    "finsec": finsec,
    "qmsum": qmsum,
}


def _lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


class _format:
    """Turns what reading another format raises into an error that says what was expected."""

    def __init__(self, path: Path, expected: str) -> None:
        self._path, self._expected = path, expected

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KeyError | TypeError | json.JSONDecodeError | UnicodeDecodeError):
            raise ValueError(f"{self._path}: expected {self._expected}; got {type(error).__name__}: {error}") from error
