"""LlamaIndex's reports of a call: spans and events of the instrumentation, events of the legacy CallbackManager."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
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

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def differences(stock: Any, seen: Any) -> list[str]:
    """Returns a text per differing field of two observations: its name and a diff, ``-`` stock and ``+`` fineflow."""
    if _told(stock, None) == _told(seen, None):
        return []
    left, right = _told(stock, 1), _told(seen, 1)
    return [
        "\n".join([f"{name} differs", *difflib.unified_diff(one, right[name], "stock", "fineflow", lineterm="", n=2)])
        for name, one in left.items()
        if one != right[name]
    ]


def _told(seen: Any, indent: int | None) -> dict[str, list[str]]:
    """Returns the JSON lines of each field; ids that nodes got during the call are numbered in order of occurrence.

    indent: None for one long line, which Python's C encoder produces much faster.
    """
    numbers: dict[str, str] = {}

    def numbered(value: Any) -> list[str]:
        text = json.dumps(value, indent=indent, default=repr, ensure_ascii=False)
        return _UUID.sub(lambda found: numbers.setdefault(found[0], f"id {len(numbers)}"), text).splitlines()

    return {name: numbered(value) for name, value in vars(seen).items()}


class Recorder:
    """Spans in the order of entry, and events in the order of arrival. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spans: dict[str, dict[str, Any]] = {}
        self.roots: list[str] = []

    def enter(self, id_: str, parent: str | None, given: list[str]) -> None:
        with self.lock:
            about = {"span": _name(id_), "given": given, "parent": parent}
            self.spans[id_] = {**about, "inside": [], "events": [], "end": "never"}
            if parent in self.spans:
                self.spans[parent]["inside"].append(id_)
            else:
                self.roots.append(id_)

    def end(self, id_: str, how: str) -> None:
        with self.lock:
            if id_ in self.spans:
                self.spans[id_]["end"] = how

    def event(self, event: BaseEvent) -> None:
        record = [event.class_name(), {name: shown(value) for name, value in _fields(event).items()}]
        with self.lock:
            if event.span_id in self.spans:
                self.spans[event.span_id]["events"].append(record)

    def tree(self, ordered: bool) -> list[Any]:
        """Returns the spans as a tree. ordered: False sorts the contents of each span."""

        def node(id_: str) -> Any:
            found = self.spans[id_]
            inside = [node(each) for each in found["inside"]]
            if not ordered:
                inside.sort(key=_without_ids)
            return {name: found[name] for name in ("span", "given", "end", "events")} | {"inside": inside}

        return [node(root) for root in self.roots]


def _without_ids(record: Any) -> str:
    """Returns a key to sort records by: nodes made in a call get random ids, which would change the order."""
    return _UUID.sub("", json.dumps(record, default=repr))


def _fields(event: BaseEvent) -> dict[str, Any]:
    ignored = {"id_", "timestamp", "span_id", "tags", "err_str"}
    return {name: getattr(event, name) for name in type(event).model_fields if name not in ignored}


def _name(id_: str) -> str:
    return id_[:-37]  # without the uuid


class _Spans(BaseSpanHandler[BaseSpan]):
    _recorder: Recorder = PrivateAttr()

    def __init__(self, recorder: Recorder) -> None:
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
        self._recorder.enter(id_, parent_span_id, list(bound_args.arguments))
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
    _recorder: Recorder = PrivateAttr()

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self._recorder.event(event)


@contextmanager
def recording() -> Iterator[Recorder]:
    """Records all spans and events of the process."""
    root, recorder = get_dispatcher(), Recorder()
    spans, events = _Spans(recorder), _Events(recorder)
    root.add_span_handler(spans)
    root.add_event_handler(events)
    try:
        yield recorder
    finally:
        root.span_handlers = [each for each in root.span_handlers if each is not spans]
        root.event_handlers = [each for each in root.event_handlers if each is not events]


