"""Example calls of an app, recorded, and the profiles of the engines that they used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fineflow
from fineflow.backends.emulated import BatchProfile, LLMProfile, load_profile, profile_names
from fineflow.capacity.workload import Profile, Workload, shape_of, with_times
from fineflow.checking import find, parsed
from fineflow.demo.inputs import one_line
from fineflow.errors import UsageError
from fineflow.recording.compare import calling, entry_of
from fineflow.runtime import recording
from fineflow.runtime.queues.registry import queues
from fineflow.runtime.recording import RecordedCall


def workload(
    name: str, inputs: Sequence[str], profiles: Mapping[str, Profile], *, entry: str = "", stock: bool = False
) -> Workload:
    """Calls the app that ``module:name`` names, and returns what its calls ask of engines.

    The first input is called once more than the others, before them: it imports and plans, and fills caches. If it is
    the only one, that call says what was cached. profiles: of engines, by name; others have their own, if they are
    emulated. stock: the app as it is, not through ``fineflow.optimize``. Raises UsageError for mistakes that the user
    can correct.
    """
    target = find(name)
    obj = target.make()
    obj = obj if stock else fineflow.optimize(obj)
    method = entry_of(target, entry or ("ainvoke" if "ainvoke" in target.entries else ""))
    given = [parsed(text) if target.json_input else text for text in inputs]
    try:
        calls = [recorded(partial(calling(method, value), obj)) for value in (given[0], *given)]
    except Exception as error:
        raise UsageError(
            f"{name} raised {type(error).__name__}: {one_line(error)}; give an input it answers"
        ) from error
    again = len(given) == 1
    return of_calls(calls[0], calls[1 if again else 2 :], profiles, again=again, stock=stock)


def recorded(call: Callable[[], Any]) -> RecordedCall:
    """Makes one call, and returns what was recorded of it. Raises UsageError if that was none."""
    found: list[RecordedCall] = []
    with fineflow.record(), recording.opened(found.append):
        call()
    if not found:
        raise UsageError("no call of LangChain or LlamaIndex was made; name an object of theirs, or a function of it")
    return found[0]


def of_calls(
    cold: RecordedCall,
    calls: Sequence[RecordedCall],
    profiles: Mapping[str, Profile],
    *,
    again: bool = False,
    stock: bool = False,
) -> Workload:
    """Returns the workload of recorded calls on engines that are alive.

    cold: the call before them. again: they have its input, and found its prompts cached. stock: of the app as it is.
    """
    known, lanes = dict(profiles), {name: name for name in profiles}
    without: list[str] = []
    for engine in [queue.engine for queue in queues()]:
        if not (hasattr(engine, "generate") or hasattr(engine, "execute")):
            continue  # a component of the user's, with a limit
        instances = [each.engine for each in getattr(engine, "instances", ())] or [engine]
        lanes |= {engine.name: engine.name} | {f"{engine.name}[{i}]": engine.name for i in range(len(instances))}
        own = getattr(instances[0], "profile", None)
        if isinstance(own, (LLMProfile, BatchProfile)):
            known.setdefault(engine.name, own)
        elif engine.name not in known:
            without.append(engine.name)
    shapes = tuple(shape_of(call, lanes) for call in calls)
    if again:
        shapes = tuple(with_times(shape_of(cold, lanes), shape) for shape in shapes)
    used = {step.engine for shape in shapes for step in shape.steps if step.engine}
    if missing := sorted(used.intersection(without)):
        raise UsageError(
            f"engine {missing[0]!r} has no profile; measure it with `fineflow profile`, and add --engine "
            f"{missing[0]}=FILE, or name a shipped one: {', '.join(profile_names())}"
        )
    if not used:
        lanes = {i.lane: "" for call in calls for i in call.intervals}
        raise UsageError(
            f"the call used no engine that can be planned, only {', '.join(lanes) or 'code'}; see --engine"
        )
    return Workload(shapes, {name: profile for name, profile in known.items() if name in used}, stock)


def profiles_of(given: Sequence[str]) -> dict[str, Profile]:
    """Reads ``NAME=PROFILE``: the name of a shipped profile, or a file of ``fineflow profile``. Raises UsageError."""
    found = {}
    for text in given:
        name, _, profile = text.partition("=")
        if not (name and profile):
            raise UsageError(f"--engine {text}: expected NAME=PROFILE, such as llm=llama-8b-h100")
        try:
            found[name] = load_profile(profile if profile in profile_names() else Path(profile))
        except (OSError, ValueError) as error:
            shipped = ", ".join(profile_names())
            raise UsageError(f"--engine {text}: {one_line(error)}; expected a file or one of {shipped}") from error
    return found
