"""The callback handlers: what they predict ``optimize`` to take, against what it then takes; and the cost of an event.

Apps of ``examples/langchain`` and apps in plain Python (``benchmarks.public.user_code``). Models and searches are
services that sleep, and the clock is virtual: the seconds consist of the latencies alone, the same on every machine.
The handler watches three calls of the app as it is; then the app is optimized and called. With ``--varied`` each
request of the examples takes a random time, and medians of 20 calls are compared. Linux only
(``fineflow.testing.virtual_threads``).
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from statistics import fmean
from typing import Any

from llama_index.core.instrumentation import get_dispatcher

import fineflow
from benchmarks.public import community_apps as apps
from benchmarks.public.classic_apps import CLASSIC_APPS
from benchmarks.public.llamaindex_apps import APPS as INDEX_APPS
from benchmarks.public.llamaindex_kit import App as IndexApp
from benchmarks.public.llamaindex_kit import Kit
from benchmarks.public.written_apps import APPS, ASYNC_APPS
from benchmarks.public.written_functions import FUNCTIONS
from benchmarks.public.written_tools import ASYNC_TOOLS, TOOLS
from benchmarks.report import arguments, finish, hardware, table
from fineflow.langchain import FineflowCallbackHandler
from fineflow.llamaindex import FineflowSpanHandler
from fineflow.testing import virtual_threads
from fineflow.testing.langchain import FakeChat

WATCHED = 3  # calls
VARIED = 20  # calls of each side, where requests take random times
CLOSE = 0.15  # of the measured time
EVENT = 50e-6  # seconds


def example(name: str) -> tuple[Callable[[], Any], Any]:
    """Returns what builds an app of ``examples/langchain``, and its input."""
    module, services = apps.load(name), apps.load("services")
    made = lambda: module.build(services.chat_model(module.says, 1), services.vector_store(module.TEXTS, apps.SEARCH))  # noqa: E731
    return made, module.INPUT


def varied(name: str, *, awaits: bool) -> tuple[float, float, float]:
    """Returns medians as ``predicted`` does, of calls whose requests take random times (lognormal, sigma 0.3)."""
    services, draw = apps.load("services"), random.Random(name)

    class Varied(services.Network):  # type: ignore[name-defined, misc]
        seconds = property(lambda self: self.mean * draw.lognormvariate(0, 0.3))

        def __init__(self, answer: Any, seconds: float) -> None:
            self.answer, self.mean = answer, seconds

        @seconds.setter
        def seconds(self, mean: float) -> None:
            self.mean = mean

    own, services.Network = services.Network, Varied
    try:
        make, value = example(name)
        with redirect_stdout(StringIO()), warnings.catch_warnings(action="ignore"):
            app, handler = make(), FineflowCallbackHandler()
            config = {"callbacks": [handler]}
            virtual_threads.run(lambda: [call(app, value, config, awaits=awaits) for _ in range(VARIED)])
            [report] = handler.report().apps
            fast, took = fineflow.optimize(make(), strict=True), []
            for _ in range(VARIED):
                took.append(virtual_threads.run(lambda: call(fast, value, None, awaits=awaits)).seconds)
    finally:
        services.Network = own
    return report.now_s, report.optimized_s, statistics.median(took)


def call(app: Any, value: Any, config: Any, *, awaits: bool) -> Any:
    return asyncio.run(app.ainvoke(value, config)) if awaits else app.invoke(value, config)


def predicted(make: Callable[[], Any], value: Any, *, awaits: bool) -> tuple[float, float, float]:
    """Returns the virtual seconds of an app: as it is, optimized as the handler predicts, and optimized as measured."""
    with redirect_stdout(StringIO()), warnings.catch_warnings(action="ignore"):
        app, handler = make(), FineflowCallbackHandler()
        config = {"callbacks": [handler]}
        virtual_threads.run(lambda: [call(app, value, config, awaits=awaits) for _ in range(WATCHED)])
        [report] = handler.report().apps
        fast = fineflow.optimize(make(), strict=True)
        virtual_threads.run(lambda: call(fast, value, None, awaits=awaits))
        took = virtual_threads.run(lambda: call(fast, value, None, awaits=awaits)).seconds
    return report.now_s, report.optimized_s, took


def predicted_index(app: IndexApp) -> tuple[float, float, float]:
    """``predicted`` for an app of ``benchmarks.public.llamaindex_apps``."""

    def call(made: Any) -> Any:
        async def run() -> Any:
            return await (made.run(query_str=app.value) if app.entry == "run" else getattr(made, app.entry)(app.value))

        return asyncio.run(run()) if app.entry == "run" or app.entry[0] == "a" else getattr(made, app.entry)(app.value)

    handler, dispatcher = FineflowSpanHandler(), get_dispatcher()
    with redirect_stdout(StringIO()):
        made = app.make(Kit(1))
        dispatcher.add_span_handler(handler)
        try:
            virtual_threads.run(lambda: [call(made) for _ in range(WATCHED)])
        finally:
            dispatcher.span_handlers.remove(handler)
        report = max(handler.report().apps, key=lambda each: each.now_s)
        fast = fineflow.optimize(app.make(Kit(1)), strict=True)
        virtual_threads.run(lambda: call(fast))
        took = virtual_threads.run(lambda: call(fast)).seconds
    return report.now_s, report.optimized_s, took


def event_seconds(runs: int) -> float:
    """Returns the median real seconds that the handler adds to an event of a chain."""
    chain = (lambda value: value) | FakeChat() | (lambda message: message.text)
    handler, silent = FineflowCallbackHandler(), _Silent()
    for _ in range(20):
        chain.invoke("x", {"callbacks": [handler]})
    gaps = []
    for _ in range(runs):
        took = {}
        for each in (handler, silent):
            start = time.perf_counter()
            for _ in range(20):
                chain.invoke("x", {"callbacks": [each]})
            took[each] = time.perf_counter() - start
        gaps.append((took[handler] - took[silent]) / (20 * 8))  # four runs, each with a start and an end
    return statistics.median(gaps)


class _Silent(FineflowCallbackHandler):
    """Gets the same events, and does nothing."""

    def _start(self, *args: Any, **named: Any) -> None:
        pass

    def _end(self, *args: Any, **named: Any) -> None:
        pass


def compared(found: dict[tuple[str, bool], tuple[float, float, float]]) -> tuple[dict[str, Any], dict[str, bool]]:
    """Prints a table of apps; returns its figures and checks."""
    rows: list[tuple[str, ...]] = [("app", "call", "now", "predicted", "measured", "off by")]
    errors = [abs(guess - took) / took for _, guess, took in found.values()]
    for (name, awaits), (now, guess, took) in found.items():
        shown = (f"{now:.2f}", f"{guess:.2f}", f"{took:.2f}", f"{guess / took - 1:+.0%}")
        rows.append((name, "ainvoke" if awaits else "invoke", *shown))
    print(table(rows))
    close = sum(error <= CLOSE for error in errors)
    print(f"\nmean error: {fmean(errors):.1%}; within {CLOSE:.0%}: {close} of {len(errors)}\n")
    checks = {
        f"the mean error is at most {CLOSE:.0%}": fmean(errors) <= CLOSE,
        f"nine of ten predictions are within {CLOSE:.0%}": close >= 0.9 * len(errors),
    }
    return {"seconds": {f"{name}, {awaits}": each for (name, awaits), each in found.items()}}, checks


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", runs=30)
    parser.add_argument("--varied", action="store_true", help="the examples, with requests that take random times")
    given = parser.parse_args(argv)
    print(f"Callback handler on langchain-core {version('langchain-core')}, virtual seconds.\n{hardware()}\n")
    if given.varied:
        return finish(*compared({(n, a): varied(n, awaits=a) for n in apps.PATHS for a in (False, True)}), given.json)
    calls = [(name, *example(name), awaits) for name in apps.PATHS for awaits in (False, True)]
    for awaits, found in ((False, APPS | FUNCTIONS | TOOLS | CLASSIC_APPS), (True, ASYNC_APPS | ASYNC_TOOLS)):
        calls += [(name, lambda app=app: app.make(1), app.value, awaits) for name, app in found.items()]
    rows: list[tuple[str, ...]] = [("app", "call", "now", "predicted", "measured", "off by")]
    errors, figures = [], {}
    for name, make, value, awaits in calls:
        now, guess, took = predicted(make, value, awaits=awaits)
        errors.append(abs(guess - took) / took)
        entry = "ainvoke" if awaits else "invoke"
        figures[f"{name}, {entry}"] = {"now": now, "predicted": guess, "measured": took}
        rows.append((name, entry, f"{now:.2f}", f"{guess:.2f}", f"{took:.2f}", f"{guess / took - 1:+.0%}"))
    for title, index_app in INDEX_APPS.items():
        now, guess, took = predicted_index(index_app)
        errors.append(abs(guess - took) / took)
        figures[f"LlamaIndex, {title}"] = {"now": now, "predicted": guess, "measured": took}
        shown = (f"{now:.2f}", f"{guess:.2f}", f"{took:.2f}", f"{guess / took - 1:+.0%}")
        rows.append((f"LlamaIndex: {title}", index_app.entry, *shown))
    print(table(rows))
    close = sum(error <= CLOSE for error in errors)
    event = event_seconds(given.runs)
    print(f"\nmean error: {fmean(errors):.1%}; within {CLOSE:.0%}: {close} of {len(errors)}")
    print(f"an event takes {event * 1e6:.1f} us\n")
    checks = {
        f"the mean error is at most {CLOSE:.0%}": fmean(errors) <= CLOSE,
        f"nine of ten predictions are within {CLOSE:.0%}": close >= 0.9 * len(errors),
        f"an event takes at most {EVENT * 1e6:.0f} us": event <= EVENT,
    }
    return finish({"seconds": figures, "event_s": event}, checks, given.json)


if __name__ == "__main__":
    sys.exit(main())
