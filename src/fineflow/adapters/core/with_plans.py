"""The plans of an optimized object, one for each way of calling it, and which of its calls follow them."""

from __future__ import annotations

import asyncio
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import wrapt

from fineflow.adapters.core import late_searches, unfinished
from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.core.first_plans import FirstPlans, make
from fineflow.adapters.core.framework import Framework, Planner
from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.plan import Plan
from fineflow.errors import FineflowWarning, PlanningError
from fineflow.ir.text import name_of
from fineflow.options import Options
from fineflow.runtime import recording
from fineflow.runtime.loop.runtime_loop import on_engine_loop
from fineflow.runtime.queues.admission import limits_in_force
from fineflow.runtime.queues.component_calls import limit_changes
from fineflow.runtime.queues.registry import queues_in_use
from fineflow.runtime.reruns import repeating

if TYPE_CHECKING:
    from fineflow.adapters.core.proxy import Planned

_END: Any = object()


class WithPlans(wrapt.ObjectProxy[Any]):
    """A user object with its plans, one for each way of calling it; None for a way that could not be planned."""

    def __init__(self, wrapped: Any, options: Options, framework: Framework, planner: Planner) -> None:
        super().__init__(wrapped)
        self._self_options = options
        self._self_framework = framework
        self._self_planner = planner
        self._self_plans: dict[Any, Plan | None] = {}
        self._self_first = FirstPlans()

    def _self_current(self, way: Any) -> Plan | None:
        """Returns the plan for a way of calling the object in its current state."""
        if unfinished.some() and not unfinished.seeing():
            with unfinished.seen_through():
                return self._self_current(way)
        plans = self._self_plans
        plan: Plan | None = plans.get(way, _END)
        if plan is _END:
            plan = plans.setdefault(way, self._self_planned(way))
        if plan is not None and not plan.snapshot.holds():  # stale: the user has changed the object
            plan = plans[way] = self._self_planned(way)
        elif plan is not None and plan.outdated():
            plan = self._self_renewed(way, plan)
        return plan

    def _self_known(self, way: Any) -> bool:
        """Returns True if the object has been planned for a way of calling it, as it is now."""
        plan: Plan | None = self._self_plans.get(way, _END)
        if plan is None or plan is _END:
            return plan is None
        if unfinished.some() and not unfinished.seeing():
            with unfinished.seen_through():
                return plan.snapshot.holds()
        return plan.snapshot.holds()

    async def _self_aplanned(self, entry: str, way: Any) -> None:
        """Lets a thread make the plan for a way of calling the object, which is not known. entry: of the call.

        Not within another call: stock begins the calls that it gathers in their order, each up to where it waits.
        """
        if under_way.get() is None:
            await self._self_first.made(way, partial(make, cast("Planned", self), entry, way))

    def _self_new_plan(self, way: Any) -> Plan:
        return self._self_planner(self._self_framework, self.__wrapped__, self._self_options, way)

    def _self_in_use(self, way: Any) -> Plan | None:
        """Returns the plan that the next call follows, if it is known; as costs are now."""
        plan = self._self_plans.get(way)
        if plan is None or not plan.snapshot.holds():
            return None
        return self._self_renewed(way, plan) if plan.basis is not None and plan.basis.differs() else plan

    def _self_renewed(self, way: Any, plan: Plan) -> Plan | None:
        """Plans again, as costs have changed. Keeps the plan, with its shadows, if it is the same."""
        made = self._self_planned(way, anew=True)
        if made is not None and made.basis is not None and plan.basis is not None:
            if (made.e_graph, made.pays) == (plan.e_graph, plan.pays):
                plan.basis.renew(made.basis)
                return plan
            made.basis.follow(plan.basis)
        self._self_plans.update((each, made) for each, old in tuple(self._self_plans.items()) if old is plan)
        return made

    def _self_planned(self, way: Any, *, anew: bool = False) -> Plan | None:
        """Returns the plan for a way. anew: not that of another way, which may be the one that costs have overtaken."""
        try:
            return WithPlans._self_new_plan(self, way) if anew else self._self_new_plan(way)
        except Exception as error:
            own = isinstance(error, PlanningError)  # raised by a user's pass, and the message says so
            what = str(error) if own else f"{type(error).__name__}: {error}"
            text = f"{name_of(self.__wrapped__)} could not be planned ({what})"
            if self._self_options.strict:
                cause = error.__cause__ if own else error
                raise PlanningError(f"{text}; without strict=True it runs as stock") from cause or error
            report = "" if own else " Please report this."
            warnings.warn(f"{text}; it runs as stock.{report}", FineflowWarning, stacklevel=5)
            return None

    def _self_eager(self, invocation: Invocation) -> bool:
        """Returns True if the graph runs ahead even without an expected gain."""
        # A sync call on the thread of an event loop waits for another one, which has to gain.
        return self._self_options.eager and not (invocation.sync and asyncio._get_running_loop() is not None)

    def _self_plan(self, invocation: Invocation) -> Plan | None:
        """Returns the plan that a call follows; None if it goes to the user's object."""
        if not invocation.plannable or (invocation.sync and on_engine_loop()) or repeating.get():
            return None  # a sync call on the engines' loop may not wait; what is repeated is stock's
        if self._self_options.waste == 0:
            return None  # whatever stock does before a request may fail, or be interrupted
        return self._self_followed(self._self_current(invocation.way), invocation)

    async def _self_aplan(self, invocation: Invocation) -> Plan | None:
        """``_self_plan`` for coroutines: a plan that is not there yet is made in a thread."""
        if not invocation.plannable or repeating.get() or self._self_options.waste == 0:
            return None
        if under_way.get() is not None:
            return self._self_plan(invocation)
        way = invocation.way
        if not self._self_known(way):
            await self._self_aplanned(invocation.entry, way)
            return self._self_plan(invocation)
        plan = self._self_plans.get(way)
        if plan is not None and plan.outdated():
            await self._self_first.made(way, partial(unfinished.seen_through()(self._self_renewed), way, plan))
            plan = self._self_plans.get(way)
        return self._self_followed(plan, invocation)

    def _self_followed(self, plan: Plan | None, invocation: Invocation) -> Plan | None:
        """Returns the plan, with what is bounded now, if calls of this kind follow it."""
        if plan is None:
            return None
        eager, framework = self._self_eager(invocation), self._self_framework
        if unfinished.some():
            with unfinished.seen_through():
                plan = framework.bounded(plan)
            eager = eager or bool(late_searches.writes(plan))  # then there is something to gain
        else:
            plan = framework.bounded(plan)
        if plan.follows_for(invocation.entry, eager=eager):
            return None if not eager and plan.vain(invocation.entry) else plan
        hosted = invocation.sync and asyncio._get_running_loop() is not None
        return plan.trial if plan.follows_for(invocation.entry, eager=True) and not hosted and plan.learns() else None

    def _self_idle(self, entry: str, way: Any) -> bool:
        """Returns True if a call is known to go straight to the user's object, with nothing else to be done for it.

        ``_self_plan`` would come to the same, after more questions.
        """
        plan, options = self._self_plans.get(way), self._self_options
        if (
            plan is None
            or entry in plan.follows
            or entry in plan.pays
            or recording.recorders
            or options.eager
            or options.timeout is not None
            or unfinished.some()
            or limit_changes()
            or limits_in_force()
        ):
            return False
        if queues_in_use() and plan.reaches_engines:
            return False
        if plan.basis is not None and (plan.basis.due() or plan.basis.learning):
            return False
        return plan.snapshot.holds()
