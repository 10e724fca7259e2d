"""Several instances of one engine: where the next work goes, and which of them are still in service (Ayo, section 6).

Load comes first: batches go to an instance that is idle, requests to an LLM to where the fewest tokens of key/value
cache are occupied, those that it would have to compute anew included; so a long prefix that an instance has computed,
or is about to, outweighs a somewhat higher load (Parrot, Algorithm 1: requests with a common prefix share an engine).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import inf
from typing import Any

from fineflow.errors import BackendError
from fineflow.protocols import PrefixCache

_REMEMBERED = 1 << 16  # blocks of prompts per instance


class Instance:
    """One instance: the engine object, and what its queue knows of it.

    name: its lane in timelines. load: items of batches, or tokens of requests, that it works on now. served: how many
    it was given so far. lost: why it was taken out of service, or None.
    """

    def __init__(self, engine: Any, name: str = "") -> None:
        self.engine = engine
        self.name = name or engine.name
        self.load = 0
        self.running = 0
        self.served = 0
        self.lost: BackendError | None = None
        self._held: Counter[int] = Counter()  # blocks of the prompts that it works on
        self._known: OrderedDict[int, None] = OrderedDict()  # blocks that it was given to prefill, the latest last

    def __repr__(self) -> str:
        state = f"lost: {self.lost}" if self.lost is not None else f"{self.running} running, load {self.load}"
        return f"<Instance {self.name}: {state}>"

    @property
    def capacity(self) -> float:
        """Tokens that it has room for at once; unlimited where it does not say."""
        found = getattr(self.engine, "capacity", None)  # of ``Limited``, whose isinstance() takes several microseconds
        return inf if found is None else float(found)

    @property
    def context(self) -> float:
        """Tokens of the longest prompt and output that one request may have; unlimited where it does not say."""
        found = getattr(self.engine, "context", None)
        return inf if found is None else float(found)

    def begin(self, load: int, blocks: Sequence[int] = (), size: int = 0) -> None:
        """It is given work: ``load`` besides the ``blocks`` of ``size``, which count once whoever uses them."""
        self.load += load + sum(size for block in blocks if not self._held[block])
        self._held.update(blocks)
        self.running += 1
        self.served += load + size * len(blocks)
        for block in blocks:
            self._known[block] = None
            self._known.move_to_end(block)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def end(self, load: int, blocks: Sequence[int] = (), size: int = 0) -> None:
        """Work of it has ended."""
        self._held.subtract(blocks)
        for block in blocks:
            if not self._held[block]:
                del self._held[block]
                self.load -= size
        self.load -= load
        self.running -= 1

    def reset(self) -> None:
        """Forgets work that has ended with its event loop."""
        self.load = self.running = 0
        self._held.clear()

    def held(self, blocks: Sequence[int]) -> int:
        """How many blocks at the beginning of a prompt are those of requests that it works on."""
        return sum(1 for _ in takewhile(self._held.__contains__, blocks))

    def known(self, tokens: Sequence[int], blocks: Sequence[int], size: int) -> int:
        """How many tokens at the beginning of a prompt it has computed, or was given to compute."""
        found = size * sum(1 for _ in takewhile(self._known.__contains__, blocks))
        if isinstance(self.engine, PrefixCache):
            found = max(found, self.engine.cached(tokens))
        return found


def block_keys(tokens: Sequence[int], size: int) -> list[int]:
    """Keys of the whole blocks of a prompt; each stands for all the tokens up to its end."""
    keys = [0]
    for start in range(0, len(tokens) // size * size, size):
        keys.append(hash((keys[-1], *tokens[start : start + size])))
    return keys[1:]


def instances_of(engine: Any) -> tuple[Instance, ...]:
    """The instances of an engine: itself, unless it is a group of them."""
    found = getattr(engine, "instances", None)
    return found if isinstance(found, tuple) and isinstance(found[0], Instance) else (Instance(engine),)


def in_service(instances: Iterable[Instance]) -> list[Instance]:
    """Those that have not been lost."""
    return [instance for instance in instances if instance.lost is None]


def idlest(instances: Iterable[Instance]) -> Instance | None:
    """Where the next batch goes: of those that do nothing, the one that has done least; None if all are busy."""
    idle = (instance for instance in in_service(instances) if not instance.running)
    return min(idle, key=lambda instance: instance.served, default=None)


def roomiest(
    instances: Iterable[Instance], tokens: Sequence[int], blocks: Sequence[int], size: int, more: int
) -> Instance | None:
    """Where a request to an LLM goes: where the fewest tokens are occupied or to be computed; None if there is no room.

    blocks, size: keys of the prompt's blocks, tokens per block; more: tokens that it may decode. A request that is
    larger than the capacity runs alone.
    """
    whole = len(tokens) + more
    fitting = [
        instance
        for instance in in_service(instances)
        if not instance.running or instance.load + whole - instance.held(blocks) * size <= instance.capacity
    ]
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    return min(fitting, key=lambda each: (each.load + whole - each.known(tokens, blocks, size), each.served))


def none_left(name: str, instances: Iterable[Instance]) -> BackendError:
    """What is raised when every instance was lost; the last loss is chained."""
    lost = [instance for instance in instances if instance.lost is not None]
    told = "; ".join(f"{instance.name}: {instance.lost}" for instance in lost)
    error = BackendError(f"no instance of engine {name!r} is left ({told}); restore() puts them back into service")
    error.__cause__ = lost[-1].lost if lost else None
    return error
