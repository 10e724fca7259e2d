"""LangChain's runnables and LangGraph's graphs as served objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Annotated, Any, NamedTuple, Self, cast

from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.load.serializable import Serializable
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_messages
from langchain_core.messages.utils import convert_to_openai_messages
from pydantic import BaseModel, RootModel, ValidationError, WrapValidator

from fineflow.serving.refusals import Refused
from fineflow.serving.served import Completion, Config

TEXT = ""
_ANSWERS = ("output", "answer", "response", "result", "text")  # keys of an answer in a dict, as chains have them


class InputForm(NamedTuple):
    """Describes how an object takes a chat, by the JSON schema of its input.

    text: key of the last message's text, TEXT if the text is the input, None if it takes messages only.

    messages: key of the messages (those before the last one, where there is a text); None if there is none.
    """

    text: str | None = None
    messages: str | None = None

    @classmethod
    def of(cls, form: str) -> Self:
        """Returns what an operator has named: "text", "messages", or the key of a text."""
        return cls(text=None) if form == "messages" else cls(text=TEXT if form == "text" else form)


class ServedRunnable:
    """A runnable. Its inputs are checked by its own schema, as LangServe does."""

    configured = True

    def __init__(self, runnable: Any, name: str) -> None:
        self.name, self._runnable = name, runnable
        schema, self.output = _usable(runnable.get_input_schema), _usable(runnable.get_output_schema)
        self.input: Any = Annotated[schema, WrapValidator(_checked)]
        keys = {each.id for each in runnable.config_specs}
        self._graph = callable(getattr(runnable, "get_state", None))
        if getattr(runnable, "checkpointer", None):
            keys.add("thread_id")
        self.configurable = frozenset(keys)
        self._shape = shape_of({} if schema is Any else schema.model_json_schema())

    def restored(self, checked: Any, raw: Any) -> Any:
        """Returns the input with messages in place of their JSON; keys that the schema does not name stay."""
        found = checked.root if isinstance(checked, RootModel) else checked
        if not isinstance(found, BaseModel) or isinstance(found, Serializable):
            return found
        return {**raw, **{name: getattr(found, name) for name in found.model_fields_set}}

    async def answer(self, given: Any, config: Config, kwargs: Mapping[str, Any]) -> Any:
        return await self._runnable.ainvoke(given, config, **kwargs)

    async def answers(self, given: Sequence[Any], configs: Sequence[Config], kwargs: Mapping[str, Any]) -> list[Any]:
        return cast("list[Any]", await self._runnable.abatch(list(given), list(configs), **kwargs))

    def stream(self, given: Any, config: Config, kwargs: Mapping[str, Any]) -> AsyncIterator[Any]:
        return cast("AsyncIterator[Any]", self._runnable.astream(given, config, **kwargs))

    # Chats.

    def chat_input(self, messages: Sequence[Mapping[str, Any]], form: str) -> Any:
        shape = InputForm.of(form) if form else self._shape
        if shape is None:
            raise Refused(404, f"{self.name} takes neither messages nor one text, so it has no chat; use /invoke")
        try:
            found = convert_to_messages([dict(each) for each in messages])
        except (ValueError, KeyError, TypeError, NotImplementedError, ValidationError) as error:
            raise Refused(400, f"messages: expected OpenAI's messages; {str(error).splitlines()[0][:200]}") from error
        if shape.text is None:
            return found if shape.messages is None else {shape.messages: found}
        if found[-1].type != "human":
            raise Refused(400, f"messages: expected the user's text as the last one, got role {messages[-1]['role']!r}")
        text = found[-1].text
        if shape.text == TEXT:
            return text
        return {shape.text: text} if shape.messages is None else {shape.text: text, shape.messages: found[:-1]}

    async def complete(self, given: Any, config: Config) -> Completion:
        counted = UsageMetadataCallbackHandler()
        found = _completion(await self._runnable.ainvoke(given, {**config, "callbacks": [counted]}))
        return Completion(found.text, found.tool_calls, found.finish, _usage(counted))

    async def completing(self, given: Any, config: Config) -> AsyncGenerator[Completion, None]:
        counted = UsageMetadataCallbackHandler()
        parts = self._of_graph if self._graph else self._of_chain
        async with aclosing(parts(given, {**config, "callbacks": [counted]})) as found:
            async for part in found:
                yield part
        yield Completion(usage=_usage(counted))

    async def _of_chain(self, given: Any, config: Config) -> AsyncGenerator[Completion, None]:
        whole: Any = None
        seen = ""
        async with aclosing(self._runnable.astream(given, config)) as pieces:
            async for piece in pieces:
                whole = _added(whole, piece)
                if text := _text_in(piece):
                    seen += text
                    yield Completion(text)
        if whole is not None:
            yield _rest(_completion(whole), seen)

    @cached_property
    def _last_nodes(self) -> set[str]:
        return {edge.source for edge in self._runnable.get_graph().edges if edge.target == "__end__"}

    async def _of_graph(self, given: Any, config: Config) -> AsyncGenerator[Completion, None]:
        """Yields what models write in the nodes that may be the last ones, then what is left of the last message."""
        last = self._last_nodes
        state: Any = None
        seen: dict[str | None, str] = {}
        async with aclosing(self._runnable.astream(given, config, stream_mode=["messages", "values"])) as pieces:
            async for mode, piece in pieces:
                if mode == "values":
                    state = piece
                    continue
                message, about = piece
                if isinstance(message, AIMessageChunk) and message.text and about.get("langgraph_node") in last:
                    seen[message.id] = seen.get(message.id, "") + message.text
                    yield Completion(message.text)
        found = _last_message(state)
        yield _rest(_completion(state), seen.get(found.id if found is not None else None, ""))


def _usable(schema: Any) -> Any:
    """Returns a schema of a runnable, or Any if it has none that JSON can say."""
    try:
        found = schema()
        found.model_json_schema()
    except Exception:  # of types of the user's own, and of annotations that cannot be resolved
        return Any
    return found


def _checked(value: Any, check: Callable[[Any], Any]) -> Any:
    """Returns an input as its schema has it. Raises ValueError, also for what is no message, a TypeError elsewhere."""
    try:
        return check(_with_types(value))
    except TypeError as error:
        raise ValueError(str(error)) from error


def _with_types(value: Any) -> Any:
    """Returns an input with OpenAI's messages in the form that schemas of LangChain know."""
    if isinstance(value, dict):
        if isinstance(value.get("role"), str) and "content" in value and "type" not in value:
            try:
                return convert_to_messages([value])[0]
            except (ValueError, KeyError, TypeError, NotImplementedError):
                return value
        return {key: _with_types(each) for key, each in value.items()}
    return [_with_types(each) for each in value] if isinstance(value, list) else value


