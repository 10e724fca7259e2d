"""Placement of work on several instances of one engine, and their state (Ayo, section 6).

A batch goes to an idle instance. A request to an LLM goes where it costs least: the tokens that occupy an instance
already, and those of its prompt that the instance would have to compute, which count once for it and once more for
every request that runs there, as all of them wait for that. So requests with a long common prefix share an instance
while it is busy, and spread over idle ones (Parrot, Algorithm 1: together, unless load says otherwise).

An instance with a ``latency_capacity`` takes no more than that while a request runs on it that has to be quick, and its
full capacity otherwise. So quick requests share instances, and others go elsewhere (Parrot, section 5.4: an engine's
capacity follows its strictest request).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from fineflow.errors import BackendError, RequestError
from fineflow.protocols import PrefixCache
from fineflow.runtime import events
from fineflow.runtime.queues.prompts import Prompt

_REMEMBERED = 1 << 16  # blocks of prompts per instance
_REST_SECONDS = 30.0  # after which an instance that is out of service is tried again
_LONGEST_REST = 480.0  # if that fails, the next rest is twice as long, up to this
_NONE = Prompt((), 1)


class Instance:
    """One instance: the engine object, and its state as its queue sees it.

    name: lane in timelines. load: items of running batches, or tokens of running requests. running: batches or requests
    that run now; quick: those of them that have to be quick. kept: for one of these that waits. served: items or tokens
    given to it so far. lost: the error that took it out of service, until a request that tries it again succeeds.
    """

    def __init__(self, engine: Any, name: str = "") -> None:
        self.engine = engine
        self.name = name or engine.name
        self.load = 0
        self.running = 0
        self.quick = 0
        self.kept = False
        self.served = 0
        self.lost: BackendError | None = None
        self.suspected = False  # lost by an error that may have been due to the request
        self._lost_at = 0.0
        self._rest = _REST_SECONDS
        self._held: Counter[int] = Counter()  # blocks of the prompts of running requests
        self._known: OrderedDict[int, None] = OrderedDict()  # blocks given to it to prefill, latest last
        self.computing: list[Computing] = []  # what running requests have not computed yet

    def __repr__(self) -> str:
        state = f"lost: {self.lost}" if self.lost is not None else f"{self.running} running, load {self.load}"
        return f"<Instance {self.name}: {state}>"

    def lose(self, error: Exception, rest: float = _REST_SECONDS) -> None:
        """Takes it out of service for a while: for longer each time that a request has tried it again in vain.

        rest: seconds until the first one tries.
        """
        if self.lost is None:
            self._rest = rest
        elif self.serves:
            self._rest = min(2 * self._rest, _LONGEST_REST)
        self.suspected = not isinstance(error, BackendError)
        if isinstance(error, BackendError):
            self.lost = error
        else:
            self.lost = BackendError(f"engine {self.name!r} raised {type(error).__name__}: {error}")
            self.lost.__cause__ = error
        self._lost_at = events.now()

    def worked(self, since: float) -> None:
        """Puts it back into service if a request succeeded that began at ``since``, to try it again."""
        if self.lost is not None and since - self._lost_at >= self._rest:
            self.lost = None

    @property
    def serves(self) -> bool:
        """True if it is in service, or is to be tried again."""
        return self.lost is None or events.now() - self._lost_at >= self._rest

    @property
    def capacity(self) -> float:
        """Tokens that fit into its KV cache; infinite if the engine reports no capacity."""
        found = getattr(self.engine, "capacity", None)  # of ``Limited``; its isinstance() takes several microseconds
        return inf if found is None else float(found)

    @property
    def latency_capacity(self) -> float:
        """Tokens up to which requests that have to be quick are; the capacity if the engine names no such limit."""
        found = getattr(self.engine, "latency_capacity", None)
        return self.capacity if found is None else min(float(found), self.capacity)

    def limit(self, *, quick: bool) -> float:
        """Returns the tokens that it may work on with one more request, which has to be quick or not."""
        if self.kept and not quick:
            return 0
        return self.latency_capacity if quick or self.quick else self.capacity

    @property
    def context(self) -> float:
        """Most tokens of prompt and output of one request together; infinite if the engine reports no limit."""
        found = getattr(self.engine, "context", None)
        return inf if found is None else float(found)

    def begin(self, load: int, prompt: Prompt = _NONE, *, quick: bool = False, rank: int = 0) -> Computing | None:
        """Adds work: ``load``, and the blocks of a prompt; a block that several requests share counts once.

        Returns what is in ``computing`` until the blocks are computed; None if they are already. rank: of the request.
        """
        blocks, size = prompt.keys, prompt.size
        fresh = frozenset(block for block in blocks if block not in self._known)
        if isinstance(self.engine, PrefixCache):
            fresh = frozenset(blocks)  # it may have dropped some; its cache says which are there
        made = Computing(fresh, blocks[0], rank) if fresh else None
        if made is not None:
            self.computing.append(made)
        self.load += load + sum(size for block in blocks if not self._held[block])
        self._held.update(blocks)
        self.running += 1
        self.quick += quick
        self.served += load + size * len(blocks)
        for block in blocks:
            self._known[block] = None
            self._known.move_to_end(block)
        while len(self._known) > min(_REMEMBERED, max(self.capacity / max(size, 1), len(self._held))):
            self._known.popitem(last=False)
        return made

    def end(self, load: int, prompt: Prompt = _NONE, *, quick: bool = False) -> None:
        """Removes work that has ended."""
        self._held.subtract(prompt.keys)
        for block in prompt.keys:
            if not self._held[block]:
                del self._held[block]
                self.load -= prompt.size
        self.load -= load
        self.running -= 1
        self.quick -= quick

    def reset(self) -> None:
        """Drops all work: it ended with its event loop."""
        self.load = self.running = self.quick = 0
        self._held.clear()
        self.computing.clear()

    def held(self, prompt: Prompt) -> int:
        """Returns the number of leading tokens of a prompt that running requests hold."""
        return prompt.leading(self._held)

    def known(self, prompt: Prompt) -> int:
        """Returns the number of leading tokens of a prompt that it has computed, or was given to compute."""
        if not prompt.keys or prompt.keys[0] not in self._known:
            return 0  # an engine's cache has what came through its queue
        if isinstance(self.engine, PrefixCache):
            return max(prompt.cached_in(self.engine), self.held(prompt))
        return prompt.leading(self._known)

    def computes(self, prompt: Prompt, rank: int) -> int:
        """Returns how many more tokens of a prompt will be known once a request that runs has computed its own.

        Only those of requests with at least this rank count: another one may wait in the engine for longer.
        """
        first = prompt.keys[0] if prompt.keys else None
        able = [each.blocks for each in self.computing if each.rank >= rank and each.first == first]
        if not able:
            return 0
        if isinstance(self.engine, PrefixCache):
            ready = prompt.cached_in(self.engine)
        else:
            under_way = frozenset[int]().union(*(each.blocks for each in self.computing))
            new = (i for i, key in enumerate(prompt.keys) if key not in self._known or key in under_way)
            ready = prompt.size * next(new, len(prompt.keys))
        return max(prompt.leading(each, ready // prompt.size) for each in able)


@dataclass(frozen=True, eq=False, slots=True)
class Computing:
    """The blocks of a prompt that is being prefilled: all keys, the first one, and the rank of its request."""

    blocks: frozenset[int]
    first: int
    rank: int


def instances_of(engine: Any) -> tuple[Instance, ...]:
    """Returns the instances of an engine: one, unless it is a group."""
    found = getattr(engine, "instances", None)
    return found if isinstance(found, tuple) and isinstance(found[0], Instance) else (Instance(engine),)


def in_service(instances: Iterable[Instance]) -> list[Instance]:
    """Returns the instances that are not lost, and those of which it is time to try them again.

    One request at a time tries, as long as there are others.
    """
    able = [instance for instance in instances if instance.serves]
    sound = [instance for instance in able if instance.lost is None or not instance.running]
    return sound if any(instance.lost is None for instance in sound) else able


def blame(instance: Instance, error: Exception, instances: Iterable[Instance], earlier: Instance | None) -> bool:
    """Takes an instance out of service that failed at a request, if that is its fault; returns False if it is not.

    A BackendError is. Any other error may be due to the request, so another instance shows it: if that fails, too, or
    there is none, neither is out of service. earlier: the one that failed at this request before.
    """
    if isinstance(error, RequestError):
        return False
    if not isinstance(error, BackendError):
        if earlier is not None and earlier.suspected:
            earlier.lost = None
            return False
        if not any(each is not instance and each.serves for each in instances):
            return False
    instance.lose(error)
    return True


def idlest(instances: Iterable[Instance]) -> Instance | None:
    """Returns the instance for the next batch: the idle one that served least; None if all are busy."""
    idle = (instance for instance in in_service(instances) if not instance.running)
    return min(idle, key=lambda instance: instance.served, default=None)


@dataclass(frozen=True, slots=True)
class Asked:
    """What placement knows of a request. output: tokens reserved for the output. quick: it has to be quick."""

    prompt: Prompt
    output: int
    quick: bool = False

    @property
    def whole(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt) + self.output


def roomiest(
    instances: Iterable[Instance],
    asked: Asked,
    *,
    mixing: bool = False,
    affinity: bool = True,
    waiting: Mapping[Instance, int] | None = None,
) -> tuple[Instance | None, Instance | None]:
    """Returns the instance for an LLM request, None if all are full, and the full one that it had better wait for.

    mixing: there are requests that have to be quick and others; where instances have a ``latency_capacity``, they go
    apart, if they can. affinity: False counts load only, wherever the prompt's prefix is. waiting: if given, tokens of
    requests that wait for each instance; the second result is then an instance that is full, but costs less than the
    first. A request larger than the capacity runs alone.
    """
    able = in_service(instances)
    fitting = [
        each
        for each in able
        if not each.running or each.load + asked.whole - each.held(asked.prompt) <= each.limit(quick=asked.quick)
    ]
    if len(able) < 2 or not fitting or (len(fitting) < 2 and waiting is None):
        return (fitting[0] if fitting else None), None
    ranks = {each: _harm(each, quick=asked.quick) if mixing else 0 for each in able}
    costs = {each: _cost(each, asked, affinity) + (waiting or {}).get(each, 0) for each in able}
    best = min(fitting, key=lambda each: (ranks[each], costs[each], each.served))
    if waiting is None:
        return best, None
    full = min((each for each in able if each not in fitting), key=costs.__getitem__, default=best)
    return best, full if costs[full] < costs[best] else None


def _cost(instance: Instance, asked: Asked, affinity: bool) -> float:
    """Returns the tokens that a request would wait for or with on an instance, and make others wait for."""
    if not affinity:
        return instance.load
    shared = instance.held(asked.prompt)  # occupies no further room, and is no work
    new = len(asked.prompt) - instance.known(asked.prompt)
    return instance.load - shared + asked.output + new * (1 + instance.running)


def separates(instance: Instance) -> bool:
    """Returns True for an instance that takes less while a request runs that has to be quick."""
    return instance.latency_capacity < instance.capacity


def keep_one(instances: Iterable[Instance]) -> bool:
    """Keeps an instance for requests that have to be quick: one where such run, or the idlest. False if none can be."""
    able = [each for each in in_service(instances) if separates(each)]
    if able:
        min(able, key=lambda each: (not each.quick, each.load)).kept = True
    return bool(able)


def _harm(instance: Instance, *, quick: bool) -> int:
    """Returns how much a request would change what an instance may take: 0 for not at all, up to 2."""
    if instance.latency_capacity >= instance.capacity or (bool(instance.quick) is quick and instance.running):
        return 0
    return 1 if not instance.running and quick else 2 * (quick or bool(instance.quick))


def none_left(name: str, instances: Iterable[Instance]) -> BackendError:
    """Returns the error for requests when every instance is lost; the last loss is its cause."""
    lost = [instance for instance in instances if instance.lost is not None]
    losses = "; ".join(f"{instance.name}: {instance.lost}" for instance in lost)
    error = BackendError(f"no instance of engine {name!r} is left ({losses}); restore() puts them back into service")
    error.__cause__ = lost[-1].lost if lost else None
    return error
