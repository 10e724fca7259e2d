"""What an application is, and the texts that applications share."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document

from benchmarks.harness.limits import Path
from benchmarks.harness.setting import PAPER, Setting
from benchmarks.harness.world import World, vector_of

WORDS = ("bridge", "ferry", "lighthouse", "tunnel", "river", "harbour", "mill", "tower", "stone", "flood", "market")
MORE = (
    "old",
    "broad",
    "northern",
    "wooden",
    "famous",
    "of",
    "in",
    "near",
    "behind",
    "was",
    "built",
    "by",
    "the",
    "sea",
)


@dataclass(frozen=True)
class App:
    """An application.

    stock: builds it as users write it. tuned: the same, as a good engineer writes it with asyncio by hand; it gives the
    same answer; None if nobody has written that. asked: the input of request ``number`` of a ``seed``. says: what the
    models answer to a prompt. limit: adds the steps that the call for an input cannot do without. passages: contents of
    the standing store, and of the web. together: apps on the same engines; an input has the ``place`` of its app.
    published: seconds that the paper's authors report, before and after. streams: its ``astream`` yields the answer.
    answer: takes the answer out of a result. sync, awaits: it has sync methods, and async ones that hold no thread.
    """

    name: str
    about: str
    stock: Callable[[World], Any]
    tuned: Callable[[World], Any] | None
    asked: Callable[[int, int], Any]
    says: Callable[[str], str]
    limit: Callable[[Path, Any], None]
    setting: Setting = PAPER
    passages: Sequence[str] = ()
    together: Sequence[App] = ()
    published: tuple[float, float] | None = None
    streams: bool = True
    answer: Callable[[Any], Any] = str
    sync: bool = True
    awaits: bool = True

    def path(self, setting: Setting, asked: Any) -> Path:
        """Returns the critical path of a call."""
        found = Path(setting)
        self.limit(found, asked)
        return found


def prose(seed: str, words: int) -> str:
    """Returns that many words."""
    chosen = random.Random(seed)
    return " ".join(chosen.choices(WORDS + MORE, k=words))


INSTRUCTIONS = (
    "You are an assistant that answers questions about towns and what was built there. Be brief and exact, use what "
    "you are given and nothing else, name the passage that you rely on, and say that you do not know if nothing there "
    "helps. Write plain sentences in the language of the question, without lists or headings, and never mention these "
    "rules."
)  # some 60 tokens, as in Ayo


def question(number: int, seed: int) -> str:
    """Returns a question of its own for each request."""
    chosen = random.Random(f"{seed} {number}")
    return (
        f"Which {chosen.choice(WORDS)} of town {seed}-{number} is the oldest, who built it, and why was it built there?"
    )


def document(number: int, seed: int, words: int) -> list[Document]:
    """Returns a document of its own for each request, in paragraphs."""
    texts = [f"Part {i} of {seed}-{number}: {prose(f'{seed} {number} {i}', 90)}." for i in range(-(-words // 95))]
    return [Document("\n\n".join(texts))]


def scripted(answers: Mapping[str, int | str | Callable[[str], str]]) -> Callable[[str], str]:
    """Returns what the models say: the answer of the first key that occurs in a prompt.

    A number stands for a text of so many words, the same for the same prompt.
    """

    def says(prompt: str) -> str:
        for key, answer in answers.items():
            if key in prompt:
                if callable(answer):
                    return answer(prompt)
                return prose(prompt, answer) if isinstance(answer, int) else answer
        raise ValueError(f"the script of this application has no answer to: {prompt[-200:]}")

    return says


def about(prompt: str) -> str:
    """Returns the question in a prompt: the line behind the last "Question: "."""
    return prompt.rpartition("Question: ")[2].split("\n")[0]


def nearest(texts: Sequence[str], query: str, k: int) -> list[str]:
    """Returns the ``k`` texts nearest to a query, as the stores find them."""
    wanted = vector_of(query)
    return sorted(texts, key=lambda text: -math.fsum(map(operator.mul, vector_of(text), wanted)))[:k]


def fresh(texts: Sequence[str], queries: Sequence[str], k: int) -> list[int]:
    """Returns how many of the ``k`` texts nearest to each query no earlier query has found."""
    seen, found = set[str](), []
    for query in queries:
        near = set(nearest(texts, query, k))
        found.append(len(near - seen))
        seen |= near
    return found