def _usage(counted: UsageMetadataCallbackHandler) -> tuple[int, int]:
    found = counted.usage_metadata.values()
    return sum(each["input_tokens"] for each in found), sum(each["output_tokens"] for each in found)


def _last_message(value: Any) -> BaseMessage | None:
    messages = value.get("messages") if isinstance(value, dict) else value
    last = messages[-1] if isinstance(messages, list) and messages else messages
    return last if isinstance(last, BaseMessage) else None


def _added(whole: Any, piece: Any) -> Any:
    """Returns the pieces so far with one more; where pieces cannot be added, the last one counts, as in LangChain."""
    try:
        return piece if whole is None else whole + piece
    except TypeError:
        return piece


def _text_in(piece: Any) -> str:
    """Returns the text that a piece of a stream adds to the answer."""
    if isinstance(piece, dict):
        piece = next((piece[key] for key in _ANSWERS if key in piece), None)
    return piece.text if isinstance(piece, BaseMessage) else piece if isinstance(piece, str) else ""


def _completion(value: Any) -> Completion:
    """Returns an answer as a completion: a message, the last message of a state, a text, or a text in a dict."""
    message = _last_message(value)
    if message is not None:
        calls = convert_to_openai_messages(message).get("tool_calls", ()) if isinstance(message, AIMessage) else ()
        return Completion(message.text, calls, message.response_metadata.get("finish_reason") or "")
    if isinstance(value, dict):
        named = [value[key] for key in _ANSWERS if key in value]
        value = named[0] if named else next(iter(value.values())) if len(value) == 1 else value
        if isinstance(value, BaseMessage):
            return _completion(value)
    if isinstance(value, str):
        return Completion(value)
    from fineflow.serving.calls import encoded

    return Completion(encoded(value).decode())


def _rest(whole: Completion, seen: str) -> Completion:
    """Returns what is left of an answer of which a text was sent."""
    text = whole.text[len(seen) :] if whole.text.startswith(seen) else "" if seen else whole.text
    return Completion(text, whole.tool_calls, whole.finish)


def shape_of(schema: Mapping[str, Any]) -> InputForm | None:
    """Returns how an input of this schema takes a chat; None if it does not. Without any schema: as a text."""
    definitions = schema.get("$defs", {})
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[-1]]
    if schema.get("type") == "object" and "properties" in schema:
        return _of_object(schema)
    options = schema.get("anyOf", [schema])
    if any(_are_messages(each) for each in options):
        return InputForm()
    texts = any(each.get("type") == "string" for each in options)
    return InputForm(TEXT) if texts or not {"type", "anyOf", "properties"} & schema.keys() else None


def _of_object(schema: Mapping[str, Any]) -> InputForm | None:
    properties = schema["properties"]
    messages = [name for name, each in properties.items() if _are_messages(each)]
    others = [name for name in properties if name not in messages]
    needed = [name for name in schema.get("required", ()) if name in others]
    if len(messages) == 1 and not needed:
        return InputForm(None, messages[0])
    texts = needed or others
    if len(texts) != 1 or len(messages) > 1 or properties[texts[0]].get("type", "string") != "string":
        return None
    return InputForm(texts[0], messages[0] if messages else None)


def _are_messages(schema: Mapping[str, Any]) -> bool:
    """Returns True for the schema of a list of LangChain's messages."""
    items = schema.get("items", {})
    kinds = [items, *items.get("oneOf", ()), *items.get("anyOf", ())] if isinstance(items, dict) else []
    return schema.get("type") == "array" and any("HumanMessage" in str(each.get("$ref", "")) for each in kinds)
