"""Profilers that a regression replaces: what they learn, how they are kept, and what they say of wrong input."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adaptive_kit import PROMPT, QUESTION, Model, Passages, chain_of, joined
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from sklearn.linear_model import Ridge as Reference

import fineflow
from fineflow.adaptation import Configuration, DistilledProfiler, Profile, Profiler
from fineflow.adaptation.api import distill
from fineflow.adaptation.feedback import EVERY
from fineflow.adaptation.ridge import PENALTIES, fitted
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.testing import virtual
from fineflow.testing.gates import Gate

WORDS = ("compare", "bridge", "firm", "town", "river", "which", "why")
ASKED = [
    text
    for i in range(6)
    for text in (
        f"which town has bridge {i}?",
        f"which river has bridge {i} and bridge {i + 1}?",
        f"why compare firm {i}, town {i} and river {i}?",
    )
]
"""Of one piece; of two, together; of three, complex."""


class Counting(Embeddings):
    """A vector counts some words. ``seconds``: what a vector takes; ``texts``: those that were embedded."""

    def __init__(self, words: tuple[str, ...] = WORDS, seconds: float = 0.0) -> None:
        self.words, self.seconds, self.texts = words, seconds, list[str]()

    def embed_query(self, text: str) -> list[float]:
        self.texts.append(text)
        return [1.0, *(float(text.lower().count(word)) for word in self.words)]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return list(map(self.embed_query, texts))

    async def aembed_query(self, text: str) -> list[float]:
        await asyncio.sleep(self.seconds)
        return self.embed_query(text)


class Teacher:
    """Says what a question needs by its words. ``prompts``: what it was asked."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.prompts = seconds, list[str]()

    async def __call__(self, prompt: str) -> str:
        await asyncio.sleep(self.seconds)
        self.prompts.append(prompt)
        question = prompt[prompt.rindex("Question: ") :].lower()
        if "compare" in question:
            found = {"complexity": "high", "joint_reasoning": True, "pieces": 3, "summary_words": [60, 120]}
        else:
            pieces = question.count("bridge")
            found = {"complexity": "low", "joint_reasoning": pieces > 1, "pieces": pieces, "summary_words": [30, 60]}
        return json.dumps(found)


def trained(teacher: Any = None, embedding: Any = None, questions: Any = ASKED) -> DistilledProfiler:
    return asyncio.run(DistilledProfiler.train(teacher or Teacher(), embedding or Counting(), questions))


def profile(profiler: DistilledProfiler, question: str) -> Profile:
    return asyncio.run(profiler.estimate(question)).profile


def searching(model: Model, embedding: Embeddings) -> Runnable[Any, Any]:
    """A chain whose retriever searches a vector store."""
    store = InMemoryVectorStore(embedding)
    store.add_documents([Document(f"Passage 0 of bridges, {i}.") for i in range(20)])
    context = store.as_retriever() | joined
    return {"context": context, "question": RunnablePassthrough()} | PROMPT | model.chat | StrOutputParser()


# The regression


def test_the_regression_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(3)
    vectors = random.normal(size=(30, 50))
    targets = vectors[:, :2] @ random.normal(size=(2, 3)) + 0.3 * random.normal(size=(30, 3)) + 5.0
    ridge, left_out = fitted(vectors, targets)
    for column in range(3):
        wanted = targets[:, column]
        errors, predictions = {}, {}
        for penalty in PENALTIES:
            model = Reference(alpha=penalty)
            others = [np.delete(np.arange(30), i) for i in range(30)]
            each = [model.fit(vectors[o], wanted[o]).predict(vectors[[i]])[0] for i, o in enumerate(others)]
            errors[penalty] = float(np.mean((wanted - each) ** 2))
            predictions[penalty] = each
        best = min(errors, key=errors.__getitem__)
        # The mean is that of all examples, which their own 1/n of the leverage accounts for: no approximation.
        assert left_out[:, column] == pytest.approx(predictions[best])
        reference = Reference(alpha=best).fit(vectors, wanted)
        assert ridge.predict(vectors)[:, column] == pytest.approx(reference.predict(vectors))


