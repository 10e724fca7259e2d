"""LlamaIndex LLM on an engine in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import fields
from typing import Any, ClassVar

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    LogProb,
    MessageRole,
    TextBlock,
)
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import LLM
from pydantic import Field, SkipValidation, field_validator

from fineflow.adapters.core import decoding
from fineflow.protocols import Delta, LLMEngine, Message, Sampling, TokenLogprob

_SETTINGS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
_SAMPLING = frozenset(field.name for field in fields(Sampling))
_ROLES = {MessageRole.DEVELOPER: "system", MessageRole.CHATBOT: "assistant", MessageRole.MODEL: "assistant"}


class EngineLLM(LLM):
    """LLM that decodes on an ``LLMEngine``, batched with all other requests on that engine.

    An ordinary LlamaIndex component, which works the same without ``optimize``; its async methods do not block the
    event loop. A chat model (``is_chat_model``, the default) formats prompts with its engine's chat template. Otherwise
    prompts are used as they are, and chat messages go through ``messages_to_prompt``. ``formatted=True``: the prompt of
    a completion is already formatted.

    temperature 0 is greedy; top_k 0 means all tokens; stop: strings before which the output ends. A call may pass any
    field of ``fineflow.protocols.Sampling`` by keyword. With ``logprobs`` (0, or the number of alternatives) the
    response has them, the chosen token first; if it is streamed, its last piece. context_window: tokens of prompt and
    output together, to which synthesizers pack their prompts.

    Raises ValueError for arguments that are not fields of ``Sampling``, and for content that is not text.
    """

    on_engine: ClassVar[bool] = True  # its calls wait in a queue

    engine: SkipValidation[LLMEngine] = Field(exclude=True, repr=False)
    max_tokens: int = Field(default=256, gt=0)
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: list[str] | None = None
    context_window: int = Field(default=DEFAULT_CONTEXT_WINDOW, gt=0)
    is_chat_model: bool = True

    @field_validator("engine", mode="before")
    @classmethod
    def _is_llm(cls, engine: Any) -> Any:
        return decoding.checked(engine)

    @classmethod
    def class_name(cls) -> str:
        return "FineflowEngineLLM"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.max_tokens,
            is_chat_model=self.is_chat_model,
            model_name=self.engine.name,
        )

    def prompt_text(self, prompt: str | Sequence[ChatMessage]) -> str:
        """Returns the text that the engine decodes from: messages are formatted, a string is used as it is.

        Raises ValueError for content that is not text, and for no message.
        """
        if isinstance(prompt, str):
            return prompt
        if not prompt:
            raise ValueError("EngineLLM needs at least one message, it got none")
        if not self.is_chat_model:
            assert self.messages_to_prompt is not None  # set by LLM's own validator
            return self.messages_to_prompt(prompt)
        return self.engine.render_chat([_plain(message) for message in prompt])

    async def awarm(self, text: str) -> int:
        """Prefills the beginning of a prompt of a later request (``adapters.core.decoding.awarm``)."""
        return await decoding.awarm(self.engine, text)

    async def written(
        self, family: str, prompt: Any, formatted: bool, on_text: Callable[[str], object]
    ) -> ChatResponse | CompletionResponse:
        """Returns what ``achat`` (family "chat") or ``acomplete`` returns, without callbacks.

        on_text: called with the text so far, for each piece.
        """
        last = CompletionResponse(text="")
        pieces = self._adeltas(prompt if family == "chat" else self._completed(prompt, formatted), {})
        async with aclosing(pieces):
            async for piece in pieces:
                last = piece
                on_text(piece.text)
        last = last.model_copy(update={"delta": None})
        return _chat_response(last) if family == "chat" else last

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _chat_response(self._whole(self._deltas(messages, kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        pieces = self._deltas(messages, kwargs)

        def responses() -> ChatResponseGen:
            with closing(pieces):
                yield from map(_chat_response, pieces)

        return responses()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return self._whole(self._deltas(self._completed(prompt, formatted), kwargs))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        return self._deltas(self._completed(prompt, formatted), kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _chat_response(await self._awhole(self._adeltas(messages, kwargs)))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        pieces = self._adeltas(messages, kwargs)

        async def responses() -> ChatResponseAsyncGen:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield _chat_response(piece)

        return responses()

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return await self._awhole(self._adeltas(self._completed(prompt, formatted), kwargs))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        return self._adeltas(self._completed(prompt, formatted), kwargs)

    def _completed(self, prompt: str, formatted: bool) -> str | Sequence[ChatMessage]:
        if formatted:
            return prompt
        if self.is_chat_model:
            return [ChatMessage(role=MessageRole.USER, content=prompt)]
        assert self.completion_to_prompt is not None  # set by LLM's own validator
        return self.completion_to_prompt(prompt)

    def _sampling(self, given: dict[str, Any]) -> Sampling:
        unknown = given.keys() - _SAMPLING
        if unknown:
            raise ValueError(
                f"EngineLLM takes no argument {', '.join(sorted(unknown))}; it takes {', '.join(sorted(_SAMPLING))}"
            )
        settings = {**{name: getattr(self, name) for name in _SETTINGS}, **given}
        for name in ("stop", "choices"):
            if isinstance(settings.get(name), list):
                settings[name] = tuple(settings[name])
        stop = settings.pop("stop") or ()
        return Sampling(stop=(stop,) if isinstance(stop, str) else stop, **settings)

    def _deltas(self, prompt: str | Sequence[ChatMessage], given: dict[str, Any]) -> CompletionResponseGen:
        """Streams the output; each response has the text so far. Wrong arguments raise at the call, not on reading."""
        sampling = self._sampling(given)
        text = self.prompt_text(prompt)

        def responses() -> Iterator[CompletionResponse]:
            said, count, told = "", 0, list[TokenLogprob]()
            deltas: Any = decoding.decode(self.engine, lambda: text, sampling)
            with closing(deltas):
                for delta in deltas:
                    said, count = said + delta.text, count + len(delta.tokens)
                    told += delta.logprobs
                    yield self._response(said, delta, count, told)

        return responses()  # type: ignore[return-value]

    def _adeltas(self, prompt: str | Sequence[ChatMessage], given: dict[str, Any]) -> AsyncGenerator[Any, None]:
        sampling = self._sampling(given)
        text = self.prompt_text(prompt)

        async def responses() -> AsyncGenerator[CompletionResponse, None]:
            said, count, told = "", 0, list[TokenLogprob]()
            async with aclosing(decoding.adecode(self.engine, lambda: text, sampling)) as deltas:
                async for delta in deltas:
                    said, count = said + delta.text, count + len(delta.tokens)
                    told += delta.logprobs
                    yield self._response(said, delta, count, told)

        return responses()

    def _whole(self, pieces: CompletionResponseGen) -> CompletionResponse:
        last = CompletionResponse(text="")
        with closing(pieces):
            for piece in pieces:
                last = piece
        return last.model_copy(update={"delta": None})

    async def _awhole(self, pieces: AsyncGenerator[CompletionResponse, None]) -> CompletionResponse:
        last = CompletionResponse(text="")
        async with aclosing(pieces):
            async for piece in pieces:
                last = piece
        return last.model_copy(update={"delta": None})

    def _response(self, said: str, delta: Delta, count: int, told: Sequence[TokenLogprob]) -> CompletionResponse:
        """Returns the response for a delta. The last one has the logprobs of all tokens, and finish reason and usage
        under OpenAI's names, which LlamaIndex's token counters read.

        Cached tokens are not reported: they depend on earlier requests, and equal calls would give unequal responses.
        """
        if delta.finish_reason is None:
            return CompletionResponse(text=said, delta=delta.text)
        usage = {
            "prompt_tokens": delta.prompt_tokens,
            "completion_tokens": count,
            "total_tokens": delta.prompt_tokens + count,
        }
        raw = {"model": self.engine.name, "finish_reason": delta.finish_reason, "usage": usage}
        logprobs = [_alternatives(each) for each in told] or None
        return CompletionResponse(
            text=said, delta=delta.text, raw=raw, logprobs=logprobs, additional_kwargs=dict(usage)
        )


def _alternatives(found: TokenLogprob) -> list[LogProb]:
    """Returns a token with its logprob, then the likeliest others."""
    pairs = [(found.token, found.logprob), *(pair for pair in found.top if pair[0] != found.token)]
    return [LogProb(token=token, logprob=logprob, bytes=list(token.encode())) for token, logprob in pairs]


def _chat_response(response: CompletionResponse) -> ChatResponse:
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, content=response.text),
        delta=response.delta,
        raw=response.raw,
        logprobs=response.logprobs,
        additional_kwargs=response.additional_kwargs,
    )


def _plain(message: ChatMessage) -> Message:
    """Returns a message in the engine's format. Raises ValueError for content that a text model cannot read."""
    for block in message.blocks:
        if not isinstance(block, TextBlock):
            raise ValueError(f"EngineLLM reads text, it got a content block of type {type(block).__name__}")
    role = MessageRole(message.role)
    if role in (MessageRole.TOOL, MessageRole.FUNCTION) or message.additional_kwargs.get("tool_calls"):
        raise ValueError(
            f"EngineLLM reads system, user and assistant messages without tool calls, it got role {role.value!r}; "
            "use a function-calling LLM for this step"
        )
    return Message(_ROLES.get(role, role.value), message.content or "")
