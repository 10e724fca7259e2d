"""What is done to the value of a semantic variable before others read it (Parrot, section 5.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from fineflow.errors import shown
from fineflow.runtime.first_json import parsed_json

_LONG = 10_000  # characters that are read in a thread, not on the loop that serves all calls
_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\[\s*(-?\d+)\s*\]|\[\s*(\*)\s*\]|\[\s*'([^']*)'\s*\]|\[\s*\"([^\"]*)\"\s*\]")


class Transform(Protocol):
    """A function of a value. Equal transforms do the same. name: shown in plans."""

    @property
    def name(self) -> str: ...

    def quick(self, value: Any) -> bool:
        """Returns True if it may run inline."""
        ...

    def __call__(self, value: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Regex:
    """The part of a text that a regular expression finds first: its group, or all of the match (0)."""

    pattern: re.Pattern[str]
    group: int | str
    name = "regex"

    def quick(self, value: Any) -> bool:
        return False  # some expressions take very long on some texts

    def __call__(self, value: Any) -> str:
        found = self.pattern.search(_text(value, self.name))
        if found is None:
            raise ValueError(f"{self.pattern.pattern!r} was not found in {shown(value)}")
        part = found[self.group]
        if part is None:
            raise ValueError(f"group {self.group!r} of {self.pattern.pattern!r} has no part in {shown(value)}")
        return part


def regex(pattern: str | re.Pattern[str], group: int | str | None, flags: int) -> Regex:
    """Returns the transform. group: by default the first one, or all of the match if the pattern has none.

    Raises: ValueError if the pattern is not valid or has no such group.
    """
    try:
        compiled = re.compile(pattern, flags)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    chosen = min(compiled.groups, 1) if group is None else group
    known = compiled.groupindex if isinstance(chosen, str) else range(compiled.groups + 1)
    if chosen not in known:
        raise ValueError(f"{compiled.pattern!r} has no group {chosen!r}; it has {compiled.groups}")
    return Regex(compiled, chosen)


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A part of the JSON that a model wrote, also in a code fence or with text around it, or of a plain value.

    path: names and indices, such as ``steps[0].title``; ``[*]`` takes all items. Empty: the whole value.
    """

    path: str
    name = "json"

    def quick(self, value: Any) -> bool:
        return not isinstance(value, str) or len(value) <= _LONG

    def __call__(self, value: Any) -> Any:
        data = parsed_json(value) if isinstance(value, str) else value
        return _at(data, list(steps(self.path)), "$")


def steps(path: str) -> Iterator[str | int]:
    """Yields the steps of a path: names, indices, and ``"[*]"`` for all items.

    Raises: ValueError for a path that it does not understand.
    """
    rest = path.removeprefix("$")
    while rest:
        found = _STEP.match(rest)
        if found is None:
            raise ValueError(f"expected a path such as 'steps[0].title' or 'items[*].name', got {path!r}")
        name, index, every, quoted, double = found.groups()
        yield int(index) if index is not None else "[*]" if every else next(filter(None, (name, quoted, double)), "")
        rest = rest[found.end() :]


def _at(data: Any, path: list[str | int], where: str) -> Any:
    if not path:
        return data
    step, rest = path[0], path[1:]
    if step == "[*]":
        if not isinstance(data, list):
            raise ValueError(f"expected a list at {where}, found {shown(data)}")
        return [_at(item, rest, f"{where}[{i}]") for i, item in enumerate(data)]
    if isinstance(step, int):
        if not isinstance(data, list) or not -len(data) <= step < len(data):
            raise ValueError(f"expected a list with an item {step} at {where}, found {shown(data)}")
        return _at(data[step], rest, f"{where}[{step}]")
    if not isinstance(data, dict) or step not in data:
        raise ValueError(f"expected an object with {step!r} at {where}, found {shown(data)}")
    return _at(data[step], rest, f"{where}.{step}")


@dataclass(frozen=True, slots=True)
class Function:
    """A plain function of the user's; it runs in a worker thread."""

    function: Callable[[Any], Any]

    def quick(self, value: Any) -> bool:
        return False

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__)).strip("<>")

    def __call__(self, value: Any) -> Any:
        return self.function(value)


@dataclass(frozen=True, slots=True)
class Parsed:
    """An output parser (an object with ``parse(text)``, as LangChain's have), or a class that validates JSON."""

    parser: Any
    name = "parse"

    def quick(self, value: Any) -> bool:
        return False

    def __call__(self, value: Any) -> Any:
        validate = getattr(self.parser, "model_validate", None)
        if isinstance(self.parser, type) and validate is not None:  # a pydantic model
            return validate(parsed_json(value) if isinstance(value, str) else value)
        return self.parser.parse(_text(value, self.name))


def parsed(parser: Any) -> Parsed:
    """Returns the transform. Raises: TypeError for an object that parses nothing."""
    model = isinstance(parser, type) and hasattr(parser, "model_validate") and not hasattr(parser, "parse")
    if not model and (isinstance(parser, type) or not callable(getattr(parser, "parse", None))):
        raise TypeError(f"expected an object with parse(text), or a pydantic model class, got {parser!r}")
    return Parsed(parser)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} expected a text, got {type(value).__name__}")
    return value
