"""Pipelines out of maps: apps that index what comes with the request, emulated engines, virtual time.

*Contextual retrieval* (Ayo, section 7.1): a model situates each of 48 chunks among its four neighbours, the chunks are
embedded and indexed, 32 are searched and reranked, and 3 of them answer. Once as a chain, once as a class of the user's
with a loop. Nothing is declared.

"invoke" is stock as users call it, whose sync ``map()`` has as many threads as the machine has cores, and four more;
"tuned" is written with asyncio, as a good engineer would. The limit is computed by hand from the profiles of the
engines, and from requests that run alone: see ``limit_of_contextual``. Linux only
(``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import Runnable

import fineflow
from benchmarks.public.pipeline_apps import (
    CHUNKS,
    FOUND,
    QUESTION,
    Engines,
    chunks,
    contextual_chain,
    contextual_class,
    situated,
    tuned_contextual,
    windows,
)
from benchmarks.report import arguments, finish, hardware, table
from fineflow.backends.emulated.profiles import CROSS_ENCODER, EMBEDDER
from fineflow.cost_model.costs import costs
from fineflow.engines import BatchProfile
from fineflow.testing import virtual_threads

# --- limits -----------------------------------------------------------------------------------------------------------


def limit_of_contextual(engines: Engines, prompt: str) -> float:
    """All contexts at once, and vectors of chunks as they come; then the reranking of all that was found, the answer.

    The last vector comes after the last context; all of them take the time of full batches after the first context.
    """
    ended: list[float] = []

    async def one(x: dict[str, str]) -> None:
        await situated(engines).ainvoke(x)
        ended.append(asyncio.get_running_loop().time())

    async def contexts() -> None:
        await asyncio.gather(*map(one, windows(chunks())))

    alone(contexts)
    indexed = max(max(ended) + EMBEDDER.seconds(1), min(ended) + batches(EMBEDDER, CHUNKS))
    return indexed + batches(CROSS_ENCODER, FOUND) + alone(lambda: engines.llm.ainvoke(prompt))


# --- measuring --------------------------------------------------------------------------------------------------------


def batches(profile: BatchProfile, items: int) -> float:
    """Returns the seconds of so many items in full batches, one after the other."""
    whole, rest = divmod(items, profile.max_batch)
    return whole * profile.seconds(profile.max_batch) + (profile.seconds(rest) if rest else 0.0)


def alone(call: Callable[[], Any]) -> float:
    return virtual_threads.run(lambda: asyncio.run(call())).seconds


@dataclass(frozen=True)
class App:
    """One app. tuned: the same with asyncio. limit: its seconds at best. bound: least ratio of stock to fineflow."""

    build: Callable[[Engines], Runnable[Any, Any]]
    value: Callable[[], dict[str, Any]]
    limit: Callable[[Engines, str], float]
    bound: float
    tuned: Callable[[Engines], Runnable[Any, Any]] | None = None
    share: float = 0.95  # of the limit


def _situated() -> dict[str, Any]:
    return {"question": QUESTION, "chunks": chunks()}


APPS: Mapping[str, App] = {
    "contextual, chain": App(contextual_chain, _situated, limit_of_contextual, 1.6, tuned_contextual),
    # 0.945 to 0.96 of the limit: whether the last context's requests share a batch depends on threads.
    "contextual, class": App(contextual_class, _situated, limit_of_contextual, 1.6, tuned_contextual, share=0.94),
}


@dataclass(frozen=True)
class Ran:
    """A first call. prompt: the last one that a model was sent."""

    answer: Any
    seconds: float
    prompt: str


def first_call(app: App, build: Callable[[Engines], Any], *, entry: str = "invoke") -> Ran:
    costs.forget()
    engines = Engines()
    chain = build(engines)
    if entry == "invoke":
        ran = virtual_threads.run(lambda: chain.invoke(app.value()))
    else:
        ran = virtual_threads.run(lambda: asyncio.run(chain.ainvoke(app.value())))
    return Ran(ran.value, ran.seconds, engines.prompts[-1])


def optimized(app: App) -> Callable[[Engines], Any]:
    return lambda engines: fineflow.optimize(app.build(engines), strict=True)


def main(argv: list[str] | None = None) -> int:
    parsed = arguments(__doc__ or "", runs=1).parse_args(argv)
    print(f"{hardware()}; virtual seconds of a first call\n")
    rows = [["app", "invoke", "tuned", "fineflow", "limit", "invoke /", "tuned /", "of the limit"]]
    figures, checks = {}, {}
    for name, app in APPS.items():
        as_written, theirs = first_call(app, app.build), first_call(app, optimized(app))
        assert theirs.answer == as_written.answer, "fineflow gave another answer"
        stock, ours, limit = as_written.seconds, theirs.seconds, app.limit(Engines(), as_written.prompt)
        tuned = None if app.tuned is None else first_call(app, app.tuned, entry="ainvoke").seconds
        figures[name] = {"stock": stock, "tuned": tuned, "fineflow": ours, "limit": limit}
        checks[f"{name}: at least {app.bound:.1f} times as fast as stock"] = stock >= app.bound * ours
        checks[f"{name}: at least {app.share:.2f} of the limit"] = limit >= app.share * ours
        shown = ["" if each is None else f"{each:.2f}" for each in (stock, tuned, ours, limit)]
        ratios = [f"{stock / ours:.2f}", "" if tuned is None else f"{tuned / ours:.2f}", f"{limit / ours:.2f}"]
        rows.append([name, *shown, *ratios])
    print(table(rows))
    return finish(figures, checks, parsed.json)


if __name__ == "__main__":
    sys.exit(main())
