"""A profiler that asks no model: a ridge regression on the question's vector, trained on what an LLM profiler says.

A profile costs a request to a model (RAGServe, section 4.1), which pays only where the answer costs much more. What the
model says of a question can largely be told from its embedding, which the search needs, too.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
import zipfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fineflow.adaptation.profile import LONGEST, MOST_PIECES, SHORTEST, Profile
from fineflow.adaptation.profiler import Estimate, Profiler, awaitable
from fineflow.adaptation.ridge import Matrix, fitted
from fineflow.errors import FineflowWarning
from fineflow.runtime.events import now
from fineflow.runtime.loop.workers import in_thread

KEPT = 1024  # examples, the last ones: fitting takes their cube
LEAST = 10  # examples that it needs
PROBE = "What is this question about?"  # whose vector tells one embedding model from another
_AT_ONCE = 8  # questions in training
_SAME = 0.999  # cosine from which two vectors are of one text


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares, of 1, of the examples left out in turn for which the regression says what the model said.

    examples: that it was trained on. skipped: questions whose profile could not be used. near: pieces within one.
    """

    examples: int
    skipped: int
    complexity: float
    joint: float
    pieces: float
    near: float

    def __str__(self) -> str:
        return (
            f"{self.examples} questions ({self.skipped} without a usable profile); of those left out in turn, the same "
            f"complexity {self.complexity:.0%}, joint reasoning {self.joint:.0%}, pieces {self.pieces:.0%} (within "
            f"one {self.near:.0%})"
        )


