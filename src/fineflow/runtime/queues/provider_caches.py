"""Prompt caches of providers: of requests ahead that share a long beginning, one writes it and the others read it.

A provider can read a beginning from its cache once the response to a request that wrote it has begun. Requests that are
sent together all miss, and all are billed the writing. So the first goes, and the others follow when its response
begins. The hashes of beginnings are those of the queues of engines (``prompts``), where one request computes and the
others follow, too. What stock waits for does not wait for others of stock's, whose order is the most that is written.
A call of its own waits for one that has just gone ahead of it, where the cache is known: two writings cost more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from fineflow.runtime import events
from fineflow.runtime.queues.prompts import Prompt
from fineflow.runtime.queues.request_context import query

WARM, IGNORE = "warm", "ignore"

mode: ContextVar[str] = ContextVar("fineflow_cache", default="")
"""What the call's options say: ``WARM``, ``IGNORE``, or "" for where such a cache is known, or may be there."""

BLOCK = 512
"""Bytes of a block, the unit in which beginnings are compared: 128 tokens, about."""

LEAST = 3072
"""Bytes from which on beginnings count: providers cache them from 1,024 tokens on."""

KEPT = 300.0
"""Seconds for which a provider keeps a beginning after its last use."""

_MOST = 65_536  # blocks that are remembered of a model
_lock = threading.RLock()


class Cacheable(NamedTuple):
    """The part of a request that a provider may cache. explicit: the request says so, by a breakpoint at its end."""

    text: str
    explicit: bool


beginning_readers: list[Callable[[Any], Cacheable | None]] = []
"""Functions that find the beginning of a request in the arguments of a claim. Adapters append theirs at import."""


def beginning_of(key: Any) -> Cacheable | None:
    """Returns the beginning of a request with these arguments, if it is long enough for a cache."""
    if mode.get() == IGNORE:
        return None
    for read in beginning_readers:
        try:
            if (found := read(key)) is not None and len(found.text) >= LEAST:
                return found
        except Exception:  # of a class of the user's
            continue
    return None


class ProviderCache:
    """What is known of a provider's cache for one model.

    known: True if its responses tell of one, False if they do not; None before the first response, which will tell.

    Until a response has told that something was read, what one call has written is believed to be there for this call
    only: nobody would notice that the cache has dropped it.
    """

    def __init__(self) -> None:
        self.known: bool | None = None
        self._read_before = False
        self._readable = OrderedDict[int, tuple[float, str]]()  # hash of a block -> when it is forgotten, query
        self._pending: dict[int, Writing] = {}

    def enter(
        self, beginning: Cacheable | None, wake: Callable[[], object] | None, *, own: bool = False
    ) -> Writing | None:
        """Returns the part of a request that may begin; None if it had better follow another one: then it is woken.

        wake: None for a request that does not wait. own: stock's own, which follows only one that runs ahead of it.
        """
        certain = beginning is not None and (bool(self.known) or beginning.explicit or mode.get() == WARM)
        if beginning is None or (self.known is False and not certain):
            return Writing(self, ())
        keys = Prompt(beginning.text.encode(errors="replace"), BLOCK).keys
        with _lock:
            now = events.now()
            read = self._read(keys, now)
            first: Writing | None = None
            for number, key in enumerate(keys):
                if (each := self._pending.get(key)) is not None:
                    if (number + 1) * BLOCK >= LEAST:
                        first = each
                elif number >= read:
                    break
            if first is not None and wake is not None and (not own or (first.ahead and certain)):
                first.followers.append(wake)
                return None
            made = Writing(self, keys, believed=read * BLOCK >= LEAST)
            for key in keys[read:]:
                self._pending.setdefault(key, made)
            return made

    def told(self, cached: int | None, by: Writing) -> None:
        """Takes note of the cached tokens that a response tells of a request; None if it tells none."""
        with _lock:
            self.known = self.known or cached is not None
            if cached:
                self._read_before = True
            elif cached == 0 and by.believed:  # the provider has dropped it
                self._read_before = False
                self._readable.clear()

    def _read(self, keys: Sequence[int], now: float) -> int:
        """Returns the number of blocks that can be read, which are kept from now on."""
        for number, key in enumerate(keys):
            until, by = self._readable.get(key, (now, ""))
            if until <= now or not (self._read_before or by == query.get()):
                return number
            self._keep(key, now)
        return len(keys)

    def _keep(self, key: int, now: float) -> None:
        self._readable[key] = now + KEPT, query.get()
        self._readable.move_to_end(key)
        if len(self._readable) > _MOST:
            self._readable.popitem(last=False)

    def written(self, by: Writing, *, good: bool) -> None:
        """Notes that the response to a request has begun, or that it failed (not ``good``), and wakes its followers."""
        with _lock:
            now = events.now()
            for key in by.keys:
                if self._pending.get(key) is by:
                    del self._pending[key]
                if good:
                    self._keep(key, now)
            followers, by.followers = by.followers, []
        for wake in followers:
            wake()


class Writing:
    """One request that writes its beginning to a provider's cache, as long as its response has not begun.

    believed: a part of the beginning that is worth it was believed to be there. ahead: it runs, and stock did not wait
    for it when it began.
    """

    __slots__ = ("_cache", "ahead", "believed", "followers", "keys")

    def __init__(self, cache: ProviderCache, keys: Sequence[int], *, believed: bool = False) -> None:
        self._cache = cache
        self.believed, self.ahead = believed, False
        self.keys = keys
        self.followers: list[Callable[[], object]] = []

    def told(self, cached: int | None) -> None:
        """Takes note of the cached tokens that the response tells; None if it tells none."""
        self._cache.told(cached, self)

    def over(self, *, good: bool) -> None:
        """Notes that the response has begun or ended, or that there is none. Later calls change nothing."""
        if self.keys:
            self._cache.written(self, good=good)
            self.keys = ()
