"""What the chat model and the completion model on an engine have in common: settings, and decoding with them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from fineflow.adapters import decoding
from fineflow.backends.base import Delta, LLMEngine, Sampling

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
        return decoding.decode(self.engine, prompt, sampling)

    def _adecode(self, prompt: Callable[[], str], sampling: Sampling) -> AsyncGenerator[Delta, None]:
        return decoding.adecode(self.engine, prompt, sampling)

    async def awarm(self, text: str) -> int:
        """Prefills the beginning of a prompt that will be decoded from later (``adapters.decoding.awarm``)."""
        return await decoding.awarm(self.engine, text)
