"""Queries and nodes in reports of calls ahead, as they were when the call reported them.

LlamaIndex changes both in place: a sync search stores its vector in the query, a postprocessor its score or text in the
nodes. Stock's handlers see an event before what comes after it; one that is sent later would show what came of it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from inspect import BoundArguments
from typing import Any

from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index_instrumentation.base import BaseEvent

from fineflow.runtime.call.claims import equal


class AsReported:
    """One value of a report: an event, the arguments of a span, a result, or anything else, which stays as it is."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._before: dict[str, Any] = {}
        for name, part in _parts(value).items():
            if _changes(part):
                with suppress(Exception):  # of a node of somebody's own class: it is sent as it is then
                    self._before[name] = _copied(part)

    def value(self) -> Any:
        """Returns the value itself; with copies of the parts that have changed since, if there are any."""
        parts = _parts(self._value)
        old = {name: before for name, before in self._before.items() if not equal(parts[name], before)}
        if not old:
            return self._value
        if isinstance(self._value, BaseEvent):
            vars(self._value).update(old)
            return self._value
        if isinstance(self._value, BoundArguments):  # also those of the end of the span, by which time they may differ
            return BoundArguments(self._value.signature, {**parts, **old})
        return old[""]


def _parts(value: Any) -> Mapping[str, Any]:
    if isinstance(value, BaseEvent):
        return vars(value)
    return value.arguments if isinstance(value, BoundArguments) else {"": value}


def _changes(part: Any) -> bool:
    return isinstance(part, QueryBundle) or (
        type(part) is list and part != [] and all(isinstance(each, NodeWithScore) for each in part)
    )


def _copied(part: Any) -> Any:
    if isinstance(part, QueryBundle):
        return copy.copy(part)
    return [each.model_copy(update={"node": _node(each.node)}) for each in part]


def _node(node: Any) -> Any:
    return node.model_copy(update={"metadata": dict(node.metadata)})
