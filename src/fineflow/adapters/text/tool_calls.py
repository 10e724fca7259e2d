"""Incremental parser of tool calls in a model's output.

A call is released when it is complete: a truncated call is text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from fineflow.adapters.text.tool_formats import ToolFormat
from fineflow.protocols import ToolCall


class CallReader:
    """Separates tool calls from text while the output arrives: yields pieces of text and calls, in order.

    tools: names of the offered tools. salt: distinguishes the call ids of different outputs; in every process, equal
    outputs with equal salts have equal ids. An id is nine letters and digits, as Mistral's chat templates require.
    White space around calls is dropped.
    """

    def __init__(self, written: ToolFormat, tools: Sequence[str], salt: str = "") -> None:
        self._written = written
        self._tools = frozenset(tools)
        self._salt = salt
        self._calls = 0
        self._spoken = False  # True if there was text outside calls
        self._held = ""  # undecided or unread text
        self._out: list[str | ToolCall] = []
        self._state = self._text  # processes the held text; returns False when it needs more
        self._raw = ""  # of the current call: the text so far,
        self._name = ""  # the name in front of its JSON,
        self._marked = False  # True if it has a marker,
        self._extent = Extent()  # and the extent of its JSON

    def push(self, text: str) -> list[str | ToolCall]:
        """Returns the text and calls that are certain now."""
        self._held += text
        while self._state():
            pass
        out, self._out = self._out, []
        return out

    def finish(self) -> list[str | ToolCall]:
        """Returns the rest when the output ends: an incomplete call is text."""
        left = "" if self._state == self._after else self._raw + self._held
        self._held = self._raw = ""
        return [left] if left.strip() or (left and not self._calls) else []

    def _say(self, text: str) -> None:
        if text:
            self._spoken = True
            self._out.append(text)

    def _text(self) -> bool:
        """Looks for the next call."""
        text, marker = self._held, self._written.marker
        if not self._spoken and self._written.bare and not text.isspace():
            value = text.lstrip()
            if value.startswith(self._written.bare) and not marker.startswith(value[: len(marker)]):
                return self._begin(len(text) - len(value), marked=False)
        at = text.find(marker)
        if at < 0:
            certain = text[: len(text) - _overlap(text, marker)].rstrip()
            if not text.isspace():
                self._say(certain)
                self._held = text[len(certain) :]
            return False
        if behind := _HEAD.match(text, at + len(marker)):
            self._say(text[:at].rstrip())
            self._held = text[len(text[:at].rstrip()) :]
            return self._begin(behind.end() - len(text) + len(self._held), name=behind["name"] or "")
        if _HEAD_BEGUN.fullmatch(text, at + len(marker)):
            return False
        self._say(text[: at + len(marker)])
        self._held = text[at + len(marker) :]
        return True

    def _begin(self, at: int, *, name: str = "", marked: bool = True) -> bool:
        self._raw, self._held = self._held[:at], self._held[at:]
        self._name, self._marked = name, marked
        self._extent, self._state = Extent(), self._json
        return True

    def _json(self) -> bool:
        """Reads to the end of the JSON of a call."""
        text, self._held = self._held, ""
        end = self._extent.push(text)
        self._raw += text[:end]
        if end is None:
            return False
        self._held = text[end:]
        raw, self._raw = self._raw, ""
        calls = self._read(raw[len(raw) - self._extent.length :])
        self._state = self._after if calls else self._text
        if not calls:
            self._say(raw)
        self._out += calls
        return True

    def _after(self) -> bool:
        """Drops the end marker of a call, and white space."""
        text, end = self._held.lstrip(), self._written.end
        while (end and text.startswith(end)) or (self._written.bare == "{" and text.startswith((";", ","))):
            text = text[len(end) or 1 :].lstrip()
        self._held = text
        if not text or end.startswith(text):
            return False
        self._state = self._text
        return True

    def _read(self, text: str) -> list[ToolCall]:
        """Returns the calls in the JSON; none if it is anything else."""
        try:
            value = json.loads(text, strict=False)
        except ValueError:
            return []
        if self._name:
            value = {"name": self._name, "arguments": value}
        found = [self._made(part) for part in (value if isinstance(value, list) else [value])]
        calls = [part for part in found if part is not None]
        return [self._numbered(*part) for part in calls] if len(calls) == len(found) else []

    def _made(self, value: Any) -> tuple[str, dict[str, Any]] | None:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = next((value[key] for key in ("arguments", "parameters") if key in value), None)
        if isinstance(arguments, str):  # some models quote them
            try:
                arguments = json.loads(arguments, strict=False)
            except ValueError:
                return None
        if not self._marked and (value["name"] not in self._tools or arguments is None):
            return None
        arguments = {} if arguments is None else arguments
        return (value["name"], arguments) if isinstance(arguments, dict) else None

    def _numbered(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        said = "\0".join((self._salt, str(self._calls), name, json.dumps(arguments)))
        number = int.from_bytes(hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        self._calls += 1
        return ToolCall("".join(_DIGITS[number // len(_DIGITS) ** i % len(_DIGITS)] for i in range(9)), name, arguments)


_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# After a marker: with Mistral's later tokenizers the name precedes the JSON, with markers of their own.
_HEAD = re.compile(r"\s*(?:(?P<name>[\w.:-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)|(?=[\[{]))")
_HEAD_BEGUN = re.compile(r"\s*(?:[\w.:-]+(?:\[[\w\]]*)*\s*)?")


class Extent:
    """Finds the end of a JSON array or object in a text that arrives in pieces; length: characters read so far."""

    _MARK = re.compile(r'["\\\[\]{}]')

    def __init__(self) -> None:
        self.length = 0
        self._depth = 0
        self._quoted = False
        self._escaped = -1  # position of the character after the last backslash

    def push(self, text: str) -> int | None:
        """Returns the position in this piece after the end; None if the value continues."""
        for match in self._MARK.finditer(text):
            at, mark = match.start() + self.length, match[0]
            if self._quoted:
                if at == self._escaped:
                    continue
                if mark == "\\":
                    self._escaped = at + 1
                self._quoted = mark != '"'
            elif mark == '"':
                self._quoted = True
            elif mark != "\\":
                self._depth += 1 if mark in "[{" else -1
                if not self._depth:
                    self.length += match.end()
                    return match.end()
        self.length += len(text)
        return None


def _overlap(text: str, marker: str) -> int:
    """Returns the length of the longest suffix of the text that is a proper prefix of the marker."""
    longest = min(len(marker) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)
