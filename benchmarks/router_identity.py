"""Agents that pause, on two replicas behind vLLM's router: prefix cache and latency with and without identity.

``pip install vllm-router`` for the router (or ``--router PATH``), which is the real one. The replicas are scripted
servers on this machine, whose prefix caches, slots and times per prompt character are emulated. Each agent is one call
of an optimized object: a conversation that grows by a tool's result in every turn, with a pause for the tool. The two
rows of a policy differ by the option ``router="vllm"`` of the engine only. What is cached and what the busier replica
computes depend little on other work of the machine, the seconds of requests (p50, p99) do.
Ids of calls are random, so the hashes of a few agents may all fall on one replica: run twelve or more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.engines import OpenAIServerEngine
from fineflow.langchain import ChatEngine
from fineflow.testing.server import BLOCK, OpenAIServer

HASH, PROGRAMS = "consistent_hash", "cache_aware, programs"
POLICIES = {
    HASH: ["--policy", "consistent_hash"],
    "cache_aware": ["--policy", "cache_aware"],
    PROGRAMS: ["--policy", "cache_aware", "--enable-program-scheduling"],
}
NAMES = ("without", "with")
FIGURES = {"hits": "{:.0%}", "busier": "{:.0%}", "prefill": "{:.1f}", "p50": "{:.2f}", "p99": "{:.2f}"}
PREFILL = 0.7 / 6000  # seconds per character that is not cached: 0.7 s for about 1,500 tokens
SLOTS = 4
SYSTEM = "You are the assistant of the harbour of Torstad. " * 40  # about 2,000 characters, the same for all agents
STARTS = 30.0  # seconds that the router may take


class Blocks(OrderedDict[int, None]):
    """Blocks of a prefix cache; those that were used longest ago make room. most: number of blocks."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def update(self, blocks: Iterable[int]) -> None:  # type: ignore[override]
        for block in blocks:
            self[block] = None
            self.move_to_end(block)
        while len(self) > self.most:
            self.popitem(last=False)


def replica(cache: int) -> OpenAIServer:
    """Returns a replica. cache: characters that its prefix cache holds."""
    made = OpenAIServer("I look at the next page.", vllm=True, prefill=PREFILL, slots=SLOTS)
    made._cache = Blocks(cache // BLOCK)  # type: ignore[assignment]
    return made


@contextlib.contextmanager
def router(command: str, policy: str, replicas: Iterable[OpenAIServer]) -> Iterator[str]:
    """Starts vLLM's router in front of replicas; yields its address."""
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(str(free.getsockname()[1]))
    urls = [f"http://127.0.0.1:{each.port}" for each in replicas]
    listens = ["--host", "127.0.0.1", "--port", ports[0], "--prometheus-port", ports[1], "--log-level", "error"]
    words = [command, *POLICIES[policy], *listens, "--worker-urls", *urls]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            _wait(f"http://127.0.0.1:{ports[0]}/v1/models", running)
            yield f"http://127.0.0.1:{ports[0]}/v1"
        finally:
            running.terminate()


def _wait(url: str, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTS
    while time.monotonic() < until and running.poll() is None:
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=1) as answer:
            if json.loads(answer.read())["data"]:
                return
        time.sleep(0.1)
    raise SystemExit(f"the router did not answer at {url} within {STARTS:.0f} s")


def agent(engine: OpenAIServerEngine, flags: Namespace, took: list[float]) -> Any:
    """Returns an optimized agent: from its number to its messages. took: gets the seconds of each request."""
    chat = ChatEngine(engine=engine, max_tokens=16)

    async def run(number: int) -> str:
        chance = random.Random(number)
        said: list[BaseMessage] = [SystemMessage(SYSTEM), HumanMessage(f"Task {number}.")]
        for turn in range(flags.turns):
            start = time.perf_counter()
            answer = await chat.ainvoke(said)
            took.append(time.perf_counter() - start)
            await asyncio.sleep(chance.uniform(0.5, 1.5) * flags.pause)  # the tool
            said += [AIMessage(answer.content), HumanMessage(f"Page {number}.{turn}: " + "salt and fish. " * 100)]
        return f"{number}: {len(said)}"

    return fineflow.optimize(RunnableLambda(run))


async def measured(command: str, policy: str, flags: Namespace, *, identity: bool) -> dict[str, Any]:
    """Runs all agents once, on fresh replicas; returns their answers and the figures."""
    took: list[float] = []
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(replica(flags.cache)) for _ in range(2)]
        url = stack.enter_context(router(command, policy, replicas))
        engine = OpenAIServerEngine(url, "tiny", router="vllm" if identity else None, vllm=True)
        runnable = agent(engine, flags, took)

        async def begins(number: int) -> str:
            await asyncio.sleep(number * flags.pause / flags.agents)
            return str(await runnable.ainvoke(number))

        answers = await asyncio.gather(*map(begins, range(flags.agents)))
        await engine.aclose()
        received = [each for server in replicas for each in server.received]
        return {
            "answers": answers,
            "hits": sum(each.cached for each in received) / sum(len(each.prompt) for each in received),
            "busier": max(len(server.received) for server in replicas) / len(received),
            "prefill": max(
                PREFILL * sum(len(each.prompt) - each.cached for each in server.received) for server in replicas
            ),
            "p50": statistics.median(took),
            "p99": statistics.quantiles(took, n=100)[98],
        }


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--router", help="the program vllm-router (default: the one on PATH, or next to Python)")
    parser.add_argument("--agents", type=positive, default=12, help="that run side by side (12)")
    parser.add_argument("--turns", type=positive, default=8, help="of each agent (8)")
    parser.add_argument("--pause", type=float, default=0.6, help="mean seconds between the turns of an agent (0.6)")
    parser.add_argument(
        "--cache", type=positive, default=150_000, help="characters in the cache of a replica (150,000)"
    )
    flags: Any = parser.parse_args(argv)
    command = (
        flags.router or shutil.which("vllm-router") or shutil.which("vllm-router", path=Path(sys.executable).parent)
    )
    if command is None:
        print("vLLM's router is missing: pip install vllm-router, or --router PATH", file=sys.stderr)
        return 2
    print(f"{hardware()}\nthe real vllm-router, 2 emulated replicas, {flags.agents} agents of {flags.turns} turns\n")
    cells: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for _ in range(flags.runs):
        for policy in POLICIES:
            for name in NAMES:
                found = asyncio.run(measured(command, policy, flags, identity=name == "with"))
                cells.setdefault(policy, {}).setdefault(name, []).append(found)
    heads = ("prompt cached", "busier: requests", "its prefills s", "p50 s", "p99 s")
    rows = [("policy of the router", "identity", *heads)]
    means: dict[tuple[str, str], dict[str, float]] = {}
    for policy, both in cells.items():
        for name, runs in both.items():
            found = {key: statistics.median(run[key] for run in runs) for key in FIGURES}
            means[policy, name] = found
            rows.append((policy, name, *(FIGURES[key].format(value) for key, value in found.items())))
    print(table(rows), "\n")
    hashed, programs = ({name: means[policy, name] for name in NAMES} for policy in (HASH, PROGRAMS))
    answers = [run["answers"] for both in cells.values() for runs in both.values() for run in runs]
    checks = {
        f"{HASH}: the busier replica computes less with identity": hashed["with"]["prefill"]
        < hashed["without"]["prefill"],
        f"{PROGRAMS}: more is cached with identity": programs["with"]["hits"] > programs["without"]["hits"],
        "answers are the same": all(each == answers[0] for each in answers),
    }
    return finish({"cells": cells}, checks, flags.json)


if __name__ == "__main__":
    sys.exit(main())
