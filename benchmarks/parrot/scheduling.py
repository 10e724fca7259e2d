"""Comparison of scheduling policies on emulated engines in virtual time.

First the situation of Figure 7 of the Ayo paper: two queries whose requests compete for one LLM. Then a load: queries
of several applications arrive at random (the same ones for every policy) and share one LLM, one embedding model and one
reranker; the result is the mean time from the arrival of a query to its answer.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from langchain_classic.retrievers import MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

import fineflow
from benchmarks.passes import EXAMPLES, World, joined
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.cost_model.costs import costs
from fineflow.engines import EmulatedLLM, LLMProfile
from fineflow.langchain import ChatEngine
from fineflow.passes import prune
from fineflow.runtime.queues.policy import POLICIES
from fineflow.runtime.queues.registry import set_policy
from fineflow.testing import virtual
from fineflow.testing.langchain import FakeVectorStore

FIGURE_7 = LLMProfile(iteration=0.2, prefill_token=0.3 / 512, decode_sequence=0.0)  # 0.5 s for 512 tokens, 0.8 for two
PROMPT = 512
CAPACITY = 1024 + 32  # two prompts and their short outputs
OTHER_SECONDS = 0.8  # of the step without the LLM

RATES = (0.6, 1.0, 1.4)  # queries a second; a little more than one saturates the LLM
TOKENS = 1024  # capacity of the LLM, as in Figure 7

BETTER = {
    "by_depth": ("fifo", "per_invocation"),
    "by_path": ("by_depth", "app_fifo"),
    "by_start": ("by_depth", "app_fifo"),
}
ABOUT = """\
A single query nearly always has its requests served at once, so the policy does not matter. Under load, by_depth
serves the deepest requests of all queries first: under overload all queries make progress and none finishes, so
app_fifo, which finishes the oldest queries first, is faster on average. by_path combines both: requests with slack
wait, and among critical requests the oldest query goes first. by_start, the default, does the same for LLMs.
"""


def figure_7(policy: str) -> tuple[float, float]:
    """Returns the seconds until each of two queries has its answer.

    Query 1 sends A and B to the LLM, query 2 sends G and H, in this order; the LLM has room for two. B is needed only
    at the end, together with the results of A: another request to the LLM, then a search.
    """
    costs.forget()
    llm = EmulatedLLM(lambda prompt: "yes", FIGURE_7, can_prefill=False, capacity=CAPACITY)
    set_policy(llm, policy)
    model = ChatEngine(engine=llm, max_tokens=1)
    store = FakeVectorStore(latency=OTHER_SECONDS)
    store.add_texts(["a passage"])
    retriever = store.as_retriever()

    def ask(name: str, reads: str) -> Runnable[Any, Any]:
        words = " ".join([f"{name}{{number}}"] * (PROMPT - 4))  # unique to the prompt: no hits in the prefix cache
        return ChatPromptTemplate.from_template(f"{words} {reads}") | model | StrOutputParser()

    chain = fineflow.optimize(
        RunnablePassthrough.assign(a=ask("A", ""))
        | RunnablePassthrough.assign(b=ask("B", ""))
        | RunnablePassthrough.assign(d=ask("D", "{a}"))
        | RunnablePassthrough.assign(found=(lambda x: x["d"]) | retriever | RunnableLambda(joined))
        | ask("E", "{b} {found}"),
        passes=(prune,),
        assume_pure=True,
        strict=True,
    )

    async def one(number: int) -> float:
        await chain.ainvoke({"number": number})
        return asyncio.get_running_loop().time()

    async def both() -> tuple[float, float]:
        begun = await one(0)  # loads the tokenizer, in a thread: of two that wait for that, either may be first
        costs.forget()
        first, second = await asyncio.gather(one(1), one(2))
        return first - begun, second - begun

    return virtual.run(both()).value


def searched(world: World) -> Runnable[Any, Any]:
    """Search engine-empowered generation: a draft and its judgement before the search; suggestions in parallel."""
    found = (lambda x: f"{x['question']} {x['judged']}") | world.retriever(4) | RunnableLambda(joined)
    return (
        RunnablePassthrough.assign(related=world.ask("Suggest questions like {question}", system=EXAMPLES))
        | RunnablePassthrough.assign(title=world.ask("Summarize {question}", system=EXAMPLES))
        | RunnablePassthrough.assign(draft=world.ask("Answer {question}"))
        | RunnablePassthrough.assign(judged=world.ask("Classify {question} and {draft}"))
        | RunnablePassthrough.assign(context=found)
        | RunnablePassthrough.assign(answer=world.ask("Answer {question} from {context}", system=EXAMPLES))
    )


def tree(world: World) -> Runnable[Any, Any]:
    """Document QA with naive RAG: three answers from one passage each, combined to one; suggestions in parallel."""
    docs = itemgetter("question") | world.retriever(3)
    leaves = {
        f"leaf{i}": RunnablePassthrough.assign(passage=lambda x, i=i: x["docs"][i].page_content)
        | world.ask("Answer {question} from {passage}")
        for i in range(3)
    }
    return (
        RunnablePassthrough.assign(related=world.ask("Suggest questions like {question}", system=EXAMPLES))
        | RunnablePassthrough.assign(docs=docs)
        | RunnablePassthrough.assign(**leaves)
        | RunnablePassthrough.assign(answer=world.ask("Answer {question} by {leaf0} {leaf1} {leaf2}", system=EXAMPLES))
    )


def refined(world: World) -> Runnable[Any, Any]:
    """Document QA with advanced RAG: expanded queries, reranked passages, an answer refined twice; and a title."""
    queries = MultiQueryRetriever.from_llm(world.retriever(6), world.llm, include_original=True)
    docs = itemgetter("question") | world.reranked(queries)
    return (
        RunnablePassthrough.assign(title=world.ask("Summarize {question}", system=EXAMPLES))
        | RunnablePassthrough.assign(related=world.ask("Suggest questions like {question}", system=EXAMPLES))
        | RunnablePassthrough.assign(docs=docs)
        | RunnablePassthrough.assign(text=lambda x: joined(x["docs"]))
        | RunnablePassthrough.assign(first=world.ask("Answer {question} from {text}"))
        | RunnablePassthrough.assign(second=world.ask("Answer {question} better than {first}"))
        | RunnablePassthrough.assign(answer=world.ask("Answer {question} better than {second}"))
    )


def contextual(world: World) -> Runnable[Any, Any]:
    """Contextual retrieval: the LLM puts every retrieved passage into context before the answer."""
    docs = itemgetter("question") | world.retriever(6) | RunnableLambda(contents)
    each = {"passages": docs | world.ask("Summarize {passage}").map()}
    return (
        RunnablePassthrough.assign(related=world.ask("Suggest questions like {question}", system=EXAMPLES))
        | RunnablePassthrough.assign(**each)
        | RunnablePassthrough.assign(answer=world.ask("Answer {question} from {passages}", system=EXAMPLES))
    )


def contents(docs: list[Document]) -> list[dict[str, str]]:
    return [{"passage": doc.page_content} for doc in docs]


APPS = {"searched": searched, "tree": tree, "refined": refined, "contextual": contextual}


@dataclass(frozen=True)
class Arrival:
    """One query of the load: its arrival time, application and question."""

    at: float
    app: str
    question: str


def load(queries: int, rate: float, seed: int = 0) -> list[Arrival]:
    """Returns queries of random applications at random times (a Poisson process), ``rate`` a second on average."""
    chosen, now, found = random.Random(seed), 0.0, []
    for number in range(queries):
        now += chosen.expovariate(rate)
        text = f"Which bridge number {number} crosses the river in the old harbour?"
        found.append(Arrival(now, chosen.choice(sorted(APPS)), text))
    return found


def latencies(arrivals: list[Arrival], policy: str) -> list[float]:
    """Returns the seconds from the arrival of each query to its answer; all engines use one policy."""
    costs.forget()
    world = World()
    llm: Any = world.llm.engine
    llm.capacity, world.llm.max_tokens = TOKENS, 64
    for engine in (llm, world.store.embeddings.engine, world.reranker.engine):
        set_policy(engine, policy)
    chains = {name: fineflow.optimize(build(world), strict=True, assume_pure=True) for name, build in APPS.items()}

    async def one(arrival: Arrival) -> float:
        await asyncio.sleep(arrival.at)
        await chains[arrival.app].ainvoke({"question": arrival.question})
        return asyncio.get_running_loop().time() - arrival.at

    async def together() -> list[float]:
        return await asyncio.gather(*map(one, arrivals))

    return virtual.run(together()).value


def alone(policy: str) -> list[float]:
    """Returns the seconds of a single query of each application."""
    question = "Which bridge crosses the river in the old harbour?"
    return [latencies([Arrival(0.0, app, question)], policy)[0] for app in APPS]


def ninetieth(values: list[float]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[-1]


def sooner(means: Mapping[str, float], name: str) -> dict[str, float]:
    """Returns by which share of each other policy's mean the policy ``name`` is faster."""
    return {other: 1 - means[name] / mean for other, mean in means.items() if other != name}


