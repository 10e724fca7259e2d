"""Objects that bring knobs of their own: ``configure(configuration) -> runnable``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.runnables import Runnable, RunnableLambda

import fineflow
from fineflow.adaptation.configuration import Configurable, Configuration
from fineflow.adaptation.memory import counting

_CHUNK = 500  # tokens of a chunk, if nobody says
_QUESTIONS = ("question", "query", "input")


class OwnKnobs:
    """Knobs of a ``Configurable``. It searches by itself, so chunks are as long as the user says."""

    output = None

    def __init__(
        self, obj: Configurable, chunk_size: int | None, most: int, optimize: Callable[..., Any] | None = None
    ) -> None:
        self._obj, self._chunks = obj, (chunk_size or _CHUNK,) * most
        self._optimize: Callable[..., Any] = fineflow.optimize if optimize is None else optimize
        self.engine: Any = getattr(obj, "engine", None)
        self.model: Any = getattr(obj, "model", None)
        self.embedding: Any = getattr(obj, "embedding", None)
        self.count = counting(self.engine)
        self.query: Runnable[Any, Any] = RunnableLambda(getattr(obj, "question", question_in))
        self._made: dict[Any, Runnable[Any, Any]] = {}

    def overhead(self, query: str) -> int:
        return self.count(query)

    def chunks(self, found: Any) -> Sequence[int]:
        return self._chunks

    def given(self, input: Any) -> Any:
        return input

    def searching(self, num_chunks: int) -> Runnable[Any, Any]:
        return RunnableLambda(_nothing)

    def answering(self, configuration: Configuration) -> Runnable[Any, Any]:
        return RunnableLambda(_input) | self.configure(configuration)

    def configure(self, configuration: Configuration) -> Runnable[Any, Any]:
        """Returns the object's runnable, optimized."""
        if configuration not in self._made:
            self._made[configuration] = self._optimize(self._obj.configure(configuration))
        return self._made[configuration]


def question_in(input: Any) -> str:
    """Returns the question of an input. Raises ValueError if there is none."""
    found = next((input[key] for key in _QUESTIONS if key in input), None) if isinstance(input, Mapping) else input
    if not isinstance(found, str):
        raise ValueError(
            f"expected a question: a text, or a dict with {', '.join(_QUESTIONS[:-1])} or {_QUESTIONS[-1]}; got "
            f"{input!r}. Give the object a method question(input)"
        )
    return found


def _nothing(query: str) -> list[Any]:
    return []


def _input(state: Mapping[str, Any]) -> Any:
    return state["input"]
