"""Functions that the tests of the analysis share."""

from __future__ import annotations

from typing import Any

PREFIX = "answer: "

CACHE: dict[str, str] = {}


class Loud:
    """Everything that it does has a side effect."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @property
    def noisy(self) -> str:
        self.seen.append("property")
        return ""

    def method(self, x: Any) -> Any:
        self.seen.append("method")
        return x

    def __call__(self, x: Any) -> Any:
        self.seen.append("call")
        return x


class LoudText(str):
    """Text with a method that has a side effect; as a constant of a function it must not be trusted."""

    def upper(self) -> str:
        CACHE["upper"] = "called"
        return str(self)


LOUD = Loud()

LOUD_TEXT = LoudText("x")


def shorten(text: str, limit: int = 10) -> str:
    return text[:limit] + "..." if len(text) > limit else text


def remember(text: str) -> str:
    CACHE[text] = text
    return text


def twice(text: str) -> str:
    return shorten(text) + remember(text)


def format_docs(docs: Any) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


exec_scope: dict[str, Any] = {}
# As text, because pytest rewrites the assertions of its modules.
exec(
    """
def from_text(x):
    return unknown_name + x['a']

def checks(x):
    assert x["k"] > 0, "k must be positive"
    if not x["question"]:
        raise ValueError(f"empty question for {x['k']}")
    return x["question"]
""",
    exec_scope,
)
