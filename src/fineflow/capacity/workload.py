"""A workload: the steps of calls of an app, what each asks of which engine, and what it waits for.

Taken from recorded calls that had the engines for themselves: there a step waits for those that had ended when it was
asked for. Some of them only happened to end earlier; where the graph of the call is known, it tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fineflow.backends.emulated import BatchProfile, LLMProfile
from fineflow.ir import Graph
from fineflow.ir.spec import bodies
from fineflow.profiling import prefill_seconds
from fineflow.runtime.events import Interval
from fineflow.runtime.recording import RecordedCall

_SOON = 0.002  # seconds by which the report of an end may come after what follows it

BLOCK = 16
"""Tokens of a block of the KV cache."""

Profile = LLMProfile | BatchProfile


@dataclass(frozen=True, slots=True)
class WorkStep:
    """A piece of work of a call on one engine; ``engine`` "": of the app itself, or of a service that it calls.

    prompt, cached, decoded: tokens of a request to an LLM; cached ones are not computed. items: for a batch engine.
    seconds: of what runs on no engine. after: the steps that it waits for, by their place in the call, each with the
    share of its output that is needed (1: all). gap: seconds of the app's own code between these and this step.
    """

    name: str
    engine: str = ""
    prompt: int = 0
    cached: int = 0
    decoded: int = 0
    items: int = 0
    seconds: float = 0.0
    after: tuple[tuple[int, float], ...] = ()
    gap: float = 0.0

    def scaled(self, prompt: float, decoded: float) -> WorkStep:
        """Returns the step with so many times the tokens, at least one of each kind that it has."""
        tokens = max(round(self.prompt * prompt), 1) if self.prompt else 0
        cached = min(round(self.cached * prompt), max(tokens - 1, 0))
        return replace(
            self,
            prompt=tokens,
            cached=cached,
            decoded=max(round(self.decoded * decoded), 1) if self.decoded else 0,
        )


@dataclass(frozen=True, slots=True)
class CallShape:
    """One call: its steps, each behind those that it waits for. rest: seconds of the app's own code after them."""

    steps: tuple[WorkStep, ...]
    rest: float = 0.0

    @property
    def answer(self) -> int | None:
        """Place of the request to an LLM whose first token is that of the call: the last one that no step waits for."""
        waited = {place for step in self.steps for place, _ in step.after}
        found = [at for at, step in enumerate(self.steps) if step.decoded and at not in waited]
        return found[-1] if found else None


@dataclass(frozen=True)
class Workload:
    """Calls of an app, of which each shape is equally frequent; and the profile of one instance of each engine.

    stock: calls of the app as it is.
    """

    shapes: tuple[CallShape, ...]
    profiles: Mapping[str, Profile]
    stock: bool = False

    def demand(self) -> dict[str, float]:
        """Returns the seconds of an instance of each engine that a call takes at best: in full batches."""
        found = dict.fromkeys(self.profiles, 0.0)
        for shape in self.shapes:
            for step in shape.steps:
                if step.engine:
                    found[step.engine] += _at_best(step, self.profiles[step.engine]) / len(self.shapes)
        return found


def _at_best(step: WorkStep, profile: Profile) -> float:
    if isinstance(profile, BatchProfile):
        return step.items * profile.seconds(profile.max_batch) / profile.max_batch
    new = step.prompt - step.cached
    together = min(profile.sequences, max(profile.blocks * BLOCK / max(new + step.decoded, 1), 1))
    free = 1 - profile.free / profile.prefill_tokens  # share of the tokens of a full iteration that take time
    decoding = profile.iteration / together + profile.decode_sequence
    return new * profile.prefill_token * free + max(step.decoded - 1, 0) * decoding


def longest_path(shape: CallShape, profiles: Mapping[str, Profile]) -> list[tuple[WorkStep, float]]:
    """Returns the steps of the longest path of a call on idle engines, each with its seconds and those of its gap."""
    paths: list[tuple[float, list[tuple[WorkStep, float]]]] = []
    for step in shape.steps:
        alone = _alone(step, profiles.get(step.engine))
        start, before = 0.0, list[tuple[WorkStep, float]]()
        for place, share in step.after:
            end, path = paths[place]
            if (begins := end - (1 - share) * path[-1][1]) >= start:
                start, before = begins, [*path[:-1], (path[-1][0], share * path[-1][1])]
        paths.append((start + step.gap + alone, [*before, (step, step.gap + alone)]))
    return max(paths, key=lambda found: found[0], default=(0.0, []))[1]


def _alone(step: WorkStep, profile: Profile | None) -> float:
    if profile is None:
        return step.seconds
    if isinstance(profile, BatchProfile):
        whole, rest = divmod(step.items, profile.max_batch)
        return whole * profile.seconds(profile.max_batch) + (profile.seconds(rest) if rest else 0.0)
    prefill = prefill_seconds(profile, max(step.prompt - step.cached, 1))
    return prefill + max(step.decoded - 1, 0) * profile.seconds(0, 1)


@dataclass(eq=False, slots=True)
class _Seen:
    """A step as it was recorded. places: its primitive, and those that this one is in the bodies of, with the graph of
    each, from the inside out; empty if the graph does not know it. run: of the innermost graph.
    """

    step: WorkStep
    asked: float
    start: float
    end: float
    places: Sequence[tuple[Graph, str]]
    run: int


