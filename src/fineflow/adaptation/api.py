"""``fineflow.adaptive``: the configuration of each query, chosen together with scheduling (RAGServe)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fineflow.adaptation.configuration import SYNTHESES, Space, Synthesis
from fineflow.adaptation.controller import Controller, Settings
from fineflow.adaptation.mapping import FALLBACK, LARGEST
from fineflow.adaptation.memory import Memory, reader
from fineflow.adaptation.profiler import Profiler
from fineflow.adaptation.prompts import SUMMARY
from fineflow.adaptation.speed import Speed
from fineflow.protocols import CacheStatistics


def adaptive(
    obj: Any,
    *,
    profiler: Any,
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
    reach: float = 0.5,
    summary_prompt: str = SUMMARY,
    memory: Callable[[], CacheStatistics | None] | None = None,
    room: int | None = None,
) -> Any:
    """Returns an object with the interface of ``obj`` that answers each query in a configuration of its own.

    It changes answers: they are made of more or fewer chunks, read together, one by one, or as summaries.

    obj: a retrieval chain of LangChain (``{"context": retriever | format, ...} | prompt | model``,
    ``create_retrieval_chain``, ``RetrievalQA``), a ``RetrieverQueryEngine`` of LlamaIndex, or any object with
    ``configure(configuration)`` that returns a runnable (``fineflow.adaptation.Configurable``).

    profiler: a chat model (LangChain), an LLM (LlamaIndex), a function of
    a prompt, or a ``Profiler`` with a prompt of its own. corpus: one line on the content. chunk_size: tokens of a
    chunk. deadline: seconds in which a query should be answered; the configuration is chosen so, and the call is not
    stopped. patience: most seconds that a query waits for its profile. confidence: a profile below it is not used;
    0 uses all. scheduling: choose by the memory that is free; else the middle of the space. feedback: improve the
    profiler's prompt every 30 queries. most_chunks: largest number of chunks. answer_tokens: room for an answer.
    fallback: space without a profile. methods: those that may be used; a query that should get one that is left out
    gets the next higher one, or else the next lower one. reach: up to which part of its space a query goes while memory
    is free, 0 to 1: by default its middle; 1 is the paper's rule. summary_prompt: template that summarizes a chunk,
    with the fields question, context and words. memory: reads the KV cache of the model's engine; by default that of
    fineflow's engines.
    room: most tokens of it that the queries may take together; by default the engine's ``latency_capacity``, or all.

    Raises: PlanningError for an object whose knobs are not found; TypeError for a profiler that is none; ValueError for
    settings out of range.
    """
    used: tuple[Synthesis, ...] = tuple(methods)
    settings = Settings(
        deadline, patience, confidence, scheduling, feedback, most_chunks, answer_tokens, fallback, used, reach
    )
    asked = profiler if isinstance(profiler, Profiler) else Profiler(profiler, corpus, chunk_size)

    def controller(knobs: Any) -> Controller:
        engine = knobs.engine
        taken = Memory(memory or reader(engine), room or getattr(engine, "latency_capacity", None))
        return Controller(asked, taken, Speed(getattr(engine, "name", None)), knobs, settings)

    knobs: Any
    if hasattr(obj, "aquery"):
        from fineflow.adaptation.engine import AdaptiveQueryEngine
        from fineflow.adaptation.llamaindex import EngineKnobs

        knobs = EngineKnobs(obj, summary_prompt)
        return AdaptiveQueryEngine(knobs, controller(knobs))
    from fineflow.adaptation.chain import AdaptiveChain
    from fineflow.adaptation.langchain import ChainKnobs
    from fineflow.adaptation.own import OwnKnobs

    own = callable(getattr(obj, "configure", None))
    knobs = OwnKnobs(obj, chunk_size, most_chunks) if own else ChainKnobs(obj, summary_prompt)
    return AdaptiveChain(knobs, controller(knobs))