class DistilledProfiler:
    """Estimates profiles from the vectors of questions. Made by ``train`` or ``load``; usable from any thread and loop.

    With a teacher it goes on learning: every 30th query of the adaptive object is profiled by the teacher in the
    background. The last 1,024 examples count.
    """

    def __init__(
        self, embed: Callable[[str], Awaitable[Sequence[float]]], probe: Matrix, teacher: Profiler | None
    ) -> None:
        self._embed, self._probe, self._teacher = embed, probe, teacher
        self._lock = threading.Lock()
        self._checked = False

    @property
    def learns(self) -> bool:
        """True if there is a teacher, who profiles some queries in the background."""
        return self._teacher is not None

    @property
    def agreement(self) -> Agreement:
        """Agreement with the model that it was trained on."""
        return self._agreement

    @classmethod
    async def train(
        cls, teacher: Any, embedding: Any, questions: Sequence[str], *, confidence: float = 0.9
    ) -> DistilledProfiler:
        """Returns a profiler that says what ``teacher`` says of the questions.

        teacher: a ``Profiler``, or a model for one. embedding: of the retriever (LangChain: ``Embeddings``, LlamaIndex:
        ``BaseEmbedding``), or a function of a text, sync or async, that returns a vector. questions: like those that
        users ask. confidence: what the teacher is less sure of is not learned.

        Raises ValueError if fewer than 10 questions have a usable profile; what teacher and embedding raise.
        """
        asked = list(dict.fromkeys(each.strip() for each in questions if each.strip()))
        if len(asked) < LEAST:
            raise ValueError(
                f"expected at least {LEAST} different calibration questions, got {len(asked)}; some dozens of the "
                "questions that your users ask are a good beginning"
            )
        asking = teacher if isinstance(teacher, Profiler) else Profiler(teacher)
        embed, room, wrong = _embedding(embedding), asyncio.Semaphore(_AT_ONCE), list[str]()

        async def one(question: str) -> tuple[Sequence[float], Profile] | None:
            async with room:
                try:
                    found = await asking.estimate(question)
                except ValueError as error:  # the model wrote no profile
                    wrong.append(str(error))
                    return None
                if not _sure(found, confidence):
                    wrong.append(f"a confidence of {found.confidence:.2f}")
                    return None
                return await embed(question), found.profile

        pairs = [each for each in await asyncio.gather(*map(one, asked)) if each is not None]
        if len(pairs) < LEAST:
            raise ValueError(
                f"{len(pairs)} of {len(asked)} calibration questions have a profile that can be used; at least {LEAST} "
                f"are needed. The first of the others: {wrong[0]}"
            )
        made = cls(embed, _unit(await embed(PROBE)), asking)
        vectors, targets = np.stack([_unit(each) for each, _ in pairs]), np.stack([_numbers(each) for _, each in pairs])
        made._take(vectors, targets, len(wrong))
        return made

    @classmethod
    def load(cls, file: str | PathLike[str], embedding: Any, *, teacher: Any = None) -> DistilledProfiler:
        """Returns the profiler that ``save`` has written. embedding, teacher: as of ``train``; without a teacher it
        learns nothing more.

        Raises FileNotFoundError if there is no such file; ValueError for another file.
        """
        path = Path(file)
        if not path.exists():
            raise FileNotFoundError(f"no trained profiler in {path}; make one: fineflow distill MODULE:NAME --out FILE")
        try:
            with np.load(path, allow_pickle=False) as found:
                probe, vectors, targets = (np.asarray(found[name], float) for name in ("probe", "vectors", "targets"))
                skipped = int(found["skipped"])
            if vectors.shape != (len(targets), len(probe)) or len(targets) < LEAST:
                raise ValueError(f"{vectors.shape} vectors and {targets.shape} targets")
        except (EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is no trained profiler ({error}); write it again: fineflow distill") from error
        asking = teacher if teacher is None or isinstance(teacher, Profiler) else Profiler(teacher)
        made = cls(_embedding(embedding), probe, asking)
        made._take(vectors, targets, skipped)
        return made

    def save(self, file: str | PathLike[str]) -> None:
        """Writes what it has learned: vectors and profiles of its examples, and no text. Raises OSError."""
        with self._lock:
            vectors, targets, skipped = self._vectors, self._targets, self._agreement.skipped
        arrays = [each.astype(np.float32) for each in (self._probe, vectors, targets)]
        with Path(file).open("wb") as out:
            np.savez_compressed(out, probe=arrays[0], vectors=arrays[1], targets=arrays[2], skipped=np.asarray(skipped))

    async def estimate(
        self, question: str, feedback: str = "", *, keep: bool = True, summaries: bool = True
    ) -> Estimate:
        """Returns the profile of a question, which takes as long as its embedding. keep: False asks the teacher, and
        learns from what it says. feedback: for the teacher's prompt.

        Raises ValueError if the embedding is not that of the training; what the embedding, or the teacher, raises.
        """
        if not keep:
            return await self._taught(question, feedback)
        began = now()
        embedding = [self._embed(question)] if self._checked else [self._embed(question), self._embed(PROBE)]
        vector, *probe = await asyncio.gather(*embedding)
        if probe or len(vector) != len(self._probe):
            self._check(probe[0] if probe else vector)
        return Estimate(_profile(self._ridge.predict(_unit(vector))), None, now() - began)

    async def _taught(self, question: str, feedback: str) -> Estimate:
        if self._teacher is None:
            raise ValueError("this profiler has no teacher to learn from")
        found = await self._teacher.estimate(question, feedback, keep=False)
        if _sure(found):
            vector = _unit(await self._embed(question))
            self._check(vector, same_text=False)
            await in_thread(lambda: self._add(vector, _numbers(found.profile)))
        return found

    def _check(self, vector: Sequence[float] | Matrix, *, same_text: bool = True) -> None:
        """Raises ValueError, with one warning, if a vector is not of the model that the profiler was trained with."""
        wrong = ""
        if len(vector) != len(self._probe):
            wrong = f"vectors of {len(vector)} numbers, and it was trained on vectors of {len(self._probe)}"
        elif same_text and float(_unit(vector) @ _unit(self._probe)) < _SAME:
            wrong = "other vectors than in training"
        if wrong:
            text = f"the distilled profiler gets {wrong}; train it with this embedding: fineflow distill"
            warnings.warn(text, FineflowWarning, stacklevel=2)
            raise ValueError(text)
        self._checked = self._checked or same_text

    def _add(self, vector: Matrix, target: Matrix) -> None:
        """Adds an example, in the place of one of the same question, and fits again. In a thread."""
        with self._lock:
            others = self._vectors @ vector < _SAME
            vectors, targets = self._vectors[others][1 - KEPT :], self._targets[others][1 - KEPT :]
            self._fit(np.vstack([vectors, vector]), np.vstack([targets, target]), self._agreement.skipped)

    def _take(self, vectors: Matrix, targets: Matrix, skipped: int) -> None:
        with self._lock:
            self._fit(vectors[-KEPT:], targets[-KEPT:], skipped)

    def _fit(self, vectors: Matrix, targets: Matrix, skipped: int) -> None:
        ridge, left_out = fitted(vectors, targets)
        said, meant = ([_profile(row) for row in rows] for rows in (left_out, targets))
        self._vectors, self._targets, self._ridge = vectors, targets, ridge

        def share(same: Callable[[Profile, Profile], bool]) -> float:
            return sum(map(same, said, meant)) / len(said)

        self._agreement = Agreement(
            len(said),
            skipped,
            complexity=share(lambda a, b: a.complex == b.complex),
            joint=share(lambda a, b: a.joint == b.joint),
            pieces=share(lambda a, b: a.pieces == b.pieces),
            near=share(lambda a, b: abs(a.pieces - b.pieces) <= 1),
        )


def _embedding(embedding: Any) -> Callable[[str], Awaitable[Sequence[float]]]:
    for name in ("aembed_query", "aget_query_embedding"):  # LangChain, LlamaIndex
        if hasattr(embedding, name):
            found: Callable[[str], Awaitable[Sequence[float]]] = getattr(embedding, name)
            return found
    if not callable(embedding):
        raise TypeError(
            f"embedding is {type(embedding).__name__}; expected Embeddings of LangChain, a BaseEmbedding of LlamaIndex "
            "or a function of a text"
        )
    return awaitable(embedding)


def _sure(found: Estimate, confidence: float = 0.9) -> bool:
    return found.confidence is None or found.confidence >= confidence


def _unit(vector: Sequence[float] | Matrix) -> Matrix:
    """Returns a vector with the length 1; a vector of zeros as it is."""
    found = np.asarray(vector, dtype=float)
    length = float(np.linalg.norm(found))
    return found / length if length else found


def _numbers(profile: Profile) -> Matrix:
    return np.array([profile.complex, profile.joint, profile.pieces, *profile.summary], dtype=float)


def _profile(numbers: Matrix) -> Profile:
    """Returns the nearest profile to what was predicted."""
    complex_, joint, pieces, low, high = numbers.tolist()
    words = sorted(min(max(round(each), SHORTEST), LONGEST) for each in (low, high))
    return Profile(complex_ >= 0.5, joint >= 0.5, min(max(round(pieces), 1), MOST_PIECES), (words[0], words[1]))
