"""What was read of objects when they were planned: whether it is still so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import is_
from typing import Any

from fineflow.adapters.llamaindex.thread_affinity import MOST
from fineflow.runtime import servers
from fineflow.runtime.queues.component_calls import limit_changes


class Snapshot:
    """What the attributes of objects were when they were planned, by identity; of lists and dicts also up to
    ``MOST`` parts. And what fineflow had been told of servers and limits by then.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._told = _told()
        self._dicts = [vars(obj) for obj in objects if hasattr(obj, "__dict__")]
        self._values = [tuple(_flat(known)) for known in self._dicts]

    def holds(self) -> bool:
        """Whether all of it is still the same."""
        try:
            now = [tuple(_flat(known)) for known in self._dicts]
        except RuntimeError:  # another thread is changing one of the dicts
            return False
        same = (len(old) == len(new) and all(map(is_, old, new)) for old, new in zip(self._values, now, strict=True))
        return self._told == _told() and all(same)


def _told() -> tuple[int, int]:
    return servers.told(), limit_changes()


def _flat(attributes: Mapping[str, Any]) -> Iterator[Any]:
    for value in attributes.values():
        yield value
        if type(value) is list:
            yield from islice(value, MOST)
        elif type(value) is dict:
            yield from islice(value.values(), MOST)
