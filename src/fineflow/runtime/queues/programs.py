"""Identity of requests for engines behind a router, with what the app's own calls teach about their steps.

A program is a conversation that the caller named, or else one call of an optimized object, with all its requests (the
word of vLLM's router). Of each step are learned: the tokens that it decodes, whether its call makes another request
afterwards, and how soon.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple

from fineflow.cost_model.costs import Means, learn, place
from fineflow.ir import Op
from fineflow.protocols import RequestIdentity
from fineflow.runtime import events
from fineflow.runtime.loop.forks import in_forked_children
from fineflow.runtime.loop.scopes import remaining
from fineflow.runtime.queues import request_context

_ENOUGH = 3  # requests of a step before anything is said of the next one
_NEVER, _MOSTLY = 0.02, 0.5  # shares of its requests that are followed by another one
_REMEMBERED = 4096  # calls whose latest requests are known
_NUMBERED = 64  # requests of a call that are told apart

_Step = tuple[str, Op, str]  # engine, operation, place of the primitive


class Begun(NamedTuple):
    """A request that has begun: what its engine is told, and where it belongs."""

    identity: RequestIdentity
    query: str
    step: _Step


@dataclass(slots=True)
class _Requests:
    """Requests of one program in one call: how many have begun, and the one that ended last, unless one followed."""

    begun: int = 0
    last: tuple[_Step, float] | None = None


class Programs:
    """What requests of each step were like, and which request of each program ended last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._output: Means = {}
        self._followed: Means = {}
        self._gap: Means = {}
        self._calls: OrderedDict[str, dict[str, _Requests]] = OrderedDict()  # query -> program

    def began(self, query: str, program: str) -> int:
        """Notes that a program makes a request; returns its number among those of the call."""
        with self._lock:
            if query not in self._calls and len(self._calls) >= _REMEMBERED:
                self._calls.popitem(last=False)
            found = self._calls.setdefault(query, {}).setdefault(program, _Requests())
            found.begun += 1
            if found.last is not None:
                step, when = found.last
                found.last = None
                learn(self._followed, step, 1.0)
                learn(self._gap, step, events.now() - when)
            return found.begun

    def ended(self, begun: Begun, tokens: int) -> None:
        """Notes that a request has ended well. tokens: decoded."""
        with self._lock:
            learn(self._output, begun.step, tokens)
            found = self._calls.get(begun.query, {}).get(begun.identity.program)
            if found is not None:
                found.last = begun.step, events.now()

    def over(self, query: str) -> None:
        """Notes that a call has ended: none of its programs makes another request in it."""
        if not self._calls:
            return
        with self._lock:
            for found in self._calls.pop(query, {}).values():
                if found.last is not None:
                    learn(self._followed, found.last[0], 0.0)

    def usual(self, step: _Step) -> tuple[float | None, float | None, float | None]:
        """Returns a step's mean tokens, share of requests that were followed by another, and mean seconds until then.

        None for what was not observed often enough.
        """
        with self._lock:
            output, followed, gap = (_mean(each, step) for each in (self._output, self._followed, self._gap))
        return output, followed, gap

    def forget(self) -> None:
        """Forgets everything."""
        with self._lock:
            for each in (self._output, self._followed, self._gap, self._calls):
                each.clear()


programs = Programs()
request_context.watchers.append(programs.over)
_process = ""  # set when it is first needed


def program() -> str:
    """Returns the id of the current program; "" outside of calls. Routers see those of many processes."""
    global _process
    if named := request_context.session.get():
        return named
    if not (query := request_context.query.get()):
        return ""
    if not _process:
        _process = uuid.uuid4().hex
    return f"{_process}-{query}"


def known(engine: Any) -> RequestIdentity | None:
    """Returns what is known of the current call, for an engine that ``identifies``; None for others."""
    if not getattr(engine, "identifies", False):
        return None
    return RequestIdentity(
        program(),
        request_context.parent.get(),
        request_context.tenant.get(),
        request_context.priority.get(),
        request_context.objective.get(),
        remaining(),
    )


def begins(engine: Any, most: int) -> Begun | None:
    """Notes that a request begins; returns what its engine is told, None if it ``identifies`` nothing.

    most: tokens that it may decode.
    """
    if (identity := known(engine)) is None:
        return None
    query = request_context.query.get()
    number = programs.began(query, identity.program) if query else 1
    # Stock's own requests, and those of functions, are for no primitive: their number tells what they are usually like.
    step = engine.name, Op.DECODE, place(events.subject("")) or f"request {min(number, _NUMBERED)}"
    output, followed, gap = programs.usual(step)
    identity = replace(
        identity,
        output=None if output is None else min(ceil(output), most),
        gap=gap if followed is not None and followed > _MOSTLY else None,
        last=not request_context.session.get() and followed is not None and followed < _NEVER,
    )
    return Begun(identity, query, step)


def ends(begun: Begun | None, tokens: int) -> None:
    """Notes that a request has ended well. tokens: decoded."""
    if begun is not None:
        programs.ended(begun, tokens)


def told(identity: RequestIdentity | None) -> dict[str, Any]:
    """Returns the keyword argument of an engine's method; none if the engine does not take it."""
    return {} if identity is None else {"identity": identity}


def _mean(means: Means, step: _Step) -> float | None:
    count, mean = means.get(step, (0, 0.0))
    return mean if count >= _ENOUGH else None


@in_forked_children
def _forked() -> None:
    global _process
    _process = ""
    programs.forget()
