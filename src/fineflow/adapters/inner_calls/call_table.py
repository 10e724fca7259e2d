"""The component calls of one run of a user function, and which of them are the same."""

from __future__ import annotations

import asyncio
from typing import Any

from fineflow.adapters.core.durations import quick
from fineflow.adapters.core.invocation import Invocation
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.core.proxy import Planned
from fineflow.adapters.inner_calls.arguments import FunctionArguments, is_declared
from fineflow.adapters.inner_calls.calls_ahead import CallAhead, MethodAhead
from fineflow.adapters.inner_calls.components import Components, Given
from fineflow.adapters.inner_calls.entry_wrappers import claims_of
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.adapters.inner_calls.fresh_components import ComponentFactory, Fresh
from fineflow.adapters.lookahead import Walk
from fineflow.adapters.lookahead.values import Args, Named
from fineflow.runtime.call.claims import equal


class CallTable:
    """The calls that walks have found, and those that stock has made. Not thread-safe.

    factory: of the components that the function makes. eager: calls run ahead however short they are.
    """

    def __init__(self, components: Components, factory: ComponentFactory, *, eager: bool) -> None:
        self.calls: list[FoundCall] = []
        self._components, self.factory, self._eager = components, factory, eager
        self._without_gain: dict[int, Plan] = {}  # by id: objects that a plan with nothing to gain covers

    def pays(self, component: Any, name: str) -> bool:
        """Returns True if calls of a method take long enough to run ahead."""
        return self._eager or not quick(component, name)

    def part(self, component: Any) -> Planned | None:
        """Returns the proxy of a component that has a plan; None for others, and for a declared function."""
        return None if is_declared(component) else self._components.part(component)

    def wanted(self, obj: Any, name: str, args: Args, named: Named) -> Any:
        """Returns what two calls must have in common to be the same. Raises Stop as ``Components.key``."""
        if is_declared(obj):
            return FunctionArguments(args, named)
        return self._components.compared(obj, self._components.key(obj, name, args, named))

    def _is_call(self, call: FoundCall, component: Any, name: str) -> bool:
        """Returns True if this is a call of a component's method, or of one that is made of the same parts."""
        if call.name != name:
            return False
        if isinstance(call.component, Fresh):
            return call.component.same(component)
        return call.component is component or self._components.same(call.component, component, self.factory.shared())

    def _is_equal(self, call: FoundCall, component: Any, name: str, key: Any, given: Given) -> bool:
        same = self._is_call(call, component, name) and equal(call.key, key)
        return same and not self._components.told_apart(component, (call.args, call.named), given)

    # --- what stock does --------------------------------------------------------------------------------------------

    def take(self, component: Any, name: str, args: Args, named: Named) -> FoundCall | None:
        """Returns the call that stock is about to make. One that no walk has found yet is noted for the next ones.

        Raises Stop as ``Components.key``.
        """
        key = self.wanted(component, name, args, named)
        for found in self.calls:
            if not found.taken and self._is_equal(found, component, name, key, (args, named)):
                found.taken = True
                return found
        if is_declared(component) and not self.pays(component, name):
            return None
        if self._components.computes(component, name):
            return None
        made = FoundCall(component, name, key, args, named)
        made.taken, made.walked = True, False
        made.whole = made.whole and self._single(component, name)
        self.calls.append(made)
        return made

    def _single(self, component: Any, name: str) -> bool:
        """Returns True for a component whose method makes no calls of others.

        A batch of a function is one call for walks, which look through its ``invoke``.
        """
        known = any(found.component is component and found.name == name and found.whole for found in self.calls)
        alone = all(part is component for part in self._components.parts(component))
        return known or (alone and not self._components.composite(component))

    def first(self, component: Any, name: str, args: Args) -> FoundCall | None:
        """Returns the call by which stock shows a component that the function has made; the next walk uses it."""
        fresh = [c for c in self.calls if isinstance(c.component, Fresh) and c.component.kind is type(component)]
        if not fresh:
            return None
        wanted = self.wanted(component, name, args[:2], {})
        found = next((c for c in fresh if c.name == name and not c.taken and equal(c.key, wanted)), None)
        if found is None:
            return None
        found.component.made.bound = component
        for each in self.calls:
            each.component = next(self.factory.flat([each.component]))
            claims_of(type(each.component), each.name)
        found.taken = True
        return found

    # --- what walks meet --------------------------------------------------------------------------------------------

    def met(self, walk: Walk, obj: Any, name: str, key: Any, args: Args, named: Named) -> FoundCall:
        """Returns the call that a walk has met: one that is known, or a new one. key: a copy of the walk's own."""
        wanted = FunctionArguments(args, named) if is_declared(obj) else self._components.compared(obj, key)
        same = (each for each in self.calls if not each.met and self._is_equal(each, obj, name, wanted, (args, named)))
        if (found := next(same, None)) is None:
            by_name = {each: _given(walk, value) for each, value in named.items()}
            found = FoundCall(obj, name, wanted, [_given(walk, each) for each in args], by_name)
            if is_declared(obj):
                found.key = FunctionArguments(found.args, found.named)
            self.calls.append(found)
        found.met = found.walked = True
        found.task, found.beside = walk.tasks.current, walk.tasks.beside()
        return found

    def met_as_a_whole(self, walk: Walk, obj: Any, name: str, args: Args, named: Named) -> FoundCall | None:
        """Returns the call of something that the function composes that runs ahead as one, rather than by its parts."""
        alike = [each for each in self.calls if each.ahead is not None and each.taken and each.name == name]
        alike = [each for each in alike if not each.met and self._components.alike(obj, each.component)]
        if not alike or not walk.known(args[0]):
            return None
        wanted = self.wanted(obj, name, args, named)
        found = next((each for each in alike if equal(each.key, wanted)), None)
        if found is not None:
            found.met = found.walked = True
        return found

    def ahead(self, call: FoundCall, limit: asyncio.Semaphore | None) -> CallAhead | None:
        """Returns how a call runs ahead; None if stock has to make it."""
        if is_declared(call.component):
            return MethodAhead(call.component, call.args, call.named, limit)
        part = self.part(call.component)
        if part is None:
            return self._components.method(call.component, call.name, call.args, call.named, limit)
        invocation = self._components.invocation(part, call.name, call.args, call.named, limit)
        return self._components.ahead(part, call.name, invocation)

    def of_stock(self, call: FoundCall, args: Args, named: Named) -> Invocation:
        """Returns the call of a component that has a plan, as stock makes it."""
        part = self.part(call.component)
        assert part is not None
        return self._components.invocation(part, call.name, args, named, None)

    # --- what a call gains by itself ---------------------------------------------------------------------------------

    def gained_inside(self) -> bool:
        """Returns True if a call that ran ahead gained inside itself, not beside another one."""
        return any(call.ahead is not None and call.taken and self.gains(call) for call in self.calls)

    def gains(self, call: FoundCall) -> bool:
        """Returns True if a call gains by itself, as an optimized object would.

        One that walks look through does not: its steps are calls of their own. Nor does a declared function.
        """
        if is_declared(call.component):
            return False
        if id(call.component) in self._without_gain:  # stock calls the parts of what it calls
            return False
        part = None if self._opened(call) else self.part(call.component)
        if part is None or not self._components.composite(call.component):
            return False
        invocation = self._components.invocation(part, call.name, call.args, call.named, None)
        plan = part._self_current(invocation.way)
        if plan is None or plan.follows_for(call.name, eager=self._eager):
            return plan is not None
        if not plan.e_graph.rewritten:
            self._without_gain.update((id(each), plan) for each in plan.objects.values())
        return False

    def _opened(self, call: FoundCall) -> bool:
        if self._components.inner(call.component, call.name, call.args, call.named) is not None:
            return True
        opened = self._components.steps(call.component) is not None
        return opened or self._expects(call.component, call.name)

    def _expects(self, component: Any, name: str) -> bool:
        """Returns True if a call under way is one that the steps of a sequence are going to make."""
        steps = [part for part in self._components.parts(component) if part is not component]
        waiting = [found for found in self.calls if (found.met or found.begun) and not found.taken]
        return any(self._is_call(found, step, name) for step in steps for found in waiting)


def _given(walk: Walk, arg: Any) -> Any:
    # Only what the key leaves out, such as a config with callbacks of stock, can be unknown.
    if walk.known(arg):
        return walk.copied(arg)
    if type(arg) is not dict or not walk.whole(arg) or walk.is_fixed(arg):
        return None
    return {name: walk.copied(value) for name, value in arg.items() if walk.known(name) and walk.known(value)}
