"""Calls that are verified: made once more without spans and events, and which parts of an answer count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.llms import LLM
from llama_index.core.query_engine import RetrieverQueryEngine

from fineflow.adapters.llamaindex.builder import QUERY, RETRIEVE, SYNTHESIZE, Way
from fineflow.adapters.llamaindex.recorded_calls import Recording
from fineflow.ir import Graph, Op, Primitive
from fineflow.runtime.reruns import noted
from fineflow.verification.answers import Incomparable

_LOOPS = ("use_async", "_use_async")  # attributes of objects whose sync methods run async ones


class _Silence(Recording):
    """Keeps nothing of what a call reports."""

    def _keep(self, report: Callable[[], None]) -> None:
        noted()


@contextmanager
def _silent() -> Iterator[None]:
    _Silence().begin()  # in a context of its own
    yield


def silences() -> list[AbstractContextManager[Any]]:
    """Returns contexts without handlers."""
    return [_silent()]


def unrepeatable(way: Way, objects: Iterable[Any]) -> str:
    """Returns why calls of an object in some way may not be made once more; "" if they may."""
    part = way.part
    if part in (QUERY, RETRIEVE, SYNTHESIZE):
        # Stock's sync methods would run an event loop of their own, on clients that belong to the caller's.
        loops = not way.sync and any(getattr(each, name, False) for each in objects for name in _LOOPS)
        return "its sync method uses an event loop of its own (use_async)" if loops else ""
    return "a chat engine remembers each call" if "chat" in part else f"{part} may have effects"


def compared(value: Any) -> Mapping[str, Any] | None:
    """Returns what makes a model's response the same answer; not what the server says beside it.

    Raises: Incomparable for responses whose reader reads the stream.
    """
    if isinstance(value, StreamingResponse | AsyncStreamingResponse):
        raise Incomparable("its answer is a stream, which only its reader may read")
    if isinstance(value, ChatResponse):
        return {"message": value.message}
    if isinstance(value, CompletionResponse):
        return {"text": value.text}
    if isinstance(value, ChatMessage):
        return {"role": value.role, "blocks": value.blocks}
    return None


def sources(way: Way, obj: Any, graph: Graph) -> Mapping[str, Sequence[str]]:
    """Returns the primitives that the nodes of an answer come from, of engines that retrieve first."""
    if way.part != QUERY or type(obj) is not RetrieverQueryEngine:
        return {}
    found = [p.name for p in graph if p.op in (Op.SEARCH, Op.RERANK)]
    return {"source_nodes": found} if found else {}


def sampled(p: Primitive) -> str:
    """Returns why equal requests may be answered differently: a model that is not known to answer at temperature 0."""
    if p.op is Op.PREFILL or p.op is Op.PARTIAL_PREFILL or not hasattr(p.component, "__dict__"):
        return ""
    for model in (p.component, *vars(p.component).values()):
        if not isinstance(model, LLM):
            continue
        found, kind = getattr(model, "temperature", None), type(model).__name__
        if not isinstance(found, int | float):
            return f"the temperature of {kind} is not known"
        if found != 0:
            return f"{kind} answers at temperature {found:g}"
    return ""
