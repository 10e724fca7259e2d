"""Same answer, for LlamaIndex: observes a query engine, retriever or synthesizer, stock and optimized.

``assert_same_index(make, "question")`` is the whole test for one shape::

    def make(callback_manager):
        index = VectorStoreIndex(nodes, embed_model=FakeEmbedding(), callback_manager=callback_manager)
        return index.as_query_engine(llm=FakeLLM(), response_mode="tree_summarize")

    def test_engine():
        assert_same_index(make, "Where is the bridge?")
"""

from __future__ import annotations

import asyncio
import contextvars
import difflib
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.span import BaseSpan
from pydantic import BaseModel, PrivateAttr

import fineflow

QUERY = ("query", "aquery")
RETRIEVE = ("retrieve", "aretrieve")
SYNTHESIZE = ("synthesize", "asynthesize")

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Make = Callable[[CallbackManager], Any]


@dataclass
class Observation:
    """What a caller can see of one call. Every field is comparable and printable.

    kind: type of what was returned. text: of the response, or what its stream adds up to. tokens: as streamed. nodes:
    id, score, text and metadata, in order. metadata: of the response. error: type and text of the exception. spans: the
    span tree, with the events of each span. callbacks: the events of the legacy CallbackManager, in a tree. embedding:
    whether the call has left a vector with the query that it was given.
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


def assert_same_index(
    make: Make,
    question: str,
    *,
    entries: Sequence[str] | None = None,
    nodes: Callable[[], list[NodeWithScore]] | None = None,
    optimize: Callable[[Any], Any] | None = None,
    ordered: bool = True,
) -> dict[str, Observation]:
    """Calls what ``make`` makes, stock and optimized, by every entry point, and compares all that a caller can see.

    make: gets the callback manager that its parts are to report to, and is called anew for each call. entries: names of
    methods; by default all that the object has, ``synthesize`` only where ``nodes`` makes some for it. optimize: how,
    by default ``fineflow.optimize(obj, strict=True, eager=True)``. ordered: whether stock does one thing at a time in
    sync calls, so that the order of what is inside of a span or event counts.

    Returns what was seen of the optimized object.

    Raises AssertionError with the differences, and where a call that succeeded has asked components for anything that
    stock did not want.
    """
    run = optimize or (lambda obj: fineflow.optimize(obj, strict=True, eager=True))
    found = {}
    for entry in entries or _entries(make(CallbackManager([])), nodes is not None):
        stock = observe_index(make, entry, question, nodes=nodes, ordered=ordered)
        made: list[Any] = []

        def optimized(manager: CallbackManager, made: list[Any] = made) -> Any:
            made.append(run(make(manager)))
            return made[0]

        seen = observe_index(optimized, entry, question, nodes=nodes, ordered=ordered)
        told = _differences(stock, seen)
        assert not told, f"{entry} differs from stock:\n{told}"
        last = getattr(made[0], "_self_last", None)
        assert seen.error or last is None or not last.unclaimed, f"{entry} did work in vain: {last}"
        found[entry] = seen
    return found


def observe_index(
    make: Make,
    entry: str,
    question: str,
    *,
    nodes: Callable[[], list[NodeWithScore]] | None = None,
    ordered: bool = True,
) -> Observation:
    """What a caller can see of one call of what ``make`` makes. Async entry points have an event loop of their own."""
    # LlamaIndex keeps the open events in context variables, and does not always take them back.
    return contextvars.copy_context().run(_observe, make, entry, question, nodes, ordered)


def _observe(
    make: Make, entry: str, question: str, nodes: Callable[[], list[NodeWithScore]] | None, ordered: bool
) -> Observation:
    handler = _Legacy()
    obj = make(CallbackManager([handler]))
    handler.forget()  # what making it has reported
    seen, query = Observation(entry), QueryBundle(question)
    args = (query, nodes()) if entry in SYNTHESIZE and nodes is not None else (query,)
    with _recording() as recorder:
        try:
            if entry.startswith("a"):
                asyncio.run(_acall(getattr(obj, entry), args, seen))
            else:
                _returned(getattr(obj, entry)(*args), seen)
        except fineflow.PlanningError:
            raise
        except Exception as error:
            seen.error = (type(error).__name__, str(error))
    ordered = ordered and not entry.startswith("a")
    seen.spans = recorder.tree(ordered)
    seen.callbacks = handler.tree(ordered)
    seen.embedding = query.embedding
    return seen


def _entries(obj: Any, with_nodes: bool) -> tuple[str, ...]:
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
        seen.nodes = [_shown(node) for node in response]
        return
    if isinstance(response, StreamingResponse):
        seen.tokens = [str(token) for token in response.response_gen]
        seen.text = "".join(seen.tokens)
    elif not isinstance(response, AsyncStreamingResponse):
        seen.text = str(response)
    seen.nodes = [_shown(node) for node in response.source_nodes]
    seen.metadata = _shown(response.metadata)


def _differences(stock: Observation, seen: Observation) -> str:
    left, right = (_numbered(json.dumps(asdict(each), indent=1, default=repr)).splitlines() for each in (stock, seen))
    return "\n".join(difflib.unified_diff(left, right, "stock", "fineflow", lineterm="", n=2))


def _numbered(text: str) -> str:
    """Ids that nodes got during the call, by the order in which they occur."""
    numbers: dict[str, str] = {}
    return _UUID.sub(lambda found: numbers.setdefault(found[0], f"id {len(numbers)}"), text)


# Spans and events


class _Recorder:
    """Spans in the order in which they were entered, and events in that in which they came. From any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spans: dict[str, dict[str, Any]] = {}
        self.roots: list[str] = []

    def enter(self, id_: str, parent: str | None) -> None:
        with self.lock:
            self.spans[id_] = {"span": _name(id_), "parent": parent, "inside": [], "events": [], "end": "never"}
            if parent in self.spans:
                self.spans[parent]["inside"].append(id_)
            else:
                self.roots.append(id_)

    def end(self, id_: str, how: str) -> None:
        with self.lock:
            if id_ in self.spans:
                self.spans[id_]["end"] = how

    def event(self, event: BaseEvent) -> None:
        shown = [event.class_name(), {name: _shown(value) for name, value in _fields(event).items()}]
        with self.lock:
            if event.span_id in self.spans:
                self.spans[event.span_id]["events"].append(shown)

    def tree(self, ordered: bool) -> list[Any]:
        """The spans, with what is inside of them. ordered: else what is inside of a span is sorted."""

        def node(id_: str) -> Any:
            found = self.spans[id_]
            inside = [node(each) for each in found["inside"]]
            if not ordered:
                inside.sort(key=lambda each: json.dumps(each, default=repr))
            return {"span": found["span"], "end": found["end"], "events": found["events"], "inside": inside}

        return [node(root) for root in self.roots]


