"""A small made-up framework: steps with ``run`` and ``arun``, and listeners that hear of every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

listeners: list[Callable[[str, str, Any], None]] = []
"""Called with "start" or "end", the name of the step, and its input or output."""


class Step:
    """Something that makes a value of a value. Subclasses define ``call`` and ``acall``, which nobody hears of."""

    def run(self, value: Any) -> Any:
        self._say("start", value)
        made = self.call(value)
        self._say("end", made)
        return made

    async def arun(self, value: Any) -> Any:
        self._say("start", value)
        made = await self.acall(value)
        self._say("end", made)
        return made

    def call(self, value: Any) -> Any:
        raise NotImplementedError

    async def acall(self, value: Any) -> Any:
        return self.call(value)

    def _say(self, what: str, value: Any) -> None:
        for listener in listeners:
            listener(what, type(self).__name__, value)


class Template(Step):
    """Fills a record into a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def call(self, value: Any) -> str:
        return self.text.format(**value)


class Model(Step):
    """Writes an answer to a prompt, by a function that blocks and one that does not."""

    def __init__(self, answer: Callable[[str], str], aanswer: Any) -> None:
        self.answer, self.aanswer = answer, aanswer

    def call(self, value: Any) -> str:
        return self.answer(value)

    async def acall(self, value: Any) -> Any:
        return await self.aanswer(value)


class Chain(Step):
    """Steps one after the other."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)

    def call(self, value: Any) -> Any:
        for step in self.steps:
            value = step.run(value)
        return value

    async def acall(self, value: Any) -> Any:
        for step in self.steps:
            value = await step.arun(value)
        return value


class Record(Step):
    """A record of what steps make of one value, one after the other."""

    def __init__(self, **steps: Step) -> None:
        self.steps = steps

    def call(self, value: Any) -> Any:
        return {key: step.run(value) for key, step in self.steps.items()}

    async def acall(self, value: Any) -> Any:
        return {key: await step.arun(value) for key, step in self.steps.items()}
