"""LangChain chat model on an engine in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from operator import itemgetter
from typing import Any, Literal, get_args

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from fineflow.adapters.langchain.components.conversation import ChatFormat, Tools, call_chunk, choice_of
from fineflow.adapters.langchain.components.decoding import EngineBacked, logprobs_of, schema_of
from fineflow.adapters.text.tool_calls import CallReader
from fineflow.adapters.text.tool_formats import Template
from fineflow.protocols import Delta, Sampling, ToolCall
from fineflow.runtime.loop.workers import in_thread

TOOLS = ("tools", "tool_choice")  # arguments of a call that change its prompt

Method = Literal["json_schema", "function_calling", "json_mode"]


class ChatEngine(EngineBacked, BaseChatModel):
    """Chat model that decodes on an ``LLMEngine``, batched with everything else that runs on the engine.

    An ordinary LangChain component that works the same in a chain that was never optimized. The engine gets the text of
    messages; images and other content raise ValueError. Tools are rendered by the model's chat template, tool calls are
    parsed from the text that the model writes; a call is streamed in one chunk.

    tool_format: the form in which the model writes calls, ``"hermes"`` (also Qwen), ``"llama3_json"`` or ``"mistral"``;
    by default it is detected from the chat template. If the template shows no tools but the format is given, a system
    message describes them.
    """

    tool_format: Literal["hermes", "llama3_json", "mistral"] | None = None

    @property
    def _llm_type(self) -> str:
        return "fineflow-chat-engine"

    @property
    def _conversation(self) -> ChatFormat:
        return ChatFormat(self.engine, self.tool_format)

    def prompt_text(
        self,
        messages: Sequence[BaseMessage],
        *,
        open_ended: bool = False,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
    ) -> str:
        """Returns the prompt that the engine decodes from, rendered by the model's chat template.

        With ``open_ended`` the last message stays open: the text ends with its content so far, without end marker and
        generation prompt, and is a prefix of every prompt in which that message continues ("" if the template does not
        pass the content through). A tool_choice that forces a call adds the beginning of the call if needed. Raises
        ValueError for content that is not text.
        """
        return self._conversation.text(messages, Tools.of(tools, tool_choice), open_ended=open_ended)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """Returns the number of prompt tokens of the messages, including what the chat template adds."""
        return self.get_num_tokens(self.prompt_text(messages, tools=tools))

    @property
    def calls_tools(self) -> bool:
        """True if the format in which the model writes tool calls is known. May load the tokenizer."""
        return self.tool_format is not None or Template.of(self.engine).usable

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: Any = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Returns the model with tools that it may call.

        tool_choice: ``"auto"`` (the default), ``"none"``, ``"any"`` (or True, ``"required"``), or the name of a tool.
        If the engine can constrain its output to a schema, a forced call has valid arguments; otherwise the beginning
        of the call is appended to the prompt. strict: as in OpenAI's form of the tools. Raises ValueError for any other
        tool_choice.
        """
        formatted = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        Tools.of(formatted, tool_choice)
        choice = choice_of(tool_choice)
        return super().bind(tools=formatted, **({"tool_choice": choice} if choice else {}), **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Method | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Returns the model with an answer that fits a schema: a pydantic class, a TypedDict, or a JSON schema.

        method: ``"json_schema"`` constrains the output to the schema, the default if the engine can;
        ``"function_calling"`` forces a call of a tool of that form, the default if the chat template shows tools;
        ``"json_mode"`` parses the text, for which the prompt has to ask. include_raw: returns a dict with ``raw``,
        ``parsed`` and ``parsing_error``. Raises ValueError for another method or unknown arguments.
        """
        if kwargs:
            raise ValueError(f"with_structured_output takes no argument {', '.join(sorted(kwargs))}")
        return structured_output(self, schema, method, include_raw=include_raw, strict=strict)

    def assemble(self, chunks: list[ChatGenerationChunk]) -> ChatResult:
        """Returns the result of a whole stream: ``_generate`` of some messages is ``assemble`` of their ``_stream``.

        Drops the ids that a run gave to the chunks: the run that gets the result assigns its own.
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
        # No run manager for the stream: stock reports no tokens of a call that does not stream.
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
        tools, sampling = self._request(stop, kwargs)
        writer = _Writer(self.engine.name, self._conversation.reader(tools, messages))
        for delta in self._decode(lambda: self._conversation.text(messages, tools), sampling):
            chunk = writer.chunk(delta)
            if chunk is None:
                continue
            if run_manager:  # stream() of langchain-core passes none, and reports the tokens itself
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        about_tools = kwargs.get("tools") or any(isinstance(message, ToolMessage) for message in messages)
        if about_tools and not self._conversation.known:
            await in_thread(lambda: Template.of(self.engine))  # loads the tokenizer
        tools, sampling = self._request(stop, kwargs)
        writer = _Writer(self.engine.name, self._conversation.reader(tools, messages))
        decoded = self._adecode(lambda: self._conversation.text(messages, tools), sampling)
        async with aclosing(decoded) as deltas:
            async for delta in deltas:
                chunk = writer.chunk(delta)
                if chunk is None:
                    continue
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def _request(self, stop: list[str] | None, given: Mapping[str, Any]) -> tuple[Tools, Sampling]:
        """Returns the tools and the sampling settings of a call."""
        tools = Tools.of(given.get("tools"), given.get("tool_choice"))
        rest = {name: value for name, value in given.items() if name not in TOOLS}
        sampling = self._sampling(stop, rest, self._conversation.forced(tools)[1])
        return tools, replace(sampling, special_tokens=True) if tools.offered else sampling


class _Writer:
    """Makes chunks of an engine's deltas; the last one has the finish reason and the usage.

    Omits the number of cached tokens: it depends on earlier calls, so the same call would not give the same message.
    """

    def __init__(self, name: str, reader: CallReader | None) -> None:
        self._name = name
        self._reader = reader
        self._tokens = 0
        self._calls = 0

    def chunk(self, delta: Delta) -> ChatGenerationChunk | None:
        """Returns the chunk of a delta; None if it would be empty."""
        self._tokens += len(delta.tokens)
        text, calls = self._read(delta)
        info: dict[str, Any] = {"logprobs": logprobs_of(delta.logprobs)} if delta.logprobs else {}
        if delta.finish_reason is None:
            if not (text or calls or info):
                return None
            message = AIMessageChunk(content=text, tool_call_chunks=calls, response_metadata=dict(info))
            return ChatGenerationChunk(message=message, generation_info=info or None)
        made = self._calls and delta.finish_reason == "stop"
        info |= {"finish_reason": "tool_calls" if made else delta.finish_reason, "model_name": self._name}
        message = AIMessageChunk(
            content=text,
            tool_call_chunks=calls,
            response_metadata=dict(info),
            usage_metadata=UsageMetadata(
                input_tokens=delta.prompt_tokens,
                output_tokens=self._tokens,
                total_tokens=delta.prompt_tokens + self._tokens,
            ),
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message, generation_info=info)

    def _read(self, delta: Delta) -> tuple[str, list[Any]]:
        """Returns the text of a delta, and the calls that it completes."""
        if self._reader is None:
            return delta.text, []
        parts = self._reader.push(delta.text)
        if delta.finish_reason is not None:
            parts += self._reader.finish()
        calls = [part for part in parts if isinstance(part, ToolCall)]
        first, self._calls = self._calls, self._calls + len(calls)
        text = "".join(part for part in parts if isinstance(part, str))
        return text, [call_chunk(call, first + i) for i, call in enumerate(calls)]


def structured_output(
    model: Any, schema: Any, method: Method | None, *, include_raw: bool, strict: bool | None
) -> Runnable[Any, Any]:
    """Builds the chain that ``ChatEngine.with_structured_output`` returns."""
    if method not in (None, *get_args(Method)):
        raise ValueError(f"expected a method that is one of {', '.join(get_args(Method))}; got {method!r}")
    held = model.holds_schemas
    if method is None:
        method = "json_schema" if held else "function_calling" if model.calls_tools else "json_mode"
    if method == "function_calling":
        return BaseChatModel.with_structured_output(model, schema, include_raw=include_raw)
    wanted: dict[str, Any] = {"type": "json_object"}
    if method == "json_schema":
        form = schema_of(schema)
        named = {"name": form.get("title", "answer"), "schema": form}
        wanted = {"type": "json_schema", "json_schema": named | ({} if strict is None else {"strict": strict})}
    output_format = {"kwargs": {"method": method}, "schema": schema}
    # An engine without schema support does not support JSON objects either; the answer to the prompt is parsed.
    given = {"response_format": wanted} if held or method == "json_schema" else {}
    llm = model.bind(**given, ls_structured_output_format=output_format)
    pydantic = isinstance(schema, type) and is_basemodel_subclass(schema)
    parser: BaseOutputParser[Any] = PydanticOutputParser(pydantic_object=schema) if pydantic else JsonOutputParser()
    if not include_raw:
        return llm | parser  # type: ignore[no-any-return]
    # Built as in BaseChatModel.with_structured_output.
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=llm) | parsed.with_fallbacks([failed], exception_key="parsing_error")
