"""vLLM's own server as a server for ChatOpenAI and for components: its extensions as they really are."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if getattr(find_spec("vllm"), "origin", None) is None:  # the folder of the tests passes for a package of that name
    pytest.skip("vLLM is not installed here; run: make test-vllm", allow_module_level=True)
pytest.importorskip("langchain_openai")

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_openai import ChatOpenAI, OpenAI

import fineflow
from fineflow.backends.openai_server import OpenAIServerEngine
from fineflow.errors import RequestError
from fineflow.protocols import Delta, Message, Sampling
from fineflow.runtime import events, servers
from fineflow.testing.differential import observe
from fineflow.testing.gates import Gate
from fineflow.testing.langchain import FakeChat

FACTS = "Torstad is known for its salt mines. The old bridge was built before the new road. "
RULES = FACTS * 8
VALUE = {"question": "What is Torstad known for?"}
START_SECONDS = 180
# Clients with the same time limit share connections, which belong to the event loop that used them first.
SECONDS = itertools.count(60)


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"served-model-name": "tiny", "host": "127.0.0.1", "port": port, "scheduling-policy": "priority"}
    told |= {"max-num-seqs": 4, "block-size": 32, "kv-cache-memory-bytes": 2**28}
    flags = [part for name, value in told.items() for part in (f"--{name}", str(value))]
    # Not `vllm serve`: that command asks for the version of a package "vllm", and the CPU build is called otherwise.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), *flags]
    command += ["--enforce-eager", "--enable-prompt-tokens-details"]
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "VLLM_DO_NOT_TRACK": "1"}
    address, log = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("vllm") / "log"
    with log.open("w") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait(server, address, log)
        yield f"{address}/v1"
    finally:
        servers.forget(f"{address}/v1")
        server.terminate()
        try:
            server.wait(30)
        finally:
            server.kill()


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, f"vllm serve has ended:\n{log.read_text()[-4000:]}"
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)  # what another process does
    pytest.fail(f"vllm serve did not start within {START_SECONDS} s:\n{log.read_text()[-4000:]}")


@pytest.fixture
async def engine(url: str) -> AsyncIterator[OpenAIServerEngine]:
    made = OpenAIServerEngine(url, warm=True, priority=True)
    yield made
    await made.aclose()


async def answer(engine: OpenAIServerEngine, prompt: str, **settings: Any) -> list[Delta]:
    return [delta async for delta in engine.generate(engine.encode(prompt), Sampling(**settings), priority=3)]


def said(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def test_all_settings_are_understood(engine: OpenAIServerEngine) -> None:
    prompt = engine.render_chat([Message("user", VALUE["question"])])
    plain = await answer(engine, prompt, max_tokens=8)
    assert said(plain) and plain[-1].finish_reason in ("stop", "length")
    assert plain[-1].prompt_tokens > 0
    assert all(token >= 0 for delta in plain for token in delta.tokens)  # it tells the ids
    again = await answer(
        engine,
        prompt,
        max_tokens=8,
        top_k=1,
        temperature=0.7,
        min_p=0.01,
        repetition_penalty=1.0001,
        min_tokens=1,
        seed=3,
        logprobs=2,
    )
    assert len(again[0].logprobs[0].top) == 2
    assert said(await answer(engine, prompt, max_tokens=16, choices=("salt", "stone"))) in ("salt", "stone")
    assert said(await answer(engine, prompt, max_tokens=4, regex="[0-9]{2}")).isdigit()
    with pytest.raises(RequestError, match="answered 400"):
        await answer(engine, "x " * 4000, max_tokens=8)


async def test_a_beginning_that_was_sent_ahead_is_found(engine: OpenAIServerEngine) -> None:
    prompt = engine.render_chat([Message("system", RULES), Message("user", FACTS * 3 + VALUE["question"])])
    known = prompt[: prompt.index(VALUE["question"])]
    await engine.prefill(engine.encode(known))
    deltas = await answer(engine, prompt, max_tokens=4)
    assert deltas[-1].cached_tokens >= deltas[-1].prompt_tokens - 64  # all but the last blocks


def chain(model: Any, gate: Gate | None = None) -> Runnable[Any, Any]:
    found = ChatPromptTemplate.from_template("search {question}") | FakeChat(default="salt mines", gate=gate)
    prompt = ChatPromptTemplate.from_messages([("system", RULES), ("human", "{question}\n{found}")])
    return RunnablePassthrough.assign(found=found | StrOutputParser()) | prompt | model


@pytest.mark.parametrize("kind", [ChatOpenAI, OpenAI])
@pytest.mark.parametrize("entry", ["ainvoke", "invoke", "astream"])
def test_the_same_tokens(url: str, kind: Any, entry: str) -> None:
    fineflow.engine(url, warm=True, priority=True)
    seen = []
    for optimized in (False, True):
        model = kind(
            base_url=url,
            api_key="none",
            model="tiny",
            temperature=0,
            max_tokens=24,
            extra_body={"ignore_eos": True},
            timeout=next(SECONDS),
        )
        made = chain(model) | StrOutputParser()
        seen.append(observe(fineflow.optimize(made, strict=True) if optimized else made, entry, VALUE))
    stock, found = seen
    assert found.error is None and stock.error is None
    assert found.value == stock.value != ""  # but not the ids of the responses, in which the server is random


async def test_the_answer_of_chat_openai_finds_its_beginning(url: str) -> None:
    server = fineflow.engine(url, warm=True)
    rules = f"Version two. {RULES}"
    gate = Gate()
    found = ChatPromptTemplate.from_template("search {question}") | FakeChat(default="salt", gate=gate)
    prompt = ChatPromptTemplate.from_messages([("system", rules), ("human", "{question}\n{found}")])
    model = ChatOpenAI(base_url=url, api_key="none", model="tiny", temperature=0, timeout=next(SECONDS))
    made = RunnablePassthrough.assign(found=found | StrOutputParser()) | prompt | model
    with events.record() as intervals:
        call = asyncio.create_task(fineflow.optimize(made, strict=True).ainvoke(VALUE))
        await gate.arrived()
        async with asyncio.timeout(60):
            while not any("prefill" in each.label for each in intervals):
                await asyncio.sleep(0)  # until it has been there and back
    gate.open()
    usage = (await call).response_metadata["token_usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0.8 * usage["prompt_tokens"]
    await server.aclose()
