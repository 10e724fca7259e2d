"""Callback handlers that record every event, and the run tree that the events form.

``run_tree(handler)`` is equal for a stock run and an optimized run of equal pipelines: that is the promise "same run
tree". Children of a run are kept in the order of their ``seq:step:N`` tags. Other siblings may be concurrent in stock,
too, so they are compared as a multiset, in an arbitrary but fixed order.
"""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler

from fineflow.verification.canonical import as_text, canonical

_IDS = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# Metadata that tracing backends add from the environment.
VOLATILE: frozenset[str] = frozenset({"revision_id"})

# For which a held failure waits: more than all else in a test takes, and another time for each failure.
_HELD_SECONDS, _APART_SECONDS = 1e6, 1e-3

# Positional arguments of each event.
_EVENTS: dict[str, tuple[str, ...]] = {
    "on_llm_start": ("serialized", "inputs"),
    "on_chat_model_start": ("serialized", "inputs"),
    "on_llm_new_token": ("token",),
    "on_stream_event": ("event",),
    "on_llm_end": ("outputs",),
    "on_llm_error": ("error",),
    "on_chain_start": ("serialized", "inputs"),
    "on_chain_end": ("outputs",),
    "on_chain_error": ("error",),
    "on_tool_start": ("serialized", "inputs"),
    "on_tool_end": ("outputs",),
    "on_tool_error": ("error",),
    "on_retriever_start": ("serialized", "inputs"),
    "on_retriever_end": ("outputs",),
    "on_retriever_error": ("error",),
    "on_text": ("text",),
    "on_retry": ("retry_state",),
    "on_custom_event": ("name", "data"),
    "on_agent_action": ("action",),
    "on_agent_finish": ("finish",),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One call of a handler. ``data``: its arguments at that moment, in canonical form."""

    name: str
    run_id: UUID
    parent_run_id: UUID | None
    data: dict[str, Any]


class _Records:
    # No lock: while an event is recorded, Python may collect an abandoned stream, which then ends its runs right there,
    # on the same thread or on others that it waits for.
    def __init__(self, *, hold: bool = False) -> None:
        super().__init__()
        self.events: list[Event] = []
        self._hold, self._failures = hold, list[Exception]()

    def _add(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        run_id, parent = kwargs.pop("run_id"), kwargs.pop("parent_run_id", None)
        data = {**dict(zip(_EVENTS[name], args, strict=False)), **kwargs}
        serialized = data.pop("serialized", None)  # describes how to rebuild a component, not what was run
        if name.endswith("_start") and not data.get("name"):  # only there models have their name
            data["name"] = _class_name(serialized)
        self.events.append(Event(name, run_id, parent, {k: canonical(v) for k, v in data.items()}))

    def held(self, name: str, args: Sequence[Any], run_id: UUID) -> float:
        """Returns the seconds for which a run that reports this event has to wait; 0 for most.

        Only the innermost run of a failure waits, and none that is cancelled. Which of several failures is first
        depends on what fails, not on when it did.
        """
        error = args[0] if self._hold and name.endswith("_error") else None
        if not isinstance(error, Exception) or any(error is other for other in self._failures):
            return 0
        self._failures.append(error)
        begun = [event.data for event in self.events if event.run_id == run_id][:1]
        content = zlib.crc32(as_text([(data["name"], data.get("inputs")) for data in begun]).encode())
        return _HELD_SECONDS * (1 + content / 2**32) + _APART_SECONDS * len(self._failures)

    def clear(self) -> None:
        """Drops the events so far."""
        self.events.clear()


def _class_name(serialized: Any) -> str:
    parts = serialized if isinstance(serialized, dict) else {}
    return str(parts.get("name") or (parts.get("id") or [""])[-1])


class RecordingHandler(_Records, BaseCallbackHandler):
    """Records every event. ``events``: in the order of arrival, from all threads.

    hold: a run that fails goes on when all that can end without it has ended; only in virtual time of threads.
    """


class AsyncRecordingHandler(_Records, AsyncCallbackHandler):
    """Async version of ``RecordingHandler``, which async entry points call in their event loop."""


def _sync_method(name: str) -> Callable[..., None]:
    def record(self: _Records, *args: Any, **kwargs: Any) -> None:
        seconds = self.held(name, args, kwargs["run_id"])
        self._add(name, args, kwargs)
        if seconds:
            time.sleep(seconds)

    return record


def _async_method(name: str) -> Callable[..., Any]:
    async def record(self: _Records, *args: Any, **kwargs: Any) -> None:
        seconds = self.held(name, args, kwargs["run_id"])
        self._add(name, args, kwargs)
        if seconds:
            await asyncio.sleep(seconds)

    return record


for _name in _EVENTS:
    setattr(RecordingHandler, _name, _sync_method(_name))
    setattr(AsyncRecordingHandler, _name, _async_method(_name))


@dataclass
class RunNode:
    """One run, comparable by ``==``. ``events``: names of its events in order. ``extra``: its other start arguments."""

    run_type: str
    name: str
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    inputs: Any = None
    outputs: Any = None
    error: Any = None
    tokens: list[Any] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    children: list[RunNode] = field(default_factory=list)

    def sort_key(self) -> tuple[int, str]:
        """Returns the sort key of siblings: the step in a sequence, then content without children and random ids."""
        steps = [int(m[1]) for tag in self.tags if (m := re.fullmatch(r"seq:step:(\d+)", tag))]
        content = {name: value for name, value in vars(self).items() if name != "children"}
        return (steps[-1] if steps else 0, _IDS.sub("", as_text(content)))


def run_tree(
    handler: RecordingHandler | AsyncRecordingHandler, *, volatile: Collection[str] = VOLATILE
) -> list[RunNode]:
    """Returns the recorded runs: the roots, with their children. Omits metadata keys in ``volatile``."""
    nodes: dict[UUID, RunNode] = {}
    parents: dict[UUID, UUID | None] = {}
    for event in list(handler.events):
        node = nodes.get(event.run_id)
        if node is None:
            node = nodes[event.run_id] = RunNode("", "")
            parents[event.run_id] = event.parent_run_id
        node.events.append(event.name)
        _apply(node, event, volatile)
    return arrange(nodes, parents)


def arrange(nodes: dict[Any, RunNode], parents: dict[Any, Any]) -> list[RunNode]:
    """Builds a forest of ``nodes``, siblings in canonical order. ``parents``: the parent's key, by key."""
    roots: list[RunNode] = []
    for each, node in nodes.items():
        parent = nodes.get(parents[each])
        (roots if parent is None else parent.children).append(node)
    found: dict[int, tuple[Any, ...]] = {}

    def key(node: RunNode) -> tuple[Any, ...]:
        # Computed once per node, and only if it has siblings: it contains all that a run recorded.
        if id(node) not in found:
            found[id(node)] = (*node.sort_key(), [key(child) for child in node.children])
        return found[id(node)]

    for siblings in (*(node.children for node in _postorder(roots)), roots):
        if len(siblings) > 1:
            siblings.sort(key=key)
    return roots


def _postorder(nodes: Sequence[RunNode]) -> list[RunNode]:
    found: list[RunNode] = []
    for node in nodes:
        found += _postorder(node.children)
        found.append(node)
    return found


def _apply(node: RunNode, event: Event, volatile: Collection[str]) -> None:
    data = dict(event.data)
    if event.name.endswith("_start"):
        kind = data.pop("run_type", None) or event.name.removeprefix("on_").removesuffix("_start")
        node.run_type, node.name = kind, data.pop("name", None) or ""
        node.tags = tuple(sorted(data.pop("tags", None) or ()))
        node.metadata = {k: v for k, v in (data.pop("metadata", None) or {}).items() if k not in volatile}
        node.inputs = data.pop("inputs")
        node.extra = data
    elif event.name.endswith("_end"):
        node.outputs = data["outputs"]
        node.inputs = data.get("inputs", node.inputs)  # a streaming chain knows its input only at the end
    elif event.name.endswith("_error"):
        node.error = data["error"]
        node.inputs = data.get("inputs", node.inputs)
    elif event.name == "on_llm_new_token":
        node.tokens.append(data["token"])
    else:
        node.tokens.append({k: v for k, v in data.items() if k not in ("tags", "metadata")})
