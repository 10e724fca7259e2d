"""``fineflow serve`` under load: hundreds of clients stream at once over loopback, and a part of them leaves early.

Each client asks something else and compares its answer. The clients are a process of their own; this one is the server,
and prints what it has grown by when all have gone. The model is a fake that writes a word every 5 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import socket
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from fineflow.serving import ServerSettings, create_app
from fineflow.testing.langchain import FakeChat

WORDS = 12
LEAVING = 0.3


def expected(number: int) -> str:
    """The answer to a question: as long as any other, and another one."""
    return " ".join(f"w{number}-{i}" for i in range(WORDS))


def served() -> Any:
    chat = FakeChat(answers=lambda messages: expected(int(messages[-1].text)), prefill=0.05, step=0.005)
    return ChatPromptTemplate.from_template("{number}") | chat | StrOutputParser()


# The clients' process.


@dataclass
class Seen:
    """What the clients have seen. first, whole: seconds to the first piece, and to the end, of those that stayed."""

    right: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


async def ask(port: int, number: int, leaves: int, seen: Seen) -> None:
    """Asks one question. leaves: closes the connection after so many pieces; 0: stays to the end."""
    began, pieces, first = time.perf_counter(), list[str](), 0.0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = json.dumps({"input": {"number": str(number)}}).encode()
        head = "POST /stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        event = status = ""
        async for line in reader:
            text = line.decode().rstrip("\r\n")
            status = status or text
            if text.startswith("event: "):
                event = text.removeprefix("event: ")
            elif text.startswith("data: ") and event == "data":
                first = first or time.perf_counter() - began
                pieces.append(json.loads(text.removeprefix("data: ")))
                if len(pieces) == leaves:
                    seen.left += 1
                    return
        answer = "".join(pieces)
        if answer != expected(number) or event != "end":
            seen.wrong.append(f"{number}: {status}, {event}, {answer[:80]!r}")
            return
        seen.right += 1
        seen.first.append(first)
        seen.whole.append(time.perf_counter() - began)
    finally:
        writer.close()


async def clients(port: int, count: int, seed: int) -> Seen:
    chance, seen = random.Random(seed), Seen()
    leaves = [chance.randint(1, WORDS - 1) if chance.random() < LEAVING else 0 for _ in range(count)]
    asked = (ask(port, seed * count + i, leaves[i], seen) for i in range(count))
    for error in await asyncio.gather(*asked, return_exceptions=True):
        if error is not None:
            seen.wrong.append(repr(error))
    return seen


# The server's process.


@dataclass(frozen=True)
class Held:
    """What the server's process holds: memory in MiB, tasks, open descriptors, calls under way.

    cpu: seconds that it has computed so far.
    """

    memory: float
    tasks: int
    descriptors: int
    calls: int
    cpu: float

    @classmethod
    def now(cls, app: Any) -> Held:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))
        memory = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        running = app.state.gate.running
        return cls(round(memory, 1), len(asyncio.all_tasks()), descriptors, running, round(time.process_time(), 2))


async def measured(count: int, rounds: int) -> tuple[list[Held], list[Seen]]:
    app = create_app(served(), ServerSettings(concurrency=count))
    listener = socket.create_server(("127.0.0.1", 0), backlog=count)
    config = uvicorn.Config(app, http="h11", ws="none", lifespan="on", log_level="critical", backlog=count)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    held, seen = [], []
    for seed in range(rounds + 1):  # the first one fills caches
        command = ["-m", "benchmarks.serving_load", "--port", str(listener.getsockname()[1])]
        command += ["--clients", str(count), "--seed", str(seed)]
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        seen.append(Seen(**json.loads(output)))
        while server.server_state.connections or app.state.gate.running:
            await asyncio.sleep(0.01)
        held.append(Held.now(app))
        print(f"round {seed}: {seen[-1].right} right, {seen[-1].left} left early; {held[-1]}", file=sys.stderr)
    server.should_exit = True
    await running
    return held, seen[1:]


def percentile(values: list[float], share: int) -> float:
    return round(1000 * statistics.quantiles(values, n=100)[share - 1], 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_load", description=__doc__)
    parser.add_argument("--clients", type=int, default=500, help="at a time (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="after one that is not counted (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.port:
        print(json.dumps(asdict(asyncio.run(clients(args.port, args.clients, args.seed)))))
        return 0
    held, seen = asyncio.run(measured(args.clients, args.rounds))
    wrong = [each for found in seen for each in found.wrong]
    first, whole = [t for found in seen for t in found.first], [t for found in seen for t in found.whole]
    print(f"{args.rounds} rounds of {args.clients} clients at once; a model alone takes {50 + 5 * WORDS} ms")
    print(f"answers: {sum(f.right for f in seen)} right, {len(wrong)} wrong; {sum(f.left for f in seen)} left early")
    print(f"first piece: p50 {percentile(first, 50)} ms, p99 {percentile(first, 99)} ms")
    print(f"whole answer: p50 {percentile(whole, 50)} ms, p99 {percentile(whole, 99)} ms")
    cpu = (held[-1].cpu - held[0].cpu) / (args.rounds * args.clients)
    print(f"the server computes {1000 * cpu:.1f} ms per client")
    for when, each in (("before", held[0]), ("after", held[-1])):
        print(f"{when}: {each.memory} MiB, {each.tasks} tasks, {each.descriptors} descriptors, {each.calls} calls")
    print(*wrong[:5], sep="\n", end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
