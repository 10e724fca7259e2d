"""Same answer, for LlamaIndex: calls a query engine, retriever or synthesizer, stock and optimized, and compares.

Stock is LlamaIndex's own code on the original object. ``assert_same_index(make, "question")`` is the whole test for one
shape::

    def make(callback_manager):
        index = VectorStoreIndex(nodes, embed_model=FakeEmbedding(), callback_manager=callback_manager)
        return index.as_query_engine(llm=FakeLLM(), response_mode="tree_summarize")

    def test_engine():
        assert_same_index(make, "Where is the bridge?")
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import NodeWithScore, QueryBundle

import fineflow
from fineflow.testing.bounded import bounded
from fineflow.testing.llamaindex.recording import Legacy, differences, recording, shown

QUERY = ("query", "aquery")
RETRIEVE = ("retrieve", "aretrieve")
SYNTHESIZE = ("synthesize", "asynthesize")

Make = Callable[[CallbackManager], Any]


@dataclass
class Observation:
    """Observable results of one call. Every field is comparable and printable.

    kind: type of the returned value. text: of the response, or the sum of its stream. tokens: as streamed. nodes: id,
    score, text and metadata, in order. metadata: of the response. error: type and text of the exception. spans: the
    span tree, with the events of each span. callbacks: the events of the legacy CallbackManager, in a tree. embedding:
    the vector that the call stored in its query object. causes: type and text of the exception's causes.
    """

    entry: str
    kind: str = ""
    text: str | None = None
    tokens: list[str] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    metadata: Any = None
    error: tuple[str, str] | None = None
    spans: list[Any] = field(default_factory=list)
    callbacks: list[Any] = field(default_factory=list)
    embedding: Any = None
    causes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """True if the call raised, so that stock may have stopped before using all of the graph's work."""
        return self.error is not None


Seen = TypeVar("Seen", bound=Observation)


def assert_same_index(
    make: Make,
    question: str,
    *,
    entries: Sequence[str] | None = None,
    nodes: Callable[[], list[NodeWithScore]] | None = None,
    optimize: Callable[[Any], Any] | None = None,
    ordered: bool = True,
) -> dict[str, Observation]:
    """Calls objects made by ``make``, stock and optimized, by every entry point, and compares all observable results.

    make: gets the callback manager for the object's parts, and is called once per call. entries: names of methods; by
    default all that the object has, ``synthesize`` only if ``nodes`` makes some for it. optimize: by default
    ``fineflow.optimize(obj, strict=True, eager=True)``. ordered: stock does one thing at a time in sync calls, so the
    order inside a span or event counts.

    Returns the observations of the optimized object, by entry point.

    Raises: AssertionError with the differences, or if a successful call did work that stock did not use; TypeError if
    ``make`` is not a function of one argument; ValueError for an unsupported object, for entry points that the object
    lacks, or for ``synthesize`` without ``nodes``; TimeoutError if a call has not ended after a minute; PlanningError
    if fineflow fails to plan a call.
    """
    obj = made_once(make, "assert_same_index(lambda manager: ..., question)")
    if not (has := entries_of(obj, with_nodes=nodes is not None)):
        raise ValueError(
            f"{type(obj).__name__} has no entry point: expected a query engine, a retriever, or with "
            "nodes=... a synthesizer; chat engines have assert_same_chat, indexes and pipelines assert_same_ingestion"
        )

    def see(made: Make, entry: str) -> Observation:
        return observe_index(made, entry, question, nodes=nodes, ordered=ordered)

    return {entry: assert_alike(make, partial(see, entry=entry), optimize) for entry in known(entries or has, has)}


def assert_alike(make: Make, see: Callable[[Make], Seen], optimize: Callable[[Any], Any] | None = None) -> Seen:
    """Returns what ``see`` observes of an optimized object made by ``make``; the common part of all such helpers.

    optimize: by default ``fineflow.optimize(obj, strict=True, eager=True)``.

    Raises AssertionError if stock's observation differs, or if work was done that stock did not use.
    """
    run = optimize or (lambda obj: fineflow.optimize(obj, strict=True, eager=True))
    made: list[Any] = []

    def optimized(manager: CallbackManager) -> Any:
        made.append(run(make(manager)))
        return made[-1]

    stock, seen = see(make), see(optimized)
    found = differences(stock, seen)
    assert not found, f"{seen.entry} differs from stock\n\n" + "\n\n".join(found)
    last = getattr(made[-1], "_self_last", None)
    assert seen.failed or last is None or not last.unclaimed, f"{seen.entry} did work that stock did not use: {last}"
    return seen


