"""Same answer, for LlamaIndex's ingestion: compares what it returns, reports, writes and embeds, stock and optimized.

``assert_same_ingestion(make, call)`` is the whole test for one shape. ``RecordingStore`` and ``TextEmbedding`` are its
store and its embedding model: they record each call, and may take time, wait at a gate, or fail.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.simple import SimpleVectorStore
from pydantic import Field, PrivateAttr

import fineflow
from fineflow.testing.gates import Gate, Meter
from fineflow.testing.llamaindex.differential import Observation, made_once, observed
from fineflow.testing.llamaindex.fakes import FakeEmbedding
from fineflow.testing.llamaindex.recording import differences
from fineflow.testing.vectors import vector_of


class TextEmbedding(FakeEmbedding):
    """Embeds batches of texts. fails: a word; a batch that has a text with this word raises ValueError.

    batch_latency: seconds per batch. batch_gate: waited at before that. ``asked`` records the batches.
    """

    fails: str = "\0"
    batch_latency: float = Field(default=0.0, exclude=True)
    batch_gate: Gate | None = Field(default=None, exclude=True, repr=False)
    batches: Meter = Field(default_factory=Meter, exclude=True, repr=False)
    asked: list[list[str]] = Field(default_factory=list, exclude=True, repr=False)

    def _embedded(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(list(texts))
        if any(self.fails in text for text in texts):
            raise ValueError(f"cannot embed {self.fails!r}")
        return [vector_of(text, self.dimensions) for text in texts]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        with self.batches.work(str(len(texts))):
            if self.batch_gate is not None:
                self.batch_gate.wait_sync()
            if self.batch_latency:
                time.sleep(self.batch_latency)
            return self._embedded(texts)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        with self.batches.work(str(len(texts))):
            if self.batch_gate is not None:
                await self.batch_gate.wait()
            if self.batch_latency:
                await asyncio.sleep(self.batch_latency)
            return self._embedded(texts)


class RecordingStore(SimpleVectorStore):
    """LlamaIndex's in-memory store; ``calls`` records each writing call before it has an effect.

    latency: seconds per addition. gate: waited at before that. fails_at: number, from 1, of the addition that raises
    RuntimeError before it writes.
    """

    _calls: list[Any] = PrivateAttr(default_factory=list)
    _latency: float = PrivateAttr(default=0.0)
    _gate: Gate | None = PrivateAttr(default=None)
    _fails_at: int = PrivateAttr(default=0)
    _additions: int = PrivateAttr(default=0)

    def __init__(self, *, latency: float = 0.0, gate: Gate | None = None, fails_at: int = 0) -> None:
        super().__init__()
        self._latency, self._gate, self._fails_at = latency, gate, fails_at

    @property
    def calls(self) -> list[Any]:
        """The calls: method, and ids, texts and vectors of nodes, or the id of a document."""
        return self._calls

    def _begin(self, nodes: Sequence[BaseNode]) -> None:
        self._calls.append(("add", [(node.node_id, node.get_content(), node.embedding) for node in nodes]))
        self._additions += 1
        if self._additions == self._fails_at:
            raise RuntimeError(f"addition {self._additions} fails")

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: Any) -> list[str]:
        if self._gate is not None:
            self._gate.wait_sync()
        if self._latency:
            time.sleep(self._latency)
        self._begin(nodes)
        return super().add(nodes, **add_kwargs)

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        if self._gate is not None:
            await self._gate.wait()
        if self._latency:
            await asyncio.sleep(self._latency)
        self._begin(nodes)
        return super().add(nodes, **kwargs)

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        self._calls.append(("delete", ref_doc_id))
        super().delete(ref_doc_id, **delete_kwargs)


@dataclass
class Bench:
    """Objects of one test. obj: the object to call. docstore, cache: other targets of its writes."""

    obj: Any
    model: TextEmbedding
    store: RecordingStore
    docstore: Any = None
    cache: Any = None


@dataclass
class Ingested(Observation):
    """Observable results of ingestion.

    returned: nodes, in order, or another value. written: calls of the store. kept: contents of the store, the document
    store and the cache. asked: embedded batches.
    """

    returned: Any = None
    written: list[Any] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)


def assert_same_ingestion(
    make: Callable[[CallbackManager], Bench],
    call: Callable[[Any], Any],
    *,
    optimize: Callable[[Any], Any] | None = None,
) -> Ingested:
    """Ingests documents with objects made by ``make``, stock and optimized, and compares all observable results.

    call: calls the object, which may be optimized, and returns its result, or a coroutine of it. Returns the
    observations of the optimized object. Raises AssertionError with the differences, or if a successful call embedded
    anything that stock does not; TypeError if ``make`` makes no ``Bench``.
    """
    first = made_once(make, "assert_same_ingestion(lambda manager: Bench(obj, model, store), call)")
    if not isinstance(first, Bench):
        raise TypeError(
            f"expected a Bench(obj, model, store), got {type(first).__name__}: obj is the object to call, model a "
            "TextEmbedding and store a RecordingStore that it uses, which record their calls"
        )
    run = optimize or (lambda obj: fineflow.optimize(obj, strict=True, eager=True))
    stock, seen = _ingested(make, call, lambda obj: obj), _ingested(make, call, run)
    if seen.error is not None:  # it may have embedded more than stock, which stopped
        assert all(batch in seen.asked for batch in stock.asked)
        seen.asked = stock.asked
    found = differences(stock, seen)
    assert not found, "differs from stock\n\n" + "\n\n".join(found)
    return seen


def _ingested(
    make: Callable[[CallbackManager], Bench], call: Callable[[Any], Any], run: Callable[[Any], Any]
) -> Ingested:
    made: list[Bench] = []
    asynchronous = False

    def begin(manager: CallbackManager) -> Any:
        made.append(make(manager))
        made[0].model.asked.clear()
        made[0].store.calls.clear()
        return run(made[0].obj)

    def do(obj: Any, seen: Ingested) -> None:
        nonlocal asynchronous
        found = call(obj)
        if inspect.iscoroutine(found):
            asynchronous = True
            found = asyncio.run(found)
        seen.returned = _shown(found)

    # In async calls the order inside spans does not count; a coroutine that is only returned shows after the call.
    seen = observed(begin, do, Ingested(""), ordered=not inspect.iscoroutinefunction(call))
    bench = made[0]
    seen.written = list(bench.store.calls)
    seen.asked = sorted(bench.model.asked) if asynchronous else list(bench.model.asked)
    seen.kept = {"store": bench.store.data.to_dict()}
    if bench.docstore is not None:
        seen.kept["documents"] = {key: _shown(each) for key, each in bench.docstore.docs.items()}
        seen.kept["hashes"] = bench.docstore.get_all_document_hashes()
        seen.kept["references"] = {
            key: list(each.node_ids) for key, each in (bench.docstore.get_all_ref_doc_info() or {}).items()
        }
    if bench.cache is not None:
        seen.kept["cache"] = bench.cache.cache.get_all(collection=bench.cache.collection)
    return seen


def _shown(value: Any) -> Any:
    """Returns all of a node, as it is stored."""
    if isinstance(value, BaseNode):
        return [type(value).__name__, value.to_dict()]
    if isinstance(value, Mapping):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return type(value).__name__


__all__ = ["Bench", "Ingested", "RecordingStore", "TextEmbedding", "assert_same_ingestion"]