class Legacy(BaseCallbackHandler):
    """Records the events of a callback manager."""

    def __init__(self) -> None:
        super().__init__([], [])
        self._lock = threading.Lock()
        self._events: dict[str, dict[str, Any]] = {}
        self._traces: list[str] = []

    def forget(self) -> None:
        """Drops all that was recorded."""
        self._events, self._traces = {}, []

    def on_event_start(
        self, event_type: Any, payload: Any = None, event_id: str = "", parent_id: str = "", **kwargs: Any
    ) -> str:
        with self._lock:
            record = {"event": event_type.value, "start": shown(payload), "end": None, "parent": parent_id}
            self._events[event_id] = record
        return event_id

    def on_event_end(self, event_type: Any, payload: Any = None, event_id: str = "", **kwargs: Any) -> None:
        with self._lock:
            if event_id in self._events:
                self._events[event_id]["end"] = shown(payload)

    def start_trace(self, trace_id: str | None = None) -> None:
        with self._lock:
            self._traces.append(f"start {trace_id}")

    def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
        with self._lock:
            self._traces.append(f"end {trace_id}")

    def tree(self, ordered: bool) -> list[Any]:
        with self._lock:  # threads of a call that has failed may still be running
            events, traces = dict(self._events), list(self._traces)

        def node(id_: str) -> Any:
            found = events[id_]
            inside = [node(each) for each, event in events.items() if event["parent"] == id_]
            if not ordered:
                inside.sort(key=_without_ids)
            return {"event": found["event"], "start": found["start"], "end": found["end"], "inside": inside}

        roots = [id_ for id_, event in events.items() if event["parent"] not in events]
        trees = list(map(node, roots))
        if not ordered:
            trees.sort(key=_without_ids)
        return [traces if ordered else sorted(traces), *trees]


def shown(value: Any) -> Any:
    """Returns a value without identities and times: equal for equal contents."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, NodeWithScore):
        return [shown(value.node), value.score]
    if isinstance(value, BaseNode):
        return [value.node_id, value.get_content(), dict(value.metadata)]
    if isinstance(value, ChatMessage):
        return [value.role.value, value.content]
    if isinstance(value, ChatResponse):
        return [shown(value.message), value.delta]
    if isinstance(value, CompletionResponse):
        return [value.text, value.delta]
    if isinstance(value, QueryBundle):
        return [value.query_str]
    if isinstance(value, BasePromptTemplate):
        return [type(value).__name__, value.get_template(), sorted(map(str, value.kwargs.items()))]
    if isinstance(value, Mapping):
        return {str(getattr(key, "value", key)): shown(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [shown(part) for part in value]
    if isinstance(value, BaseException):
        return [type(value).__name__, str(value)]
    if isinstance(value, BaseModel):
        return type(value).__name__
    return type(value).__name__


@contextmanager
def listening(obj: Any) -> Iterator[tuple[Any, Callable[[Any, CallbackManager], Any]]]:
    """Yields an object, and a function that sends its callback managers' events to another manager, too.

    That lasts until the end of the block. For objects that cannot be rebuilt with the manager of a test.
    """
    added: list[tuple[CallbackManager, BaseCallbackHandler]] = []

    def listen(made: Any, manager: CallbackManager) -> Any:
        for found in _managers(made):
            for handler in manager.handlers:
                found.add_handler(handler)
                added.append((found, handler))
        return made

    try:
        yield obj, listen
    finally:
        for found, handler in added:
            found.remove_handler(handler)


def _managers(obj: Any) -> list[CallbackManager]:
    """Returns the callback managers of an object and of all its parts."""
    found: dict[int, CallbackManager] = {}
    seen: set[int] = set()
    waiting = [obj]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, CallbackManager):
            found[id(value)] = value
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        elif type(value).__module__.partition(".")[0] in ("llama_index", "fineflow") or isinstance(value, BaseModel):
            waiting += vars(value).values() if hasattr(value, "__dict__") else ()
            waiting += (getattr(value, "__pydantic_private__", None) or {}).values()
    return list(found.values())
