"""What of prompts was sent to a server ahead of them, and whether it wants to hear of that."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from fineflow.runtime import events

BLOCK = 256
"""Characters; about 64 tokens, from which on computing a beginning by itself is worth a request."""

_KEPT_SECONDS = 240.0  # servers keep a prefix for some minutes (OpenAI: 5 to 10) or until they need the room
_REMEMBERED = 1 << 14  # blocks
_REFUSALS = 3  # in a row
_REST_SECONDS = 60.0

log = logging.getLogger("fineflow")


class Warmed:
    """The beginnings of prompts that a server was given for its prefix cache. Seconds are those of ``events.now``.

    under_way: how many it is being given now.
    """

    def __init__(self) -> None:
        self.under_way = 0
        self._until: OrderedDict[int, float] = OrderedDict()
        self._refusals = 0
        self._rests_until = 0.0

    def known(self, text: str, about: str = "") -> int:
        """Characters at the beginning of a text that were sent not long ago; about: what else was said."""
        now, found = events.now(), 0
        for key in _keys(text, about):
            if self._until.get(key, 0.0) <= now:
                break
            found += BLOCK
        return found

    @contextmanager
    def sending(self, text: str, about: str = "") -> Iterator[None]:
        """The block has the server compute a beginning: known from now on, unless that fails or is broken off."""
        until, now = events.now() + _KEPT_SECONDS, events.now()
        keys = list(_keys(text, about))
        fresh = [key for key in keys if self._until.get(key, 0.0) <= now]
        for key in keys:
            self._until[key] = until
            self._until.move_to_end(key)
        while len(self._until) > _REMEMBERED:
            self._until.popitem(last=False)
        self.under_way += 1
        try:
            yield
        except BaseException:
            for key in fresh:
                self._until.pop(key, None)
            raise
        finally:
            self.under_way -= 1
        self._refusals = 0

    def refused(self, name: str, error: Exception) -> None:
        """The server has refused a beginning, or could not be reached."""
        self._refusals += 1
        log.debug("prompt not sent ahead", extra={"event": "warm refused", "engine": name, "why": str(error)})
        if self._refusals == _REFUSALS:
            self._refusals, self._rests_until = 0, events.now() + _REST_SECONDS
            log.warning("%s refuses beginnings of prompts, and gets none for %d s: %s", name, _REST_SECONDS, error)

    def resting(self) -> bool:
        """Whether it has refused so often that it is left alone now."""
        return events.now() < self._rests_until


def _keys(text: str, about: str) -> Iterator[int]:
    key = hash(about)
    for start in range(0, len(text) // BLOCK * BLOCK, BLOCK):
        key = hash((key, text[start : start + BLOCK]))
        yield key
