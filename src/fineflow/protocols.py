"""What an engine is: the narrow protocols that concrete backends implement.

A backend knows one library and nothing of graphs, queries or frameworks. Methods of a backend are called on the
runtime's event loop; a backend hands blocking work to its own owner thread. Components and the graph scheduler never
call a backend directly but through its queue (``runtime.queues.batch_queue``) and the runtime's loop
(``runtime.loop.runtime_loop``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Protocol, runtime_checkable

from fineflow.ir import Op


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to decode. ``temperature`` 0 is greedy. ``stop``: the output ends before the first occurrence of any of them.

    ``top_k`` 0 means all tokens. ``seed`` None leaves the choice to the engine. ``min_p``: least probability of a token
    relative to the likeliest one. The penalties are those of OpenAI's interface, ``repetition_penalty`` that of
    transformers. ``logprobs``: how many alternatives of each token come with it (0: the token's own; None: none).
    ``min_tokens``: before so many, neither the end of the sequence nor a stop string ends the output.
    ``schema`` (JSON text of a JSON schema), ``regex``, ``choices``: what the whole output has to be, at most one of
    them; see ``Constrains``. ``special_tokens``: their texts are part of the output, but for the one that ends it; some
    models mark calls of tools by them. ``extra``: arguments that only some engine knows, by name.

    An engine that cannot follow a field that is not at its default raises RequestError, naming it. Raises: TypeError
    for a number that is none, and for ``stop`` or ``choices`` that are not texts in a tuple.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    logprobs: int | None = None
    schema: str | None = None
    regex: str | None = None
    choices: tuple[str, ...] = ()
    special_tokens: bool = False
    extra: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for names, kind, wanted in _KINDS:
            for name in names:
                value = getattr(self, name)
                if not isinstance(value, kind) and not (value is None and name in _OPTIONAL):
                    raise TypeError(f"{name} is {value!r}; it must be {wanted}{' or None' * (name in _OPTIONAL)}")
        for name in ("stop", "choices"):
            texts = getattr(self, name)
            if texts and not (isinstance(texts, tuple) and all(isinstance(text, str) for text in texts)):
                raise TypeError(f"{name} is {texts!r}; it must be a list of texts")


# The builtin types stand first: what is an instance of one is found without asking the abstract ones.
_KINDS: Sequence[tuple[Sequence[str], tuple[type, ...], str]] = (
    (("max_tokens", "top_k", "seed", "min_tokens", "logprobs"), (int, Integral), "a whole number"),
    (("temperature", "top_p", "min_p"), (float, int, Real), "a number"),
    (("presence_penalty", "frequency_penalty", "repetition_penalty"), (float, int, Real), "a number"),
    (("schema", "regex"), (str,), "a text"),
)
_OPTIONAL = frozenset({"seed", "logprobs", "schema", "regex"})


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a decoded token's probability, and those of the likeliest ones in its place, by text.

    They are those that the model gives, before temperature, penalties and what else ``Sampling`` says.
    """

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of decoded output. ``finish_reason`` is set on the last one: ``"stop"`` or ``"length"``.

    ``text`` is never part of a stop string and never an incomplete character. ``logprobs``: for each of ``tokens``,
    where they were asked for.
    """

    text: str
    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that a model has asked for. ``arguments``: plain JSON data by name."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message as engines see it: role and text.

    name: of who speaks, or of the tool that has answered. tool_calls: what an assistant's message asks for beside its
    text. tool_call_id: the call that a message of role ``"tool"`` answers.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The message as chat templates of Hugging Face read it: OpenAI's form, but arguments as an object, no text."""
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name is not None:
            found["name"] = self.name
        if self.tool_calls:
            found["tool_calls"] = [
                {
                    "type": "function",
                    "id": call.id,
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        return found


@runtime_checkable
class BatchEngine(Protocol):
    """An engine that executes batches of independent items, one batch at a time.

    name: the lane in plans and timelines. ops: what it serves. max_batch: the largest number of items that still
    pays to run together (maximum efficient batch).
    """

    name: str
    ops: frozenset[Op]
    max_batch: int

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        """Results in the order of ``items``. EMBED items: ``(kind, text)`` with kind ``"query"`` or ``"document"``,
        results vectors (lists of float). RERANK items: ``(query, document)`` texts, results scores (float, higher
        is better), each independent of the other items of the batch.
        """
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class LLMEngine(Protocol):
    """An engine that prefills prompts and decodes from them, many requests at once (continuous batching)."""

    name: str

    @property
    def block_size(self) -> int:
        """Tokens per key/value block: the granularity of prefix sharing."""
        ...

    @property
    def can_prefill(self) -> bool:
        """Whether prefill() leaves something that generate() can use."""
        ...

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The prompt text of a conversation, by the model's chat template. RequestError where that refuses it.

        tools: what the model may call, each in OpenAI's form: ``{"type": "function", "function": {"name": ...,
        "description": ..., "parameters": JSON schema}}``. A template that knows no tools leaves them out.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt text (special tokens only where the text has them)."""
        ...

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        """Computes the key/value cache of a prompt prefix so that a later request with it starts sooner.

        There is no handle to give back: what is kept belongs to the engine, which shares it with any request that
        begins with it and takes it over when it needs the room. Cancelling it ends it; a request for a prompt that
        begins with ``tokens`` may end it, too, and go on with what there is.
        """
        ...

    def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        """Decodes. Higher priority first. Closing the iterator aborts the request and frees its cache."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class PrefixCache(Protocol):
    """An ``LLMEngine`` that can tell what it has kept."""

    def cached(self, tokens: Sequence[int]) -> int:
        """How many tokens at the beginning of a prompt need not be computed, at this moment."""
        ...


