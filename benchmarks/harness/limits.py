"""The limit of a call: the critical path of its primitives on idle devices, with every legal rewrite.

An application describes one call by the steps that it cannot do without. A step begins on each part of its input as
soon as that part is there: prompts are prefilled up to what is known, items of a list count from the token that ends
them, documents are embedded and scored as they arrive. Nothing else of the call, and no other call, is in the way,
except that a batch engine serves the items of one step in batches. So no schedule is faster. Seconds come from the same
profiles as those of the emulated engines.

``bound`` is the other limit, that of a load: no device works before it has work, and none is quicker than its profile.
"""

from __future__ import annotations

import heapq
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.harness.setting import BLOCK, Setting
from fineflow.backends.emulated import BatchProfile, LLMProfile


def count(text: str) -> int:
    """Returns the tokens of a text, as the emulated LLM counts them."""
    return len(re.findall(r"\s+|\S+\s*", text))


@dataclass(frozen=True)
class Step:
    """One step of a call.

    begins: seconds from the call's start to the first part of its input. end: to its result. work: seconds that the
    step keeps one device busy, at least. after: the steps that it needs, each with the least seconds from that step's
    end to the result. first: end of its first token. items: its parts that are of use before its end, each as a step.
    tokens: length of the text. pace: seconds between two tokens. filling: seconds of work on the prompt alone.
    """

    name: str
    engine: str
    begins: float
    end: float
    work: float
    after: tuple[tuple[Step, float], ...]
    first: float = 0.0
    items: tuple[Step, ...] = ()
    tokens: int = 0
    pace: float = 0.0
    filling: float = 0.0


Part = tuple[int, Step | None]
"""So many tokens or items, known when that step has ended; None: from the start."""


