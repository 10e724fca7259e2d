"""LangChain completion model on an engine in this process, for prompts that are used unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseLLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult

from fineflow.adapters.langchain.components.decoding import EngineBacked, logprobs_of
from fineflow.protocols import Delta, Sampling
from fineflow.runtime.loop.submission import run_sync


class EngineLLM(EngineBacked, BaseLLM):
    """Completion model that decodes on an ``LLMEngine`` without a chat template. Prompts of a call run concurrently.

    Settings as of ``ChatEngine``.
    """

    @property
    def _llm_type(self) -> str:
        return "fineflow-engine"

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        sampling = self._sampling(stop, kwargs)
        return run_sync(lambda: self._all(prompts, sampling))

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        return await self._all(prompts, self._sampling(stop, kwargs))

    async def _all(self, prompts: list[str], sampling: Sampling) -> LLMResult:
        tasks = [asyncio.ensure_future(self._one(prompt, sampling)) for prompt in prompts]
        try:
            return LLMResult(generations=[[generation] for generation in await asyncio.gather(*tasks)])
        finally:  # if one fails, the call fails; the others end before the error is raised
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, prompt: str, sampling: Sampling) -> Generation:
        async with aclosing(self._adecode(lambda: prompt, sampling)) as deltas:
            chunks = [self._chunk(delta) async for delta in deltas]
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        return Generation(text=whole.text, generation_info=whole.generation_info)

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        for delta in self._decode(lambda: prompt, self._sampling(stop, kwargs)):
            chunk = self._chunk(delta)
            if run_manager:
                run_manager.on_llm_new_token(delta.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        async with aclosing(self._adecode(lambda: prompt, self._sampling(stop, kwargs))) as deltas:
            async for delta in deltas:
                chunk = self._chunk(delta)
                if run_manager:
                    await run_manager.on_llm_new_token(delta.text, chunk=chunk)
                yield chunk

    def _chunk(self, delta: Delta) -> GenerationChunk:
        info: dict[str, Any] = {"logprobs": logprobs_of(delta.logprobs)} if delta.logprobs else {}
        if delta.finish_reason:
            info |= {"finish_reason": delta.finish_reason, "model_name": self.engine.name}
        return GenerationChunk(text=delta.text, generation_info=info or None)
