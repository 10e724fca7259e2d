"""Values of two runs, made comparable."""

from __future__ import annotations

import re
from typing import Any

_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}")
_VARYING = frozenset({"ts", "timestamp", "created_at"})


def plain(value: Any) -> Any:
    """Returns a value without what is new in every run: ids and times."""
    if isinstance(value, str):
        return _IDS.sub("ID", value)
    if isinstance(value, dict):
        return {plain(key): plain(part) for key, part in value.items() if key not in _VARYING}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return type(value).__name__, plain(value._asdict())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "model_dump"):
        return type(value).__name__, plain(value.model_dump())
    if isinstance(value, int | float | bool | type(None)):
        return value
    return type(value).__name__, re.sub(r" at 0x[0-9a-f]+", "", plain(repr(value)))
