"""Same answer, for what takes documents in with LlamaIndex: what it returns, tells, writes and asks for.

``assert_same_ingestion(make, call)`` is the whole test for one shape. ``RecordingStore`` and ``TextEmbedding`` are the
store and the embedding model for it: they note each call, and may take time, wait at a gate, or fail.
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
    """Embeds batches of texts. fails: a word; a batch with a text that has it in it raises ValueError.

    batch_latency: seconds that a batch takes. batch_gate: waited at before that. Batches are noted in ``asked``.
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
    """LlamaIndex's in-memory store; each call that writes is noted in ``calls``, before it does anything.

    latency: seconds that an addition takes. gate: waited at before that. fails_at: number of the addition, from 1, that
    raises RuntimeError before it has written.
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
        """Each call: its method, and ids, texts and vectors of nodes, or the id of a document."""
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
    """What one test has made. obj: what is called. docstore, cache: what else it writes to."""

    obj: Any
    model: TextEmbedding
    store: RecordingStore
    docstore: Any = None
    cache: Any = None


@dataclass
class Ingested(Observation):
    """What a caller can see of taking documents in. returned: nodes, in order, or what else. written: calls of the
    store. kept: what is in the store, the document store and the cache. asked: batches that were embedded.
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
    """Has what ``make`` makes take documents in, stock and optimized, and compares all that can be seen of it.

    call: calls the object, which may be optimized, and returns what that returned, or a coroutine of it. Returns what
    was seen of the optimized object. Raises AssertionError with the differences, and where a call that succeeded has
    asked the embedding model for anything that stock did not want, and TypeError if ``make`` makes no ``Bench``.
    """
    first = made_once(make, "assert_same_ingestion(lambda manager: Bench(obj, model, store), call)")
    if not isinstance(first, Bench):
        raise TypeError(
            f"expected a Bench(obj, model, store), got {type(first).__name__}: obj is what is called, model a "
            "TextEmbedding and store a RecordingStore that it has, which note what they are asked for"
        )
    run = optimize or (lambda obj: fineflow.optimize(obj, strict=True, eager=True))
    stock, seen = _ingested(make, call, lambda obj: obj), _ingested(make, call, run)
    if seen.error is not None:  # it may have asked for more than stock, which stopped
        assert all(batch in seen.asked for batch in stock.asked)
        seen.asked = stock.asked
    told = differences(stock, seen)
    assert not told, "differs from stock\n\n" + "\n\n".join(told)
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

    # Whether the order of what is inside of spans counts is known only when the call was made: async code sorts it.
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
    """All of a node, as it is stored."""
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
