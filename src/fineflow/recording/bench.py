"""``fineflow bench``: times a user's object as it is and optimized, in turns, and compares what both return."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import fineflow
from fineflow.checking import Checked, Target, check, find, parsed
from fineflow.demo.report import verdict
from fineflow.errors import UsageError
from fineflow.observe.tracks import OWN, duration, kind_of
from fineflow.recording.compare import FINEFLOW, STOCK, Settings, calling, check_writes, entry_of
from fineflow.recording.recorder import record
from fineflow.runtime.events import Interval

CHECKED = 4
"""Calls of the comparison: two of each side."""

_PLUMBING = frozenset({"map", "condition", "call", "parse", "aggregate", "prefill", "partial_prefill"})

Say = Callable[[str], None]


@dataclass(frozen=True)
class Benched(Settings):
    """Calls of one object by one method with one input. repeat: timed calls of each side."""

    repeat: int = 5

    @property
    def calls(self) -> int:
        return CHECKED + 2 * (1 + self.repeat)

    @property
    def otherwise(self) -> str:
        return ""


@dataclass(frozen=True)
class Timed:
    """What was measured by one method with one input.

    seconds: of each timed call, by side. requests: of one call, by side and by the model, store or tool that was asked.
    checked: the comparison of everything that a caller can see.
    """

    entry: str
    seconds: Mapping[str, Sequence[float]]
    requests: Mapping[str, Mapping[str, int]]
    checked: Checked

    @property
    def ratio(self) -> float:
        """Stock's median time divided by fineflow's: above 1, fineflow is faster."""
        return median(self.seconds[STOCK]) / max(median(self.seconds[FINEFLOW]), 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return {
            "entry": self.entry,
            "input": self.checked.input,
            "seconds": {side: list(each) for side, each in self.seconds.items()},
            "median_s": {side: median(each) for side, each in self.seconds.items()},
            "speedup": self.ratio,
            "requests": {side: dict(each) for side, each in self.requests.items()},
            **{key: value for key, value in asdict(self.checked).items() if key in ("different", "unsteady", "error")},
        }


def run(
    name: str, inputs: Sequence[str], entries: Sequence[str], *, repeat: int, repeat_writes: bool, say: Say
) -> list[Timed]:
    """Times the object that ``module:name`` names, by each entry and with each input. say: is told of the progress.

    entries: by default the main method and its async twin. Raises UsageError for mistakes that the user can correct.
    """
    if repeat < 1:
        raise UsageError(f"--repeat is {repeat}; it must be at least 1")
    target = find(name)
    for text in inputs if target.json_input else ():
        parsed(text)  # raises before anything is called
    main = entry_of(target, "")
    twin = [f"a{main}"] if f"a{main}" in target.entries else []
    chosen = [entry_of(target, entry) for entry in entries] or [main, *twin]
    found = []
    for text in inputs:
        for entry in chosen:
            settings = Benched(name, text, entry, repeat=repeat, repeat_writes=repeat_writes)
            say(f"{entry}: {settings.calls} calls")
            found.append(_timed(target, settings))
    return found


def _timed(target: Target, settings: Benched) -> Timed:
    objects = {side: target.make() for side in settings.sides}
    check_writes(settings, objects[STOCK], settings.entry)
    objects[FINEFLOW] = fineflow.optimize(objects[FINEFLOW])
    [checked] = check(target, [settings.input], [settings.entry])
    given = parsed(settings.input) if target.json_input else settings.input
    seconds: dict[str, list[float]] = {side: [] for side in objects}
    with asyncio.Runner() as runner:  # one loop, as connections belong to a loop
        call = calling(settings.entry, given, runner.run)
        requests = {side: _requests(call, obj) for side, obj in objects.items()}
        for number in range(settings.repeat):
            for side in settings.sides if number % 2 else reversed(settings.sides):  # neither side always goes first
                start = time.perf_counter()
                _quietly(call, objects[side])
                seconds[side].append(time.perf_counter() - start)
    return Timed(settings.entry, seconds, requests, replace(checked, input=given))


def _requests(call: Callable[[Any], None], obj: Any) -> dict[str, int]:
    """Makes a call, and returns how often it asked each model, store and tool, as far as a recorder sees that."""
    with record() as recorder:
        _quietly(call, obj)
    steps = [i for track in recorder.timeline().tracks for i in track.intervals]
    asked = [i for i in steps if i.lane != OWN and kind_of(i) not in _PLUMBING]
    told = [i for i in asked if kind_of(i)]
    return dict(Counter(i.lane for i in asked if kind_of(i) or not any(_waits_for(i, other) for other in told)))


def _waits_for(seen: Interval, told: Interval) -> bool:
    """Returns True if what stock was seen to do is the wait for work that a component has told of by itself."""
    return seen.lane == told.lane and told.start <= seen.start < told.end


def _quietly(call: Callable[[Any], None], obj: Any) -> None:
    try:
        call(obj)
    except Exception:  # the comparison tells what is raised
        return


def to_json(name: str, found: Sequence[Timed]) -> str:
    """Returns the result as JSON."""
    return json.dumps({"object": name, "runs": [each.to_dict() for each in found]}, indent=1, default=repr)


def report(found: Sequence[Timed]) -> Iterator[str]:
    """Yields the lines of the result."""
    yield f"  {'':12} {'stock':>26} {'fineflow':>26}"
    for each in found:
        sides = (each.seconds[STOCK], each.seconds[FINEFLOW])
        yield f"  {each.entry:12} {_shown(sides[0]):>26} {_shown(sides[1]):>26}   {_verdict(each)}"
        yield f"      requests seen: {_asked(each)}"
        yield from (f"      {line}" for text in _compared(each.checked) for line in text.splitlines())


def _shown(seconds: Sequence[float]) -> str:
    return f"{duration(median(seconds))} ({duration(min(seconds))} to {duration(max(seconds))})"


def _verdict(each: Timed) -> str:
    return "not comparable, the results differ" if each.checked.different else verdict(each.ratio)


def _asked(each: Timed) -> str:
    stock, ours = (each.requests[side] for side in (STOCK, FINEFLOW))
    alike = [f"{lane} {count}" for lane, count in stock.items() if ours.get(lane) == count]
    others = [lane for lane in dict.fromkeys((*stock, *ours)) if stock.get(lane) != ours.get(lane)]
    same = f"{', '.join(alike) or 'none seen'}, the same on both sides"
    told = [f"{lane} {stock.get(lane, 0)} as it is, {ours.get(lane, 0)} optimized" for lane in others]
    return "; ".join([same, *told] if alike or not told else told)


def _compared(checked: Checked) -> Iterator[str]:
    if checked.different:
        yield "DIFFERENT:"
        yield from checked.different
    elif checked.error:
        yield f"both raise: {checked.error}"
    else:
        yield "equal: value, stream, callbacks and events are the same"
    if checked.unsteady:
        yield f"two calls of stock differ in {', '.join(checked.unsteady)}: not compared"
