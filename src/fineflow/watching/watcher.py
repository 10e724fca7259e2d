"""What all handlers do: collect the run trees of outermost calls, and predict what functions in them would gain."""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, Protocol

from fineflow.adapters.core.claiming import under_way
from fineflow.adapters.core.plan import Plan
from fineflow.adapters.inner_calls.dry_calls import Door, DryCalls, inside, predicting
from fineflow.adapters.inner_calls.entry_wrappers import Begin, watching
from fineflow.adapters.inner_calls.found_call import FoundCall
from fineflow.adapters.registry import is_optimized
from fineflow.declare import active
from fineflow.runtime import bill
from fineflow.runtime.bill import Usage
from fineflow.runtime.events import Tokens, now
from fineflow.watching.fitted import fitted
from fineflow.watching.report import Report, plan_of
from fineflow.watching.runs import App, Run

_Tokens = tuple[tuple[ContextVar[Any], Token[Any]], ...]
_here: ContextVar[Run | None] = ContextVar("fineflow_watched_run", default=None)

_APPS = 256  # outermost objects that are told apart
_DRY = 8  # calls of an app whose functions are predicted; then one in _DRY


class Predictions(Protocol):
    """A framework's side of the predictions."""

    def prepare(self, obj: Any) -> None:
        """Finds the functions in an object whose component calls may gain, once while it lives."""

    def called(self, obj: Any, given: Any, *, sync: bool) -> DryCalls | None:
        """Returns the prediction for an object's function that is about to be called; None if there is none."""

    def method(self, own: Any, obj: Any) -> Begin | None:
        """Returns how a call of a method is predicted; None if it has nothing to gain. See ``watching``."""


