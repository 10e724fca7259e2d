"""Values in a comparable form: equal for two runs of equal pipelines, and plain enough to print in a diff."""

from __future__ import annotations

import dataclasses
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_RUN_ID = re.compile(rf"\b(lc_run--|lc_|run-)({_UUID})")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

# ``isinstance`` is faster with a tuple than with a union, and with ``dict`` than with an abstract class.
_PLAIN = (bool, int, float, bytes, type(None))
_MAPPINGS = (dict, Mapping)
_COLLECTIONS = (list, tuple, set, frozenset)

Fields = Callable[[Any], Mapping[str, Any] | None]
"""Returns the fields of an object that count, for classes that are to be compared in a way of their own; else None."""


def _any(value: Any) -> None:
    return None


def canonical(value: Any, fields: Fields = _any) -> Any:
    """Returns ``value`` as nested dicts, lists and scalars; later changes to the value do not show.

    Replaces what differs from run to run: run ids inside message ids, UUID objects, addresses in a ``repr``. Keeps the
    type of every object, as ``"type"`` beside its fields.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, str):
        if type(value) is str and "-" not in value:
            return value
        text = _RUN_ID.sub(r"\1<id>", value)
        return text if type(value) is str else {"type": _name(value), "value": text}
    if (own := fields(value)) is not None:
        return {"type": _name(value), **{k: canonical(v, fields) for k, v in own.items()}}
    if isinstance(value, _MAPPINGS):
        items = {str(canonical(k, fields)): canonical(v, fields) for k, v in value.items()}
        return items if type(value) is dict else {"type": _name(value), "items": items}
    if isinstance(value, _COLLECTIONS):
        parts = [canonical(v, fields) for v in value]
        if isinstance(value, set | frozenset):
            parts.sort(key=as_text)
        return parts if type(value) is list else {"type": _name(value), "items": parts}
    if hasattr(type(value), "model_fields"):  # pydantic's, without importing it
        return {"type": _name(value), **{k: canonical(v, fields) for k, v in _fields(value).items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"type": _name(value), **{k: canonical(v, fields) for k, v in own.items()}}
    if isinstance(value, BaseException):
        return {"type": _name(value), "message": canonical(str(value))}
    if isinstance(value, UUID):
        return "<uuid>"
    return _RUN_ID.sub(r"\1<id>", _ADDRESS.sub("", repr(value)))


def as_text(form: Any) -> str:
    """Returns a canonical form as one line, equal for equal forms: a sort key."""
    return json.dumps(form, sort_keys=True, default=repr)


def as_lines(form: Any) -> list[str]:
    """Returns a canonical form as lines, for a diff."""
    return json.dumps(form, indent=1, sort_keys=True, default=repr, ensure_ascii=False).splitlines()


def concatenated(chunks: Sequence[Any]) -> Any:
    """Returns the sum of the chunks; chunks that cannot be added replace the one before, as in LangChain."""
    total = chunks[0]
    for chunk in chunks[1:]:
        try:
            total = operator.add(total, chunk)
        except TypeError:
            total = chunk
    return total


def chunk_types(chunks: Sequence[Any]) -> dict[str, list[str]]:
    """Returns the type names of streamed chunks, per key ("" for chunks that are not dicts)."""
    found: dict[str, set[str]] = {}
    for chunk in chunks:
        for key, piece in chunk.items() if isinstance(chunk, Mapping) else [("", chunk)]:
            found.setdefault(str(key), set()).add(_name(piece))
    return {key: sorted(names) for key, names in found.items()}


def _fields(model: Any) -> dict[str, Any]:
    fields = {name: getattr(model, name) for name, f in type(model).model_fields.items() if not f.exclude}
    return {**fields, **(model.model_extra or {})}


def _name(value: object) -> str:
    return type(value).__qualname__
