"""Values in a comparable form: equal for two runs of equal pipelines, and plain enough to print in a diff."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pydantic import BaseModel

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_RUN_ID = re.compile(rf"\b(lc_run--|lc_|run-)({_UUID})")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def canonical(value: Any) -> Any:
    """Returns ``value`` as nested dicts, lists and scalars; later changes to the value do not show.

    Replaces what differs from run to run: run ids inside message ids, UUID objects, addresses in a ``repr``. Keeps the
    type of every object, as ``"type"`` beside its fields.
    """
    if value is None or isinstance(value, bool | int | float | bytes):
        return value
    if isinstance(value, str):
        text = _RUN_ID.sub(r"\1<id>", value)
        return text if type(value) is str else {"type": _name(value), "value": text}
    if isinstance(value, Mapping):
        items = {str(canonical(k)): canonical(v) for k, v in value.items()}
        return items if type(value) is dict else {"type": _name(value), "items": items}
    if isinstance(value, list | tuple | set | frozenset):
        parts = [canonical(v) for v in value]
        if isinstance(value, set | frozenset):
            parts.sort(key=as_text)
        return parts if type(value) is list else {"type": _name(value), "items": parts}
    if isinstance(value, BaseModel):
        return {"type": _name(value), **{k: canonical(v) for k, v in _fields(value).items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"type": _name(value), **{f.name: canonical(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if isinstance(value, BaseException):
        return {"type": _name(value), "message": canonical(str(value))}
    if isinstance(value, UUID):
        return "<uuid>"
    return _RUN_ID.sub(r"\1<id>", _ADDRESS.sub("", repr(value)))


def as_text(form: Any) -> str:
    """Returns a canonical form as one line, equal for equal forms: a sort key."""
    return json.dumps(form, sort_keys=True, default=repr)


def _fields(model: BaseModel) -> dict[str, Any]:
    fields = {name: getattr(model, name) for name, f in type(model).model_fields.items() if not f.exclude}
    return {**fields, **(model.model_extra or {})}


def _name(value: object) -> str:
    return type(value).__qualname__