def made_once(make: Make, written: str) -> Any:
    """Calls ``make`` once. written: shows the call of the helper. Raises TypeError if ``make`` is no such function."""
    said = f"write {written}, which makes a new object for each call, with the callback manager that its parts get"
    if not callable(make):
        raise TypeError(f"expected a function that makes the object, got {type(make).__name__}: {said}")
    manager = CallbackManager([])
    try:
        inspect.signature(make).bind(manager)
    except TypeError as error:
        raise TypeError(f"expected a function of one argument, the callback manager: {said}") from error
    except ValueError:  # a builtin whose signature is unknown
        pass
    return make(manager)


def known(entries: Sequence[str], has: Sequence[str]) -> Sequence[str]:
    """Returns the entry points. Raises ValueError for an unknown one, or if there are none."""
    if not entries:
        raise ValueError(f"entries must be some of {', '.join(has)}; got none")
    if unknown := [entry for entry in entries if entry not in has]:
        raise ValueError(f"entries must be of {', '.join(has)}; got {', '.join(unknown)}")
    return entries


def observe_index(
    make: Make,
    entry: str,
    question: str,
    *,
    nodes: Callable[[], list[NodeWithScore]] | None = None,
    ordered: bool = True,
) -> Observation:
    """Observes one call of an object made by ``make``. Async entry points run on an event loop of their own."""

    def call(obj: Any, seen: Observation) -> None:
        query = QueryBundle(question)
        args = (query, nodes()) if entry in SYNTHESIZE and nodes is not None else (query,)
        try:
            if entry.startswith("a"):
                asyncio.run(_acall(getattr(obj, entry), args, seen))
            else:
                _returned(getattr(obj, entry)(*args), seen)
        finally:
            seen.embedding = query.embedding

    return observed(make, call, Observation(entry), ordered=ordered and not entry.startswith("a"))


def observed(
    make: Make, call: Callable[[Any, Seen], None], seen: Seen, *, ordered: bool, timeout: float = 60.0
) -> Seen:
    """Calls an object made by ``make``; returns ``seen`` with the exception, the spans and the events of the call.

    call: gets the object and ``seen``, and adds what the calls return. ordered: the order inside a span or an event
    counts. Raises TimeoutError if the call has not ended after ``timeout`` s.
    """
    # LlamaIndex keeps open events in context variables, and does not always reset them.
    context = contextvars.copy_context()
    bounded(partial(context.run, _observed, make, call, seen, ordered), timeout)
    return seen


def _observed(make: Make, call: Callable[[Any, Seen], None], seen: Seen, ordered: bool) -> None:
    handler = Legacy()
    obj = make(CallbackManager([handler]))
    handler.forget()  # events of making the object
    with recording() as recorder:
        try:
            call(obj, seen)
        except fineflow.PlanningError:
            raise
        except Exception as error:
            seen.error, cause = (type(error).__name__, str(error)), error.__cause__
            while cause is not None:
                seen.causes.append((type(cause).__name__, str(cause)))
                cause = cause.__cause__
    seen.spans = recorder.tree(ordered)
    seen.callbacks = handler.tree(ordered)


def entries_of(obj: Any, *, with_nodes: bool = False) -> tuple[str, ...]:
    """Returns the entry methods of an object; ``synthesize`` and its async version only if there are nodes for them."""
    if isinstance(obj, BaseRetriever):
        return RETRIEVE
    found = (*QUERY, *(RETRIEVE if hasattr(obj, "aretrieve") else ())) if isinstance(obj, BaseQueryEngine) else ()
    return (*found, *(SYNTHESIZE if with_nodes else ()))


async def _acall(method: Any, args: tuple[Any, ...], seen: Observation) -> None:
    response = await method(*args)
    if isinstance(response, AsyncStreamingResponse):
        seen.tokens = [token async for token in response.response_gen]
        seen.text = "".join(seen.tokens)
    _returned(response, seen)


def _returned(response: Any, seen: Observation) -> None:
    seen.kind = type(response).__name__
    if isinstance(response, list):
        seen.nodes = [shown(node) for node in response]
        return
    if isinstance(response, StreamingResponse):
        seen.tokens = [str(token) for token in response.response_gen]
        seen.text = "".join(seen.tokens)
    elif not isinstance(response, AsyncStreamingResponse):
        seen.text = str(response)
    seen.nodes = [shown(node) for node in response.source_nodes]
    seen.metadata = shown(response.metadata)