def test_it_says_what_the_teacher_says_of_questions_that_it_has_not_seen() -> None:
    profiler = trained()
    assert profile(profiler, "which town has bridge 99?") == Profile(False, False, 1, (30, 60))
    assert profile(profiler, "which river has bridge 77 and bridge 78?") == Profile(False, True, 2, (30, 60))
    hard = profile(profiler, "why compare firm 50, town 50 and river 50?")
    assert (hard.complex, hard.joint, hard.pieces) == (True, True, 3)
    assert hard.summary == (60, 120)
    found = profiler.agreement
    assert (found.examples, found.skipped, found.complexity, found.joint, found.pieces) == (18, 0, 1.0, 1.0, 1.0)
    assert str(found).startswith("18 questions (0 without a usable profile)")


def test_profiles_stay_within_their_ranges() -> None:
    profiler = trained()
    found = profile(profiler, "compare " * 60 + "bridge " * 60)
    assert 1 <= found.pieces <= 6 and 30 <= found.summary[0] <= found.summary[1] <= 200


def test_a_profile_takes_no_longer_than_the_search() -> None:
    embedding, teacher = Counting(seconds=0.1), Teacher()
    profiler = trained(teacher, embedding)
    asked = len(teacher.prompts)
    model = Model()
    chain = fineflow.adaptive(chain_of(model, seconds=0.15), profiler=profiler, feedback=False)
    virtual.run(chain.ainvoke("which river has bridge 7 and bridge 8?"))
    assert (chain.last.waited, chain.last.profiled) == (0.0, pytest.approx(0.1))
    assert chain.last.configuration == Configuration(6)
    assert chain.last.confidence is None
    assert len(teacher.prompts) == asked  # no model was asked


# Files


def test_a_saved_profiler_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "profiler.npz"
    made = trained()
    made.save(file)
    kept = DistilledProfiler.load(file, Counting())
    assert not kept.learns
    assert kept.agreement == made.agreement
    for question in ("which town has bridge 99?", "why compare firm 5, town 5 and river 5?"):
        assert profile(kept, question) == profile(made, question)
    assert b"bridge" not in file.read_bytes()  # no question is in it


def test_adaptive_reads_the_file_and_asks_the_chains_own_embedding(tmp_path: Path) -> None:
    file, embedding, model = tmp_path / "profiler.npz", Counting(), Model()
    trained(embedding=embedding).save(file)
    chain = fineflow.adaptive(searching(model, embedding), profiler="distilled", trained=file, feedback=False)
    assert chain.invoke("which river has bridge 7 and bridge 8?") == "saw 6 passages and 0 notes"
    assert chain.last.space_from == "profile"
    assert asyncio.run(chain.ainvoke("which town has bridge 3?")).startswith("saw 1 passages")


@pytest.mark.parametrize("text", [b"", b"no file of ours", json.dumps({"weights": []}).encode()])
def test_other_files_are_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "profiler.npz"
    with pytest.raises(FileNotFoundError, match="fineflow distill"):
        DistilledProfiler.load(file, Counting())
    file.write_bytes(text)
    with pytest.raises(ValueError, match="is no trained profiler"):
        DistilledProfiler.load(file, Counting())
    np.savez(file, vectors=np.zeros((12, 3)), targets=np.zeros((12, 5)), probe=np.zeros(4), skipped=0)
    with pytest.raises(ValueError, match="is no trained profiler"):
        DistilledProfiler.load(file, Counting())


# Wrong input


def test_too_few_questions_are_refused() -> None:
    for questions in ([], ["which town?"] * 50):
        with pytest.raises(ValueError, match="expected at least 10 different calibration questions"):
            trained(questions=questions)

    async def speechless(prompt: str) -> str:
        return "I would say it is simple"

    with pytest.raises(ValueError, match=r"0 of 18 calibration questions have a profile .* expected JSON"):
        trained(speechless)
    with pytest.raises(TypeError, match="embedding is int"):
        trained(embedding=3)