def shown(title: str, taken: Mapping[str, list[float]]) -> dict[str, float]:
    """Prints a table of the latencies of each policy; returns the means."""
    means = {name: statistics.mean(values) for name, values in taken.items()}
    margins = sooner(means, "by_depth")
    rows = [(title, "mean", "median", "90 %", "by_depth is faster by")]
    for name, values in taken.items():
        figures = [f"{of(values):.2f}" for of in (statistics.mean, statistics.median, ninetieth)]
        rows.append((name, *figures, f"{margins[name]:+.1%}" if name in margins else ""))
    print(table(rows) + "\n")
    return means


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=3)
    parser.add_argument("--queries", type=positive, default=40, help="queries of each load (40)")
    given = parser.parse_args(argv)
    print(f"Scheduling policies: emulated engines, virtual seconds.\n{hardware()}\n")
    checks: dict[str, bool] = {}

    figure = {name: figure_7(name) for name in POLICIES}
    rows = [("Figure 7", "query 1", "query 2", "mean")]
    rows += [(name, *(f"{s:.2f}" for s in (*ends, statistics.mean(ends)))) for name, ends in figure.items()]
    print(table(rows) + "\n")
    for name in ("by_start", "by_depth", "by_path"):
        both = all(mine < blind for mine, blind in zip(figure[name], figure["fifo"], strict=True))
        checks[f"Figure 7: both queries faster with {name} than with fifo"] = both

    means = {"alone": shown("one query, nothing else", {name: alone(name) for name in POLICIES})}
    for rate in RATES:
        loads = [load(given.queries, rate, seed) for seed in range(given.runs)]
        taken = {name: [s for arrivals in loads for s in latencies(arrivals, name)] for name in POLICIES}
        found = means[str(rate)] = shown(f"{rate} queries a second", taken)
        for name, others in BETTER.items():
            for other in others:
                checks[f"{rate} queries a second: {name} faster than {other}"] = found[name] < found[other]
    print(ABOUT)
    return finish({"figure_7": figure, "means": means}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
