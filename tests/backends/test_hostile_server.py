"""Servers that answer with something else: the answer of openai's client, or a BackendError that says what came."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("openai")

import httpx
import openai

from fineflow.backends.openai_server import OpenAIServerEngine
from fineflow.engines import instances
from fineflow.errors import BackendError, RequestError
from fineflow.protocols import Message, Sampling
from fineflow.runtime.queues.llm_queue import llm_queue_of
from fineflow.testing import virtual

URL = "http://localhost:1/v1"
ASKED = [Message("user", "Why?")]
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "me"}]})
PAGE = "<html><body>Please log in</body></html>"


def chunk(**fields: Any) -> dict[str, Any]:
    delta = {"role": "assistant", "content": fields.pop("content", "")}
    choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None} | fields
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return chunk(delta={"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": function}]})


GOOD = [chunk(content="salt"), chunk(content=" and fish", finish_reason="stop")]
USAGE = {**chunk(), "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}


def stream(chunks: list[Any], end: str = "data: [DONE]\n\n") -> bytes:
    return ("".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + end).encode()


def client(answer: bytes, models: str | bytes = MODELS, kind: str = "text/event-stream") -> Any:
    def answered(request: Any) -> Any:
        if request.url.path.endswith("/models"):
            return httpx.Response(200, content=models, headers={"content-type": "application/json"})
        return httpx.Response(200, content=answer, headers={"content-type": kind})

    return httpx.AsyncClient(transport=httpx.MockTransport(answered))


async def of_fineflow(answer: bytes, model: str | None = "m", **more: Any) -> str:
    engine = OpenAIServerEngine(URL, model, max_retries=0, http_client=client(answer, **more))
    prompt = engine.encode(engine.render_chat(ASKED))
    return "".join([delta.text async for delta in engine.generate(prompt, Sampling())])


async def of_openai(answer: bytes, **more: Any) -> str:
    asked = openai.AsyncOpenAI(api_key="x", base_url=URL, max_retries=0, http_client=client(answer, **more))
    messages: Any = [{"role": "user", "content": "Why?"}]
    texts = list[str]()
    async for each in await asked.chat.completions.create(model="m", messages=messages, stream=True):
        for choice in (each.choices or ())[:1]:
            texts.append((choice.delta and choice.delta.content) or "")
    return "".join(texts)


@pytest.mark.parametrize(
    "chunks",
    [
        [{**chunk(), "choices": None}, *GOOD],
        [{key: value for key, value in chunk().items() if key != "choices"}, *GOOD],
        [chunk(delta=None), *GOOD],
        [chunk(delta={}), *GOOD],
        [{"id": "c", "choices": [{"delta": {"content": "salt and fish"}, "finish_reason": "stop"}]}],
        [*GOOD, {**USAGE, "usage": {"prompt_tokens": None, "completion_tokens": "two"}}],
        [*GOOD, {**USAGE, "choices": None}],
        [*GOOD, {**USAGE, "usage": [1]}],
    ],
)
async def test_what_the_client_of_openai_reads_is_read(chunks: list[Any]) -> None:
    answer = stream(chunks)
    assert await of_fineflow(answer) == await of_openai(answer) == "salt and fish"


@pytest.mark.parametrize(
    "models", [PAGE, "null", "[]", '{"data": null}', '{"data": [{"id": "m"', '{"data": ["m"]}', b"\xff\xfe{", "7"]
)
async def test_a_list_of_models_that_is_none(models: str | bytes) -> None:
    assert await of_fineflow(stream(GOOD), models=models) == "salt and fish"
    if models != '{"data": ["m"]}':
        with pytest.raises(BackendError, match=r"expected a list of models|serves none"):
            await of_fineflow(stream(GOOD), None, models=models)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (stream([chunk(content=5)]), "sent 5 where the text"),
        (stream([{**chunk(), "choices": "all"}]), r"something else|before the end"),
        (b"data: {'a': 1}\n\n", "something else"),
        (b"data: \xff\xfe\n\n", "something else"),
        (b"data: null\n\ndata: [DONE]\n\n", r"something else|before the end"),
        (PAGE.encode(), "before the end"),
        (b"", "before the end"),
    ],
)
async def test_what_is_no_answer_is_an_error_that_says_so(answer: bytes, says: str) -> None:
    with pytest.raises(BackendError, match=says) as raised:
        await of_fineflow(answer)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("arguments", ['{"city": ', "Torstad", "[" * 100_000])
async def test_arguments_of_a_tool_that_are_no_json(arguments: str) -> None:
    with pytest.raises(RequestError, match="called look with arguments that are no JSON") as raised:
        await of_fineflow(stream([call(arguments), chunk(finish_reason="tool_calls")]))
    assert len(str(raised.value)) < 300


WRONG: list[Any] = [None, 0, -1, True, "", "x", [], [None], {}, {"a": 1}, 1.5, "\ud800"]


def spoiled(value: Any, draw: random.Random) -> Any:
    """Returns JSON with one part of it removed, or replaced by something else."""
    if draw.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return draw.choice(WRONG)
    key: Any = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
    made: Any = dict(value) if isinstance(value, dict) else list(value)
    if draw.random() < 0.2:
        del made[key]
    else:
        made[key] = spoiled(value[key], draw)
    return made


@pytest.mark.parametrize("seed", range(300))
async def test_random_answers(seed: int) -> None:
    draw = random.Random(seed)
    chunks = spoiled([*GOOD, call('{"city": "Torstad"}'), *GOOD[-1:], USAGE], draw)
    answer = stream(chunks if isinstance(chunks, list) else [chunks])
    if draw.random() < 0.2:
        answer = answer[: draw.randrange(len(answer))]
    try:
        mine = await of_fineflow(answer)
    except BackendError as error:
        assert str(error)
        return
    try:
        expected = await of_openai(answer)
    except Exception:  # where the client fails, an answer is no less right
        return
    assert mine.partition("<tool_call>")[0].strip() == expected.strip()


def test_a_server_that_accepts_and_never_answers_is_found_out() -> None:
    async def run(loop: virtual.VirtualTimeLoop) -> None:
        asked, taken = asyncio.Event(), list[bytes]()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken.append(await reader.readline())
            asked.set()
            with suppress(ConnectionError):
                await reader.read()  # until the client gives up
            writer.close()

        async def ask() -> str:
            prompt = both.encode(both.render_chat(ASKED))
            return "".join([delta.text async for delta in llm_queue_of(both).generate(prompt, Sampling())])

        listening = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        hanging = OpenAIServerEngine(f"http://127.0.0.1:{port}/v1", "m", vllm=False, max_retries=0)
        sound = OpenAIServerEngine(URL, "m", vllm=False, http_client=client(stream(GOOD)))
        both = instances([hanging, sound], name="both", patience=20.0)
        async with listening:
            first = asyncio.create_task(ask())
            with loop.outside():  # the clock stands still until the server has the request
                await asked.wait()
            await asyncio.sleep(1)
            with loop.outside():
                assert await ask() == "salt and fish"
            assert await first == "salt and fish"
            assert "both[0]" in both.lost and "no answer for" in str(both.lost["both[0]"])
            assert await ask() == "salt and fish"
            assert taken == [b"POST /v1/chat/completions HTTP/1.1\r\n"]
            await both.aclose()
        assert 20 < loop.time() < 60

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual.VirtualTimeLoop)
        await run(loop)

    virtual.run(main())
