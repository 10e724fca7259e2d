"""The bill at providers that cache prompts, and the time: over HTTP, through the clients of OpenAI and of Anthropic.

A server of this process bills by published rules: a beginning of at least 1,024 tokens is written to the cache at 1.25
times the price of input and read at 0.1 times. It can be read once a response has begun, and is dropped five minutes
after its last use. OpenAI's are cached automatically, Anthropic's up to a breakpoint (``cache_control``). A bill is in
thousands of tokens at the price of input.

Eight workloads run as stock, with fineflow where all requests go together (``cache="ignore"``), and with fineflow as it
is. Bills may not be above stock's. Of the seconds that going together gains, the wait may cost a fifth.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough

import fineflow
from benchmarks.report import finish, hardware, table
from fineflow.testing.http import Request, Response, ServedInThread

WRITE, READ, BLOCK, LEAST, KEPT = 1.25, 0.1, 128, 1024, 300.0
FIRST = 0.6
"""Share of a request's seconds after which its response begins."""

LONG = "A sentence of the document. " * 400  # 2,800 tokens
EIGHT = list(range(8))
KEPT_OF_GAIN = 0.8
MODES = ("stock", "ignore", None)  # of ``optimize(cache=)``; "stock": not optimized


def said(model: Any, text: str) -> Any:
    """Returns the content of a message, with a breakpoint behind it for models that need one."""
    if type(model).__name__ != "ChatAnthropic":
        return text
    return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]


def asking(model: Any, system: str, human: str = "{x}") -> Runnable[Any, str]:
    prompt = ChatPromptTemplate.from_messages([("system", said(model, system)), ("human", human)])
    return prompt | model | StrOutputParser()


def loop(model: Any, system: str) -> Runnable[Any, Any]:
    ask = asking(model, system)

    async def each(items: list[int]) -> list[str]:
        return [await ask.ainvoke({"x": x}) for x in items]

    return RunnableLambda(each)


def contextual_retrieval(model: Any) -> Runnable[Any, Any]:
    return loop(model, LONG + "Situate the chunk.")


def rubric(model: Any) -> Runnable[Any, Any]:
    return loop(model, "The rubric. " * 600)


def map_reduce(model: Any) -> Runnable[Any, Any]:
    ask, reduce = asking(model, LONG), asking(model, "Reduce.")

    async def each(items: list[int]) -> str:
        found = [await ask.ainvoke({"x": x}) for x in items]
        return await reduce.ainvoke({"x": " ".join(found)})

    return RunnableLambda(each)


def agent(model: Any) -> Runnable[Any, Any]:
    async def turns(items: list[int]) -> str:
        messages: list[BaseMessage] = [SystemMessage(said(model, LONG))]
        for x in items:
            messages += [HumanMessage(str(x)), await model.ainvoke(messages)]
        return str(len(messages))

    return RunnableLambda(turns)


def fusion(model: Any) -> Runnable[Any, Any]:
    short, answer = asking(model, "Search."), asking(model, LONG)

    async def each(items: list[int]) -> str:
        found = [await short.ainvoke({"x": x}) for x in items[:4]]
        return await answer.ainvoke({"x": " ".join(found)})

    return RunnableLambda(each)


def extraction(model: Any) -> Runnable[Any, Any]:
    chain: Runnable[Any, Any] = RunnableLambda(lambda items: {"x": len(items)})
    for field in ("name", "date", "place", "sum", "party"):
        chain = chain | RunnablePassthrough.assign(**{field: asking(model, LONG + "{x}", field)})
    return chain


def judges(model: Any) -> Runnable[Any, Any]:
    panel = {name: asking(model, LONG, name + " {x}") for name in ("strict", "kind", "dry")}
    return RunnableParallel(**panel)


def evaluation(model: Any) -> Runnable[Any, Any]:
    grade, explain = asking(model, LONG + "Grade."), asking(model, LONG + "Explain.")

    async def each(items: list[int]) -> list[str]:
        rows = []
        for x in items:
            rows.append(await grade.ainvoke({"x": x}))
            rows.append(await explain.ainvoke({"x": x}))
        return rows

    return RunnableLambda(each)


WORKLOADS = (contextual_retrieval, map_reduce, rubric, agent, fusion, extraction, judges, evaluation)


