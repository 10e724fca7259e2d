"""The first JSON value in what a model wrote, found in time linear in the length of the text."""

from __future__ import annotations

import json
import re
from typing import Any

from fineflow.errors import shown

MOST_STARTS = 200
"""Brackets at which the search tries to read a value. Each try may take as long as the text is."""

_LANGUAGE = re.compile(r"[\w-]*[^\S\n]*\n")
_START = re.compile(r"\{(?=\s*+[\"}])|\[(?=\s*+[\"\[\]{\-\dtfnIN])")
_OBJECT = re.compile(r"\{(?=\s*+[\"}])")


def parsed_json(text: str) -> Any:
    """Returns a text as JSON: all of it, what is in its code fence, or the first object or list in it.

    Raises ValueError if there is none, if it is nested too deeply for Python's reader, or if it is not among the first
    ``MOST_STARTS`` brackets that may begin a value.
    """
    deep = False
    for candidate in (text.strip(), _fenced(text)):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
        except RecursionError:
            deep = True
    return _first(text, _START, object, deep=deep)


def first_object(text: str) -> dict[str, Any]:
    """Returns the first JSON object in a text. Raises ValueError as ``parsed_json`` does."""
    found: dict[str, Any] = _first(text, _OBJECT, dict)
    return found


def _first(text: str, starts: re.Pattern[str], kind: type, *, deep: bool = False) -> Any:
    decoder, tried = json.JSONDecoder(), 0
    for start in starts.finditer(text):
        if tried == MOST_STARTS or deep:
            break
        tried += 1
        try:
            value, _ = decoder.raw_decode(text, start.start())
        except ValueError:
            continue
        except RecursionError:
            deep = True
            continue
        if isinstance(value, kind):
            return value
    why = ", which is nested too deeply" if deep else f" within {tried} brackets" if tried == MOST_STARTS else ""
    what = "a JSON object" if kind is dict else "JSON"
    raise ValueError(f"expected {what}, found {shown(text)}{why}")


def _fenced(text: str) -> str:
    """Returns what is in the first code fence of a text; an empty text if there is none."""
    start = text.find("```")
    while start >= 0:
        language = _LANGUAGE.match(text, start + 3)
        if language is not None:
            end = text.find("```", language.end())
            return text[language.end() : end].strip() if end >= 0 else ""
        start = text.find("```", start + 1)
    return ""
