"""Gain of sending prompt prefixes ahead to an OpenAI-compatible server, with a stock ``ChatOpenAI``.

A conversation with a long history needs the result of a slow search. Measured is the time from the end of the search to
the first token of the answer, stock and with ``fineflow.engine(url, warm=True)``. Without ``--url`` the server is a
scripted one, whose time per prompt token is emulated.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from argparse import Namespace
from contextlib import ExitStack
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_openai import ChatOpenAI

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.testing.langchain import FakeChat
from fineflow.testing.server import OpenAIServer

FACT = "Torstad is known for its salt mines. The old bridge was built before the new road. "
PREFILL = 0.7 / 6000  # seconds per character of the scripted server: 0.7 s for about 1,500 tokens
AT_MOST = 0.6  # of stock's time to the first token


def chain(url: str, flags: Namespace) -> Runnable[Any, Any]:
    """Returns a chain: a search of ``flags.search`` seconds, then an answer from its result and the history."""
    model = ChatOpenAI(
        base_url=url,
        api_key=flags.key,  # type: ignore[arg-type]
        model=flags.model,
        temperature=0,
        max_completion_tokens=8,
        streaming=True,
    )
    search = ChatPromptTemplate.from_template("{question}") | FakeChat(default=FACT * 2, prefill=flags.search)
    parts = [("system", "Be brief."), MessagesPlaceholder("history"), ("human", "{found}\n\n{question}")]
    prompt = ChatPromptTemplate.from_messages(parts)
    return RunnablePassthrough.assign(found=search | StrOutputParser()) | prompt | model | StrOutputParser()


def history(turns: int) -> list[BaseMessage]:
    """Returns a conversation that no server has cached: it begins with the time."""
    told: list[BaseMessage] = [HumanMessage(f"It is {time.time_ns()}.")]
    for turn in range(turns):
        told += [AIMessage(FACT * 2), HumanMessage(f"Turn {turn}. {FACT * 2}")]
    return told


async def first_token(runnable: Runnable[Any, Any], flags: Namespace) -> float:
    """Returns the seconds from the end of the search to the first token."""
    value = {"question": "What is Torstad known for?", "history": history(flags.turns)}
    start = time.perf_counter()
    async for piece in runnable.astream(value):
        if piece:
            break
    return time.perf_counter() - start - flags.search


async def measured(url: str, flags: Namespace) -> dict[str, list[float]]:
    """Returns the seconds of each run, stock and optimized in turns."""
    both = {"stock": chain(url, flags), "sent ahead": fineflow.optimize(chain(url, flags), strict=True)}
    for runnable in both.values():
        await first_token(runnable, flags)  # connects
    took: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(flags.runs):
        for name, runnable in both.items():
            took[name].append(await first_token(runnable, flags))
    return took


def main() -> int:
    parser = arguments(__doc__ or "", runs=5)
    parser.add_argument("--url", help="base address of a server, as http://localhost:8000/v1 (default: a scripted one)")
    parser.add_argument("--model", default="tiny", help="its name there (tiny)")
    parser.add_argument("--key", default="none", help="API key")
    parser.add_argument("--search", type=float, default=1.0, help="seconds that the search takes (1)")
    parser.add_argument("--turns", type=positive, default=18, help="of the conversation so far, about 85 tokens each")
    flags = parser.parse_args()
    with ExitStack() as stack:
        url = flags.url or stack.enter_context(OpenAIServer("Salt.", prefill=PREFILL)).url
        fineflow.engine(url, warm=True)
        took = asyncio.run(measured(url, flags))
    kind = flags.url or "a scripted server (emulated)"
    print(f"{hardware()}\n{kind}, {flags.turns} turns, a search of {flags.search} s\n")
    medians = {name: statistics.median(seconds) for name, seconds in took.items()}
    rows = [(name, f"{medians[name]:.3f}", f"{min(took[name]):.3f}", f"{max(took[name]):.3f}") for name in took]
    print(table([("seconds to the first token", "median", "least", "most"), *rows]), "\n")
    ratio = medians["sent ahead"] / medians["stock"]
    checks = {f"first token after {ratio:.2f} of stock's time (at most {AT_MOST})": ratio <= AT_MOST}
    return finish({"seconds": took, "median_s": medians}, checks, flags.json)


if __name__ == "__main__":
    sys.exit(main())
