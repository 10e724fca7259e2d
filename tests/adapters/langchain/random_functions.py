"""The user functions of random LCEL chains that log nothing: by what they are given, with a name for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PURE_OF_DICT: dict[str, Callable[[Any], Any]] = {
    "upper": lambda x: x["question"].upper(),
    "both": lambda x: f"{x['topic']}: {x['question']}",
    "length": lambda x: str(len(x["question"])),
    "get": lambda x: x.get("topic", "nothing"),
}
PURE_OF_TEXT: dict[str, Callable[[Any], Any]] = {
    "title": lambda s: s.title(),
    "first": lambda s: s.split()[0],
    "twice": lambda s: s + " " + s,
    "lower": lambda s: s.lower(),
}
PURE_OF_TEXTS: dict[str, Callable[[Any], Any]] = {
    "joined": lambda texts: " and ".join(texts),
    "count": lambda texts: str(len(texts)),
    "last": lambda texts: texts[-1],
}
PURE_OF_DOCS: dict[str, Callable[[Any], Any]] = {
    "joined": lambda docs: "\n".join(d.page_content for d in docs),
    "count": lambda docs: str(len(docs)),
}
PURE_OF_MESSAGE: dict[str, Callable[[Any], Any]] = {
    "content": lambda m: m.content,
    "split": lambda m: m.content.split(", "),
}
SPLITTING: dict[str, Callable[[Any], Any]] = {
    "words": lambda s: s.split(),
    "commas": lambda s: s.split(","),
    "lines": lambda s: s.splitlines(),
    "ends": lambda s: [s[:4], s[-4:]],
}
CONDITIONS: dict[str, Callable[[Any], Any]] = {
    "on France": lambda x: "France" in x["question"],
    "on towns": lambda x: x["topic"] == "towns",
    "long": lambda x: len(x["question"]) > 30,
}
CONDITIONS_OF_TEXT: dict[str, Callable[[Any], Any]] = {
    "seven": lambda s: "7" in s,
    "even": lambda s: len(s) % 2 == 0,
    "truth": lambda s: s,  # anything that counts as true
}
PURE = (
    *(PURE_OF_DICT, PURE_OF_TEXT, PURE_OF_TEXTS, PURE_OF_DOCS, PURE_OF_MESSAGE),
    *(SPLITTING, CONDITIONS, CONDITIONS_OF_TEXT),
)
FAILING_OF_DICT = {"no such key": lambda x: x["nothing like it"], "no number": lambda x: int(x["topic"])}