def _fields(event: BaseEvent) -> dict[str, Any]:
    ignored = {"id_", "timestamp", "span_id", "tags", "err_str"}
    return {name: getattr(event, name) for name in type(event).model_fields if name not in ignored}


def _name(id_: str) -> str:
    return id_[:-37]  # without the uuid


class _Spans(BaseSpanHandler[BaseSpan]):
    _recorder: _Recorder = PrivateAttr()

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def new_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any = None,
        parent_span_id: str | None = None,
        tags: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> BaseSpan:
        self._recorder.enter(id_, parent_span_id)
        return BaseSpan(id_=id_, parent_id=parent_span_id)

    def prepare_to_exit_span(
        self, id_: str, bound_args: inspect.BoundArguments, instance: Any = None, result: Any = None, **kwargs: Any
    ) -> BaseSpan | None:
        self._recorder.end(id_, "exit")
        return self.open_spans.get(id_)

    def prepare_to_drop_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any = None,
        err: BaseException | None = None,
        **kwargs: Any,
    ) -> BaseSpan | None:
        self._recorder.end(id_, f"drop {type(err).__name__}")
        return self.open_spans.get(id_)


class _Events(BaseEventHandler):
    _recorder: _Recorder = PrivateAttr()

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self._recorder.event(event)


@contextmanager
def _recording() -> Iterator[_Recorder]:
    """Records all spans and events of the process."""
    root, recorder = get_dispatcher(), _Recorder()
    spans, events = _Spans(recorder), _Events(recorder)
    root.add_span_handler(spans)
    root.add_event_handler(events)
    try:
        yield recorder
    finally:
        root.span_handlers = [each for each in root.span_handlers if each is not spans]
        root.event_handlers = [each for each in root.event_handlers if each is not events]


class _Legacy(BaseCallbackHandler):
    """The events of a callback manager."""

    def __init__(self) -> None:
        super().__init__([], [])
        self._lock = threading.Lock()
        self._events: dict[str, dict[str, Any]] = {}
        self._traces: list[str] = []

    def forget(self) -> None:
        """Begins anew."""
        self._events, self._traces = {}, []

    def on_event_start(
        self, event_type: Any, payload: Any = None, event_id: str = "", parent_id: str = "", **kwargs: Any
    ) -> str:
        with self._lock:
            shown = {"event": event_type.value, "start": _shown(payload), "end": None, "parent": parent_id}
            self._events[event_id] = shown
        return event_id

    def on_event_end(self, event_type: Any, payload: Any = None, event_id: str = "", **kwargs: Any) -> None:
        with self._lock:
            if event_id in self._events:
                self._events[event_id]["end"] = _shown(payload)

    def start_trace(self, trace_id: str | None = None) -> None:
        with self._lock:
            self._traces.append(f"start {trace_id}")

    def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
        with self._lock:
            self._traces.append(f"end {trace_id}")

    def tree(self, ordered: bool) -> list[Any]:
        def node(id_: str) -> Any:
            found = self._events[id_]
            inside = [node(each) for each, event in self._events.items() if event["parent"] == id_]
            if not ordered:
                inside.sort(key=lambda each: json.dumps(each, default=repr))
            return {"event": found["event"], "start": found["start"], "end": found["end"], "inside": inside}

        roots = [id_ for id_, event in self._events.items() if event["parent"] not in self._events]
        trees = list(map(node, roots))
        if not ordered:
            trees.sort(key=lambda each: json.dumps(each, default=repr))
        return [self._traces if ordered else sorted(self._traces), *trees]


def _shown(value: Any) -> Any:
    """A value without identities and times: equal for what says the same."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, NodeWithScore):
        return [_shown(value.node), value.score]
    if isinstance(value, BaseNode):
        return [value.node_id, value.get_content(), dict(value.metadata)]
    if isinstance(value, ChatMessage):
        return [value.role.value, value.content]
    if isinstance(value, ChatResponse):
        return [_shown(value.message), value.delta]
    if isinstance(value, CompletionResponse):
        return [value.text, value.delta]
    if isinstance(value, QueryBundle):
        return [value.query_str]
    if isinstance(value, BasePromptTemplate):
        return [type(value).__name__, value.get_template(), sorted(map(str, value.kwargs.items()))]
    if isinstance(value, Mapping):
        return {str(getattr(key, "value", key)): _shown(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(part) for part in value]
    if isinstance(value, BaseException):
        return [type(value).__name__, str(value)]
    if isinstance(value, BaseModel):
        return type(value).__name__
    return type(value).__name__
