"""Serving several GPTs, each with a long system prompt of its own, on four engines (Parrot, section 8.3, Figure 17).

Emulated Llama-2-7B engines; the clock is virtual. Questions arrive at random (a Poisson process, the same for every
side), each for one of four apps. An app is ordinary LangChain code: a constant system prompt, the question, the model.
Sides:

* no sharing: stock, engines without a prefix cache, in turn;
* round robin: stock, engines with one, in turn;
* fineflow: ``fineflow.optimize`` with its defaults on ``instances(engines)``;
* fineflow, no affinity: the same with ``instances(engines, affinity=False)``.

A rate is sustained if a token of an answer takes at most 100 ms on average, counted from the arrival of its question
(alone it takes about 31 ms). Found by bisection in a ladder of rates, each a quarter above the one before, with ten
seconds of questions at each.

Not here: the attention kernel of Parrot, which makes decoding with a shared prompt faster, as the profile's decode time
does not depend on the length of prompts. So what is seen is scheduling and memory.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

import fineflow
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM, instances
from fineflow.langchain import ChatEngine
from fineflow.testing import virtual

ENGINES, APPS = 4, 4
SYSTEM = (6000, 3000)  # tokens of a system prompt; 6,000 is that of Bing Copilot (Parrot, section 8.3)
CAPACITY = 16384  # tokens of the key/value cache
QUESTION, REPLIES = 50, (50, 150)  # tokens of a question; fewest and most of an answer
LIMIT = 0.1  # seconds a token
FIRST, STEP, STEPS = 0.5, 1.25, 24  # of the ladder of rates, in questions a second
SECONDS, LEAST = 10, 60  # of each load, questions of each load
UNSHARED, ROBIN, SPREAD, OURS = SIDES = ("no sharing", "round robin", "fineflow, no affinity", "fineflow")


def length(question: str) -> int:
    """Returns the tokens of the answer to a question."""
    return random.Random(question).randint(*REPLIES)


def say(prompt: str) -> str:
    return " ".join(["word"] * length(prompt.rsplit("QUESTION", 1)[1].split("END")[0]))


def text(name: str, tokens: int) -> str:
    """Returns a text of its own of so many tokens."""
    chosen = random.Random(name)
    return " ".join(f"w{chosen.randrange(10_000)}" for _ in range(tokens))


def apps(side: str, system: int) -> list[list[Runnable[Any, str]]]:
    """Returns, for each app, the chains that its questions go to in turn."""
    engines: list[Any] = [
        EmulatedLLM(say, capacity=CAPACITY, can_prefill=side != UNSHARED, name=f"llm {i}") for i in range(ENGINES)
    ]
    if side in (UNSHARED, ROBIN):
        for each in engines:
            each.shares_at_once = True  # a plain queue: requests that begin together compute their prefix each
    else:
        engines = [instances(engines, affinity=side != SPREAD)]
    llms = [ChatEngine(engine=engine, max_tokens=max(REPLIES)) for engine in engines]
    prompts = [
        ChatPromptTemplate.from_messages([("system", text(f"app {i}", system)), ("human", "QUESTION {question} END")])
        for i in range(APPS)
    ]
    chains = [[prompt | llm | StrOutputParser() for llm in llms] for prompt in prompts]
    if side in (UNSHARED, ROBIN):
        return chains
    return [[fineflow.optimize(chain, strict=True) for chain in each] for each in chains]


def seconds_per_token(side: str, system: int, rate: float, questions: int, seed: int = 0) -> float:
    """Returns the mean seconds from the arrival of a question to its answer's end, divided by the answer's tokens."""
    costs.forget()
    chosen, served = random.Random(seed), apps(side, system)
    now, arrivals = 0.0, []
    for number in range(questions):
        now += chosen.expovariate(rate)
        arrivals.append((now, chosen.randrange(APPS), f" {text(f'question {number}', QUESTION)} "))

    async def one(number: int, at: float, app: int, question: str) -> float:
        await asyncio.sleep(at)
        await served[app][number % len(served[app])].ainvoke({"question": question.strip()})
        return (asyncio.get_running_loop().time() - at) / length(question)

    async def all_of_them() -> list[float]:
        return await asyncio.gather(*(one(number, *each) for number, each in enumerate(arrivals)))

    taken = virtual.run(all_of_them()).value
    return sum(taken) / len(taken)


def sustained(side: str, system: int) -> float:
    """Returns the highest rate of the ladder that a side sustains, in questions a second; 0 if none."""
    held, missed = -1, STEPS
    while missed - held > 1:
        middle = (held + missed) // 2
        rate = FIRST * STEP**middle
        if seconds_per_token(side, system, rate, max(LEAST, round(SECONDS * rate))) <= LIMIT:
            held = middle
        else:
            missed = middle
    return FIRST * STEP**held if held >= 0 else 0.0


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--system", type=positive, nargs="*", default=SYSTEM, help="tokens of a system prompt")
    given = parser.parse_args(argv)
    print(f"Four GPTs on four engines: emulated, virtual time.\n{hardware()}\n")
    figures: dict[str, Any] = {}
    checks: dict[str, bool] = {}
    for system in given.system:
        found = figures[str(system)] = {side: sustained(side, system) for side in SIDES}
        rows = [(f"system prompts of {system:,} tokens", "questions/s", "times no sharing")]
        rows += [(side, f"{rate:.2f}", f"{rate / found[UNSHARED]:.1f}") for side, rate in found.items()]
        print(table(rows) + "\n", flush=True)
        checks[f"{system:,}: fineflow sustains at least what round robin does"] = found[OURS] >= found[ROBIN]
        if system == SYSTEM[0]:
            checks[f"{system:,}: fineflow sustains 12 times what no sharing does"] = found[OURS] >= 12 * found[UNSHARED]
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
