"""SIGTERM: accepted answers are delivered, new calls are refused, the process ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest
from serving_kit import events

from fineflow.serving.gate import CallGate, draining
from fineflow.serving.refusals import Refused

MODULE = """
import asyncio, os
from langchain_core.runnables import RunnableLambda

async def ask(text):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["UPSTREAM"]))
    writer.write(text.encode() + b"\\n")
    answer = await reader.readline()
    writer.close()
    return answer.decode().strip()

app = RunnableLambda(ask)
"""
CALLS = 8


@contextmanager
def process(folder: Path, upstream: int, workers: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    (folder / "gated.py").write_text(MODULE)
    command = [sys.executable, "-m", "fineflow", "serve", "gated:app", "--port", "0", "--workers", str(workers)]
    environment = {**os.environ, "UPSTREAM": str(upstream)}
    started = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert started.stderr is not None
        seen, url = "", None
        for line in started.stderr:
            seen += line
            url = url or re.search(r"running on (http://[\d.:]+)", line)
            if url and seen.count("startup complete") == workers:  # only workers listen
                yield started, url[1]
                break
        else:
            raise AssertionError(seen)
    finally:
        started.terminate()  # so that a parent ends its workers
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        assert started.stderr is not None
        started.stderr.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_accepted_answers_are_delivered_and_new_calls_refused(tmp_path: Path, workers: int) -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=64) as upstream,
        process(tmp_path, upstream.getsockname()[1], workers) as (server, url),
        ThreadPoolExecutor(CALLS) as pool,
    ):

        def call(i: int) -> Any:
            path = "/stream" if i % 2 else "/invoke"
            return httpx.post(f"{url}{path}", json={"input": f"call {i}"}, timeout=200)

        upstream.settimeout(200)
        answers = [pool.submit(call, i) for i in range(CALLS)]
        waiting = [upstream.accept()[0] for _ in range(CALLS)]
        server.send_signal(signal.SIGTERM)
        while httpx.get(f"{url}/readyz", timeout=200).status_code == 200:  # until the signal has arrived
            pass
        refused = httpx.post(f"{url}/invoke", json={"input": "late"}, timeout=200)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        for each in waiting:
            with each, each.makefile("rw") as lines:
                lines.write(f"answer to {lines.readline()}")
        for i, answer in enumerate(answers):
            found = answer.result()
            if i % 2:
                assert ("data", f"answer to call {i}") in events(found.text) and events(found.text)[-1][0] == "end"
            else:
                assert found.json()["output"] == f"answer to call {i}"
        assert server.wait(60) == (-signal.SIGTERM if workers == 1 else 0)


async def signalled(seconds: float, then: Any) -> list[int]:
    """Sends SIGTERM in a block that drains; returns the signals that the server's own handler got."""
    got: list[int] = []

    def own(number: int, _: FrameType | None) -> None:
        got.append(number)

    before = signal.signal(signal.SIGTERM, own)
    try:
        gate = CallGate(2)
        with draining(gate, seconds):
            place = gate.enter()
            os.kill(os.getpid(), signal.SIGTERM)
            while not gate.draining:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert got == []
            with pytest.raises(Refused):
                gate.enter()
            await then(place, got)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    return got


async def test_the_servers_handler_runs_when_the_last_call_has_ended() -> None:
    async def leave(place: Any, got: list[int]) -> None:
        place.leave()
        place.leave()
        assert got == [signal.SIGTERM]

    assert await signalled(60, leave) == [signal.SIGTERM]


async def test_the_drain_has_an_end() -> None:
    async def stay(place: Any, got: list[int]) -> None:
        while not got:
            await asyncio.sleep(0)
        place.leave()

    assert await signalled(0.01, stay) == [signal.SIGTERM]


async def test_a_second_signal_is_not_delayed() -> None:
    async def again(place: Any, got: list[int]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while not got:
            await asyncio.sleep(0)

    assert await signalled(60, again) == [signal.SIGTERM]
