"""A LangChain chat model on an engine in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ChatMessage, HumanMessage, SystemMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from fineflow.adapters.langchain.components.decoding import EngineBacked
from fineflow.backends.base import Delta, Message

_ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (SystemMessage, "system"),
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
)
_OPEN_END = "\ue000fineflow\ue000"  # private-use characters: in no template and in nobody's prompt


class ChatEngine(EngineBacked, BaseChatModel):
    """Chat model that decodes on an ``LLMEngine``, in batches with everything else that runs on it.

    An ordinary LangChain component: it works the same in a chain that was never optimized. The text of messages is
    what the engine sees; tools, images and other content are refused with ValueError.
    """

    @property
    def _llm_type(self) -> str:
        return "fineflow-chat-engine"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.engine.name, **self._settings(), "default_stop": self.stop}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = "fineflow"
        params.setdefault("ls_model_name", self.engine.name)
        return params

    def prompt_text(self, messages: Sequence[BaseMessage], *, open_ended: bool = False) -> str:
        """The prompt that the engine decodes from, by the model's chat template.

        With ``open_ended`` the last message goes on: the text ends with its content so far, without end marker and
        generation prompt, and begins every prompt in which more follows in that message ("" where the template
        does not let the content through). ValueError for content that is not text.
        """
        if not messages:
            raise ValueError("ChatEngine needs at least one message, it got none")
        conversation = [_plain(message) for message in messages]
        if not open_ended:
            return self.engine.render_chat(conversation)
        last = conversation[-1]
        conversation[-1] = Message(last.role, last.content + _OPEN_END)
        text = self.engine.render_chat(conversation, add_generation_prompt=False)
        return text[: max(text.rfind(_OPEN_END), 0)]

    def assemble(self, chunks: list[ChatGenerationChunk]) -> ChatResult:
        """The result of a whole stream: ``_generate`` of some messages is ``assemble`` of their ``_stream``.

        Ids that a run has given to the chunks are not taken over: the run that gets the result gives its own.
        """
        result = generate_from_stream(iter(chunks))
        message = result.generations[0].message.model_copy(update={"id": None})
        generation = ChatGeneration(message=message, generation_info=result.generations[0].generation_info)
        return ChatResult(generations=[generation])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        # No run manager for the stream: stock reports no tokens of a call that was not asked to stream.
        return self.assemble(list(self._stream(messages, stop=stop, **kwargs)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        async with aclosing(self._astream(messages, stop=stop, **kwargs)) as chunks:  # type: ignore[type-var]
            return self.assemble([chunk async for chunk in chunks])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        count = 0
        for delta in self._decode(lambda: self.prompt_text(messages), self._sampling(stop, kwargs)):
            count += len(delta.tokens)
            chunk = self._chunk(delta, count)
            if run_manager:  # stream() of langchain-core hands none in, and reports the tokens itself
                run_manager.on_llm_new_token(delta.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        count = 0
        async with aclosing(self._adecode(lambda: self.prompt_text(messages), self._sampling(stop, kwargs))) as deltas:
            async for delta in deltas:
                count += len(delta.tokens)
                chunk = self._chunk(delta, count)
                if run_manager:
                    await run_manager.on_llm_new_token(delta.text, chunk=chunk)
                yield chunk

    def _chunk(self, delta: Delta, count: int) -> ChatGenerationChunk:
        """The chunk of a delta; the last one says how it ended and what it took.

        Cached tokens are not told: they depend on what ran before, and the same call would not give the same message.
        """
        if delta.finish_reason is None:
            return ChatGenerationChunk(message=AIMessageChunk(content=delta.text))
        info = {"finish_reason": delta.finish_reason, "model_name": self.engine.name}
        message = AIMessageChunk(
            content=delta.text,
            response_metadata=dict(info),
            usage_metadata=UsageMetadata(
                input_tokens=delta.prompt_tokens, output_tokens=count, total_tokens=delta.prompt_tokens + count
            ),
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message, generation_info=info)


def _plain(message: BaseMessage) -> Message:
    """A message as the engine sees it. ValueError for what a text model cannot read."""
    role = message.role if isinstance(message, ChatMessage) else None
    for kind, name in _ROLES:
        if isinstance(message, kind):
            role = name
    if role is None or getattr(message, "tool_calls", None):
        raise ValueError(
            f"ChatEngine reads system, human and AI messages without tool calls, it got {message.type!r}; "
            "use a chat model with tool calling for this step"
        )
    if not isinstance(message.content, str):
        for block in message.content:
            if isinstance(block, dict) and block.get("type") != "text":
                raise ValueError(f"ChatEngine reads text, it got a content block of type {block.get('type')!r}")
    return Message(role, str(message.text))
