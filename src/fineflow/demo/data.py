"""Bundled data of the demo: a small chat model, and a corpus with questions.

The chat model has 4.6 million parameters. It was trained from scratch on a synthetic world of companies, towns, people
and bridges with made-up names, and knows nothing else. The corpus (``data/corpus.json``) uses names that it never
saw in training, so it has to read the passages. Its generator is ``benchmarks/adaptive_quality/world.py``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

_DATA = Path(__file__).parent / "data"

QUESTIONS = (
    "Who founded Grand Brook Airlines and what is its revenue?",
    "Which river flows through Nelbury and how many people live there?",
    "Who planned Dunwen Tower?",
)


@dataclass(frozen=True, slots=True)
class Question:
    """Question about the bundled corpus, and the answer from its facts."""

    text: str
    answer: str


def default_model() -> Path:
    """Returns the folder of the bundled chat model, in Hugging Face format. Run it in float32."""
    return _DATA / "tinylm"


def write_corpus(folder: Path) -> list[Question]:
    """Writes the bundled corpus, 78 short text and markdown files, into ``folder`` (created if missing).

    Returns questions about them with answers, those of ``QUESTIONS`` first.
    """
    corpus = json.loads((_DATA / "corpus.json").read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    for number, document in enumerate(corpus["documents"]):
        name = re.sub(r"[^a-z0-9]+", "-", document["title"].lower()).strip("-")[:60]
        if number % 2:
            (folder / f"{name}.md").write_text(f"# {document['title']}\n\n{document['text']}\n", encoding="utf-8")
        else:
            (folder / f"{name}.txt").write_text(f"{document['text']}\n", encoding="utf-8")
    answers = {question["question"]: question["answer"] for question in corpus["questions"]}
    first = [*QUESTIONS, *(text for text in answers if text not in QUESTIONS)]
    return [Question(text, answers[text]) for text in first]
