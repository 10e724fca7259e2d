"""Whether a user's object is still the one that was planned: parts may be put in, taken out or set up differently.

What a component reads when it runs (``search_kwargs``, ``top_n``, a temperature) is not looked at here: it is read when
it runs in the graph, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fineflow.adapters.langchain.recorder import lessons

# What lowering reads of the objects, whatever their kind.
_READ = (
    *("first", "middle", "last", "steps__", "mapper", "keys", "func", "afunc", "bound", "kwargs"),
    *("input_variables", "optional_variables", "partial_variables", "template", "template_format", "messages"),
    *("rate_limiter", "engine", "pydantic_object"),
    *("vectorstore", "llm_chain", "retriever", "include_original", "base_retriever", "base_compressor"),
    *("transformers", "model", "embeddings"),
)
_ABSENT: Any = object()


class Snapshot:
    """What was read of some objects when they were planned."""

    def __init__(self, objects: Iterable[Any]) -> None:
        self._lessons = lessons()
        self._seen: list[tuple[Any, str, Any, tuple[Any, ...] | None]] = []
        for obj in objects:
            known = getattr(obj, "__dict__", {})
            self._seen += [(obj, name, known[name], _parts(known[name])) for name in _READ if name in known]

    def holds(self) -> bool:
        """Whether all of it is still the same, by identity, as are the parts of lists and dicts."""
        if self._lessons != lessons():
            return False
        for obj, name, value, parts in self._seen:
            now = obj.__dict__.get(name, _ABSENT)
            if now is not value:
                return False
            if parts is not None:
                current = _parts(now) or ()
                if len(parts) != len(current) or any(a is not b for a, b in zip(parts, current, strict=True)):
                    return False
        return True


def _parts(value: Any) -> tuple[Any, ...] | None:
    if type(value) is dict:
        return (*value, *value.values())
    return tuple(value) if type(value) in (list, tuple) else None
