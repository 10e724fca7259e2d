"""Documents with questions and gold answers: the bundled synthetic corpus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.adaptive_quality.world import make_corpus

SINGLE, LIST, COMPARISON, UNANSWERABLE = "single-hop", "list", "comparison", "unanswerable"
KINDS = (SINGLE, LIST, COMPARISON, UNANSWERABLE)
UNKNOWN = "unknown"  # gold answer where the documents do not hold it
SEED = 7  # of the corpus that the demo has
ENTITIES = 120  # companies, towns, people and bridges described by a corpus
_DRAWN = 1200  # questions that are drawn to have enough of each kind
_OTHER_WORLD = 1000  # seeds of corpora whose entities the bundled one does not mention


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its gold answers, any of which is right. pieces: of information that it needs; 0 if unknown."""

    text: str
    answers: tuple[str, ...]
    kind: str
    pieces: int = 0


@dataclass(frozen=True, slots=True)
class Dataset:
    """Documents and questions about them. about: one line on the content, for the profiler."""

    name: str
    about: str
    documents: Sequence[str]
    questions: Sequence[Question]


def bundled(each: int) -> Dataset:
    """Returns the corpus of the demo, with ``each`` questions of each kind, the same every time.

    Lists and comparisons need 2, 3 and 4 pieces of information in turns. Unanswerable questions ask for entities that
    no document mentions; many have names like those that are mentioned.

    Raises ValueError if there are fewer of a kind.
    """
    corpus = make_corpus(seed=SEED, docs=ENTITIES, questions=_DRAWN)
    documents = [each["text"] for each in corpus["documents"]]
    found: dict[tuple[str, int], list[Question]] = defaultdict(list)
    kinds = {"single": SINGLE, "list": LIST, "compare": COMPARISON}
    for one in corpus["questions"]:
        if kind := kinds.get(one["type"]):
            question = Question(one["question"], (one["answer"],), kind, one["pieces"])
            found[kind, one["pieces"]].append(question)
    chosen = [
        *_first(found[SINGLE, 1], each),
        *(one for kind in (LIST, COMPARISON) for one in _in_turns([found[kind, n] for n in (2, 3, 4)], each)),
        *_first(_unanswerable("\n".join(documents), each), each),
    ]
    about = "Short texts about companies, towns, people and bridges"
    return Dataset("bundled", about, documents, _in_turns([_of(chosen, kind) for kind in KINDS], len(chosen)))


def _unanswerable(text: str, number: int) -> list[Question]:
    found: list[Question] = []
    seed = _OTHER_WORLD
    while len(found) < number:
        for one in make_corpus(seed=seed, docs=ENTITIES, questions=60)["questions"]:
            if one["type"] == "single" and one["entities"][0] not in text:
                found.append(Question(one["question"], (UNKNOWN,), UNANSWERABLE, 1))
        seed += 1
    return found


def _of(questions: Sequence[Question], kind: str) -> list[Question]:
    return [question for question in questions if question.kind == kind]


def _first(questions: Sequence[Question], number: int) -> list[Question]:
    if len(questions) < number:
        raise ValueError(f"expected {number} questions of a kind, the corpus has {len(questions)}; ask for fewer")
    return list(questions[:number])


def _in_turns(groups: Sequence[Sequence[Question]], number: int) -> list[Question]:
    """Returns the first of each group, then the second of each, up to a number."""
    most = max(map(len, groups))
    return _first([group[i] for i in range(most) for group in groups if i < len(group)], number)
