"""What the chat model and the completion model on an engine have in common: settings, and decoding from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SkipValidation

from fineflow.backends.base import Delta, LLMEngine, PrefixCache, Sampling
from fineflow.ir import Op
from fineflow.runtime.admission import admission_of
from fineflow.runtime.costs import costs
from fineflow.runtime.loop import iterate_async, iterate_sync, run_async
from fineflow.runtime.streams import AHEAD

_LEAST = 64
_UNSETTLED = 4  # tokens at the end of a text that other text behind it may change
_IGNORED = {"stream", "ls_structured_output_format", "structured_output_format"}  # langchain's own, not for the model


class EngineBacked(BaseModel):
    """Fields and decoding of a LangChain model on an ``LLMEngine``.

    temperature 0 is greedy; top_k 0 means all tokens; stop: strings before which the output ends. All but ``engine``
    may also be given per call or by ``bind``; a ``stop`` of the call takes the place of the model's.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: SkipValidation[LLMEngine] = Field(exclude=True, repr=False)
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: list[str] | None = None

    _tokenizing: bool = PrivateAttr(default=False)  # whether the engine's tokenizer has been used, hence is loaded

    def _settings(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
        }

    def _sampling(self, stop: list[str] | None, given: dict[str, Any]) -> Sampling:
        """The settings of one call. ValueError for arguments that the engine could not follow."""
        settings = self._settings()
        unknown = given.keys() - settings.keys() - _IGNORED
        if unknown:
            raise ValueError(
                f"{type(self).__name__} takes no argument {', '.join(sorted(unknown))}; "
                f"it takes {', '.join(settings)} and stop"
            )
        settings.update((name, value) for name, value in given.items() if name in settings)
        return Sampling(stop=tuple(self.stop or ()) if stop is None else tuple(stop), **settings)

    def _decode(self, prompt: Callable[[], str], sampling: Sampling) -> Iterator[Delta]:
        """Decodes from a plain thread."""
        tokens = self.engine.encode(prompt())
        admission = admission_of(self.engine)
        source = iterate_sync(lambda: admission.generate(tokens, sampling), buffer=AHEAD)
        with closing(cast(Any, source)):
            yield from source

    async def _adecode(self, prompt: Callable[[], str], sampling: Sampling) -> AsyncGenerator[Delta, None]:
        """Decodes from a coroutine on any loop."""
        tokens = await self._atokens(prompt)
        admission = admission_of(self.engine)
        source: AsyncIterator[Delta] = iterate_async(lambda: admission.generate(tokens, sampling), buffer=AHEAD)
        async with aclosing(cast(Any, source)):
            async for delta in source:
                yield delta

    async def _atokens(self, prompt: Callable[[], str]) -> list[int]:
        if self._tokenizing:
            return self.engine.encode(prompt())
        tokens = await asyncio.to_thread(lambda: self.engine.encode(prompt()))  # loads the tokenizer
        self._tokenizing = True
        return tokens

    async def awarm(self, text: str) -> int:
        """Prefills the beginning of a prompt that will be decoded from later; returns the number of tokens prefilled.

        The last few tokens of ``text`` are left out, because with other text behind it they may come out differently,
        and so is what does not fill a key/value block. 0 when nothing is left, when the engine cannot prefill, or when
        so little of it is not in its cache yet that computing it with the rest of the prompt is cheaper.
        """
        engine = self.engine
        if not engine.can_prefill:
            return 0
        tokens = await self._atokens(lambda: text)
        whole = tokens[: max(len(tokens) - _UNSETTLED, 0) // engine.block_size * engine.block_size]
        kept = engine.cached(whole) if isinstance(engine, PrefixCache) else 0
        if len(whole) - kept < _least(engine):
            return 0
        admission = admission_of(engine)
        await run_async(lambda: admission.prefill(whole))
        return len(whole)


def _least(engine: LLMEngine) -> float:
    """Tokens from which on a prefill of their own is worth it: what they take outweighs what a request takes anyway.

    Measured on CPU and as long as nothing else was: about 64. What an engine's own measurements say is believed within
    a factor of two, since they are taken while other requests are under way.
    """
    line = costs.line(engine.name, Op.PREFILL)
    own = line.fixed / line.each if costs.measured(engine.name, Op.PREFILL) and line.each else _LEAST
    return max(min(own, 2 * _LEAST), _LEAST / 2, engine.block_size)
