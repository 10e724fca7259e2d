"""Applications under load: tuned stock against fineflow, by default and with each policy, on emulated engines.

Requests arrive at random (a Poisson process, the same for every side) at 25, 55 and 85 % of the rate at which the
busiest engine of tuned stock never idles. Tuned stock is the app as a good engineer writes it with asyncio: all that
can run concurrently does (the vector of the question beside those of the chunks, say), and the queues of the same
engines batch its requests in the order of their arrival. fineflow gets the chain, written step by step.

The seconds are virtual. Figures of stock vary by up to 1 % between runs: its store is searched in a thread, so what
follows may just join a batch or just miss it.

The apps are those of Ayo, section 7: a request brings 48 chunks, which are embedded and indexed for it (naive RAG);
advanced RAG writes three queries, searches 16 chunks for each, reranks them, and refines an answer; co-located, each
request is of one of both.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import CommaSeparatedListOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

import fineflow
from benchmarks.harness.load import poisson
from benchmarks.passes import World, joined
from benchmarks.report import arguments, finish, hardware, positive, table
from fineflow.cost_model.costs import costs
from fineflow.langchain import IndexDocuments, SearchIndex
from fineflow.runtime.queues.policy import POLICIES
from fineflow.runtime.queues.registry import set_policy
from fineflow.testing import virtual

LOADS = (0.25, 0.55, 0.85)
CHUNKS, EXPANSIONS, FOUND, KEPT = 48, 3, 16, 3
SATURATED = 24  # requests at once, to measure that rate
STOCK, DEFAULT = "tuned stock", "default"
SIDES = (STOCK, DEFAULT, *(name for name in POLICIES if name != "per_invocation"))
WORDS = ("bridge", "ferry", "lighthouse", "tunnel", "river", "harbour", "mill", "tower", "stone", "flood", "market")
TOLERANCE = 1.01  # of a figure: see above

App = Callable[[World], Runnable[Any, Any]]
"""Builds a chain: as it is written step by step, or tuned."""


def naive(world: World) -> Runnable[Any, Any]:
    """Naive RAG: index, search, answer."""
    found = SearchIndex(search_kwargs={"k": KEPT}) | RunnableLambda(joined)
    return (
        RunnablePassthrough.assign(index=itemgetter("documents") | indexing(world))
        | RunnablePassthrough.assign(context=found)
        | world.ask("Answer {question} from {context}")
    )


def advanced(world: World) -> Runnable[Any, Any]:
    """Advanced RAG: index and expand at once, search each query, rerank, answer, refine."""
    topics = ChatPromptTemplate.from_template("Topics of {question}") | world.llm | CommaSeparatedListOutputParser()
    index = itemgetter("documents") | indexing(world)

    async def reranked(x: dict[str, Any]) -> str:
        return joined(list(await world.reranker.acompress_documents(x["found"], x["question"])))

    return (
        RunnablePassthrough.assign(index=index, queries=topics)
        | RunnablePassthrough.assign(
            found=RunnableLambda(searches) | SearchIndex(search_kwargs={"k": FOUND}).map() | RunnableLambda(merged)
        )
        | RunnablePassthrough.assign(context=RunnableLambda(reranked))
        | RunnablePassthrough.assign(draft=world.ask("Answer {question} from {context}"))
        | world.ask("Answer {question} better than {draft} from {context}")
    )


def tuned_naive(world: World) -> Runnable[Any, Any]:
    """Does the same as ``naive``: the question is embedded while the chunks are."""
    answer = world.ask("Answer {question} from {context}")

    async def run(x: dict[str, Any]) -> str:
        vector = world.store.embeddings.aembed_query(x["question"])
        store, found = await asyncio.gather(indexing(world).ainvoke(x["documents"]), vector)
        docs = await store.asimilarity_search_by_vector(found, KEPT)
        return await answer.ainvoke({**x, "context": joined(docs)})

    return RunnableLambda(run)


def tuned_advanced(world: World) -> Runnable[Any, Any]:
    """Does the same as ``advanced``: queries are written and embedded while the chunks are."""
    topics = ChatPromptTemplate.from_template("Topics of {question}") | world.llm | CommaSeparatedListOutputParser()
    answer = world.ask("Answer {question} from {context}")
    better = world.ask("Answer {question} better than {draft} from {context}")

    async def vectors(x: dict[str, Any]) -> list[list[float]]:
        queries = await topics.ainvoke(x)
        return await asyncio.gather(*map(world.store.embeddings.aembed_query, queries[:EXPANSIONS]))

    async def run(x: dict[str, Any]) -> str:
        store, found = await asyncio.gather(indexing(world).ainvoke(x["documents"]), vectors(x))
        docs = await asyncio.gather(*(store.asimilarity_search_by_vector(vector, FOUND) for vector in found))
        context = joined(list(await world.reranker.acompress_documents(merged(docs), x["question"])))
        draft = await answer.ainvoke({**x, "context": context})
        return await better.ainvoke({**x, "context": context, "draft": draft})

    return RunnableLambda(run)


def indexing(world: World) -> Runnable[Any, Any]:
    return IndexDocuments(None, world.store.embeddings, InMemoryVectorStore)


def searches(x: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the input of each search."""
    return [{"index": x["index"], "question": query} for query in x["queries"][:EXPANSIONS]]