class Cache:
    """What a provider keeps: hash of a beginning -> since when it can be read, and when it was used last."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[float, float]] = {}
        self.bill = 0.0
        self.requests = self.written = 0

    def ask(self, text: str, cacheable: int, now: float, begins: float) -> tuple[int, int]:
        """Bills a request; returns the tokens that it reads and writes. begins: seconds until its response does.

        cacheable: characters at the beginning of its text that may be cached.
        """
        ends = range(BLOCK, cacheable // 4 + 1, BLOCK)
        keys = [hash(text[: end * 4]) for end in ends] if len(ends) * BLOCK >= LEAST else []
        read = 0
        for key in keys:
            since, last = self._kept.get(key, (now + 1, now))
            if since > now or last + KEPT < now:
                break
            self._kept[key] = since, now
            read += BLOCK
        written = len(keys) * BLOCK - read
        for key in keys:
            since, last = self._kept.get(key, (now + begins, now))
            self._kept[key] = (since, now) if last + KEPT >= now else (now + begins, now)
        self.bill += written * WRITE + read * READ + len(text) // 4 - written - read
        self.requests += 1
        self.written += written
        return read, written

    def drop(self) -> None:
        """Empties it."""
        self._kept.clear()


class Provider(ServedInThread):
    """Answers in the forms of OpenAI and of Anthropic; a context manager. seconds: of a request."""

    def __init__(self, seconds: float) -> None:
        self.cache, self._seconds = Cache(), seconds
        super().__init__(self._answer, "provider")

    async def _answer(self, request: Request) -> Response:
        body, loop = request.json(), asyncio.get_running_loop()
        anthropic = request.path.endswith("/messages")
        messages = [{"role": "system", "content": body["system"]}] if body.get("system") else []
        text, marked = _texts([*messages, *body["messages"]])
        begins = self._seconds * FIRST
        read, written = self.cache.ask(text, marked if anthropic else len(text), loop.time(), begins)
        if body.get("stream"):
            return Response(self._pieces(body["model"], len(text) // 4, read), stream=True)
        await asyncio.sleep(self._seconds)
        if anthropic:
            usage = {"input_tokens": len(text) // 4 - read - written, "output_tokens": 1}
            usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
            head = {"id": "1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None}
            content = [{"type": "text", "text": "yes"}]
            return Response({**head, "content": content, "stop_reason": "end_turn", "usage": usage})
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return Response({**head, "choices": [choice], "usage": _usage(len(text) // 4, read)})

    async def _pieces(self, model: str, tokens: int, read: int) -> AsyncIterator[Any]:
        head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": model}
        await asyncio.sleep(self._seconds * FIRST)
        delta = {"role": "assistant", "content": "yes"}
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        await asyncio.sleep(self._seconds * (1 - FIRST))
        yield {**head, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}
        yield {**head, "choices": [], "usage": _usage(tokens, read)}


def _usage(tokens: int, read: int) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
    return usage | {"prompt_tokens_details": {"cached_tokens": read}}


def _texts(messages: list[Any]) -> tuple[str, int]:
    """Returns the text of a request, and the number of its characters up to the last breakpoint."""
    text, marked = "", 0
    for message in messages:
        text += message["role"]
        for part in [message["content"]] if isinstance(message["content"], str) else message["content"]:
            text += part if isinstance(part, str) else part["text"]
            marked = len(text) if isinstance(part, dict) and "cache_control" in part else marked
    return text, marked


def openai(port: int, **options: Any) -> Any:
    """Returns the real client of OpenAI."""
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", model="tiny", max_retries=0, **options)


def openai_streamed(port: int) -> Any:
    """Returns it with answers that stream."""
    return openai(port, streaming=True, stream_usage=True)


def anthropic(port: int) -> Any:
    """Returns the real client of Anthropic. Raises ImportError without langchain-anthropic."""
    from langchain_anthropic import ChatAnthropic

    return ChatAnthropic(
        base_url=f"http://127.0.0.1:{port}", api_key="none", model="claude-tiny", max_tokens=10, max_retries=0
    )


CLIENTS: dict[str, Callable[[int], Any]] = {
    "openai": openai,
    "openai, streamed": openai_streamed,
    "anthropic": anthropic,
}


@dataclass(frozen=True)
class Measured:
    """One workload in one mode. bill: in units of the price of an input token. written: tokens, to the cache."""

    seconds: float
    bill: float
    written: int
    requests: int
    answer: Any


def measure(make: Callable[[Any], Any], client: Callable[[int], Any], mode: str | None, seconds: float) -> Measured:
    """Runs a workload once, at a provider whose cache is empty. seconds: of a request."""
    with Provider(seconds) as server:
        stock = make(client(server.port))
        app = stock if mode == "stock" else fineflow.optimize(stock, cache=mode)
        began = time.perf_counter()
        answer = asyncio.run(app.ainvoke(EIGHT))
        cache = server.cache
        return Measured(time.perf_counter() - began, cache.bill, cache.written, cache.requests, answer)


def rows(names: list[str], seconds: float) -> Iterator[tuple[str, str, list[Measured]]]:
    """Yields each client and workload with what was measured, by mode."""
    for name in names:
        for make in WORKLOADS:
            yield name, make.__name__, [measure(make, CLIENTS[name], mode, seconds) for mode in MODES]


def main(argv: list[str] | None = None) -> int:
    """Prints the table. Returns 1 if a bill is above stock's, or a wait costs more than a fifth of the gain."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prompt_cache", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a request (1.0)")
    parser.add_argument("--clients", nargs="*", choices=CLIENTS, default=list(CLIENTS), help="all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args(argv)
    print(hardware())
    found, lines, checks = {}, [], {}
    for client, workload, (stock, together, mine) in rows(options.clients, options.seconds):
        gain = stock.seconds - together.seconds
        kept = (stock.seconds - mine.seconds) / gain if gain > options.seconds / 2 else None
        bills = [f"{each.bill / 1000:.1f}" for each in (stock, together, mine)]
        times = [f"{each.seconds:.1f}" for each in (stock, together, mine)]
        lines.append((f"{client}: {workload}", *bills, *times, "" if kept is None else f"{kept:.2f}"))
        found[f"{client}: {workload}"] = {"bills": bills, "seconds": times, "kept": kept}
        name = f"{client}, {workload}"
        checks[f"{name}: the bill is not above stock's"] = mine.bill <= stock.bill and mine.answer == stock.answer
        if kept is not None:
            checks[f"{name}: {KEPT_OF_GAIN} of the gain are left"] = kept >= KEPT_OF_GAIN
    heading = ("workload", "bill: stock", "together", "fineflow", "s: stock", "together", "fineflow", "of the gain")
    print(table([heading, *lines]))
    return finish({"workloads": found}, checks, options.json)


if __name__ == "__main__":
    sys.exit(main())
