"""Prefills a prompt up to the last member of a list that a map has made, while it makes the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fineflow.adapters.core.prefills import too_late
from fineflow.adapters.langchain.kernels.common import Args, LeftToStock, fields, is_text, plain
from fineflow.adapters.langchain.kernels.prefilling import beginning_of, reader_of
from fineflow.cost_model.costs import costs
from fineflow.ir import Primitive
from fineflow.runtime import events
from fineflow.runtime.call.control_flow import Members
from fineflow.runtime.call.executor import Execution
from fineflow.runtime.call.trace import Warmed

_SHARE = 0.5  # of the time that seems left: the last member may come sooner than usual
_NEW = 128  # characters that are not worth the rendering of a prompt


def growing_prefill(p: Primitive, args: Args, run: Execution) -> Any:
    """Prefills what is final of a prompt whenever the map has made more of it; returns the tokens.

    Nothing is prefilled that would take longer than half of what the map usually needs from then on: a prefill that is
    under way when the last member comes delays the request that it was made for.
    """
    members, usual = args["members"], costs.slowest(p.args["members"].name)
    if too_late(p, run) or not isinstance(members, Members) or usual is None:
        return 0
    return run.spawn(_follow(p, args, members, members.begun + usual, run), p)


async def _follow(p: Primitive, args: Args, members: Members, end: float, run: Execution) -> Warmed:
    """Prefills as members arrive, until all are there. end: when that is expected."""
    reader, count, characters, total = reader_of(p), 0, 0, Warmed(0, 0, 0)

    def left() -> float:
        over = members.closed or too_late(p, run)
        return 0.0 if over else (end - events.now()) * _SHARE

    async for _ in members.read():
        if left() <= 0:
            break
        if len(members.items) == count:
            continue
        count = len(members.items)
        text = _made(p, args, list(members.items))
        if len(text) < characters + _NEW:
            continue
        known, characters = beginning_of(p, reader, fields(args), {p.meta["end"]: text}), len(text)
        while (seconds := left()) > 0:
            warmed = await reader.awarm(known, within=seconds)
            cached = total.cached if total else warmed.cached
            total = Warmed(max(total, warmed), max(total.of, warmed.of), cached, busy=warmed.busy)
            if not warmed:
                break
    return total


def _made(p: Primitive, args: Args, members: list[Any]) -> str:
    """Returns the text that the functions make of the first members. Raises LeftToStock if they make none."""
    value: Any = members
    for i, (function, of) in enumerate(p.meta["grows"]):
        verdict = function.meta.get("verdict")
        if verdict is not None and not verdict.still_holds():
            raise LeftToStock("something that the function's purity depends on has changed")
        known = function.meta["growing"]
        given = {**_others(args, f"{i} "), of: value} if of else value
        for key in known.keys or ():
            given[key] = _first(given[key], len(members))
        plain(given)
        value = function.component.func(given)
        if known.made is not None:
            value = value[known.made]
    if not is_text(value):
        raise LeftToStock("what it makes of the members is no text")
    return str(value)


def _others(args: Args, prefix: str) -> Mapping[str, Any]:
    return {name.removeprefix(prefix): value for name, value in args.items() if name.startswith(prefix)}


def _first(given: Any, count: int) -> Any:
    """Returns the beginning of one of the lists that a function goes through together."""
    if type(given) not in (list, tuple):
        raise LeftToStock("one of the lists that it goes through is none")
    return given[:count]
