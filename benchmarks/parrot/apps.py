"""Parrot's applications on one engine: chains of summaries, and the multi-agent team of programmers (Parrot, 8.2, 8.4).

Emulated Llama-2-7B engines; the clock is virtual. The apps are ordinary LangChain code. Sides:

* no sharing: stock, on an engine without a prefix cache;
* stock: on an engine with one. Its chains are sequential and its team uses ``abatch``, so nobody who writes asyncio by
  hand makes them faster: what is left is the order at the engine, and who computes what others compute, too;
* fineflow: ``fineflow.optimize`` with its defaults, for the app and for each of the background requests.

chain with background: one document in 20 chunks of 1,024 tokens, each summarized in 50 with the summary so far, beside
single requests that arrive at random (a Poisson process, the same for every side). many chains: 25 such documents at
once. team: an architect designs, 16 coders write a file each; three times 16 reviewers read all files and comment on
one, and 16 coders revise theirs.

Not here: what Parrot saves on the way between client and service (200 to 300 ms a request, as fineflow runs beside the
engines), and what its attention kernel saves, as the profile's decode time does not depend on the length of prompts.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

import fineflow
from benchmarks.report import arguments, finish, hardware, table
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual

QUICK, FULL = 4096, 16384  # tokens: the capacity of a service that keeps every request quick, and of the cache
CHUNKS, CHUNK, SUMMARY = 20, 1024, 50  # chunks of a document, tokens of each, tokens of a summary
CHAINS = 25
PROMPT, REPLY = 512, 150  # tokens of a background request and of its reply
RATES = (0.6, 0.8, 1.0)  # background requests a second
FILES, CYCLES = 16, 3
DESIGN, CODE, COMMENT = 500, 250, 100  # tokens of the design, of a file, of a review
UNSHARED, STOCK, OURS = "no sharing", "stock", "fineflow"

LENGTHS = {"Summarize": SUMMARY, "Reply": REPLY, "architect": DESIGN, "Review": COMMENT, "Write": CODE, "Revise": CODE}


def say(prompt: str) -> str:
    """Answers a prompt with as many words as its last line asks for; no two prompts get the same."""
    asked = prompt.rsplit("TO DO:", 1)[1]
    length = next(length for word, length in LENGTHS.items() if word in asked)
    chosen = random.Random(prompt)
    return " ".join(f"w{chosen.randrange(10_000)}" for _ in range(length))


def engine(side: str, capacity: int) -> EmulatedLLM:
    made: Any = EmulatedLLM(say, capacity=capacity, can_prefill=side != UNSHARED)
    made.shares_at_once = side == STOCK  # requests that begin together compute their prefix each
    return made


def ask(llm: ChatEngine, template: str) -> Runnable[Any, str]:
    return ChatPromptTemplate.from_template(template) | llm | StrOutputParser()


def text(name: str, tokens: int) -> str:
    """Returns a text of its own of so many tokens."""
    chosen = random.Random(name)
    return " ".join(f"w{chosen.randrange(10_000)}" for _ in range(tokens))


def summaries(llm: ChatEngine) -> Runnable[Any, Any]:
    """Returns the app that summarizes a list of chunks one after the other."""
    refine = ask(llm, "The summary so far: {summary}\nThe text goes on: {chunk}\nTO DO: Summarize both.")

    async def run(document: Sequence[str]) -> str:
        summary = "none"
        for chunk in document:
            summary = await refine.ainvoke({"summary": summary, "chunk": chunk})
        return summary

    return RunnableLambda(run)


def team(llm: ChatEngine) -> Runnable[Any, Any]:
    """Returns the app that programs a task in ``FILES`` files."""
    architect = ask(llm, "You design software. Task: {task}\nTO DO: As architect, list files and their interfaces.")
    coder = "You are a senior software engineer. Task: {task}\nDesign: {design}\n"
    write = ask(llm, coder + "TO DO: Write the file {file}.")
    review = ask(llm, "You review code. Task: {task}\nDesign: {design}\nCode: {code}\nTO DO: Review the file {file}.")
    revise = ask(llm, coder + "Code: {code}\nComment on {file}: {comment}\nTO DO: Revise the file {file}.")

    async def run(task: str) -> list[str]:
        design = await architect.ainvoke({"task": task})
        known = [{"task": task, "design": design, "file": f"part{i}.py"} for i in range(FILES)]
        files = await write.abatch(known)
        for _ in range(CYCLES):
            code = "\n".join(files)
            read = [{**each, "code": code} for each in known]
            comments = await review.abatch(read)
            files = await revise.abatch([{**x, "comment": c} for x, c in zip(read, comments, strict=True)])
        return files

    return RunnableLambda(run)


def document(number: int) -> list[str]:
    return [text(f"chunk {i} of {number}", CHUNK) for i in range(CHUNKS)]


def built(side: str, make: Callable[[ChatEngine], Runnable[Any, Any]], llm: ChatEngine) -> Runnable[Any, Any]:
    return fineflow.optimize(make(llm), strict=True) if side == OURS else make(llm)


def beside_background(side: str, rate: float, seed: int, capacity: int = QUICK) -> tuple[float, float]:
    """Returns the seconds of a chain beside ``rate`` single requests a second, and their mean seconds."""
    costs.forget()
    llm = ChatEngine(engine=engine(side, capacity), max_tokens=256)
    chain = built(side, summaries, llm)
    single = built(side, lambda llm: ask(llm, "{text}\nTO DO: Reply."), llm)
    chosen = random.Random(seed)

    async def main() -> tuple[float, float]:
        loop, taken, others = asyncio.get_running_loop(), [], []

        async def one(number: int) -> None:
            begun = loop.time()
            await single.ainvoke({"text": text(f"request {number}", PROMPT)})
            taken.append(loop.time() - begun)

        async def background() -> None:
            while True:
                await asyncio.sleep(chosen.expovariate(rate))
                others.append(asyncio.create_task(one(len(others))))

        arriving = asyncio.create_task(background())
        await asyncio.sleep(20.0)
        begun = loop.time()
        await chain.ainvoke(document(0))
        seconds = loop.time() - begun
        arriving.cancel()
        await asyncio.gather(*others)
        return seconds, statistics.mean(taken or [0.0])

    return virtual.run(main()).value


def many_chains(side: str, capacity: int = QUICK) -> list[float]:
    """Returns the seconds of each of ``CHAINS`` chains that begin at once."""
    costs.forget()
    chain = built(side, summaries, ChatEngine(engine=engine(side, capacity), max_tokens=256))

    async def one(number: int) -> float:
        await chain.ainvoke(document(number))
        return asyncio.get_running_loop().time()

    async def main() -> list[float]:
        begun = asyncio.get_running_loop().time()
        return [ended - begun for ended in await asyncio.gather(*map(one, range(CHAINS)))]

    return virtual.run(main()).value


def one_team(side: str) -> float:
    """Returns the seconds of a task of the team."""
    costs.forget()
    app = built(side, team, ChatEngine(engine=engine(side, FULL), max_tokens=512))
    return virtual.run(app.ainvoke(text("task", 100))).seconds


def shared_team() -> float:
    """Returns the least seconds of a task of the team: each prefix is computed once, and nothing waits for room."""
    profile = engine(OURS, FULL).profile
    alone = lambda tokens: profile.seconds(tokens, 0)  # noqa: E731
    writing = lambda tokens, count: (tokens - 1) * profile.seconds(0, count)  # noqa: E731
    known, code = 130 + DESIGN, FILES * CODE
    stages = [(known, 20, CODE), *((known + code, 20, COMMENT), (code, COMMENT + 20, CODE)) * CYCLES]
    found = alone(120) + writing(DESIGN, 1)
    for prefix, own, output in stages:
        found += profile.prefill_token * (prefix + FILES * own) + profile.iteration + writing(output, FILES)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=3)
    given = parser.parse_args(argv)
    print(f"Parrot's applications on one engine: emulated, virtual seconds.\n{hardware()}\n")
    checks: dict[str, bool] = {}
    figures: dict[str, Any] = {"background": {}, "chains": {}}

    alone = beside_background(STOCK, 0.01, 0)[0]
    rows = [
        (f"chain ({alone:.1f} s alone), background", STOCK, OURS, "stock / fineflow", "single requests", "fineflow")
    ]
    for rate in RATES:
        found = {s: [beside_background(s, rate, seed) for seed in range(given.runs)] for s in (STOCK, OURS)}
        (stock, others), (ours, rest) = (
            (statistics.mean(a for a, _ in each), statistics.mean(b for _, b in each)) for each in found.values()
        )
        rows.append((f"{rate}/s", *(f"{x:.2f}" for x in (stock, ours, stock / ours, others, rest))))
        figures["background"][str(rate)] = {STOCK: stock, OURS: ours, "single": [others, rest]}
    print(table(rows) + "\n", flush=True)
    busiest = figures["background"][str(RATES[-1])]
    checks["chain with background: 2.38 times as fast"] = busiest[STOCK] >= 2.38 * busiest[OURS]

    rows = [(f"{CHAINS} chains", STOCK, OURS, "stock / fineflow", "most behind its own")]
    for capacity in (QUICK, FULL):
        stock_ends, our_ends = many_chains(STOCK, capacity), many_chains(OURS, capacity)
        means = statistics.mean(stock_ends), statistics.mean(our_ends)
        behind = max(ours / stock for stock, ours in zip(stock_ends, our_ends, strict=True))
        rows.append((f"{capacity:,} tokens", *(f"{x:.2f}" for x in (*means, means[0] / means[1], behind))))
        figures["chains"][str(capacity)] = {STOCK: stock_ends, OURS: our_ends}
        if capacity == QUICK:
            checks["many chains: 1.68 times as fast"] = means[0] >= 1.68 * means[1]
            checks["many chains: none more than 5 % behind its own in stock"] = behind <= 1.05
    print(table(rows) + "\n", flush=True)

    taken = figures["team"] = {side: one_team(side) for side in (UNSHARED, STOCK, OURS)}
    rows = [(f"team, {FILES} files ({shared_team():.1f} s at least)", "seconds", "this / fineflow")]
    rows += [(side, f"{seconds:.1f}", f"{seconds / taken[OURS]:.2f}") for side, seconds in taken.items()]
    print(table(rows) + "\n")
    checks["team: 2.3 times as fast as without sharing"] = taken[UNSHARED] >= 2.3 * taken[OURS]
    checks["team: 1.2 times as fast as with a prefix cache"] = taken[STOCK] >= 1.2 * taken[OURS]
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