@dataclass
class Path:
    """Steps of one call; each method adds one and returns it. The last one is the call's result."""

    setting: Setting
    steps: list[Step] = field(default_factory=list)

    def write(
        self,
        name: str,
        prompt: Sequence[Part],
        out: int,
        *,
        cached: int = 0,
        on: str = "llm",
        items: Sequence[int] = (),
    ) -> Step:
        """An LLM request.

        cached: tokens at the beginning that are the same for all calls. items: lengths of the parts of the text, in
        order, that are of use before the text has ended.
        """
        model: LLMProfile = getattr(self.setting, on)
        parts = _in_order(prompt, cached // BLOCK * BLOCK)
        known = _prefilled(model, parts)
        pace = model.iteration + model.decode_sequence
        end = known + max(out - 1, 0) * pace
        size = sum(tokens for tokens, _ in parts) + out
        together = max(1.0, min(model.sequences, model.blocks * BLOCK / size))
        # Tokens that are free in an iteration may all be in iterations that decode, too.
        filling = 0.0 if model.free else sum(n for n, _ in parts) * model.prefill_token
        work = filling + out * (model.decode_sequence + model.iteration / together)
        made, total = [], 0
        for length in items:
            total += length
            at = known + (total - 1) * pace
            made.append(Step(f"{name}, part", on, 0.0, at, 0.0, _least(model, prompt, (total - 1) * pace)))
        begins = min(at for _, at in parts)
        after = _least(model, prompt, end - known)
        return self._add(Step(name, on, begins, end, work, after, known, tuple(made), out, pace, filling))

    def beside(self, steps: Sequence[Step]) -> list[Step]:
        """Returns requests to one LLM as they can end at best if a call makes all of them, in the order of their ends.

        One of the instances serves at least its share of the first k that end. Until the last of these has ended it has
        prefilled all of their prompts, and each of the iterations that wrote the last one's text took its time. That
        holds for every order and division into iterations; that a request is alone on the LLM, for none.
        """
        model: LLMProfile = getattr(self.setting, steps[0].engine)
        begins, devices = min(step.begins for step in steps), self.setting.devices(steps[0].engine)
        least = sorted(step.filling for step in steps)
        tokens = min(step.tokens for step in steps)
        found = []
        for k, step in enumerate(sorted(steps, key=lambda each: each.end)):
            share = -(-(k + 1) // devices)
            decoding = share * max(tokens - 1, 0) * model.decode_sequence
            end = begins + sum(least[:share]) + tokens * model.iteration + model.prefill + decoding
            found.append(replace(step, end=max(step.end, end)))
            self.steps[next(i for i, each in enumerate(self.steps) if each is step)] = found[-1]
        return found

    def batch(self, name: str, engine: str, items: Sequence[Part]) -> Step:
        """Items for a batch engine: ``embedder`` or ``reranker``.

        The k-th item of the step is the k-th part that ends, if parts are served in the order of their arrival.
        """
        model: BatchProfile = getattr(self.setting, engine)
        parts = sorted(((0.0 if step is None else step.end, n) for n, step in items if n), key=lambda part: part[0])
        total = sum(n for _, n in parts)
        work = total * (model.item + model.call / model.max_batch)
        begins, after = parts[0][0], _served(model, items)
        ends = [_batched(model, parts[: k + 1]) for k in range(len(parts))]
        made = tuple(Step(f"{name}, part", engine, begins, at, 0.0, after) for at in ends)
        return self._add(Step(name, engine, begins, ends[-1], work, after, items=made))

    def wait(self, name: str, seconds: float, *after: Step) -> Step:
        """Something that takes so long whatever else happens, such as a search."""
        begins = max((step.end for step in after), default=0.0)
        needed = tuple((step, seconds) for step in after)
        return self._add(Step(name, "search", begins, begins + seconds, 0.0, needed))

    def _add(self, step: Step) -> Step:
        self.steps.append(step)
        return step

    @property
    def seconds(self) -> float:
        """The limit: the end of the last step."""
        return self.steps[-1].end

    @property
    def limit(self) -> float:
        """The least seconds of a call on idle devices: of the path, or of the work that it brings to one engine."""
        return bound([0.0], [self])

    @property
    def first_token(self) -> float:
        """The same for the first token of the result."""
        return self.steps[-1].first or self.seconds

    def spent(self) -> dict[str, float]:
        """Returns the seconds of the limit by engine: of the critical path, and of work that takes longer."""
        found: dict[str, float] = {}
        step: Step | None = self.steps[-1]
        while step is not None:
            last = max((each for each, _ in step.after), key=lambda each: each.end, default=None)
            found[step.engine] = found.get(step.engine, 0.0) + step.end - (last.end if last else 0.0)
            step = last
        if (more := self.limit - self.seconds) > 1e-9:
            busiest = max(self.work(), key=lambda name: self.head(name) + self.work()[name] + self.tail(name))
            found[busiest] = found.get(busiest, 0.0) + more
        return found

    def work(self) -> dict[str, float]:
        """Returns the seconds of work of the call on each engine, divided by its devices."""
        found: dict[str, float] = {}
        for step in self.steps:
            if step.work:
                share = step.work / self.setting.devices(step.engine)
                found[step.engine] = found.get(step.engine, 0.0) + share
        return found

    def head(self, engine: str) -> float:
        """Returns the earliest moment at which the call has work for an engine."""
        return min(step.begins for step in self.steps if step.engine == engine and step.work)

    def tail(self, engine: str) -> float:
        """Returns the least seconds between the end of the call's work for an engine and its result."""
        rest: dict[int, float] = {}
        for step in reversed(self.steps):
            ways = [
                least + rest[id(each)]
                for each in self.steps
                if id(each) in rest
                for before, least in each.after
                if step is before or any(before is item for item in step.items)
            ]
            rest[id(step)] = max(ways, default=0.0)
        return min(rest[id(step)] for step in self.steps if step.engine == engine and step.work)


def _least(model: LLMProfile, prompt: Sequence[Part], decoding: float) -> tuple[tuple[Step, float], ...]:
    """Returns for each step in a prompt the seconds from its end to the end of ``decoding``.

    What comes behind its text in the prompt is prefilled after it; of a text that is being written, the last token is.
    """
    found = []
    for place, (tokens, step) in enumerate(prompt):
        if step is not None:
            behind = sum(n for n, _ in prompt[place + 1 :]) + (1 if step.pace else tokens)
            found.append((step, _prefilled(model, [(max(behind, 1), 0.0)]) + decoding))
    return tuple(found)


def _served(model: BatchProfile, items: Sequence[Part]) -> tuple[tuple[Step, float], ...]:
    """Returns for each step the seconds for which a batch engine needs its items alone."""
    sizes: dict[int, int] = {}
    steps = {id(step): step for _, step in items if step is not None}
    for n, step in items:
        sizes[id(step)] = sizes.get(id(step), 0) + n
    return tuple((step, _batched(model, [(0.0, sizes[key])]) if sizes[key] else 0.0) for key, step in steps.items())


def _in_order(prompt: Sequence[Part], cached: int) -> list[tuple[int, float]]:
    """Returns tokens and the moment from which they can be prefilled: not before any token in front of them."""
    found: list[tuple[int, float]] = []
    at = 0.0
    for tokens, step in prompt:
        skipped = min(tokens, cached)
        cached -= skipped
        tokens -= skipped
        if step is not None and step.pace and step.tokens >= tokens > 1:
            # A text that is being written is prefilled meanwhile. A few divisions are enough to leave a token or two.
            for left in (256, 64, 16, 4, 1):
                if tokens > left:
                    found.append((tokens - left, at := max(at, step.end - left * step.pace)))
                    tokens = left
        at = max(at, step.end if step is not None else 0.0)
        found.append((tokens, at))
    return [part for part in found if part[0]] or [(1, at)]


def _prefilled(model: LLMProfile, parts: Sequence[tuple[int, float]]) -> float:
    """Returns when the first token is there, by the best division of the prompt into iterations."""
    best = [0.0]
    for j in range(1, len(parts) + 1):
        ways = []
        for i in range(j):
            tokens = sum(n for n, _ in parts[i:j])
            rounds = -(-tokens // model.prefill_tokens)
            costly = max(tokens - rounds * model.free, 0)
            seconds = rounds * (model.iteration + model.prefill) + costly * model.prefill_token
            ways.append(max(best[i], parts[j - 1][1]) + seconds)
        best.append(min(ways))
    return best[-1]


def _batched(model: BatchProfile, parts: Sequence[tuple[float, int]]) -> float:
    """Returns the end of the last batch, by the best division of items, in the order of their arrival, into batches."""
    arrivals = [at for at, n in parts for _ in range(n)]
    best = [0.0]
    for j in range(1, len(arrivals) + 1):
        first = max(0, j - model.max_batch)
        best.append(min(max(best[i], arrivals[j - 1]) + model.call + (j - i) * model.item for i in range(first, j)))
    return best[-1]


def bound(arrivals: Sequence[float], paths: Sequence[Path]) -> float:
    """Returns the least mean seconds of calls that arrive at these moments: the better of both limits.

    For each engine, its devices are put together to one that is as fast as all of them, which serves the call with the
    least work left and may change its mind at any moment: no schedule has a lower mean.
    """
    bounds = [statistics.mean(path.seconds for path in paths)]
    for engine in {name for path in paths for name in path.work()}:
        mine = [(at, path) for at, path in zip(arrivals, paths, strict=True) if engine in path.work()]
        ready = [at + path.head(engine) for at, path in mine]
        ends = _least_left_first(ready, [path.work()[engine] for _, path in mine])
        took = [end + path.tail(engine) - at for end, (at, path) in zip(ends, mine, strict=True)]
        others = [path.seconds for path in paths if engine not in path.work()]
        bounds.append(statistics.mean([*took, *others]))
    return max(bounds)


def _least_left_first(ready: Sequence[float], work: Sequence[float]) -> list[float]:
    """Returns when each job ends on one device, by shortest remaining work."""
    order = sorted(range(len(ready)), key=ready.__getitem__)
    ends, left = [0.0] * len(ready), list[tuple[float, int]]()
    now, place = 0.0, 0
    while place < len(order) or left:
        if not left:
            now = max(now, ready[order[place]])
        while place < len(order) and ready[order[place]] <= now:
            heapq.heappush(left, (work[order[place]], order[place]))
            place += 1
        needed, job = heapq.heappop(left)
        until = ready[order[place]] if place < len(order) else float("inf")
        if now + needed <= until:
            now += needed
            ends[job] = now
        else:
            heapq.heappush(left, (needed - (until - now), job))
            now = until
    return ends
