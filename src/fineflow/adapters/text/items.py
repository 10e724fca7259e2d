"""Incremental splitters: release the items of a parser's list while the text is still being generated.

A splitter gets the text in pieces, cut anywhere. It releases an item as soon as no later text can change it, so that
work on the item starts before the text is complete. For every text and every way to cut it:

* the items from ``push``, followed by those from ``close``, are the list that the parser makes of the whole text;
* the items from ``push`` alone are a prefix of that list.

This holds without exception for `Lines`, `Split`, `SplitLines`, `Numbered` and `Markdown`. It cannot
hold for JSON, nor for `CommaSeparated`: langchain repairs malformed JSON by cutting text off its end,
and looks for another answer after the next code fence, so some continuation changes every item. There it holds for
every well-formed text and every prefix of one (a truncated answer). For other texts, ``close`` may set
``contradicted`` and release nothing more. Code that starts work on an item early compares it with the parser's own
result before any effect is observable, so a contradiction costs time but cannot change an answer.

All work is done when ``push`` or ``close`` is called, not when the iterator is read, and takes time linear in the text.
A splitter serves one text. No splitter raises: if the parser raises on the whole text, ``close`` releases nothing.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Splitter(Protocol[T_co]):
    """Interface of all splitters."""

    @property
    def contradicted(self) -> bool:
        """True if a released item differs from the parser's list at that place; settled by ``close``."""
        ...

    def push(self, text: str) -> Iterator[T_co]:
        """Returns the items that this piece of text makes final."""
        ...

    def close(self) -> Iterator[T_co]:
        """Returns the items that the end of the text makes final."""
        ...