def merged(found: list[list[Document]]) -> list[Document]:
    """Returns what all searches found."""
    return [doc for docs in found for doc in docs]


NAIVE, ADVANCED = (naive, tuned_naive), (advanced, tuned_advanced)
APPS: Mapping[str, Sequence[tuple[App, App]]] = {
    "naive RAG": [NAIVE],
    "advanced RAG": [ADVANCED],
    "co-located": [NAIVE, ADVANCED],
}


def asked(number: int, seed: int) -> dict[str, Any]:
    """Returns the input of one request, with chunks of its own."""
    chosen = random.Random(f"{seed} {number}")
    chunks = [Document(f"Chunk {i} of {number}: {' '.join(chosen.choices(WORDS, k=8))}.") for i in range(CHUNKS)]
    return {"question": f"Which {chosen.choice(WORDS)} of town {number} is the oldest?", "documents": chunks}


def latencies(app: str, side: str, arrivals: Sequence[float], seed: int, world: World | None = None) -> list[float]:
    """Returns the seconds from the arrival of each request to its answer."""
    costs.forget()
    world = world or World()
    policy = "fifo" if side == STOCK else side
    if policy != DEFAULT:
        for engine in (world.llm.engine, world.store.embeddings.engine, world.reranker.engine):
            set_policy(engine, policy)
    if side == STOCK:
        chains = [tuned(world) for _, tuned in APPS[app]]
    else:
        chains = [fineflow.optimize(plain(world), strict=True) for plain, _ in APPS[app]]
    kinds = random.Random(seed).choices(range(len(chains)), k=len(arrivals))

    async def one(number: int, at: float) -> float:
        await asyncio.sleep(at)
        await chains[kinds[number]].ainvoke(asked(number, seed))
        return asyncio.get_running_loop().time() - at

    async def together() -> list[float]:
        return await asyncio.gather(*(one(number, at) for number, at in enumerate(arrivals)))

    return virtual.run(together()).value


def sustained(app: str) -> float:
    """Returns the requests a second that keep the busiest batch engine of tuned stock busy all the time."""
    world = World()
    latencies(app, STOCK, [0.0] * SATURATED, seed=0, world=world)
    engines: list[Any] = [world.store.embeddings.engine, world.reranker.engine]
    return SATURATED / max(sum(map(engine.profile.seconds, engine.batches)) for engine in engines)


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


FIGURES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.mean,
    "p50": statistics.median,
    "p99": lambda values: percentile(values, 99),
}


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=3)
    parser.add_argument("--requests", type=positive, default=40, help="requests of each run (40)")
    parser.add_argument("--default", action="store_true", help="no other policy than the default")
    given = parser.parse_args(argv)
    sides = (STOCK, DEFAULT) if given.default else SIDES
    print(f"Applications under load: emulated engines, virtual seconds, {given.runs} seeds.\n{hardware()}\n")
    figures: dict[str, Any] = {}
    checks: dict[str, bool] = {}
    for app in APPS:
        most = sustained(app)
        for share in LOADS:
            taken: dict[str, list[float]] = {side: [] for side in sides}
            for seed in range(given.runs):
                arrivals = poisson(given.requests, share * most, seed)
                for side in sides:
                    taken[side] += latencies(app, side, arrivals, seed)
            found = {side: {name: of(values) for name, of in FIGURES.items()} for side, values in taken.items()}
            title = f"{app}, {share:.0%} of {most:.2f}/s"
            rows = [(title, *FIGURES, "tuned stock / this, mean", "p99")]
            for side, each in found.items():
                times = (f"{found[STOCK][name] / each[name]:.2f}" for name in ("mean", "p99"))
                rows.append((side, *(f"{seconds:.2f}" for seconds in each.values()), *times))
            print(table(rows) + "\n", flush=True)
            for name in ("mean", "p99"):
                held = found[DEFAULT][name] <= TOLERANCE * found[STOCK][name]
                checks[f"{app} at {share:.0%}: the {name} by default is not behind tuned stock"] = held
            figures[title] = found
    return finish(figures, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