class Watcher:
    """Collects the run trees of outermost calls. Thread-safe.

    keeps: outermost objects stay alive while their calls are kept, so that they can be planned at the end.
    """

    keeps = False

    def __init__(self) -> None:
        super().__init__()
        # For the counts only: garbage collection may end an abandoned stream, and its runs, in the middle of anything.
        self._lock = threading.RLock()
        self._open: dict[Hashable, tuple[Run, Door | None, _Tokens]] = {}
        self._apps: dict[Any, App] = {}
        self._alive: dict[Any, Any] = {}
        self._models: dict[str, Usage] = {}
        self._vain_before = bill.in_vain()
        self._plans: dict[int, tuple[weakref.ref[Any], Plan | None]] = {}
        self._dry = self._predictions()

    @abstractmethod
    def _predictions(self) -> Predictions: ...

    @abstractmethod
    def _at_once(self, run: Run) -> tuple[float, int]:
        """Returns the seconds that a run would take less if it made its calls concurrently, and their number - 1."""

    # --- what users call ------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """Returns what was seen so far, and what would be gained: prints as text; ``to_html()``, ``to_json()``."""
        return Report.of(self.apps, self.models, self.in_vain)

    @property
    def apps(self) -> list[App]:
        """What was seen so far, by outermost object."""
        return list(self._apps.values())

    @property
    def models(self) -> dict[str, Usage]:
        """Tokens of all requests so far, by model."""
        with self._lock:
            return dict(self._models)

    @property
    def in_vain(self) -> dict[str, Usage]:
        """Requests that optimized objects of this process have sent in vain since the handler was made, by model."""
        counted = {model: usage - self._vain_before.get(model, Usage()) for model, usage in bill.in_vain().items()}
        return {model: usage for model, usage in counted.items() if usage.requests}

    def clear(self) -> None:
        """Forgets what was seen."""
        self._vain_before = bill.in_vain()
        self._apps.clear()
        self._alive.clear()
        with self._lock:
            self._models.clear()

    # --- events ---------------------------------------------------------------------------------------------------

    def _begin(self, key: Hashable, run: Run, parent: Run | None, given: Any, obj: Any) -> None:
        kept = parent is None or parent.add(run)
        door, tokens = self._predicted(run, obj, given) if kept else (None, ())
        _here.set(run)
        self._open[key] = run, door, tokens

    def _run(self, key: Hashable) -> Run | None:
        """Returns a run that is under way."""
        return self._open[key][0] if key in self._open else None

    def _predicted(self, run: Run, obj: Any, given: Any) -> tuple[Door | None, _Tokens]:
        """Returns the prediction for a user function that is about to be called, and what to reset after it."""
        tokens: _Tokens = ()
        if obj is None or run.streamed or under_way.get() is not None or is_optimized(obj):
            return None, tokens  # code between the pieces of a stream is not the function's
        if run.root is run and not watched() and self._due(run):
            tokens, run.looked = ((watching, watching.set(_Watched(run, self._dry.method))),), True
        if not watched():
            return None, tokens
        self._dry.prepare(obj)
        dry = None if predicting() else self._dry.called(obj, given, sync=run.sync)
        if dry is None:
            return None, tokens
        dry.look()
        door: Any = Door(dry)
        return door, (*tokens, (active, active.set(door)))

    def _due(self, call: Run) -> bool:
        app = self._apps.get(_key(call.obj, call.name))
        return app is None or app.calls < _DRY or app.calls % _DRY == 0

    def _saved(self, dry: DryCalls) -> None:
        """Notes what a function would have saved, with the run of its object, or the innermost one around it."""
        if inside.get() is not None:  # the function around it notes that
            return
        around, run = [], _here.get()
        while run is not None:
            around.append(run)
            run = run.parent
        own = [run for run in around if run.obj is not None and run.obj is dry.owner]
        for run in (own or [run for run in around if run.end is None] or around)[:1]:
            run.saved += dry.saved
            run.early += dry.early

    def _end(self, key: Hashable, *, failed: bool = False) -> None:
        run, door, tokens = self._open.pop(key, (None, None, ()))
        if run is None:
            return
        end = now()
        if watched() and not predicting():
            self._note(run)
        for variable, token in tokens:
            with suppress(ValueError):  # reported from another context: what is set there knows that the call has ended
                variable.reset(token)
        if door is not None:
            door.close()
        run.end, run.failed = end, failed
        if run.root is run:
            self._ended(run)

    def _used(self, model: str, tokens: Tokens) -> None:
        """Counts the tokens of a request."""
        with self._lock:
            self._models[model] = self._models.get(model, Usage()) + Usage.of(tokens)

    def _note(self, run: Run) -> None:
        saved, early = self._at_once(run)
        around = inside.get()
        if around is None:
            run.saved += saved
            run.early += early
        else:
            around.seconds += saved
            around.early += early

    def _ended(self, call: Run) -> None:
        key = _key(call.obj, call.name)
        app = self._apps.get(key)
        if app is None or app.obj() is not call.obj:
            if len(self._apps) >= _APPS:
                self._forget(next(iter(self._apps)))
            if app is not None:  # an object that is gone had the same id
                self._forget(key)
            app = self._apps.setdefault(key, App(call.name, call.ref))
            if self.keeps:
                self._alive[key] = call.obj
        with self._lock:
            app.calls += 1
            app.failed += call.failed
            app.roots.append(call)

    def _forget(self, key: Any) -> None:
        self._apps.pop(key, None)
        self._alive.pop(key, None)

    def _gain(self, call: FoundCall) -> float:
        """Returns the seconds that the latest call of a chain inside a function would take less by itself."""
        obj, here = call.component, _here.get()
        runs = [] if here is None else [run for run in here.root.everything() if run.obj is obj and run.end is not None]
        if not runs or not runs[-1].children:
            return 0.0
        plan = self._plan(obj, runs[-1].entry)
        if plan is None or not plan.follows_for(runs[-1].entry, eager=False):
            return 0.0
        return fitted(plan, runs[-1:]).saved

    def _plan(self, obj: Any, entry: str) -> Plan | None:
        known = self._plans.get(id(obj))
        if known is None or known[0]() is not obj:
            if len(self._plans) >= _APPS:
                self._plans.clear()
            known = self._plans[id(obj)] = weakref.ref(obj), plan_of(obj, entry)
        return known[1]


class _Watched:
    """Stands for a handler in the context of a call, until the call ends. See ``entry_wrappers.watching``."""

    def __init__(self, call: Run, method: Callable[[Any, Any], Begin | None]) -> None:
        self._call, self._method = call, method

    @property
    def open(self) -> bool:
        return self._call.end is None

    def __call__(self, own: Any, obj: Any) -> Begin | None:
        return self._method(own, obj) if self.open else None


def watched() -> bool:
    """Returns True inside a call whose functions are looked at."""
    here = watching.get()
    return isinstance(here, _Watched) and here.open


def _key(obj: Any, name: str) -> Any:
    return (type(obj).__name__, name) if obj is None else id(obj)
