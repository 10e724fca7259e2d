"""Runs the graphs inside a primitive: the tests and the taken arm of a CONDITION, the body of a MAP for each item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fineflow.cost_model.costs import costs
from fineflow.ir import Op, Primitive
from fineflow.ir.primitive import NUMBER
from fineflow.runtime.call.executor import IN_HAND, Execution, Failed
from fineflow.runtime.call.streams import Stream
from fineflow.runtime.events import now

_ABSENT: Any = object()


def choose(run: Execution, p: Primitive, holds: Callable[[Any], bool]) -> object:
    """Runs the tests of a CONDITION in order until one ``holds``, then only that test's arm.

    A test or arm starts with the arguments known so far; it gets the others when they arrive.
    """

    def start(label: str, done: Callable[[Any], None]) -> None:
        run.chose(p, label)
        run.within(p, p.body[label], run.arguments(p), done)

    def test(number: int) -> None:
        def tested(value: Any) -> None:
            try:
                true = not isinstance(value, Failed) and holds(value)
            except Exception as error:
                run.surprise(p, error, ours=True)
                return
            if isinstance(value, Failed):
                ended(value)
            elif true:
                start(f"then {number}", ended)
            else:
                test(number + 1)

        if f"if {number}" in p.body:
            start(f"if {number}", tested)
        else:
            start("else", ended)

    ended = partial(run.complete, p)
    test(1)
    return IN_HAND


class Members(Stream[Any]):
    """What a MAP has made of its items, in their order, each as soon as those before it are there, too.

    Ends early if one fails. begun: when the MAP began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun = now()

    def add(self, results: list[Any]) -> None:
        """Takes the results up to the first that is not there, or has failed."""
        while not self.closed and len(self.items) < len(results):
            found = results[len(self.items)]
            if isinstance(found, Failed):
                self.close()
            elif found is _ABSENT:
                return
            else:
                self.put(found)


def each(run: Execution, p: Primitive, args: Mapping[str, Any]) -> object:
    """Runs the body of a MAP for every element; elements of a stream start as they are released.

    What is made is released in order where something reads it one by one.
    """
    items = args["items"]
    outer = {name: value for name, value in args.items() if name != "items"}
    numbered = NUMBER in p.body.inputs
    results: list[Any] = []
    pipelined = p.args["items"].stream or "overlap" in p.meta  # its items do not all begin, or go on, together
    complete = slowest = 0.0  # when the last item was there; the seconds of the slowest
    running = 1  # the list itself, then one for each item
    members = Members() if run.streamed(p) else None

    def begin(item: Any) -> None:
        nonlocal running
        running += 1
        number = len(results)
        results.append(_ABSENT)
        given = {**outer, "item": item, NUMBER: number} if numbered else {**outer, "item": item}
        run.within(p, p.body, given, partial(ended, number, now()))

    def ended(number: int, begun: float, value: Any) -> None:
        nonlocal slowest
        results[number], slowest = value, max(slowest, now() - begun)
        if members is not None:
            members.add(results)
        one_less()

    def one_less() -> None:
        nonlocal running
        running -= 1
        if not running:
            if members is not None:
                members.close()
            failed = next((value for value in results if isinstance(value, Failed)), None)
            if failed is None and results:
                if pipelined:
                    costs.observe_tail(Op.MAP, p.name, now() - complete)
                if "overlap" not in p.meta:
                    costs.observe_slowest(p.name, slowest)
            run.complete(p, failed or list(results))

    def all_begun() -> None:
        nonlocal complete
        complete = now()
        costs.observe_size("", Op.MAP, p.name, len(results))
        one_less()

    async def read(stream: Stream[Any]) -> None:
        try:
            async for item in stream.read():
                begin(item)
        except Exception as error:
            run.surprise(p, error, ours=False)
        else:
            all_begun()

    if members is not None:
        run.release(p, None, members)
    if isinstance(items, Stream):
        run.spawn(read(items), p)
    else:
        for item in items:
            begin(item)
        all_begun()
    return IN_HAND
