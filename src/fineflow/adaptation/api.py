"""``fineflow.adaptive``: the configuration of each query, chosen together with scheduling (RAGServe)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from fineflow.adaptation.configuration import SYNTHESES, Space, Synthesis
from fineflow.adaptation.controller import Controller, Settings
from fineflow.adaptation.mapping import FALLBACK, LARGEST
from fineflow.adaptation.memory import Memory, reader
from fineflow.adaptation.profiler import Profiler
from fineflow.adaptation.prompts import SUMMARY
from fineflow.adaptation.speed import Speed
from fineflow.errors import PlanningError
from fineflow.protocols import CacheStatistics

if TYPE_CHECKING:
    from fineflow.adaptation.distilled import DistilledProfiler

TRAINED = "fineflow-profiler.npz"
"""Default file of a trained profiler: ``fineflow distill`` writes it, ``profiler="distilled"`` reads it."""


def adaptive(
    obj: Any,
    *,
    profiler: Any,
    trained: str | PathLike[str] = TRAINED,
    corpus: str = "",
    chunk_size: int | None = None,
    deadline: float | None = None,
    patience: float = 2.0,
    confidence: float = 0.9,
    scheduling: bool = True,
    feedback: bool = True,
    most_chunks: int = LARGEST,
    answer_tokens: int = 64,
    fallback: Space = FALLBACK,
    methods: Sequence[Synthesis] = SYNTHESES,
    reach: float = 1.0,
    summary_prompt: str = SUMMARY,
    memory: Callable[[], CacheStatistics | None] | None = None,
    room: int | None = None,
) -> Any:
    """Returns an object with the interface of ``obj`` that answers each query in a configuration of its own.

    It changes answers: they are made of more or fewer chunks, read together, one by one, or as summaries.

    obj: a retrieval chain of LangChain (``{"context": retriever | format, ...} | prompt | model``,
    ``create_retrieval_chain``, ``RetrievalQA``), a ``RetrieverQueryEngine`` of LlamaIndex, or any object with
    ``configure(configuration)`` that returns a runnable (``fineflow.adaptation.Configurable``).

    profiler: a chat model (LangChain), an LLM (LlamaIndex), a function of a prompt, or a ``Profiler`` with a prompt of
    its own. ``"distilled"``: the regression in the file ``trained``, which ``fineflow distill`` has written; it goes on
    learning from the object's own model. Or a ``DistilledProfiler``. corpus: one line on the content. chunk_size:
    tokens of a chunk. deadline: seconds in which a query should be answered; the configuration is chosen so, and the
    call is not stopped. patience: most seconds that a query waits for its profile. confidence: a profile below it is
    not used; 0 uses all. scheduling: choose by the memory that is free; else the middle of the space. feedback: improve
    the profiler's prompt every 30 queries. most_chunks: largest number of chunks. answer_tokens: room for an answer.
    fallback: space without a profile. methods: those that may be used; a query that should get one that is left out
    gets the next higher one, or else the next lower one. reach: up to which part of its space a query goes while memory
    is free, 0 to 1: by default to its top (section 4.3); 0.5 is its middle. summary_prompt: template that summarizes a
    chunk, with the fields question, context and words. memory: reads the KV cache of the model's engine; by default
    that of fineflow's engines. room: most tokens of it that the queries may take together; by default the engine's
    ``latency_capacity``, or all.

    Raises: PlanningError for an object whose knobs, or whose embedding, are not found; TypeError for a profiler that is
    none; ValueError for settings out of range; FileNotFoundError without the file of a distilled profiler.
    """
    used: tuple[Synthesis, ...] = tuple(methods)
    settings = Settings(
        deadline, patience, confidence, scheduling, feedback, most_chunks, answer_tokens, fallback, used, reach
    )

    def controller(knobs: Any) -> Controller:
        engine, asked = knobs.engine, profiler
        if profiler == "distilled":
            asked = _distilled(knobs, trained, corpus, chunk_size)
        elif not hasattr(type(profiler), "learns"):
            asked = Profiler(profiler, corpus, chunk_size)
        taken = Memory(memory or reader(engine), room or getattr(engine, "latency_capacity", None))
        return Controller(asked, taken, Speed(getattr(engine, "name", None)), knobs, settings)

    knobs = _knobs(obj, chunk_size, most_chunks, summary_prompt)
    if hasattr(obj, "aquery"):
        from fineflow.adaptation.engine import AdaptiveQueryEngine

        return AdaptiveQueryEngine(knobs, controller(knobs))
    from fineflow.adaptation.chain import AdaptiveChain

    return AdaptiveChain(knobs, controller(knobs))


async def distill(
    obj: Any, questions: Sequence[str], *, teacher: Any = None, corpus: str = "", chunk_size: int | None = None
) -> DistilledProfiler:
    """Returns a profiler for ``obj`` that needs no model: a regression that says what the teacher says of questions.

    obj: as of ``adaptive``; its retriever tells the embedding. questions: like those that users ask, some dozens at
    least. teacher: a ``Profiler``, or a model for one; by default the object's own model. corpus, chunk_size: as of
    ``adaptive``.

    Raises PlanningError if the embedding, or a model, is not found; ValueError if fewer than 10 questions get a profile
    that can be used; what the teacher and the embedding raise.
    """
    knobs = _knobs(obj, chunk_size)
    model = knobs.model if teacher is None else teacher
    embedding = _embedding(knobs)
    if model is None:
        raise PlanningError("no model to learn profiles from; give a teacher")
    from fineflow.adaptation import DistilledProfiler

    asked = model if isinstance(model, Profiler) else Profiler(model, corpus, chunk_size)
    return await DistilledProfiler.train(asked, embedding, questions)


def _knobs(obj: Any, chunk_size: int | None, most_chunks: int = LARGEST, summary_prompt: str = SUMMARY) -> Any:
    if hasattr(obj, "aquery"):
        from fineflow.adaptation.llamaindex import EngineKnobs

        return EngineKnobs(obj, summary_prompt)
    from fineflow.adaptation.langchain import ChainKnobs
    from fineflow.adaptation.own import OwnKnobs

    own = callable(getattr(obj, "configure", None))
    return OwnKnobs(obj, chunk_size, most_chunks) if own else ChainKnobs(obj, summary_prompt)


def _distilled(knobs: Any, trained: str | PathLike[str], corpus: str, chunk_size: int | None) -> DistilledProfiler:
    from fineflow.adaptation import DistilledProfiler

    teacher = None if knobs.model is None else Profiler(knobs.model, corpus, chunk_size)
    return DistilledProfiler.load(trained, _embedding(knobs), teacher=teacher)


def _embedding(knobs: Any) -> Any:
    if knobs.embedding is None:
        raise PlanningError(
            "a distilled profiler needs the embedding of questions, and the retriever does not say which one it uses; "
            "make one by DistilledProfiler.train(teacher, embedding, questions)"
        )
    return knobs.embedding
