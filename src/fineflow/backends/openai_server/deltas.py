"""Conversion of a streamed answer to the deltas of an engine."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from fineflow.errors import BackendError, RequestError, shown
from fineflow.protocols import Delta, TokenLogprob

UNKNOWN = -1
"""Placeholder of a token whose id the server does not report."""


async def deltas(chunks: AsyncIterator[Any]) -> AsyncGenerator[Delta, None]:
    """Yields the deltas of the chunks of ``/chat/completions`` or ``/completions``. BackendError if the end is missing.

    The last delta waits for the usage chunk that follows it. Tool calls that the server has parsed are written back to
    text in the format of Hermes and Qwen models.
    """
    last: Delta | None = None
    usage: Any = None
    count, calls = 0, dict[int, list[str]]()
    async for chunk in chunks:
        usage = getattr(chunk, "usage", None) or usage
        for choice in (getattr(chunk, "choices", None) or ())[:1]:
            _gather(choice, calls)
            delta = _delta(choice)
            count += len(delta.tokens)
            if last is not None and (last.text or last.tokens):  # the server has more to say after all
                yield replace(last, finish_reason=None)
            if delta.finish_reason is not None:
                last = delta
            elif last is not None:
                last = replace(delta, finish_reason=last.finish_reason)
            elif delta.text or delta.tokens:
                yield delta
    if last is None:
        raise BackendError("the server ended the stream before the end of the answer; call again")
    last = replace(last, text=last.text + _written(calls))
    if usage is not None:
        details = getattr(usage, "prompt_tokens_details", None)
        missing = max(_count(usage, "completion_tokens") - count, 0)
        last = replace(
            last,
            tokens=(*last.tokens, *[UNKNOWN] * missing),
            prompt_tokens=_count(usage, "prompt_tokens"),
            cached_tokens=_count(details, "cached_tokens"),
        )
    yield last


def _count(usage: Any, name: str) -> int:
    found = getattr(usage, name, None)
    return found if isinstance(found, int) else 0


def _delta(choice: Any) -> Delta:
    chat = getattr(choice, "delta", None)
    text = getattr(*((choice, "text") if chat is None else (chat, "content")), None) or ""
    if not isinstance(text, str):
        raise BackendError(f"the server sent {shown(text)} where the text of the answer was expected")
    ids = getattr(choice, "token_ids", None) or ()
    logprobs = _logprobs(getattr(choice, "logprobs", None))
    tokens = tuple(ids) or (UNKNOWN,) * (len(logprobs) or bool(text))
    reason = getattr(choice, "finish_reason", None)
    return Delta(text, tokens, reason and ("length" if reason == "length" else "stop"), logprobs=logprobs)


def _logprobs(found: Any) -> tuple[TokenLogprob, ...]:
    if found is None:
        return ()
    content: Sequence[Any] | None = getattr(found, "content", None)
    if content is not None:
        return tuple(
            TokenLogprob(each.token, each.logprob, tuple((top.token, top.logprob) for top in each.top_logprobs or ()))
            for each in content
        )
    tokens = getattr(found, "tokens", None) or ()
    tops = getattr(found, "top_logprobs", None) or [None] * len(tokens)
    return tuple(
        TokenLogprob(token, logprob, tuple((top or {}).items()))
        for token, logprob, top in zip(tokens, found.token_logprobs or (), tops, strict=False)
    )


def _gather(choice: Any, calls: dict[int, list[str]]) -> None:
    """Appends the pieces of a chunk to the name and the arguments of each call."""
    for call in getattr(getattr(choice, "delta", None), "tool_calls", None) or ():
        known = calls.setdefault(call.index, ["", ""])
        if call.function is not None:
            known[0] += call.function.name or ""
            known[1] += call.function.arguments or ""


def _written(calls: dict[int, list[str]]) -> str:
    texts = []
    for _, (name, arguments) in sorted(calls.items()):
        try:
            tool_call = {"name": name, "arguments": json.loads(arguments or "{}")}
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"the model called {name} with arguments that are no JSON: {shown(arguments)}; call again"
            ) from error
        texts.append(f"\n<tool_call>\n{json.dumps(tool_call)}\n</tool_call>")
    return "".join(texts).removeprefix("\n")
