"""What changes without being changed: views of containers, what is printed to, what makes defaults."""

from __future__ import annotations

import pprint
import uuid
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, Field, PrivateAttr, field_validator
from walk_host import Host, llm

SEEN: list[Any] = []
NAMES = ["a", "b", "c"]
TABLE = {"a": 1, "b": 2}


def asks(texts: Any) -> None:
    for text in texts:
        llm.invoke(str(text))


def keys(item: str) -> None:
    table = {"a": 1, "b": 2}
    found = table.keys()
    table["c"] = 3
    asks(found)


def values(item: str) -> None:
    table = {"a": 1, "b": 2}
    found, pairs = table.values(), table.items()
    table["a"] = 3
    table.update({"c": 4})
    asks([*found, *pairs])


def changed_in_its_loop(item: str) -> None:
    table = {"a": 1, "b": 2}
    for name, value in table.items():
        table[name] = value + 1
        table["b"] = 7
        llm.invoke(f"{name} {value}")


def an_element_less(item: str) -> None:
    table = {"a": 1, "b": 2}
    found = table.keys()
    table.pop("a")
    asks(found)


def of_somebody_elses(item: str) -> None:
    found = TABLE.keys()
    TABLE["c"] = 3
    asks(found)


def backwards(item: str) -> None:
    names = ["a", "b"]
    found = reversed(names)
    names[0] = "c"
    asks(found)


def backwards_with_one_more(item: str) -> None:
    names = ["a", "b"]
    found = reversed(names)
    names.append("c")
    asks(found)


def an_element_that_follows(item: str) -> None:
    for number, name in enumerate(NAMES):
        NAMES[2] = "d"
        llm.invoke(f"{number} {name}")


def the_element_of_this_turn(item: str) -> None:
    for number, name in enumerate(NAMES):
        NAMES[number] = "d"
        llm.invoke(f"{number} {name}")


def one_more_than_there_was(item: str) -> None:
    found = [name.upper() for name in grown(NAMES)]
    llm.invoke(str(len(found)))


def in_its_loop(item: str) -> None:
    for name in NAMES:
        if name == "a":
            NAMES.append("d")
        llm.invoke(name)
    llm.invoke("at last")


def grown(names: list[str]) -> Any:
    found = (name for name in names)
    names.append("d")
    return found


def different_lengths(item: str) -> None:
    try:
        pairs = list(zip(NAMES, ["x"], strict=True))
        llm.invoke(str(len(pairs)))
    except ValueError:
        pass


def equal_lengths(item: str) -> None:
    asks([f"{left}{right}" for left, right in zip(NAMES, range(3), strict=True)])


class Stream:
    def write(self, text: str) -> None:
        SEEN.append(text)

    def flush(self) -> None:
        SEEN.append("")


def printed(item: str) -> None:
    print(item, file=Stream())
    llm.invoke(f"{len(SEEN)} lines")


def printed_prettily(item: str) -> None:
    pprint.pprint(item, Stream())
    llm.invoke(f"{len(SEEN)} lines")


def number() -> int:
    SEEN.append("number")
    return len(SEEN)


class Numbered(BaseModel):
    number: int = Field(default_factory=number)


class Hidden(BaseModel):
    _number: int = PrivateAttr(default_factory=number)


class Checked(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def seen(cls, text: str) -> str:
        SEEN.append(text)
        return text


class Record:
    def __init__(self) -> None:
        SEEN.append("record")

    @classmethod
    def __get_validators__(cls) -> Any:
        yield lambda _: cls()


class Around(BaseModel):
    inside: Checked | None = None
    more: dict[str, list[Numbered]] = {}


class Marked(BaseModel):
    text: str
    key: str = Field(default_factory=lambda: str(uuid.uuid4()))
    parent: Marked | None = None


class Pair(NamedTuple):
    left: str
    right: str = ""


class Noted(Pair):
    def __new__(cls, left: str) -> Any:
        SEEN.append(left)
        return super().__new__(cls, left)


class Kind(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Any:
        SEEN.append(value)
        return cls.A


def makes(kind: Any, **fields: Any) -> Callable[[str], None]:
    def function(item: str) -> None:
        kind(**fields) if fields else kind(item)
        llm.invoke(f"{len(SEEN)} seen")

    return function


PROGRAMS: dict[str, tuple[Callable[[str], None], list[str]]] = {
    "keys": (keys, ["a", "b", "c"]),
    "values": (values, ["3", "2", "4", "('a', 3)", "('b', 2)", "('c', 4)"]),
    "changed in its loop": (changed_in_its_loop, ["a 1", "b 7"]),
    "an element less": (an_element_less, ["b"]),
    "of somebody else's": (of_somebody_elses, NAMES),
    "backwards": (backwards, ["b", "c"]),
    "backwards with one more": (backwards_with_one_more, []),
    "an element that follows": (an_element_that_follows, ["0 a", "1 b", "2 d"]),
    "the element of this turn": (the_element_of_this_turn, ["0 a", "1 b", "2 c"]),
    "one more than there was": (one_more_than_there_was, ["4"]),
    "one more in its loop": (in_its_loop, ["a", "b", "c", "d", "at last"]),
    "different lengths": (different_lengths, []),
    "equal lengths": (equal_lengths, ["a0", "b1", "c2"]),
    "printed": (printed, []),
    "printed prettily": (printed_prettily, []),
    "a default": (makes(Numbered, number=1), []),
    "a private default": (makes(Hidden, text="a"), []),
    "a validator in a field": (makes(Around, inside={"text": "a"}), []),
    "a default of the user's that changes nothing": (makes(Marked, text="a"), ["0 seen"]),
    "a named tuple": (makes(Pair, left="a"), ["0 seen"]),
    "a named tuple that notes": (makes(Noted, left="a"), []),
    "an enumeration that notes": (makes(Kind), []),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_are_those_after_the_change(name: str) -> None:
    function, calls = PROGRAMS[name]
    assert Host().through(function, "b").calls == calls
    assert NAMES == ["a", "b", "c"] and TABLE == {"a": 1, "b": 2} and not SEEN
