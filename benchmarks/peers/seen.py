"""What is seen of one contender: of each graph of ``examples/langgraph``, and of each policy."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, NamedTuple

from langgraph.types import Command

from benchmarks.peers.contenders import CONTENDERS, Apply
from benchmarks.peers.plain import plain
from benchmarks.peers.policies import POLICIES, history
from benchmarks.public.langgraph_apps import CASES, Case, load
from fineflow.testing import virtual_threads
from fineflow.testing.recording import RecordingHandler, run_tree

ASPECTS = ("answer", "calls", "callbacks", "stream", "events", "checkpoints", "interrupt, resume")
"""What is compared of the graphs of ``examples/langgraph``; the last two of those with a checkpointer."""


class Seen(NamedTuple):
    """Something observed, comparable by ``==``, or the error in its place. seconds: virtual ones, of the run."""

    value: Any
    error: str = ""
    seconds: float = 0.0


def title(case: Case) -> str:
    """Returns the name of a graph with its input."""
    return f"{case.graph} {case.value.lower()}"


TITLES = tuple(title(each) for each in CASES)


def look(call: Callable[[], Any]) -> Seen:
    """Runs a call in virtual time; an error of whatever kind is what was seen."""
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings(action="ignore"):
            ran = virtual_threads.run(call)
    except Exception as error:
        return Seen(None, f"{type(error).__name__}: {error}".splitlines()[0][:160])
    return Seen(ran.value, seconds=ran.seconds)


def _built(case: Case, apply: Apply) -> tuple[Any, Any, list[str]]:
    """Returns a new graph of a case, its input, and the prompts that its models will have been asked."""
    module, asked = load(case.graph), []

    def says(prompt: str) -> Any:
        asked.append(prompt)
        return module.says(prompt)

    return apply(module.build(load("graph_services").Services(says))), getattr(module, case.value), asked


def of_graph(case: Case, apply: Apply) -> dict[str, Seen]:
    """Returns what is seen of a graph, by aspect. The seconds of ``answer`` are those of a plain call."""
    # A peer may go round in circles for ever: none of the graphs needs half of that many steps.
    config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 50}

    def called() -> Any:
        handler = RecordingHandler()
        graph, value, asked = _built(case, apply)
        with_handler = {**config, "callbacks": [handler]}
        if "stream" in case.entries:
            found = graph.invoke(value, with_handler)
        else:
            found = asyncio.run(graph.ainvoke(value, with_handler))
        return plain(found), sorted(plain(asked)), plain(run_tree(handler))

    def streamed() -> Any:
        graph, value, _ = _built(case, apply)

        async def chunks() -> list[Any]:
            return [each async for each in graph.astream(value, config, stream_mode=["values", "updates"])]

        return plain(asyncio.run(chunks()))

    def events() -> Any:
        graph, value, _ = _built(case, apply)

        async def each() -> list[Any]:
            return [event async for event in graph.astream_events(value, config, version="v2")]

        return plain(asyncio.run(each()))

    def resumed() -> Any:
        graph, value, _ = _built(case, apply)
        graph.invoke(value, config)
        before = history(graph, config)
        return before, plain(graph.invoke(Command(resume=True), config)), history(graph, config)

    once = look(called)
    parts = once.value if not once.error else (None, None, None)
    seen = {name: once._replace(value=part) for name, part in zip(ASPECTS, parts, strict=False)}
    seen.update(stream=look(streamed), events=look(events))
    if _built(case, CONTENDERS["stock"].apply)[0].checkpointer:
        thread = look(resumed)
        seen["checkpoints"] = thread._replace(value=thread.value and (thread.value[0], thread.value[2]))
        seen["interrupt, resume"] = thread._replace(value=thread.value and thread.value[1])
    return seen


def of(apply: Apply, graphs: Sequence[str] = TITLES) -> dict[str, dict[str, Seen]]:
    """Returns what is seen of each graph by aspect, and of each policy under the name ``steps in line``."""
    logging.disable(logging.CRITICAL)  # peers log each step; fineflow.optimize(strict=True) raises
    try:
        seen = {title(case): of_graph(case, apply) for case in CASES if title(case) in graphs}
        seen["steps in line"] = {name: look(lambda see=see: see(apply)) for name, see in POLICIES.items()}
    finally:
        logging.disable(logging.NOTSET)
    return seen


def of_contender(name: str, graphs: Sequence[str]) -> dict[str, dict[str, Seen]]:
    """Does ``of`` for a contender by its name, in a process of its own."""
    return of(CONTENDERS[name].apply, graphs)