def shape_of(call: RecordedCall, lanes: Mapping[str, str]) -> CallShape:
    """Returns the steps of a recorded call. lanes: the engine of each lane of intervals that is one."""
    seen = _seen(call, lanes)
    steps: list[WorkStep] = []
    above: list[frozenset[int]] = []  # all that each step waits for
    for at, each in enumerate(seen):
        shares = {i: share for i, other in enumerate(seen[:at]) if (share := _share(other, each))}
        inherited = frozenset[int]().union(*(above[i] for i, share in shares.items() if share == 1))
        above.append(inherited | shares.keys())
        after = tuple((i, share) for i, share in shares.items() if i not in inherited)
        ready = max((seen[i].start + share * (seen[i].end - seen[i].start) for i, share in after), default=call.began)
        steps.append(replace(each.step, after=after, gap=max(each.asked - ready, 0.0)))
    last = max((each.end for each in seen), default=call.began)
    return CallShape(tuple(steps), max((call.ended or last) - last, 0.0))


def with_times(cold: CallShape, warm: CallShape) -> CallShape:
    """Returns a call with the seconds that a later one took in the app's own code and in services, step by step.

    For two calls with one input: the first one imports and plans, the second one finds its own prompts cached.
    """
    later = list(warm.steps)
    steps = []
    for step in cold.steps:
        if (other := next((other for other in later if other.name == step.name), None)) is not None:
            later.remove(other)
            step = replace(step, seconds=other.seconds, gap=other.gap)
        steps.append(step)
    return CallShape(tuple(steps), warm.rest)


def _seen(call: RecordedCall, lanes: Mapping[str, str]) -> list[_Seen]:
    """Returns the steps of a call in the order of time. The batches of one request count as one step."""
    around = {
        id(body): (graph, p.name)
        for trace in call.traces
        for graph in _graphs(trace.graph)
        for p in graph
        for _, body in bodies(p)
    }
    known = {
        stamp.run: (graph, name)
        for trace in call.traces
        for graph, stamps in trace.runs
        for name, stamp in stamps.items()
        if not graph[name].by_stock  # else it ran when stock got there, whatever the graph says
    }
    found: dict[object, _Seen] = {}
    for number, i in enumerate(sorted(call.intervals, key=lambda i: (i.queued, i.start))):
        engine, run = lanes.get(i.lane, ""), (0, 0) if i.stamp is None else i.stamp.run
        key: object = (engine, i.label, i.queued, run) if engine and i.tokens is None else number
        if key in found:
            same = found[key]
            same.step, same.end = replace(same.step, items=same.step.items + i.items), max(same.end, i.end)
            continue
        places, place = [], known.get(run)
        while place is not None:
            places.append(place)
            place = around.get(id(place[0]))
        asked = i.queued if engine else i.start  # only engines have queues
        found[key] = _Seen(_step(i, engine), asked, i.start, i.end, places, run[0])
    for each in found.values():
        inside = [e.end for e in found.values() if e.step.engine and _same(each, e) and each.start <= e.asked]
        if not each.step.engine and inside and max(inside) <= each.end:  # a store that has the query embedded first
            each.asked = each.start = max(inside)
            each.step = replace(each.step, seconds=each.end - each.start)
    return sorted(found.values(), key=lambda each: (each.asked, each.end))


def _same(one: _Seen, other: _Seen) -> bool:
    """Returns True for steps of the same run of one primitive."""
    return one.run == other.run and bool(one.places) and one.places[0] == other.places[0]


def _graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for p in graph:
        for _, body in bodies(p):
            yield from _graphs(body)


def _step(i: Interval, engine: str) -> WorkStep:
    if not engine:
        return WorkStep(i.label, seconds=i.end - i.start)
    if i.tokens is None:
        return WorkStep(i.label, engine, items=i.items)
    return WorkStep(i.label, engine, i.tokens.prompt, i.tokens.cached, i.tokens.decoded)


def _share(before: _Seen, then: _Seen) -> float:
    """Returns the share of a step's output that another one waited for; 0 if it did not wait for it."""
    needs = _needs(before, then)
    if before.end <= then.asked + (_SOON if needs else 0.0):
        return 0.0 if needs is False else 1.0
    if not needs or not before.step.decoded or then.asked <= before.start:
        return 0.0
    return (then.asked - before.start) / (before.end - before.start)


def _needs(before: _Seen, then: _Seen) -> bool | None:
    """Returns whether a step needs another one, by the graph of the call; None if that does not know both."""
    if _same(before, then):
        return True
    others = {id(graph): name for graph, name in then.places}
    for graph, name in before.places:
        if (other := others.get(id(graph))) is None:
            continue
        inside = graph is not before.places[0][0] or graph is not then.places[0][0]
        if inside:  # different bodies of one primitive: a test comes before an arm
            return name == other or _path(graph, name, other)
        return before.run == then.run and _path(graph, name, other)
    return None


def _path(graph: Graph, start: str, end: str) -> bool:
    todo, seen = [end], set[str]()
    while todo:
        name = todo.pop()
        if name == start and name != end:
            return True
        if name in graph and name not in seen:
            seen.add(name)
            todo += [*(ref.name for ref in graph[name].args.values()), *graph[name].after]
    return False