@runtime_checkable
class ReadsCalls(Protocol):
    """An ``LLMEngine`` whose tools and calls something behind it writes and reads, in whatever form its model wants.

    tool_format: the form in which it hands on the calls, a name in ``adapters.text.tool_formats``.
    """

    tool_format: str


@runtime_checkable
class Constrains(Protocol):
    """An ``LLMEngine`` that can hold its output to a form.

    constraints: which of ``"schema"``, ``"regex"`` and ``"choices"`` of ``Sampling`` it follows.
    """

    constraints: frozenset[str]


@runtime_checkable
class Limited(Protocol):
    """An ``LLMEngine`` that should not be given more than it has room for; what is beyond waits where it can be
    reordered.

    capacity: tokens of prompts and longest outputs that it works on at once, or None where there is no such limit.
    Two attributes are asked for, where an engine has them. ``context``: tokens of the longest prompt and output
    together; longer outputs are cut. ``recovers``: whether it may be given more than it turns out to have room for, as
    it interrupts requests then, and goes on with the same output later.
    """

    capacity: int | None


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """A key/value cache, in tokens. free: what requests under way do not hold; kept prefixes count as free.

    queried: tokens of prompts that were looked up in the prefix cache so far; hits: those of them that were there.
    """

    total: int
    free: int
    queried: int
    hits: int

    @property
    def usage(self) -> float:
        """The part that requests hold, 0 to 1."""
        return 1 - self.free / self.total if self.total else 0.0

    @property
    def hit_rate(self) -> float:
        """The part of queried tokens that were there, 0 to 1."""
        return self.hits / self.queried if self.queried else 0.0


@runtime_checkable
class Measured(Protocol):
    """An ``LLMEngine`` that tells how its key/value cache stands."""

    def cache_statistics(self) -> CacheStatistics | None:
        """Figures at this moment; None while it does not run."""
        ...


@runtime_checkable
class Shares(Protocol):
    """An engine object that stands for another one, as others may. What they are asked for meets in one queue.

    shared: the engine that it stands for.
    """

    @property
    def shared(self) -> Any: ...
