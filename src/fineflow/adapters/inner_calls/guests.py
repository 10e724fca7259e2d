"""Frameworks whose components are also called in the functions of another one's objects: a node that asks an index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fineflow.adapters.inner_calls.components import Components
from fineflow.adapters.registry import frameworks
from fineflow.options import Options


@dataclass(frozen=True)
class Guest:
    """One such framework.

    is_component: True for what a function calls of it. called: its methods. components: returns what makes its
    ``Components``, which is kept as long as the object with the functions stays as it is. refused: returns a function
    that says why calls of a component may do more than read; "" if they do not.
    """

    is_component: Callable[[Any], bool]
    called: frozenset[str]
    components: Callable[[Options], Callable[[], Components]]
    refused: Callable[[Options], Callable[[Any], str]]


_guests: list[Guest] = []


def register(guest: Guest) -> None:
    """Adds a framework."""
    _guests.append(guest)


def guests() -> Sequence[Guest]:
    """Returns those whose libraries are imported."""
    frameworks()  # imports their adapters
    return _guests


def refused(obj: Any, options: Options) -> str:
    """Returns why calls of a component may do more than read; "" if they do not, or nobody here knows it."""
    return next((guest.refused(options)(obj) for guest in guests() if guest.is_component(obj)), "")
