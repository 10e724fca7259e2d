"""A chain with a branch, and its plan."""

from __future__ import annotations

from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    RunnableBranch,
    RunnableLambda,
    RunnablePassthrough,
)
from pipelines import ask, echo

import fineflow
from fineflow.ir import Graph
from fineflow.testing.langchain import FakeChat

MATH = {"question": "two and two", "topic": "math"}

ART = {"question": "two and two", "topic": "art"}


def is_math(x: Any) -> bool:
    return x["topic"] == "math"


def is_art(x: Any) -> bool:
    return x["topic"] == "art"


def say(text: str, model: Any = None) -> Any:
    return ask(text) | (model or FakeChat(answers=echo)) | StrOutputParser()


def plan(chain: Any, *, input: Any = "") -> tuple[Graph, Graph]:
    explained = fineflow.explain(chain, input=input)
    assert explained.p_graph is not None
    assert explained.e_graph is not None
    return explained.p_graph, explained.e_graph


def routed(log: list[str] | None = None, **chats: Any) -> Any:
    """A question whose topic a model says, routed to one of three answers, of which one passes the user's own code."""

    def own(x: Any) -> Any:
        (log if log is not None else []).append(x["question"])
        return x

    branch = RunnableBranch(
        (is_math, say("math {question}", chats.get("math"))),
        (is_art, RunnableLambda(own) | say("art {question}", chats.get("art"))),
        say("other {question}", chats.get("other")),
    )
    return (
        RunnablePassthrough.assign(topic=say("{topic}", chats.get("topic") or FakeChat(answers=_topic)))
        | RunnablePassthrough.assign(answer=branch)
        | RunnablePassthrough.assign(related=say("related {question}", chats.get("related")))
    )


def _topic(messages: Any) -> str:
    return str(messages[-1].content)


# Same answer.


def _logging(log: list[Any], value: Any = None) -> Any:
    def note(x: Any) -> Any:
        log.append(sorted(x) if isinstance(x, dict) else x)
        return x if value is None else value

    return RunnableLambda(note)
