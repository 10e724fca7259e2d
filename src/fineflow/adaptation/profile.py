"""Profile of a query: four dimensions that a chat model estimates (RAGServe, section 4.1 and appendix)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from fineflow.errors import shown
from fineflow.runtime.first_json import first_object

MOST_PIECES = 6
SHORTEST, LONGEST = 30, 200  # words of a summary

PROMPT = """\
Classify the question by its language and structure. Answer with JSON only: complexity (low or high), joint_reasoning \
(true or false: does it need joint reasoning across multiple documents), pieces (how many pieces of information are \
needed to answer it, 1 to 6) and summary_words (the fewest and the most words that the summary of a document should \
have, a list of two numbers, 30 to 200).
{about}{feedback}
Question: {question}"""
"""Prompt of the profiler. Fields: question; about: lines on the corpus and its chunks; feedback: earlier examples."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Estimated dimensions of a query.

    complex: the query needs deep reasoning, as "why" does. joint: its pieces of information have to be read together.
    pieces: distinct pieces of information, 1 to 6. summary: range of words of a chunk's summary, within 30 to 200.
    """

    complex: bool
    joint: bool
    pieces: int
    summary: tuple[int, int]

    def __str__(self) -> str:
        complexity, joint = "high" if self.complex else "low", "yes" if self.joint else "no"
        low, high = self.summary
        words = f"{low}" if low == high else f"{low} to {high}"
        return f"complexity {complexity}, joint reasoning {joint}, pieces {self.pieces}, summaries of {words} words"

    def as_json(self) -> str:
        """Returns the profile in the form that the prompt asks for."""
        complexity = "high" if self.complex else "low"
        return json.dumps(
            {
                "complexity": complexity,
                "joint_reasoning": self.joint,
                "pieces": self.pieces,
                "summary_words": list(self.summary),
            }
        )


def asked(question: str, corpus: str, chunk_size: int | None, feedback: str = "", prompt: str = PROMPT) -> str:
    """Returns the prompt for a question. corpus: one line on the content; chunk_size: tokens of a chunk."""
    about = f"database_metadata = {corpus}\n" if corpus else ""
    about += f"chunk_size = {chunk_size}\n" if chunk_size else ""
    values = {"question": question, "about": about, "feedback": feedback}
    return re.sub(r"\{(question|about|feedback)\}", lambda found: values[found[1]], prompt)


def profile_in(text: str) -> Profile:
    """Returns the profile that a model has written: the first JSON object of the text.

    A number of pieces or words outside its range is moved to the end of the range. ``summary_words`` may be a list of
    two numbers, a text such as "40-90", or one number, which stands for a range that ends there and begins at its half.

    Raises ValueError if there is no such object, or a dimension is missing or is of another kind.
    """
    try:
        found = first_object(text)
        complex_ = {"high": True, "low": False}[str(found["complexity"]).strip().lower()]
        joint = {"true": True, "yes": True, "false": False, "no": False}[str(found["joint_reasoning"]).strip().lower()]
        pieces, words = found["pieces"], _words(found.get("summary_words"))
        if isinstance(pieces, bool) or not isinstance(pieces, int | str):
            raise ValueError(f"pieces is {pieces!r}")
        return Profile(complex_, joint, min(max(int(pieces), 1), MOST_PIECES), words)
    except (KeyError, ValueError) as error:
        raise ValueError(
            'expected JSON with "complexity" (high or low), "joint_reasoning", "pieces" and "summary_words"; '
            f"got {shown(text)} ({error})"
        ) from error


def _words(value: Any) -> tuple[int, int]:
    """Returns the range of words; the shortest one if no summary is needed.

    One number, or two that are outside the same end of what is possible, become a range from a half to the whole, of at
    least ``SHORTEST`` words: the scheduler chooses from it (Algorithm 1, line 9).
    """
    if value is None or isinstance(value, bool):
        value = SHORTEST
    numbers = [int(number) for number in re.findall(r"\d+", str(value))[:2]]
    if not numbers:
        raise ValueError(f"summary_words is {value!r}")
    low, high = (min(max(number, SHORTEST), LONGEST) for number in (min(numbers), max(numbers)))
    return (low, high) if low < high else (max(low // 2, SHORTEST), max(high, 2 * SHORTEST))
