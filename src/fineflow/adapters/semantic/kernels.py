"""Runs the primitives of programs: nothing of them goes back to the client before a value is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

from fineflow.adapters.core.decoding import adecode, awarm
from fineflow.adapters.core.prefills import note_parts, parts_of, too_late
from fineflow.adapters.semantic.calls import failed
from fineflow.adapters.semantic.prompts import MARK, Written
from fineflow.ir import Op, Primitive
from fineflow.runtime.call.executor import Execution, Kernel
from fineflow.runtime.call.streams import Stream
from fineflow.runtime.loop.workers import in_thread
from fineflow.runtime.queues import request_context

Args = Mapping[str, Any]


def _fields(args: Args) -> dict[str, Any]:
    return {name.removeprefix("key:"): value for name, value in args.items() if name.startswith("key:")}


def render(p: Primitive, args: Args, run: Execution) -> str:
    known = _fields(args)
    note_parts(p, p.component.parts(known), run)
    text: str = p.component.text(known)
    return text


def prefill(p: Primitive, args: Args, run: Execution) -> Any:
    return args["prompt"]  # the decode prefills it; what is known before, PARTIAL_PREFILL does


def partial_prefill(p: Primitive, args: Args, run: Execution) -> Any:
    """Prefills the text of a prompt before its first late variable."""
    if too_late(p, run):
        return 0
    text: str = p.meta["template"].text(_fields(args)).partition(MARK)[0]
    return _working(p, run, lambda: awarm(p.component, text))


def decode(p: Primitive, args: Args, run: Execution) -> Any:
    prompt, parts, objectives = args["cache"], parts_of(p, run), run.call.facts.objectives
    stream: Stream[str] = run.call.facts.streams.setdefault(p.name, Stream())

    async def answer() -> Written:
        request_context.parts.set(parts)
        if (objective := objectives.get(p.name)) is not None:
            request_context.objective.set(objective)
        said = []
        async with aclosing(adecode(p.component, lambda: prompt, p.meta["options"])) as deltas:
            async for delta in deltas:
                said.append(delta.text)
                stream.put(delta.text)
        return Written("".join(said))

    return _working(p, run, answer)


def parse(p: Primitive, args: Args, run: Execution) -> Any:
    value = _plain(args["text"])
    if p.component.quick(value):
        with _named(p):
            return p.component(value)
    return _working(p, run, lambda: in_thread(lambda: p.component(value)))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Written) else value


def record(p: Primitive, args: Args, run: Execution) -> None:
    """Waits for all values; each was handed over when it was there."""


@contextmanager
def _named(p: Primitive) -> Iterator[None]:
    """Names the request or transform in the error that it raises."""
    try:
        yield
    except Exception as error:
        raise failed(p.name.removesuffix(".decode"), error) from error


def _working(p: Primitive, run: Execution, work: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
    """Starts the work of a primitive; a program that no longer needs it can end that."""
    running: dict[str, asyncio.Future[Any]] = run.call.facts.running

    async def guarded() -> Any:
        try:
            with _named(p):
                return await work()
        except asyncio.CancelledError:
            run.call.facts.check(p.name)  # cancelled alone: what depends on it fails, and the rest goes on
            raise
        finally:
            running.pop(p.name, None)

    run.call.facts.check(p.name)
    running[p.name] = task = run.spawn(guarded(), p)
    return task


KERNELS: Mapping[Op, Kernel] = {
    Op.RENDER: render,
    Op.PREFILL: prefill,
    Op.PARTIAL_PREFILL: partial_prefill,
    Op.DECODE: decode,
    Op.PARSE: parse,
    Op.RECORD: record,
}
