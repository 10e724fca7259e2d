"""``fineflow timeline``: calls a user's object as it is and optimized, and draws both in one picture."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import fineflow
from fineflow.checking import Target, awaits, called, find, parsed
from fineflow.demo.inputs import one_line
from fineflow.errors import UsageError
from fineflow.ir.spec import everything
from fineflow.observe import Timeline
from fineflow.recording.recorder import record
from fineflow.watching.report import plan_of

STOCK, FINEFLOW = "stock", "fineflow"


@dataclass(frozen=True)
class Settings:
    """name: ``module:name``. input: text, or JSON. entry: the method; "" for the main one. sides: which to call.

    warm: call each side once before it is recorded. repeat_writes: also if the object is known to write.
    """

    name: str
    input: str
    entry: str = ""
    sides: tuple[str, ...] = (STOCK, FINEFLOW)
    warm: bool = True
    repeat_writes: bool = False

    @property
    def calls(self) -> int:
        """Number of calls that are made."""
        return len(self.sides) * (1 + self.warm)

    @property
    def otherwise(self) -> str:
        """What else the user can do about an object that writes."""
        return ", or make one call with --only fineflow --cold"


def drawn(settings: Settings) -> tuple[Timeline, list[str]]:
    """Returns the timeline of the recorded calls, and what those that raised have raised.

    Raises UsageError for mistakes that the user can correct.
    """
    target = find(settings.name)
    entry = entry_of(target, settings.entry)
    given = parsed(settings.input) if target.json_input else settings.input
    made = {side: target.make() for side in settings.sides}
    check_writes(settings, next(iter(made.values())), entry)
    objects = {side: fineflow.optimize(obj) if side == FINEFLOW else obj for side, obj in made.items()}
    call = calling(entry, given)
    failures = []
    if settings.warm:
        for obj in objects.values():
            try:
                call(obj)
            except Exception:  # the recorded call raises it again
                continue
    with record() as rec:
        for side, obj in objects.items():
            try:
                call(obj)
            except Exception as error:
                failures.append(f"{side} raised {type(error).__name__}: {one_line(error)}")
    return rec.timeline(title=f"{settings.name}, {entry}"), failures


def entry_of(target: Target, asked: str) -> str:
    """Returns the method to call. Raises UsageError if there is none of that name."""
    entries = [each for each in target.entries if "batch" not in each and "events" not in each]
    if asked and asked not in entries:
        raise UsageError(f"--entry {asked}: expected one of {', '.join(entries)}")
    return asked or entries[0]


def check_writes(settings: Settings, made: Any, entry: str) -> None:
    """Raises UsageError if the calls would repeat a write that the plan knows of."""
    calls = settings.calls
    plan = plan_of(made, entry) if calls > 1 and not settings.repeat_writes else None
    writes = [p.name for p in everything(plan.p_graph) if p.effects.writes] if plan is not None else []
    if writes:
        raise UsageError(
            f"{settings.name} writes ({', '.join(writes[:3])}), and {calls} calls would repeat that: add "
            f"--repeat-writes if that does no harm{settings.otherwise}"
        )


def calling(
    entry: str, given: Any, run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
) -> Callable[[Any], None]:
    """Returns a function that calls an object by a method, and reads a stream to its end. run: runs its coroutines."""

    async def acall(obj: Any) -> None:
        made = called(obj, entry, given)
        value = await made if inspect.isawaitable(made) else made
        pieces = value if hasattr(value, "__aiter__") else getattr(value, "response_gen", None)
        if hasattr(pieces, "__aiter__"):
            async for _ in pieces:  # type: ignore[union-attr]
                pass

    def call(obj: Any) -> None:
        _reset(obj)
        if awaits(obj, entry):
            run(acall(obj))
            return
        value = called(obj, entry, given)
        pieces = value if inspect.isgenerator(value) else getattr(value, "response_gen", None)
        for _ in pieces or ():
            pass

    return call


def _reset(obj: Any) -> None:
    """Has a chat engine forget the previous call, which would change its question."""
    if callable(getattr(obj, "chat", None)) and callable(getattr(obj, "reset", None)):
        obj.reset()
