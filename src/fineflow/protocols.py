"""Engine protocols: the narrow interfaces that concrete backends implement.

A backend knows one library and nothing of graphs, queries or frameworks. Its methods are called on the runtime's event
loop; it runs blocking work on its own owner thread. Components and the graph scheduler call a backend only through its
queue (``runtime.queues.batch_queue``) on the runtime's loop (``runtime.loop.runtime_loop``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Any, Protocol, cast, runtime_checkable

from fineflow.ir import Op
from fineflow.ir.objectives import LATENCY


@dataclass(frozen=True, slots=True)
class Sampling:
    """Decoding parameters. ``temperature`` 0 is greedy. ``stop``: the output ends before the first of these strings.

    ``top_k`` 0 means all tokens. ``seed`` None leaves the choice to the engine. ``min_p``: minimum probability of a
    token relative to the likeliest one. The penalties are those of OpenAI's API, ``repetition_penalty`` that of
    transformers. ``logprobs``: number of alternatives reported for each token (0: only the token's own; None: off).
    ``min_tokens``: until so many are decoded, neither end of sequence nor a stop string ends the output.
    ``schema`` (JSON text of a JSON schema), ``regex``, ``choices``: constraint on the whole output, at most one of
    them; see ``Constrains``. ``special_tokens``: keep their texts in the output, except the one that ends it; some
    models mark tool calls by them. ``extra``: arguments that only some engines know, by name.

    An engine that does not support a field raises RequestError, naming it, if the field is not at its default. Raises:
    TypeError for a value of the wrong type, and unless ``stop`` and ``choices`` are tuples of texts.
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


# The builtin types come first: isinstance() then rarely reaches the slower abstract ones.
_KINDS: Sequence[tuple[Sequence[str], tuple[type, ...], str]] = (
    (("max_tokens", "top_k", "seed", "min_tokens", "logprobs"), (int, Integral), "a whole number"),
    (("temperature", "top_p", "min_p"), (float, int, Real), "a number"),
    (("presence_penalty", "frequency_penalty", "repetition_penalty"), (float, int, Real), "a number"),
    (("schema", "regex"), (str,), "a text"),
)
_OPTIONAL = frozenset({"seed", "logprobs", "schema", "regex"})


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a decoded token's probability, and of the likeliest alternatives, by text.

    These are the model's own, before temperature, penalties and the rest of ``Sampling``.
    """

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of decoded output. ``finish_reason`` is set on the last one: ``"stop"`` or ``"length"``.

    ``text`` never contains part of a stop string or an incomplete character. ``logprobs``: one for each of ``tokens``,
    if requested.
    """

    text: str
    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model requested. ``arguments``: plain JSON data by name."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message as engines see it: role and text.

    name: of the speaker, or of the tool that answered. tool_calls: calls that an assistant's message requests besides
    its text. tool_call_id: the call that a message of role ``"tool"`` answers.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the form that Hugging Face chat templates read: OpenAI's, but arguments are an object, not text."""
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

    name: the lane in plans and timelines. ops: the operations it serves. max_batch: the largest number of items that
    still pays to run together (maximum efficient batch).

    Optional attribute: ``repeats``: True if equal RERANK items get equal scores; a request's queue then asks for each
    of them once.
    """

    name: str
    ops: frozenset[Op]
    max_batch: int

    async def execute(self, op: Op, items: Sequence[Any]) -> list[Any]:
        """Returns results in the order of ``items``. EMBED items: ``(kind, text)`` with kind ``"query"`` or
        ``"document"``, results vectors (lists of float). RERANK items: ``(query, document)`` texts, results scores
        (float, higher is better), each independent of the other items of the batch.
        """
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """What the queue of an engine knows of the call that a request is for, beyond its priority.

    program: id of the conversation that the caller named, or of the call; unique among processes, "" outside of calls.
    parent: of the program that waits for it, if any. tenant, urgency, objective: of the call (``fineflow.identity``).
    deadline: seconds until the call has to end. output: tokens that the step usually decodes. gap: usual seconds from
    the end of such a request to the program's next one. last: the program makes no other request after one of this
    step, as far as was seen. None: not known.
    """

    program: str = ""
    parent: str = ""
    tenant: str = ""
    urgency: int = 0
    objective: str = LATENCY
    deadline: float | None = None
    output: int | None = None
    gap: float | None = None
    last: bool = False


@runtime_checkable
class LLMEngine(Protocol):
    """An engine that prefills prompts and decodes from them, many requests concurrently (continuous batching).

    Optional attributes: ``salts``: True if ``prefill``, ``generate``, ``cached`` and ``release`` take ``salt``, a text.
    Requests then share a prefix only with those of the same salt: one cannot find out, by how soon it is answered, what
    another one has asked. Without it, and in subclasses whose methods do not take it, all requests share (``salted``).
    ``identifies``: True if ``prefill`` and ``generate`` take ``identity``, a ``RequestIdentity``.
    """

    name: str

    @property
    def block_size(self) -> int:
        """Tokens per KV cache block: the granularity of prefix sharing."""
        ...

    @property
    def can_prefill(self) -> bool:
        """True if generate() can use what prefill() leaves in the cache."""
        ...

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Renders a conversation with the model's chat template. Raises RequestError if the template refuses it.

        tools: the tools that the model may call, each in OpenAI's form: ``{"type": "function", "function": {"name":
        ..., "description": ..., "parameters": JSON schema}}``. A template without tool support leaves them out.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a prompt text (special tokens only where the text has them)."""
        ...

    async def prefill(self, tokens: Sequence[int], *, priority: int = 0) -> None:
        """Computes the KV cache of a prompt prefix so that a later request with it starts earlier.

        Returns no handle: the blocks belong to the engine, which shares them with any request that has this prefix and
        evicts them when it needs the room. Cancelling stops the prefill. A request whose prompt begins with ``tokens``
        may stop it, too, and continue from what is cached.
        """
        ...

    def generate(self, tokens: Sequence[int], sampling: Sampling, *, priority: int = 0) -> AsyncIterator[Delta]:
        """Decodes. Higher priority first. Closing the iterator aborts the request and frees its cache."""
        ...

    async def aclose(self) -> None: ...


def salted(engine: Any, salt: str) -> dict[str, str]:
    """Returns the keyword argument that keeps the prefixes of a salt apart on an engine; empty if there is none."""
    takes = salt and getattr(engine, "salts", False) and _takes(cast(Any, type(engine)), "salt")
    return {"salt": salt} if takes else {}


@cache
def _takes(kind: Any, name: str) -> bool:
    """Returns True if methods of an engine take a keyword; a subclass may have overridden them as they were before."""
    methods = [getattr(kind, each, None) for each in ("prefill", "generate", "cached", "release")]
    return all(
        name in parameters or any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
        for parameters in (signature(each).parameters for each in methods if each is not None)
    )


def block_keys(tokens: Sequence[int], size: int, salt: str = "") -> list[int]:
    """Returns a key for each full block of a prompt: a hash of the salt and of all tokens up to the block's end.

    size: tokens per block.
    """
    keys = [hash(salt) if salt else 0]
    for start in range(0, len(tokens) // size * size, size):
        keys.append(hash((keys[-1], *tokens[start : start + size])))
    return keys[1:]


@runtime_checkable
class PrefixCache(Protocol):
    """An ``LLMEngine`` that can report its prefix cache.

    Optional attribute: ``shares_at_once``: True if requests that begin together compute a common prefix once; the
    queue then holds none of them back.
    """

    def cached(self, tokens: Sequence[int]) -> int:
        """Returns the number of leading tokens of a prompt that are cached at this moment."""
        ...


@runtime_checkable
class ReadsCalls(Protocol):
    """An ``LLMEngine`` behind which something (a server) formats tools and parses calls, in its model's own form.

    tool_format: the form in which it returns the calls, a name in ``adapters.text.tool_formats``.
    """

    tool_format: str


@runtime_checkable
class Constrains(Protocol):
    """An ``LLMEngine`` that can constrain its output.

    constraints: the fields of ``Sampling`` that it follows, out of ``"schema"``, ``"regex"`` and ``"choices"``.
    """

    constraints: frozenset[str]


@runtime_checkable
class Limited(Protocol):
    """An ``LLMEngine`` that should not get more requests than fit; the rest waits where it can be reordered.

    capacity: tokens of prompts and longest outputs that it works on concurrently, or None for no limit.

    Optional attributes: ``latency_capacity``: the tokens up to which each request gets its next token soon enough; not
    exceeded while one runs that has to be quick (``fineflow.identity``); it may be set on any engine. ``context``:
    maximum tokens of prompt plus output; longer outputs are cut. ``recovers``: True if it may get more than fits,
    because it then preempts requests and continues them later with the same output.
    """

    capacity: int | None


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """A KV cache, in tokens. free: not held by running requests; kept prefixes count as free.

    queried: prompt tokens looked up in the prefix cache so far; hits: those of them that were cached.
    """

    total: int
    free: int
    queried: int
    hits: int

    @property
    def usage(self) -> float:
        """Fraction held by requests, 0 to 1."""
        return 1 - self.free / self.total if self.total else 0.0

    @property
    def hit_rate(self) -> float:
        """Fraction of the queried tokens that were cached, 0 to 1."""
        return self.hits / self.queried if self.queried else 0.0


@runtime_checkable
class Measured(Protocol):
    """An ``LLMEngine`` that reports the state of its KV cache."""

    def cache_statistics(self) -> CacheStatistics | None:
        """Returns the figures at this moment, or None while the engine does not run."""
        ...


@runtime_checkable
class Releases(Protocol):
    """An ``LLMEngine`` that keeps some prefilled prefixes from being evicted until a request continues them."""

    async def release(self, tokens: Sequence[int]) -> None:
        """Stops keeping the prefix that ``prefill(tokens)`` computed; does nothing if it is not kept."""
        ...


@runtime_checkable
class Shares(Protocol):
    """An engine object that delegates to another one, as others may. Their requests share one queue.

    shared: the engine that it delegates to.
    """

    @property
    def shared(self) -> Any: ...
