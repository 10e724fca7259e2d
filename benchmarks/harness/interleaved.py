"""Applications at small size on real engines, the schemes in turns: ratios that hold for the moment's machine.

Seconds of a real engine depend on what else the machine does. So all schemes run in one process, on the same engines,
one call each in every round, in an order that changes, and what counts is the ratio of two schemes' seconds over the
same rounds. In a round all schemes get the same input, and their answers are compared. Each scheme has its own part of
the prefix cache (``Scripted.salt``), and two calls go ahead, so the instructions are cached and nothing else is.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

from benchmarks.apps import app as app_of
from benchmarks.apps.app import App
from benchmarks.harness.contention import measured as contention_of
from benchmarks.harness.experiment import ALONE
from benchmarks.harness.load import WARM, acall
from benchmarks.harness.real_world import RealEngines, RealWorld
from benchmarks.harness.schemes import scheme as scheme_of
from benchmarks.harness.setting import Device
from fineflow.cost_model.costs import costs
from fineflow.runtime.events import now

SCHEMES = ("stock", "tuned", "fineflow")
APPS = (
    "search_generation",
    "naive_rag",
    "naive_rag_llamaindex",
    "advanced_rag",
    "advanced_rag_llamaindex",
    "contextual_retrieval",
    "agent",
    "repository_advanced",
    "conversational_rag",
    "rag_fusion",
    "corrective_rag",
)
"""Of all, those that are not made of others (colocated, repository_naive) or of 1,500 tokens (repository_two_steps)."""

LEAST = 2  # rounds of an application, even if its share of the time is over
DOCUMENTS, WORDS = 64, 1500  # at most, of one call: a second or two of embedding on two cores
RESAMPLES = 400


def smaller(asked: Any) -> Any:
    """Returns an input with at most ``DOCUMENTS`` documents, and some ``WORDS`` words in each."""
    if not isinstance(asked, dict) or "documents" not in asked:
        return asked
    return {**asked, "documents": [_cut(doc) for doc in asked["documents"][:DOCUMENTS]]}


def _cut(doc: Any) -> Any:
    """Returns a document of LangChain or LlamaIndex with the first paragraphs of its text."""
    lines = hasattr(doc, "page_content")
    kept, words = [], 0
    for part in (doc.page_content if lines else doc.text).split("\n\n"):
        if words >= WORDS:
            break
        kept.append(part)
        words += len(part.split())
    text = "\n\n".join(kept)
    return doc.model_copy(update={"page_content": text}) if lines else type(doc)(text=text)


def measure(
    names: Sequence[str], device: Device, *, rounds: int, seconds: float, threads: Sequence[int], at_once: int = 1
) -> Any:
    """Runs applications under ``SCHEMES``; returns ``{"results": ..., "contention": ..., "failed": ...}``, in seconds.

    An application that raises is named under "failed"; the figures of the others are kept.

    rounds: at most so many of each application. seconds: for all together; what one leaves, the next ones have.
    threads: numbers of threads of PyTorch with which contention is measured; 0 for its own choice. at_once: concurrent
    calls of a scheme in each round.
    """
    contention = [contention_of(device, each) for each in threads]
    engines, ends, results, failed = RealEngines(device), time.monotonic() + seconds, [], []
    for place, name in enumerate(names):
        share = (ends - time.monotonic()) / (len(names) - place)
        print(f"{place + 1}/{len(names)} {name}", file=sys.stderr, flush=True)
        try:
            results += _of_app(app_of(name), device, engines, rounds, share, at_once)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    asyncio.run(engines.aclose())
    return {"results": results, "contention": contention, "failed": failed}


def _of_app(
    app: App, device: Device, engines: RealEngines, rounds: int, seconds: float, at_once: int = 1
) -> list[dict[str, Any]]:
    costs.forget()
    began, setting = time.monotonic(), device.setting(app.setting)
    worlds = {
        name: RealWorld(engines, setting, app.says, app.passages, "" if device.kind == "openai" else f"{place} ")
        for place, name in enumerate(SCHEMES)
    }
    chains = {name: scheme_of(name).build(app, world) for name, world in worlds.items()}
    took: dict[str, list[float]] = {name: [] for name in SCHEMES}
    answers: dict[str, dict[int, str]] = {name: {} for name in SCHEMES}

    async def call(name: str, number: int) -> None:
        # A server takes no salt: there each scheme has questions of its own, but for the first one.
        seed = SCHEMES.index(name) if device.kind == "openai" and number else 0
        given = smaller(app.asked(number, seed))
        start = now()
        answer = await acall(chains[name], given)
        took[name].append(now() - start)
        answers[name][number] = str(app.answer(answer)) if number == 0 or device.kind != "openai" else ""

    async def run() -> None:
        for name in SCHEMES:
            for number in range(WARM):
                await call(name, number)
            took[name].clear()
        sent.update({name: world.sent() for name, world in worlds.items()})
        for turn in range(rounds):
            if turn >= LEAST and (time.monotonic() - began) * (turn + 1) / turn > seconds:
                break
            for name in random.Random(turn).sample(SCHEMES, len(SCHEMES)):
                numbers = range(WARM + turn * at_once, WARM + (turn + 1) * at_once)
                await asyncio.gather(*(call(name, number) for number in numbers))

    sent: dict[str, dict[str, float]] = {}
    asyncio.run(run())
    return [
        {
            "app": app.name,
            "scheme": name,
            "load": ALONE if at_once == 1 else f"{at_once} at once",
            "seconds": took[name],
            "mean": sum(took[name]) / len(took[name]),
            "per_request": {
                key: (value - sent[name][key]) / len(took[name]) for key, value in worlds[name].sent().items()
            },
            "same_answer": answers[name] == answers[SCHEMES[0]],
        }
        for name in SCHEMES
    ]


def ratio(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Returns the ratio of the sums of two schemes' seconds over the same rounds, and its 95 % bootstrap interval."""
    chosen, pairs = random.Random(0), list(zip(one, other, strict=True))

    def of(drawn: Sequence[tuple[float, float]]) -> float:
        return sum(a for a, _ in drawn) / sum(b for _, b in drawn)

    found = sorted(of(chosen.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return of(pairs), found[round(0.025 * (RESAMPLES - 1))], found[round(0.975 * (RESAMPLES - 1))]
