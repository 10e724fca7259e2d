"""Record of the prefixes of prompts that were sent ahead to a server, and of its refusals."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from fineflow.runtime import events

BLOCK = 256
"""Characters, about 64 tokens: a shorter prefix is not worth a request of its own."""

_KEPT_SECONDS = 240.0  # servers keep a prefix for some minutes (OpenAI: 5 to 10) or until they need the memory
_REMEMBERED = 1 << 14  # blocks
_REFUSALS = 3  # in a row
_REST_SECONDS = 60.0

log = logging.getLogger("fineflow")


class Warmed:
    """Prefixes of prompts that were sent to a server for its prefix cache. Times are those of ``events.now``.

    under_way: number of prefixes that are being sent now.
    """

    def __init__(self) -> None:
        self.under_way = 0
        self._until: OrderedDict[int, float] = OrderedDict()
        self._refusals = 0
        self._rests_until = 0.0

    def known(self, text: str, about: str = "") -> int:
        """Returns the number of leading characters of a text that were sent recently. about: rest of the request."""
        now, found = events.now(), 0
        for key in _keys(text, about):
            if self._until.get(key, 0.0) <= now:
                break
            found += BLOCK
        return found

    @contextmanager
    def sending(self, text: str, about: str = "") -> Iterator[None]:
        """Marks a prefix as sent while the block sends it, and afterwards unless the block raises."""
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
        """Counts an error of a server that refused a prefix or could not be reached; pauses after several in a row."""
        self._refusals += 1
        log.debug("prompt not sent ahead", extra={"event": "warm refused", "engine": name, "why": str(error)})
        if self._refusals == _REFUSALS:
            self._refusals, self._rests_until = 0, events.now() + _REST_SECONDS
            log.warning("%s refuses prefixes of prompts; none are sent for %d s: %s", name, _REST_SECONDS, error)

    def resting(self) -> bool:
        """Returns True during the pause after repeated refusals."""
        return events.now() < self._rests_until


def _keys(text: str, about: str) -> Iterator[int]:
    key = hash(about)
    for start in range(0, len(text) // BLOCK * BLOCK, BLOCK):
        key = hash((key, text[start : start + BLOCK]))
        yield key
