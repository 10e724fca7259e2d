"""Incremental splitters for JSON: array elements and object fields; see `fineflow.adapters.text.items`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fineflow.adapters.text.items import CheckedItems

T = TypeVar("T")


class _Tokens:
    """Tokenizes the content of a JSON array or object: values, commas, colons, brackets.

    A value is the text of a string, scalar, array or object directly inside. It is not validated.
    """

    _MARK = re.compile(r'["\\\[\]{},: \t\n\r]')

    def __init__(self) -> None:
        self._open: list[str] = []  # a value that has not ended, in pieces
        self._depth = 0  # bracket depth within that value
        self._quoted = False
        self._escaped = -1  # position of the character after the last backslash

    def cut(self, text: str) -> Iterator[str]:
        """Yields the tokens that this piece completes."""
        start = 0
        for match in self._MARK.finditer(text):
            at, mark = match.start(), match[0]
            outside = not self._quoted and not self._depth
            self._follow(mark, at)
            if outside and mark not in '"[{':  # a delimiter, which ends a scalar
                yield from self._value(text[start:at])
                yield from mark.strip()
            elif mark in '"]}' and not self._quoted and not self._depth:  # closes a string, array or object
                yield from self._value(text[start : at + 1])
            else:
                continue
            start = at + 1
        self._open.append(text[start:])
        self._escaped = 0 if self._escaped == len(text) else -1

    def _follow(self, mark: str, at: int) -> None:
        if self._quoted:
            if at == self._escaped:
                return
            if mark == "\\":
                self._escaped = at + 1
            self._quoted = mark != '"'
        elif mark == '"':
            self._quoted = True
        elif mark in "[{":
            self._depth += 1
        elif mark in "]}" and self._depth:
            self._depth -= 1

    def _value(self, end: str) -> list[str]:
        value = "".join([*self._open, end])
        self._open = []
        return [value] if value else []


class _Json(CheckedItems[T]):
    """The content of one JSON value, plain or in a code fence, as langchain reads it."""

    # Text that langchain strips before the value. After other text it searches again in the complete text.
    _HEAD = re.compile(r"\s*(?:```json)?[ \n\r\t`]*([^ \n\r\t`])")
    _HEAD_BEGUN = re.compile(r"\s*(?:```(?:j|js|jso|json[ \n\r\t`]*)|[ \n\r\t`]*)")
    _LONGEST_HEAD = 200  # characters; it is matched again with each piece

    _brackets: str

    def __init__(self, parse: Callable[[str], Any]) -> None:
        """``parse``: the ``parse`` of the JsonOutputParser, called once, by ``close``."""
        super().__init__(parse)
        self._head: str | None = ""  # None after the opening bracket
        self._tokens = _Tokens()
        self._expects = self._next

    def _scan(self, text: str) -> Iterator[T]:
        if self._head is not None:
            self._head += text
            if self._HEAD_BEGUN.fullmatch(self._head) and len(self._head) <= self._LONGEST_HEAD:
                return
            head = self._HEAD.match(self._head)
            if not head or head[1] != self._brackets[0]:
                raise ValueError("not the plain beginning of the value")
            text, self._head = self._head[head.end() :], None
        for token in self._tokens.cut(text):
            yield from self._expects(token)

    def _next(self, token: str) -> list[T]:
        """Takes the token after the opening bracket or a comma."""
        raise NotImplementedError

    def _comma(self, token: str) -> list[T]:
        if token != ",":  # also the closing bracket: nothing more comes
            raise ValueError("expected a comma")
        self._expects = self._next
        return []


class JsonItems(_Json[Any]):
    """The elements of a JSON array, as JsonOutputParser returns it for the whole text; nothing for other values.

    A string, array or object is final when it closes, a scalar when the next delimiter arrives.
    """

    _brackets = "[]"

    def _next(self, token: str) -> list[Any]:
        element = json.loads(token, strict=False)
        self._expects = self._comma
        return [element]

    def _items(self, parsed: Any) -> list[Any]:
        if not isinstance(parsed, list):
            raise ValueError("not an array")
        return parsed


class JsonFields(_Json[tuple[str, Any]]):
    """The fields ``(key, value)`` of a JSON object, as JsonOutputParser returns it for the whole text.

    A value is final when it closes, but a later field of the same key replaces it. That is a contradiction, known at
    once, unless the values are equal.
    """

    _brackets = "{}"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        super().__init__(parse)
        self._key = ""
        self._values: dict[str, str] = {}  # as repr

    def _next(self, token: str) -> list[tuple[str, Any]]:
        key = json.loads(token, strict=False)
        if not isinstance(key, str):
            raise ValueError("expected a key")
        self._key, self._expects = key, self._colon
        return []

    def _colon(self, token: str) -> list[tuple[str, Any]]:
        if token != ":":
            raise ValueError("expected a colon")
        self._expects = self._value
        return []

    def _value(self, token: str) -> list[tuple[str, Any]]:
        value = json.loads(token, strict=False)
        self._expects = self._comma
        if self._key not in self._values:
            self._values[self._key] = repr(value)
            return [(self._key, value)]
        if self._values[self._key] != repr(value):
            self.contradicted = True
            raise ValueError("the key came before, with another value")
        return []

    def _items(self, parsed: Any) -> list[tuple[str, Any]]:
        if not isinstance(parsed, dict):
            raise ValueError("not an object")
        return list(parsed.items())