class _Stripped:
    """``text.strip()``, incrementally: passes on text that is certain to be part of the result."""

    def __init__(self) -> None:
        self._begun = False  # True after the first non-blank character
        self._blanks: list[str] = []  # white space held back, because the text may end with it

    def push(self, text: str) -> str:
        """Returns the text that this piece settles."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        kept = text.rstrip()
        blanks = text[len(kept) :]
        if not kept:
            self._blanks.append(blanks)
            return ""
        settled = "".join([*self._blanks, kept])
        self._blanks = [blanks]
        return settled


class Split:
    """``text.split(separator)``, or ``text.strip().split(separator)`` with ``strip``; ``None`` splits at white space.

    An item is final when the separator after it has arrived; with ``strip``, only when a later non-blank character has
    arrived too: until then ``strip`` of the whole text could remove the separator, or blanks of the item.
    ``keep_empty=False`` leaves out empty items.

    Raises ValueError for an empty separator, as ``str.split`` would on the text.
    """

    contradicted = False

    def __init__(self, separator: str | None, *, strip: bool = False, keep_empty: bool = True) -> None:
        if separator == "":
            raise ValueError("expected a separator to split at, or None for white space; got an empty string")
        self._separator = separator
        self._stripped = _Stripped() if strip and separator is not None else None  # splitting at white space strips
        self._keep_empty = keep_empty
        self._open: list[str] = []  # the item that is not final yet, in pieces
        self._tail = ""  # its last characters, which may be the beginning of a separator

    def push(self, text: str) -> Iterator[str]:
        """Returns the items that this piece of text makes final."""
        if self._stripped is not None:
            text = self._stripped.push(text)
        if self._separator is None:
            return iter(self._words(text))
        window = self._tail + text
        if self._separator in window:
            *items, rest = "".join([*self._open, text]).split(self._separator)
            self._open = [rest]
        else:
            items = []
            self._open.append(text)
        self._tail = window[max(0, len(window) - len(self._separator) + 1) :]
        return iter(items if self._keep_empty else [item for item in items if item])

    def close(self) -> Iterator[str]:
        """Returns the last item, which ends with the text."""
        rest = "".join(self._open)
        return iter([rest] if rest or (self._keep_empty and self._separator is not None) else [])

    def _words(self, text: str) -> list[str]:
        if not re.search(r"\s", text):
            self._open.append(text)
            return []
        text = "".join([*self._open, text])
        words = text.split()
        self._open = [] if text[-1].isspace() else [words.pop()]
        return words


class SplitLines:
    """``text.splitlines()``, or ``text.strip().splitlines()`` with ``strip``.

    A line is final when its line end (of eleven kinds) has arrived; with ``strip``, only when a later non-blank
    character has arrived too.
    """

    contradicted = False
    _ENDS = re.compile("\r\n|[\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")

    def __init__(self, *, strip: bool = False) -> None:
        self._stripped = _Stripped() if strip else None
        self._open: list[str] = []  # the line that has not ended, in pieces
        self._returned = False  # True if the text so far ends with a carriage return: a following newline belongs to it

    def push(self, text: str) -> Iterator[str]:
        """Returns the lines that this piece of text ends."""
        if self._stripped is not None:
            text = self._stripped.push(text)
        if not text:
            return iter(())
        if self._returned and text[0] == "\n":
            text = text[1:]
        self._returned = text.endswith("\r")
        if not self._ENDS.search(text):
            self._open.append(text)
            return iter(())
        whole = "".join([*self._open, text])
        lines = whole.splitlines()
        self._open = [] if self._ENDS.fullmatch(whole[-1]) else [lines.pop()]
        return iter(lines)

    def close(self) -> Iterator[str]:
        """Returns the last line, if it has no line end."""
        rest = "".join(self._open)
        return iter([rest] if rest else [])


class Each:
    """The items of another splitter, filtered by ``keep`` and mapped by ``change``."""

    def __init__(
        self,
        inner: Splitter[str],
        keep: Callable[[str], Any] | None = None,
        change: Callable[[str], str] | None = None,
    ) -> None:
        self._inner = inner
        self._keep = keep
        self._change = change

    @property
    def contradicted(self) -> bool:
        """True if the other splitter released an item that is not in its list."""
        return self._inner.contradicted

    def push(self, text: str) -> Iterator[str]:
        """Returns the items that this piece of text makes final."""
        return self._each(self._inner.push(text))

    def close(self) -> Iterator[str]:
        """Returns the items that the end of the text makes final."""
        return self._each(self._inner.close())

    def _each(self, items: Iterator[str]) -> Iterator[str]:
        kept = (item for item in items if self._keep is None or self._keep(item))
        return kept if self._change is None else map(self._change, kept)


class Lines(Split):
    """``text.strip().split("\\n")`` without empty lines, as in LineListOutputParser.

    A line is final when its newline *and* a later non-blank character have arrived: until then stock's ``strip`` of
    the whole text could remove blanks at its end, or the line.
    """

    def __init__(self) -> None:
        super().__init__("\n", strip=True, keep_empty=False)


class _LineMatches:
    """``re.findall(pattern, text)`` for a pattern whose one group runs to the end of its line.

    A match is final when the newline after it has arrived. It may begin in the line before, because ``\\s`` in the
    patterns below may match that line's newline; so the last complete line is kept unless it is part of a match.
    """

    contradicted = False
    _pattern: re.Pattern[str]

    def __init__(self) -> None:
        self._open: list[str] = []  # text in which a later match may begin, in pieces

    def push(self, text: str) -> Iterator[str]:
        """Returns the items that this piece of text makes final."""
        lines, newline, rest = text.rpartition("\n")
        if not newline:
            self._open.append(text)
            return iter(())
        block = "".join([*self._open, lines, newline])
        matches = list(self._pattern.finditer(block))
        behind = matches[-1].end() + 1 if matches else 0
        last_line = block.rfind("\n", 0, len(block) - 1) + 1
        self._open = [block[max(behind, last_line) :], rest]
        return iter([match[1] for match in matches])

    def close(self) -> Iterator[str]:
        """Returns the last item, if it has no newline."""
        return iter([match[1] for match in self._pattern.finditer("".join(self._open))])


class Numbered(_LineMatches):
    """NumberedListOutputParser with its default pattern; an item is final when its line has ended."""

    _pattern = re.compile(r"\d+\.\s([^\n]+)")


class Markdown(_LineMatches):
    """MarkdownListOutputParser with its default pattern; an item is final when its line has ended."""

    _pattern = re.compile(r"^\s*[-*]\s([^\n]+)$", re.MULTILINE)


class CheckedItems(Generic[T]):
    """Releases items on assumptions about the rest of the text; compares them at its end with the parser's own list."""

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self.contradicted = False
        self._parse = parse
        self._text: list[str] = []
        self._released: list[str] = []  # as repr: distinguishes 1 from True, and does not change with the item
        self._over = False  # True if nothing more is released before the end

    def push(self, text: str) -> Iterator[T]:
        """Returns the items that this piece of text makes final."""
        self._text.append(text)
        items: list[T] = []
        if not self._over:
            try:
                for item in self._scan(text):
                    self._released.append(repr(item))
                    items.append(item)
            except (ValueError, RecursionError, csv.Error):
                self._over = True
        return iter(items)

    def close(self) -> Iterator[T]:
        """Returns the items of the parser's list that were not released yet; none if it contradicts released ones."""
        self._over = True
        count = len(self._released)
        try:
            items = self._items(self._parse("".join(self._text)))
            agreed = [repr(item) for item in items[:count]] == self._released
        except Exception:  # stock raises it, when it parses the text
            items, agreed = [], not count
        self.contradicted = self.contradicted or not agreed
        return iter(() if self.contradicted else items[count:])

    def _scan(self, text: str) -> Iterator[T]:
        """Yields the items that this piece makes final; ValueError: no more can be released before the end."""
        raise NotImplementedError

    def _items(self, parsed: Any) -> list[T]:
        """Returns the items of the parser's result for the whole text."""
        raise NotImplementedError