@pytest.mark.filterwarnings("ignore::fineflow.errors.FineflowWarning")
@pytest.mark.parametrize(
    ("other", "said"),
    [(Counting(WORDS[:3]), "vectors of 4 numbers.*trained on vectors of 8"), (Counting(WORDS[::-1]), "other vectors")],
)
def test_another_embedding_is_found_out(tmp_path: Path, other: Counting, said: str) -> None:
    file = tmp_path / "profiler.npz"
    other.words = tuple(word if len(other.words) < 7 else f"{word} " for word in other.words)
    trained(embedding=Counting((*WORDS[:-1], "question"))).save(file)
    profiler = DistilledProfiler.load(file, other)
    with pytest.warns(FineflowWarning, match=said):
        chain = fineflow.adaptive(chain_of(Model()), profiler=profiler, feedback=False)
        assert chain.invoke(QUESTION).startswith("saw 9")  # answered, in the space without a profile
    assert chain.statistics().problems == {"invalid": 1}
    assert "fineflow distill" in chain.last.problem


def test_a_retriever_that_does_not_tell_its_embedding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanningError, match="does not say which one"):
        fineflow.adaptive(chain_of(Model()), profiler="distilled", trained=tmp_path / "none.npz")
    with pytest.raises(PlanningError, match="does not say which one"):
        asyncio.run(distill(chain_of(Model()), ASKED))
    assert Passages().k  # it searches no vectors
    with pytest.raises(FileNotFoundError):
        fineflow.adaptive(searching(Model(), Counting()), profiler="distilled", trained=tmp_path / "none.npz")


# Learning


def test_every_thirtieth_query_is_learned_in_the_background() -> None:
    """By default as feedback does it, with the most accurate answer; without feedback the question alone."""
    for feedback in (False, True):
        teacher, model = Teacher(), Model()
        profiler = trained(teacher)
        teacher.seconds, asked = 10.0, len(teacher.prompts)
        chain = fineflow.adaptive(chain_of(model), profiler=profiler, feedback=feedback)

        async def queries(chain: Any = chain, teacher: Teacher = teacher, asked: int = asked) -> None:
            for i in range(EVERY):
                await chain.ainvoke(f"which town has bridge {100 + i}?")
            assert len(teacher.prompts) == asked  # nobody waits for it
            await asyncio.sleep(100.0)

        virtual.run(queries())
        assert len(teacher.prompts) == asked + 1
        assert ("most accurate answer" in teacher.prompts[-1]) is feedback
        assert any("Summary:" in prompt for prompt in model.prompts) is feedback
        assert chain.statistics().feedback == 1
        assert profiler.agreement.examples == 18 - 6 + 1  # in the place of those with the same vector


def test_a_new_kind_of_question_is_learned() -> None:
    teacher = Teacher()
    profiler = trained(teacher, questions=[each for each in ASKED if "compare" not in each])
    new = "why compare firm 5, town 5 and river 5?"
    assert profile(profiler, new).complex is False
    for i in range(4):
        asyncio.run(profiler.estimate(new + " why" * i, keep=False))
    assert profile(profiler, new).complex is True
    assert profiler.agreement.examples == 12 + 4


def test_one_query_is_learned_at_a_time() -> None:
    gate = Gate()

    class Slow(Teacher):
        slow = False

        async def __call__(self, prompt: str) -> str:
            if self.slow:
                await gate.wait()
            return await super().__call__(prompt)

    async def queries() -> None:
        teacher = Slow()
        profiler = await DistilledProfiler.train(Profiler(teacher), Counting(), ASKED)
        chain = fineflow.adaptive(chain_of(Model()), profiler=profiler, feedback=False)
        teacher.slow, asked = True, len(teacher.prompts)
        for i in range(3 * EVERY):
            await chain.ainvoke(f"which town has bridge {100 + i}?")
        assert len(chain._controller.feedback._running) == 1
        gate.open()
        await asyncio.gather(*chain._controller.feedback._running)
        assert len(teacher.prompts) == asked + 1

    asyncio.run(queries())
