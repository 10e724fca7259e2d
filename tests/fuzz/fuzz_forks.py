"""Compares programs in processes that are forked for some of them each, so that the first one meets a fresh process."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuzz_compare import Difference

TIMEOUT = 30.0  # seconds of one program

Compared = Callable[[str, str], tuple[list[Difference], int]]
"""Returns what differs in a program of this source and name, and how many calls ran ahead."""


@dataclass
class Result:
    """What differs in a program. ahead: calls that ran ahead."""

    name: str
    found: list[Difference]
    ahead: int = 0

    @property
    def kinds(self) -> set[str]:
        return {each.kind for each in self.found}


def prepare() -> None:
    """Imports what children need, and leaves it out of their collections."""
    import langgraph.graph  # noqa: F401
    from langchain_core.runnables import RunnableLambda

    import fineflow
    import fineflow.adapters.langchain.framework
    import fineflow.adapters.langgraph.framework

    fineflow.optimize(RunnableLambda(len))
    gc.collect()
    gc.freeze()


def results(programs: Sequence[tuple[str, str]], compared: Compared) -> Iterator[Result]:
    """Yields what differs in each program, by name and source. They run in one process, unless it dies."""
    left = list(programs)
    while left:
        done = 0
        for result in _forked(left, compared):
            done += 1
            yield result
        if not done:
            yield Result(left[0][0], [Difference("no end", 0, "the process died, or has not ended")])
            done = 1
        elif done < len(left):
            yield Result(left[done][0], [Difference("no end", 0, "the process died, or has not ended")])
            done += 1
        del left[:done]


def _forked(programs: Sequence[tuple[str, str]], compared: Compared) -> Iterator[Result]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _serve(programs, compared, writing)
    os.close(writing)
    buffer = b""
    try:
        while True:
            ready, _, _ = select.select([reading], [], [], TIMEOUT)
            if not ready:
                os.kill(child, signal.SIGUSR1)
                break
            part = os.read(reading, 1 << 16)
            if not part:
                break
            *lines, buffer = (buffer + part).split(b"\n")
            for line in lines:
                made: dict[str, Any] = json.loads(line)
                yield Result(made["name"], [Difference(**each) for each in made["found"]], made["ahead"])
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(programs: Sequence[tuple[str, str]], compared: Compared, writing: int) -> None:
    silent = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1) if os.environ.get("FUZZ_STDERR") else (0, 1, 2):
        os.dup2(silent, number)
    faulthandler.register(signal.SIGUSR1)
    sys.unraisablehook = lambda each: None
    for name, source in programs:
        try:
            found, ahead = compared(source, f"<{name}>")
        except BaseException as error:  # the program's own, in stock too
            found, ahead = [Difference("invalid", 0, f"{type(error).__name__}: {error}")], 0
        made = {"name": name, "found": [asdict(each) for each in found], "ahead": ahead}
        os.write(writing, json.dumps(made).encode() + b"\n")
    os._exit(0)
