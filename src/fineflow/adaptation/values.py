"""Profiles of which a model decodes the values alone, on an engine of fineflow (jump-forward decoding, as in SGLang).

The JSON of a profile is known but for its values. So the text between them is put into prompts, where it is prefilled,
instead of being decoded token by token: a profile of 30 tokens takes one to four steps of the model. Greedy decoding
gives the same values in either way, unless the model would have written something else than this JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fineflow.adapters.core.contexts import Context
from fineflow.adapters.core.decoding import adecode, encode
from fineflow.errors import FineflowError
from fineflow.protocols import LLMEngine, Message, ReadsCalls, Sampling, TokenLogprob

_ENDS = ('"', ",", "}", "]", "\n")  # a value ends before the first of them
_SAMPLE = 20  # values whose tokens are looked at


@dataclass(frozen=True, slots=True)
class Written:
    """A profile as JSON, and the log-probs of the tokens of its values."""

    text: str
    logprobs: Sequence[TokenLogprob]


@dataclass(frozen=True, slots=True)
class _Field:
    """A value of the JSON. before: what the JSON has in front of it; allowed: what the value may be."""

    name: str
    before: str
    allowed: tuple[str, ...]


_COMPLEXITY = _Field("complexity", '{"complexity": "', ("low", "high"))
_JOINT = _Field("joint_reasoning", '", "joint_reasoning": ', ("false", "true"))
_PIECES = _Field("pieces", ', "pieces": ', (*map(str, range(1, 10)), "0"))
_NUMBERS = tuple(map(str, range(10, 1000)))
_WORDS = _Field("summary_words", ', "summary_words": ', (*_NUMBERS, *(f"[{number}" for number in _NUMBERS)))
_MOST_WORDS = _Field("the end of summary_words", ", ", _NUMBERS)  # of a list; a model may write one number
_FIELDS = (_COMPLEXITY, _JOINT, _PIECES, _WORDS, _MOST_WORDS)
_SIMPLE = ("low", "false")  # what most questions are guessed to be


class ValueDecoder:
    """Decodes the values of profiles on an engine.

    rendered: returns what the engine decodes from, for a prompt. What all questions have in front of them is prefilled
    once, as a context that their requests continue.
    """

    def __init__(self, engine: LLMEngine, rendered: Callable[[str], str]) -> None:
        self._engine, self._rendered = engine, rendered
        self._shared: Context | None = None
        self._filling = False
        self._forms: dict[_Field, tuple[str, int]] = {}

    async def write(self, prompt: str, question: str, *, summaries: bool) -> Written:
        """Returns the profile of a question. prompt: asks for it. summaries: with their length, where it matters.

        All values are asked for at once, behind those that a simple question has. For another one the values after the
        first are asked for once more, at once, behind either answer to the second. The lengths of summaries follow
        where ``map_reduce`` may be chosen.

        Raises ValueError for a value that is none; what the engine raises.
        """
        whole = self._rendered(prompt)
        await self._keep(whole[: max(whole.rfind(question), 0)])
        asking = _Asking(self, whole)
        try:
            asking.ahead((), _SIMPLE[:1], _SIMPLE)
            complexity = await asking.value(())
            if complexity != _SIMPLE[0]:
                asking.ahead((complexity,), *((complexity, joint) for joint in _JOINT.allowed))
            joint = await asking.value((complexity,))
            found: tuple[str, ...] = (complexity, joint, await asking.value((complexity, joint)))
            if summaries and complexity == "high" and joint == "true":
                found += (await asking.value(found),)
                if found[-1].startswith("["):
                    found += (await asking.value(found),)
            return Written(_as_json(found), asking.logprobs(found))
        finally:
            await asking.end()

    async def _keep(self, beginning: str) -> None:
        """Prefills what all prompts begin with, unless the engine has it. One query does it, others do not wait."""
        if self._filling or not beginning:
            return
        self._filling = True
        try:
            if self._shared is None or self._shared.text != beginning:
                old, self._shared = self._shared, Context(self._engine)
                if old is not None:
                    await old.free()
            await self._shared.fill(beginning.removeprefix(self._shared.text))
        except FineflowError:  # the requests for values will say what is wrong
            self._shared = None
        finally:
            self._filling = False

    async def form(self, field: _Field) -> tuple[str, int]:
        """Returns the constant text in front of a value, and the most tokens that the value takes.

        Tokens of a value may begin with the space in front of it. It is left to the model then, as prompts that end
        within a token lead to other values.
        """
        if field not in self._forms:
            text = "".join(each.before + each.allowed[0] for each in _FIELDS[: _FIELDS.index(field)]) + field.before
            some = field.allowed[:: max(len(field.allowed) // _SAMPLE, 1)]
            ends = [await encode(self._engine, lambda value=value: text + value) for value in some]  # type: ignore[misc]
            tight = await encode(self._engine, lambda: text)
            before = field.before
            if before.endswith(" ") and any(each[: len(tight)] != tight for each in ends):
                before = before.rstrip(" ")
                tight = await encode(self._engine, lambda: text.rstrip(" "))
            most = max(len(each) - len(tight) for each in ends)
            self._forms[field] = before, max(most, 1)
        return self._forms[field]

    async def decode(self, prompt: str, field: _Field) -> tuple[str, list[TokenLogprob]]:
        """Returns the value of a field, and the log-probs of its tokens. Raises ValueError if it is none."""
        before, most = await self.form(field)
        said, tokens = "", list[TokenLogprob]()
        sampling = Sampling(max_tokens=most, stop=_ENDS, logprobs=0)
        async for delta in adecode(self._engine, lambda: prompt + before, sampling):
            said += delta.text
            tokens += delta.logprobs
        value = said.strip()
        if value not in field.allowed:
            raise ValueError(f"{field.name} is {said!r}; expected {', '.join(field.allowed[:3])} ...")
        while len(tokens) > 1 and len("".join(each.token for each in tokens[:-1])) >= len(said):
            tokens.pop()  # of what follows the value
        return value, tokens


class _Asking:
    """Requests for the values of one question, each behind the values before it."""

    def __init__(self, decoder: ValueDecoder, prompt: str) -> None:
        self._decoder, self._prompt = decoder, prompt
        self._tasks: dict[tuple[str, ...], asyncio.Task[tuple[str, list[TokenLogprob]]]] = {}

    def ahead(self, *paths: tuple[str, ...]) -> None:
        """Starts to ask for the values behind others."""
        for path in paths:
            if path not in self._tasks:
                text = self._prompt + "".join(f.before + value for f, value in zip(_FIELDS, path, strict=False))
                self._tasks[path] = asyncio.ensure_future(self._decoder.decode(text, _FIELDS[len(path)]))

    async def value(self, path: tuple[str, ...]) -> str:
        """Returns the value behind others."""
        self.ahead(path)
        return (await self._tasks[path])[0]

    def logprobs(self, found: tuple[str, ...]) -> list[TokenLogprob]:
        """Returns those of the values that count."""
        return [each for i in range(len(found)) for each in self._tasks[found[:i]].result()[1]]

    async def end(self) -> None:
        """Ends what has not ended."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def decoder_of(model: Any) -> ValueDecoder | None:
    """Returns what decodes the values of profiles on the engine of a model of fineflow; None for another model.

    Values take several requests, so the engine has to keep the beginnings of prompts, and they have to be its own: a
    server renders conversations by itself. A model that draws tokens at random draws whole answers.
    """
    engine: Any = getattr(model, "engine", None)
    if not getattr(type(model), "on_engine", False) or getattr(model, "temperature", None):
        return None
    if isinstance(engine, ReadsCalls) or not getattr(engine, "can_prefill", False):
        return None
    chats = bool(getattr(model, "is_chat_model", hasattr(type(model), "prompt_text")))
    if hasattr(model, "acomplete") and not chats:
        return None  # it has a template of its own
    return ValueDecoder(engine, lambda prompt: engine.render_chat([Message("user", prompt)]) if chats else prompt)


def _as_json(values: Sequence[str]) -> str:
    text = "".join(field.before + value for field, value in zip(_FIELDS, values, strict=False))
    return text + "]" * (len(values) == len(_FIELDS)) + "}"
