"""Decisions of the queue of an LLM: which request goes next, to which instance, and which had better wait.

The policy orders the requests. Those whose prompts begin alike stay together; one of them computes what they share, and
the others follow. Requests that have to be quick come first where instances have a ``latency_capacity``.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

from fineflow.ir.objectives import THROUGHPUT, TPOT, TTFT
from fineflow.protocols import LLMEngine
from fineflow.runtime.queues.decode_stream import DecodeStream
from fineflow.runtime.queues.engine_queue import SETTLE_ITERATIONS, EngineQueue
from fineflow.runtime.queues.llm_request import (
    IN_A_ROW,
    LLMRequest,
    count_passed,
    earliest_first,
    in_groups,
)
from fineflow.runtime.queues.next_request import KeptRoom
from fineflow.runtime.queues.placement import (
    Instance,
    in_service,
    keep_one,
    none_left,
    roomiest,
    separates,
)
from fineflow.runtime.queues.policy import PATIENCE, Policy, by_start, decide, mixes
from fineflow.runtime.queues.prompts import least


class Admissions(EngineQueue[LLMRequest]):
    """Requests that wait for an engine or a group of instances, and the decisions about them."""

    engine: LLMEngine

    def __init__(self, engine: LLMEngine, policy: Policy) -> None:
        super().__init__(engine, policy)
        self._prefills: dict[int, LLMRequest] = {}  # prefills in the line, by number
        self._asking: Counter[str] = Counter()  # requests that decode, or wait to, by query
        self._served: set[LLMRequest] = set()  # requests that decode, or wait to
        self._yielding: set[asyncio.Future[None]] = set()  # of requests ahead of stock that let others finish
        self._streams: set[DecodeStream] = set()
        self._full = False  # True while requests wait for room, not only for the next decision
        self._overtaking = 0  # requests that had to be quick, admitted since another one was
        self._room_for = 0  # requests that ran, or had room kept for them, when the last one did not fit
        self._passing = 0  # requests admitted in a row while one waited that had arrived before them
        self._probed: tuple[Policy | None, bool] = (None, True)
        self._iterations = 0  # of the event loop, until the next decision
        self._kept_room = KeptRoom(self._decide_soon)

    def recheck(self) -> None:
        """See ``EngineQueue``."""
        self._decide_soon()

    def _begin_anew(self) -> None:
        self._iterations = 0
        self._prefills.clear()
        self._asking.clear()
        self._served.clear()
        self._yielding.clear()
        self._streams.clear()
        self._kept_room.clear()

    def _decide_soon(self) -> None:
        """Admits requests now if the policy mixes queries and no capacity limits them, else a few iterations later.

        The end of a request often causes the next one of its query, which may be deeper than the waiting ones.
        """
        if not self._line:
            return
        if self._mixes() and not self._limited():
            self._admit()
        elif not self._iterations:
            self._iterations = SETTLE_ITERATIONS
            self._iterate()

    def _iterate(self) -> None:
        if not self._here():
            return
        self._iterations -= 1
        if self._iterations:
            asyncio.get_running_loop().call_soon(self._iterate, context=contextvars.Context())
        else:
            self._admit()

    def _limited(self) -> bool:
        return any(min(each.capacity, each.latency_capacity) < inf for each in self.instances)

    def _mixes(self) -> bool:
        """Returns True if the policy lets queries share the engine. An error of the policy is raised at a decision."""
        if self._probed[0] is not self.policy:
            self._probed = self.policy, True
            with suppress(Exception):
                self._probed = self.policy, mixes(self.policy)
        return self._probed[1]

    def _admit(self) -> None:
        """Admits requests in order until one does not fit: it waits, and so do all after it.

        If that one has to be quick, an instance is kept for it, and later requests go to the others. A request that
        gains by waiting (``_place``) lets others pass, at most ``PATIENCE``; so many may wait like that at a time.
        """
        for request in self._line:
            if request.room.done():  # cancelled, or a prefill that is not needed
                self._line.leave(request)
        if not in_service(self.instances):
            self._fail_waiting(none_left(self.engine.name, self.instances))
        try:
            mixed = self._mixes()
            instances = [instance for instance in self.instances if mixed or not instance.running]
            instances = [instance for instance in instances if not self._kept_room.keeps(instance)]
            self._full = kept = mixing = False
            line = self._line.order(self.policy, self._line.items)
            turns = line
            if self.policy is by_start and self._passing >= IN_A_ROW:
                turns = earliest_first(line, 2 * self._room_for - self.running)
            order: Iterable[LLMRequest] = in_groups(turns) if mixed else turns
            separate = any(map(separates, self.instances))
            if separate:
                order = first = self._quick_first(order)
                mixing = not all(each.quick for each in first) or any(each.running > each.quick for each in instances)
            waiting: Counter[Instance] = Counter()
            passed: list[LLMRequest] = []
            for request in order:
                if kept and request.quick:
                    continue  # behind the one that waits
                instance, gains = self._place(request, instances, waiting, mixing=mixing)
                if gains and len(passed) < PATIENCE:
                    passed.append(request)
                    self._waits_for_room()
                elif instance is not None:
                    self._begin(request, instance)
                    if count_passed(request, self._passed_by(request, line, passed) if separate else line):
                        break
                else:
                    self._room_for = self.running + len(self._kept_room)
                    self._waits_for_room()
                    kept = request.quick and keep_one(instances)
                    if not kept:
                        return
            else:
                return
            self._decide_soon()  # for a request that lets no more pass
        except Exception as error:  # from a user's policy: all waiting requests raise it
            self._fail_waiting(error)

    def _waits_for_room(self) -> None:
        """Has engines read to the end of what runs, also for slow readers: one may wait for the request that waits."""
        self._full = True
        for stream in self._streams:
            stream.recheck()

    def _passed_by(
        self, request: LLMRequest, line: Sequence[LLMRequest], passed: Sequence[LLMRequest]
    ) -> Sequence[LLMRequest]:
        """Returns the requests that one passes where quick ones go first: these pass any number of the others."""
        return passed if request.quick else [each for each in line if not each.quick]

    def _begin(self, request: LLMRequest, instance: Instance) -> None:
        self._line.serve((request, request.seen.items))
        self._overtaking = self._overtaking + 1 if request.quick else 0
        first = self._line.earliest(request)
        self._passing = self._passing + 1 if first is not None and first.seen.number < request.seen.number else 0
        request.computing = instance.begin(request.alone, request.prompt, quick=request.quick, rank=request.seen.rank)
        request.room.set_result(instance)

    def _quick_first(self, order: Iterable[LLMRequest]) -> list[LLMRequest]:
        """Returns requests in order, those that have to be quick before others.

        Otherwise these would fill again what an instance has drained for a quick one. After ``PATIENCE`` quick ones in
        a row the order counts, so none waits without end.
        """
        found = list(order)
        for request in found:
            request.quick = self._has_to_be_quick(request)
        for instance in self.instances:
            instance.kept = False
        if self._overtaking < PATIENCE:
            found.sort(key=lambda request: not request.quick)
        return found

    def _has_to_be_quick(self, request: LLMRequest) -> bool:
        """Returns True if a request counts by itself: each for "tpot"; for "latency" one that its call waits for alone.

        Requests of one call that run concurrently are a task group, whose last one counts (Parrot, section 5.2). Here
        those that are in the queue together, so calls inside functions of the user's form groups, too.
        """
        if not self._deduces:
            return True
        asked = request.seen.objective
        if request.seen.number in self._prefills or asked in (THROUGHPUT, TTFT):
            return False
        return asked == TPOT or self._asking[request.seen.query] < 2

    def _place(
        self, request: LLMRequest, instances: Sequence[Instance], waiting: Counter[Instance], *, mixing: bool
    ) -> tuple[Instance | None, bool]:
        """Returns the instance for a request (None if all are full), and True if it gains by waiting now.

        It does if another instance, which is full, has its prefix; and if a running request computes a prefix of it,
        which it would compute again. One that has let ``PATIENCE`` others pass does not wait any more.

        waiting: tokens of earlier requests that wait for a full instance; this one's are added.
        """
        free = request.passed < PATIENCE
        several = free and not mixing and self._affinity
        best, better = roomiest(
            instances, request.asked, mixing=mixing, affinity=self._affinity, waiting=waiting if several else None
        )
        if better is not None:
            waiting[better] += request.seen.items
            return best, True
        return best, free and best is not None and self._follows(request, best)

    def _follows(self, request: LLMRequest, instance: Instance) -> bool:
        """Returns True if a request had better wait for a running one that computes a prefix of its prompt.

        It then computes less, but in an iteration of its own. Even if that takes longer (some engines compute a few
        hundred tokens at no cost in time), it leaves room in the iterations of others, and calls ahead compute no more
        than stock's, of which a later one finds what the earlier one has computed. Engines that share a prefix with
        ``shares_at_once`` do the same by themselves.
        """
        if not instance.computing or getattr(instance.engine, "shares_at_once", False):
            return False
        return instance.computes(request.prompt, request.seen.rank) >= least(instance.engine)

    def _comes_first_again(self, request: LLMRequest) -> bool:
        """Returns True if the next request of a query that has none in the queue would come before all that wait."""
        if not self._line or not request.goes_on or self._asking[request.seen.query] or not self._limited():
            return False
        again = replace(request.seen, number=next(self._line.numbers))
        waiting = [each.seen for each in self._line if each.seen.tenant == again.tenant]
        with suppress(Exception):  # an error of the policy is raised at a decision
            return decide(self.policy, [*waiting, again], 1, {})[0].number == again.number
        return False

    @property
    def running(self) -> int:
        """Requests that run on the engine now."""
        return sum(instance.running for instance in self.instances)

    @property
    def _affinity(self) -> bool:
        return bool(getattr(self.engine, "affinity", True))

    @property
    def _deduces(self) -> bool:
        return bool(getattr(self.engine, "deduction", True))
