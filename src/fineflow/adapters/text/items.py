"""Incremental splitters: the items of a parser's list, released while the text they are parsed from still comes.

A splitter is pushed the text in pieces, cut anywhere. It releases an item as soon as no later text can change it, so
that work on the item starts before the text is complete. For every text and every way to cut it:

* what ``push`` released, followed by what ``close`` releases, is the list that the parser makes of the whole text;
* what ``push`` released alone is a prefix of that list.

So it is, without exception, for `Lines`, `Split`, `SplitLines`, `CommaSeparated`, `Numbered` and `Markdown`. For JSON
(and for ``CommaSeparated(eager=True)``) no release could promise that: langchain repairs malformed JSON by cutting text
off its end, and looks for another answer behind the next code fence, so some continuation changes every item. There the
promise holds for every well-formed text and for every beginning of one (an answer cut short); where other texts break
it, ``close`` sets ``contradicted`` and releases nothing more. Who starts work on an item early compares with the
parser's own result before anything of it can be observed, so a contradiction costs time and no answer.

All work is done when ``push`` or ``close`` is called, not when the iterator is read, and takes time linear in the text.
A splitter serves one text. None of them raises: where the parser raises on the whole text, ``close`` releases nothing.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Splitter(Protocol[T_co]):
    """What all splitters share."""

    @property
    def contradicted(self) -> bool:
        """Whether something was released that is not in the parser's list at that place; settled by ``close``."""
        ...

    def push(self, text: str) -> Iterator[T_co]:
        """The items that this piece of text makes final."""
        ...

    def close(self) -> Iterator[T_co]:
        """The items that the end of the text makes final."""
        ...


class _Stripped:
    """``text.strip()``: what of the text is now certain to be part of it."""

    def __init__(self) -> None:
        self._begun = False  # whether a non-blank character has come
        self._blanks: list[str] = []  # white space held back, for the text may end with it

    def push(self, text: str) -> str:
        """What this piece settles."""
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

    An item is final when the separator behind it has come; with ``strip`` only when a later non-blank character has
    come too: before that, ``strip`` of the whole text could still take the separator, or blanks of the item, off its
    end. ``keep_empty=False`` leaves out empty items.

    Raises ValueError for an empty separator, as ``str.split`` would on the text.
    """

    contradicted = False

    def __init__(self, separator: str | None, *, strip: bool = False, keep_empty: bool = True) -> None:
        if separator == "":
            raise ValueError("expected a separator to split at, or None for white space; got an empty string")
        self._separator = separator
        self._stripped = _Stripped() if strip and separator is not None else None  # at white space it strips by itself
        self._keep_empty = keep_empty
        self._open: list[str] = []  # the item that is not final yet, in pieces
        self._tail = ""  # its last characters, in which a separator may have begun

    def push(self, text: str) -> Iterator[str]:
        """The items that this piece of text makes final."""
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
        """The last item: it ends with the text."""
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

    A line is final when its end has come, of which there are eleven kinds; with ``strip`` only when a later non-blank
    character has come too.
    """

    contradicted = False
    _ENDS = re.compile("\r\n|[\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")

    def __init__(self, *, strip: bool = False) -> None:
        self._stripped = _Stripped() if strip else None
        self._open: list[str] = []  # the line that has not ended, in pieces
        self._returned = False  # whether the text so far ends with a carriage return: a newline belongs to it

    def push(self, text: str) -> Iterator[str]:
        """The lines that this piece of text ends."""
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
        """The last line, if nothing ended it."""
        rest = "".join(self._open)
        return iter([rest] if rest else [])


class Each:
    """The items of another splitter, each by itself: those for which ``keep`` is true, changed by ``change``."""

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
        """Whether the other splitter released something that is not in its list."""
        return self._inner.contradicted

    def push(self, text: str) -> Iterator[str]:
        """The items that this piece of text makes final."""
        return self._each(self._inner.push(text))

    def close(self) -> Iterator[str]:
        """The items that the end of the text makes final."""
        return self._each(self._inner.close())

    def _each(self, items: Iterator[str]) -> Iterator[str]:
        kept = (item for item in items if self._keep is None or self._keep(item))
        return kept if self._change is None else map(self._change, kept)


class Lines(Split):
    """``text.strip().split("\\n")`` without empty lines, as LineListOutputParser has it.

    A line is final when its newline *and* a later non-blank character have come: before that, stock's ``strip`` of
    the whole text could still take blanks off its end, or drop it.
    """

    def __init__(self) -> None:
        super().__init__("\n", strip=True, keep_empty=False)


class _LineMatches:
    """``re.findall(pattern, text)`` for a pattern whose one group runs to the end of its line.

    A match is final when the newline behind it has come. It may begin in the line before, as ``\\s`` of the patterns
    below may be that line's newline; so the last complete line is kept as long as it is not part of a match.
    """

    contradicted = False
    _pattern: re.Pattern[str]

    def __init__(self) -> None:
        self._open: list[str] = []  # what a later match may begin in, in pieces

    def push(self, text: str) -> Iterator[str]:
        """The items that this piece of text makes final."""
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
        """The last item, if no newline ended it."""
        return iter([match[1] for match in self._pattern.finditer("".join(self._open))])


class Numbered(_LineMatches):
    """NumberedListOutputParser with the pattern it comes with; an item is final when its line has ended."""

    _pattern = re.compile(r"\d+\.\s([^\n]+)")


class Markdown(_LineMatches):
    """MarkdownListOutputParser with the pattern it comes with; an item is final when its line has ended."""

    _pattern = re.compile(r"^\s*[-*]\s([^\n]+)$", re.MULTILINE)


class Checked(Generic[T]):
    """Items released on assumptions about the rest of the text, compared at its end with the parser's own list."""

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self.contradicted = False
        self._parse = parse
        self._text: list[str] = []
        self._released: list[str] = []  # as repr: tells 1 from True, and stays what it is if the item is changed
        self._over = False  # nothing more is released before the end

    def push(self, text: str) -> Iterator[T]:
        """The items that this piece of text makes final."""
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
        """The items of the parser's list that were not released yet; none if it contradicts what was."""
        self._over = True
        count = len(self._released)
        try:
            items = self._items(self._parse("".join(self._text)))
            agreed = [repr(item) for item in items[:count]] == self._released
        except Exception:  # stock raises it, when it gets there
            items, agreed = [], not count
        self.contradicted = self.contradicted or not agreed
        return iter(() if self.contradicted else items[count:])

    def _scan(self, text: str) -> Iterator[T]:
        """The items that this piece makes final; ValueError: no more can be said before the end."""
        raise NotImplementedError

    def _items(self, parsed: Any) -> list[T]:
        """The items of what the parser returned for the whole text."""
        raise NotImplementedError
